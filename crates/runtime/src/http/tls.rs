//! The certificate of a server, reloaded when its files change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::RwLock;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use x509_cert::der::Decode as _;

use crate::Metrics;

/// How often the files are read. They are small, and notifications of changes do not work on every file system.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Why a certificate cannot be used.
#[derive(Debug, Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {flag} {}: {source}", path.display())]
    Read {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{flag} {} must be a PEM file with {expected}: {reason}", path.display())]
    Content {
        /// The flag that names the file.
        flag: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// What should be in it.
        expected: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The two files do not belong together.
    #[error(
        "the private key in --tls-key {} does not belong to the first certificate in --tls-cert {}; the server's own \
         certificate must come before its intermediates",
        key.display(), chain.display()
    )]
    NotAPair {
        /// Path of the certificates.
        chain: PathBuf,
        key: PathBuf,
    },
    /// TLS cannot be set up.
    #[error("cannot use --tls-cert and --tls-key: {0}")]
    Tls(#[from] rustls::Error),
}

/// A certificate with its private key, from two PEM files. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Certificate {
    files: Arc<Files>,
    config: Arc<ServerConfig>,
    check_every: Duration,
}

#[derive(Debug)]
struct Files {
    chain: PathBuf,
    key: PathBuf,
    current: RwLock<Current>,
    /// Where the end of the certificate is shown.
    metrics: Metrics,
}

#[derive(Debug)]
struct Current {
    text: Text,
    certified: Arc<CertifiedKey>,
}

/// The contents of the two files.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Text {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Certificate {
    /// Reads the files, and from then on shows in `metrics` when the certificate ends.
    pub fn load(chain: &Path, key: &Path, metrics: &Metrics) -> Result<Self, CertificateError> {
        let text = Text::read(chain, key)?;
        let certified = Arc::new(text.parse(chain, key)?);
        let files = Arc::new(Files {
            chain: chain.to_owned(),
            key: key.to_owned(),
            current: RwLock::new(Current { text, certified }),
            metrics: metrics.clone(),
        });
        files.show_end();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_cert_resolver(files.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            files,
            config: Arc::new(config),
            check_every: CHECK_EVERY,
        })
    }

    /// TLS with this certificate; each handshake takes the latest one.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        self.config.clone().into()
    }

    /// Reads the files again whenever they have changed. Files that cannot be used are logged, and the server keeps the
    /// last certificate: often only one of the two files has been replaced so far.
    pub(super) async fn reload_until(&self, shutdown: &CancellationToken) {
        let mut last_error = String::new();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.check_every) => {}
            }
            let files = self.files.clone();
            let Ok(reloaded) = tokio::task::spawn_blocking(move || files.reload()).await else {
                continue;
            };
            match reloaded {
                Ok(true) => tracing::info!("the certificate of the REST API has been replaced"),
                Ok(false) => {}
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        tracing::warn!(error, "cannot use the new certificate; the last one stays in use");
                        last_error = error;
                    }
                    continue;
                }
            }
            last_error.clear();
        }
    }
}

impl Files {
    /// Returns whether there is a new certificate.
    fn reload(&self) -> Result<bool, CertificateError> {
        let text = Text::read(&self.chain, &self.key)?;
        if self.current.read().text == text {
            return Ok(false);
        }
        let certified = Arc::new(text.parse(&self.chain, &self.key)?);
        *self.current.write() = Current { text, certified };
        self.show_end();
        Ok(true)
    }

    fn show_end(&self) {
        let certified = self.current.read().certified.clone();
        if let Some(end) = certified.end_entity_cert().ok().and_then(|it| end_of(it)) {
            self.metrics.certificate_ends(end);
        }
    }
}

/// When a certificate ends; `None` if only rustls can read it.
fn end_of(certificate: &[u8]) -> Option<Timestamp> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let end = certificate.tbs_certificate.validity.not_after;
    Timestamp::from_second(i64::try_from(end.to_unix_duration().as_secs()).ok()?).ok()
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().certified.clone())
    }
}

impl Text {
    fn read(chain: &Path, key: &Path) -> Result<Self, CertificateError> {
        let read = |flag, path: &Path| {
            fs::read(path).map_err(|source| CertificateError::Read {
                flag,
                path: path.to_owned(),
                source,
            })
        };
        Ok(Self {
            chain: read("--tls-cert", chain)?,
            key: read("--tls-key", key)?,
        })
    }

