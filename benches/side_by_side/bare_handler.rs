//! The upper bound for (a) and (b): an axum handler in its own process, with the runtime and server code of the facade, that
//! replays the facade's answers, headers included.

use std::{
    env, fs,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use axum::{Router, body::Body, response::Response, routing::get};
use bytes::Bytes;
use control_plane::Daemon;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::{
    Result,
    cluster::Cluster,
    wire::{Answer, Target},
};

/// The environment variable with the path of the answers. If it is set, this program runs as the bare server.
const ANSWERS: &str = "STELLAGE_BENCH_BARE_ANSWERS";
/// Headers that the server adds by itself.
const OWN_HEADERS: [&str; 3] = ["content-length", "date", "transfer-encoding"];
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer to replay.
#[derive(Serialize, Deserialize)]
pub struct Canned {
    path: String,
    headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Canned {
    /// Converts a server's answer.
    pub fn from(path: &str, answer: &Answer) -> Self {
        let path = path.split('?').next().unwrap_or(path);
        let headers = answer
            .headers()
            .filter(|(name, _)| !OWN_HEADERS.contains(&name.as_str()))
            .map(|(name, value)| (name, value.to_owned()));
        Self {
            path: path.to_owned(),
            headers: headers.collect(),
            body: String::from_utf8_lossy(&answer.body).into_owned(),
        }
    }
}

/// The running process.
pub struct BareHandler {
    daemon: Daemon,
    url: String,
}

impl BareHandler {
    /// Starts this program again, as the bare server.
    pub async fn start(cluster: &Cluster, answers: &[Canned]) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let file = cluster.plane.folder().join(format!("bare-answers-{count}.json"));
        fs::write(&file, serde_json::to_vec(answers)?)?;
        let mut command = Command::new(env::current_exe()?);
        command.env(ANSWERS, &file);
        let log = cluster.plane.folder().join("bare.log");
        let mut daemon = Daemon::spawn("the bare handler", command, cluster.plane.group(), &log)?;
        let begun = Instant::now();
        loop {
            let url = fs::read_to_string(url_file(&file)).unwrap_or_default();
            if let Some(url) = url.strip_suffix('\n') {
                return Ok(Self {
                    daemon,
                    url: url.to_owned(),
                });
            }
            if daemon.exited().is_some() || begun.elapsed() > PATIENCE {
                return Err(daemon.error("does not serve").into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Its address. Requests carry the key, too, so that they are identical to those sent to the facade.
    pub fn target(&self, key: &str) -> Result<Target> {
        Target::plain(&self.url, key)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Stops it.
    pub fn stop(&mut self) {
        self.daemon.kill();
    }
}

fn url_file(answers: &std::path::Path) -> PathBuf {
    answers.with_extension("url")
}

/// The path of the answers, if this process should run as the bare server.
pub fn wanted() -> Option<PathBuf> {
    env::var_os(ANSWERS).map(PathBuf::from)
}

/// Serves until killed.
pub async fn serve(answers: PathBuf) -> Result<()> {
    let canned: Vec<Canned> = serde_json::from_slice(&fs::read(&answers)?)?;
    let mut router = Router::new();
    for Canned { path, headers, body } in canned {
        let body = Bytes::from(body);
        let headers = headers
            .iter()
            .map(|(name, value)| Ok((name.parse::<HeaderName>()?, value.parse::<HeaderValue>()?)))
            .collect::<Result<HeaderMap>>()?;
        let handler = move || {
            let mut answer = Response::new(Body::from(body.clone()));
            *answer.headers_mut() = headers.clone();
            std::future::ready(answer)
        };
        router = router.route(&path, get(handler));
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    fs::write(url_file(&answers), format!("http://{}\n", listener.local_addr()?))?;
    axum::serve(listener, router).await?;
    Ok(())
}
