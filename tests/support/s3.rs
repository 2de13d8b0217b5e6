//! A service that speaks the protocol of S3, on loopback, with the signatures that it demands; its objects are files.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::{net::TcpListener, task::JoinHandle};

/// The credentials that it takes.
const CREDENTIALS: (&str, &str) = ("tests", "a secret access key");
/// Its only bucket.
pub const BUCKET: &str = "backups";

/// The service, until it is dropped.
pub struct S3 {
    pub url: String,
    folder: tempfile::TempDir,
    /// Whether the end of an upload is not answered.
    is_holding: Arc<AtomicBool>,
    /// How many ends of uploads were not answered.
    held: Arc<AtomicUsize>,
    server: JoinHandle<()>,
}

impl S3 {
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let service = {
            let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).unwrap());
            builder.set_auth(SimpleAuth::from_single(CREDENTIALS.0, CREDENTIALS.1));
            builder.build()
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (is_holding, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (holds, counts) = (is_holding.clone(), held.clone());
        let server = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (service, holds, counts) = (service.clone(), holds.clone(), counts.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (service, holds, counts) = (service.clone(), holds.clone(), counts.clone());
                    async move {
                        let query = request.uri().query().unwrap_or_default();
                        let is_end = request.method() == hyper::Method::POST && query.contains("uploadId=");
                        if is_end && holds.load(Ordering::Relaxed) {
                            counts.fetch_add(1, Ordering::Relaxed);
                            std::future::pending::<()>().await;
                        }
                        service.call(request.map(s3s::Body::from)).await
                    }
                });
                tokio::spawn(async move {
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Self {
            url,
            folder,
            is_holding,
            held,
            server,
        }
    }

    /// What a command needs to use it.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("AWS_ENDPOINT_URL", self.url.clone()),
            ("AWS_ACCESS_KEY_ID", CREDENTIALS.0.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", CREDENTIALS.1.to_owned()),
        ]
    }

    /// The folder that has the objects below a prefix.
    pub fn folder(&self, prefix: &str) -> PathBuf {
        let folder = self.folder.path().join(BUCKET).join(prefix);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The names of the objects below a prefix.
    pub fn objects(&self, prefix: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder(prefix)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }

    /// Leaves the ends of uploads without an answer, or stops doing so.
    pub fn hold(&self, is_holding: bool) {
        self.is_holding.store(is_holding, Ordering::Relaxed);
    }

    /// How many ends of uploads were left without an answer.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.server.abort();
    }
}