    fn parse(&self, chain_path: &Path, key_path: &Path) -> Result<CertifiedKey, CertificateError> {
        let wrong_chain = |reason: String| CertificateError::Content {
            flag: "--tls-cert",
            path: chain_path.to_owned(),
            expected: "the server's certificate, followed by its intermediates",
            reason,
        };
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&self.chain)
            .collect::<Result<_, _>>()
            .map_err(|error| wrong_chain(error.to_string()))?;
        if chain.is_empty() {
            return Err(wrong_chain("it contains no certificate".to_owned()));
        }
        let wrong_key = |reason: String| CertificateError::Content {
            flag: "--tls-key",
            path: key_path.to_owned(),
            expected: "an unencrypted private key",
            reason,
        };
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(|error| wrong_key(error.to_string()))?;
        let key = rustls::crypto::ring::sign::any_supported_type(&key)
            .map_err(|error| wrong_key(error.to_string()))?;
        let certified = CertifiedKey::new(chain, key);
        match certified.keys_match() {
            Ok(()) => Ok(certified),
            Err(rustls::Error::InconsistentKeys(_)) => Err(CertificateError::NotAPair {
                chain: chain_path.to_owned(),
                key: key_path.to_owned(),
            }),
            Err(error) => Err(wrong_chain(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, net::Ipv4Addr, net::SocketAddr};

    use bytes::Bytes;
    use http::{Request, Response, StatusCode};
    use http_body_util::Full;
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
    use tempfile::TempDir;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
    };
    use tokio_rustls::TlsConnector;

    use super::{
        super::{ConnectionLimits, Options, connections},
        *,
    };

    const PATIENCE: Duration = Duration::from_secs(60);

    /// An authority, and the folder with the server's files.
    struct Site {
        authority: CertifiedIssuer<'static, KeyPair>,
        folder: TempDir,
    }

    impl Site {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
            let site = Self {
                authority,
                folder: tempfile::tempdir().unwrap(),
            };
            site.issue();
            site
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// Writes a new certificate and key; returns the certificate.
        fn issue(&self) -> CertificateDer<'static> {
            self.issue_until(4096)
        }

        /// The same, for one that ends with the first day of this year.
        fn issue_until(&self, year: i32) -> CertificateDer<'static> {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let certificate = params.signed_by(&key, &self.authority).unwrap();
            fs::write(self.path("tls.crt"), certificate.pem()).unwrap();
            fs::write(self.path("tls.key"), key.serialize_pem()).unwrap();
            certificate.der().clone()
        }

        fn load(&self) -> Result<Certificate, CertificateError> {
            Certificate::load(&self.path("tls.crt"), &self.path("tls.key"), &Metrics::new())
        }

        /// Asks the server once; returns its certificate and its answer.
        async fn ask(&self, address: SocketAddr) -> (CertificateDer<'static>, String) {
            let mut roots = RootCertStore::empty();
            roots.add(self.authority.der().clone()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").unwrap();
            let tcp = TcpStream::connect(address).await.unwrap();
            let mut stream = TlsConnector::from(Arc::new(config))
                .connect(name, tcp)
                .await
                .unwrap();
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            (stream.get_ref().1.peer_certificates().unwrap()[0].clone(), answer)
        }
    }

    #[test]
    fn the_end_of_the_certificate_is_a_metric_and_so_is_that_of_a_new_one() {
        let site = Site::new();
        let metrics = Metrics::new();
        let shown = || {
            let page = metrics.render(crate::metrics::Format::OpenMetrics).unwrap();
            let name = "stellage_certificate_expiry_timestamp_seconds";
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim_start_matches("{}").trim().to_owned())
        };
        assert_eq!(shown(), None);
        site.issue_until(2030);
        let certificate = Certificate::load(&site.path("tls.crt"), &site.path("tls.key"), &metrics).unwrap();
        assert_eq!(shown().as_deref(), Some("1893456000"));
        // From 2050 on, certificates have their times in another form.
        site.issue_until(2051);
        assert!(certificate.files.reload().unwrap());
        assert_eq!(shown().as_deref(), Some("2556144000"));
    }

    #[tokio::test]
    async fn a_new_certificate_is_used_once_both_files_are_there() {
        let site = Site::new();
        let first = site.issue();
        let mut certificate = site.load().unwrap();
        certificate.check_every = Duration::from_millis(10);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let service = hyper::service::service_fn(async |_: Request<super::super::Arriving>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
        });
        let options = Options {
            limits: ConnectionLimits::of(10, 10),
            unreadable: |_: StatusCode| Response::new(Bytes::new()),
            certificate: Some(certificate),
            grace: PATIENCE,
            leaving: Arc::default(),
        };
        let serving = tokio::spawn(connections(listener, service, options, shutdown.clone()));
        let (shown, answer) = site.ask(address).await;
        assert!(shown == first && answer.ends_with("hello"), "{answer}");
        // Half of a new pair changes nothing.
        let old_key = fs::read(site.path("tls.key")).unwrap();
        let second = site.issue();
        let new_key = fs::read(site.path("tls.key")).unwrap();
        fs::write(site.path("tls.key"), old_key).unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (shown, _) = site.ask(address).await;
        // Between the two writes above, the whole new pair may have been seen.
        assert!(shown == first || shown == second);
        fs::write(site.path("tls.key"), new_key).unwrap();
        let replaced = async {
            while site.ask(address).await.0 != second {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, replaced).await.unwrap();
        shutdown.cancel();
        tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap();
    }

    #[test]
    fn what_is_wrong_with_a_certificate_is_named_with_its_flag() {
        let site = Site::new();
        let complaint = || site.load().unwrap_err().to_string();
        let (chain, key) = (site.path("tls.crt"), site.path("tls.key"));
        let good = fs::read(&chain).unwrap();
        fs::remove_file(&chain).unwrap();
        assert!(
            complaint().starts_with("cannot read --tls-cert "),
            "{}",
            complaint()
        );
        for wrong in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            fs::write(&chain, wrong).unwrap();
            assert!(complaint().starts_with("--tls-cert "), "{}", complaint());
        }
        fs::write(&chain, &good).unwrap();
        assert!(site.load().is_ok());
        fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
        assert!(complaint().contains("does not belong to"), "{}", complaint());
        fs::write(&key, &good).unwrap();
        assert!(complaint().starts_with("--tls-key "), "{}", complaint());
        fs::remove_file(&key).unwrap();
        assert!(
            complaint().starts_with("cannot read --tls-key "),
            "{}",
            complaint()
        );
    }
}
