//! A mail server on loopback. The `mailin` crate implements the protocol, rustls TLS; the sockets are here.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use mailin::{
    Action, AuthMechanism, Handler, Response, Session, SessionBuilder,
    response::{AUTH_OK, INVALID_CREDENTIALS, OK},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

use super::PATIENCE;

/// Whether and when the server encrypts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encryption {
    #[default]
    None,
    StartTls,
    FromTheStart,
}

/// The server's behaviour. By default, it accepts every mail, unencrypted.
#[derive(Clone, Default)]
pub struct Behaviour {
    pub encryption: Encryption,
    /// Mechanism, user name and password that it requires.
    pub login: Option<(AuthMechanism, &'static str, &'static str)>,
    /// Its answer to a wrong login.
    pub refuses_login: Option<Response>,
    /// Its answer to the recipient.
    pub recipient: Option<Response>,
    /// Its answer to the content.
    pub content: Option<Response>,
    /// Whether it does not answer QUIT.
    pub never_says_goodbye: bool,
}

/// A received mail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    pub hello: String,
    pub user: Option<String>,
    pub encrypted: bool,
    pub from: String,
    pub to: Vec<String>,
    /// The content, with CRLF line ends and without dot-stuffing.
    pub content: Vec<u8>,
}

/// A running mail server; it ends when this is dropped.
pub struct SmtpServer {
    pub address: SocketAddr,
    mails: UnboundedReceiver<Received>,
    folder: TempDir,
    task: JoinHandle<()>,
}

impl SmtpServer {
    /// Listens on a free port of 127.0.0.1. Its certificate is for that address.
    pub async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (authority, acceptor) = certificates();
        std::fs::write(folder.path().join("ca.pem"), authority).unwrap();
        let (sender, mails) = unbounded_channel();
        let task = tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                let connection = Connection {
                    behaviour: behaviour.clone(),
                    acceptor: acceptor.clone(),
                    mails: sender.clone(),
                };
                // Ignore clients that disconnect, for example because they do not trust the certificate.
                tokio::spawn(async move { connection.serve(stream, peer.ip()).await });
            }
        });
        Self {
            address,
            mails,
            folder,
            task,
        }
    }

    /// The certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// The next accepted mail.
    pub async fn next(&mut self) -> Received {
        let mail = timeout(PATIENCE, self.mails.recv()).await;
        mail.expect("no mail came").unwrap()
    }

    /// Whether it has accepted no other mail.
    pub fn is_idle(&mut self) -> bool {
        self.mails.try_recv().is_err()
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The PEM of a new authority, and a TLS server with a certificate from it.
fn certificates() -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (authority.pem(), TlsAcceptor::from(Arc::new(config)))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

struct Connection {
    behaviour: Behaviour,
    acceptor: TlsAcceptor,
    mails: UnboundedSender<Received>,
}

impl Connection {
    async fn serve(self, stream: TcpStream, peer: IpAddr) -> io::Result<()> {
        let encryption = self.behaviour.encryption;
        let mut builder = SessionBuilder::new("mail.test");
        if encryption == Encryption::StartTls {
            builder.enable_start_tls();
        } else {
            builder.insecure_enable_plaintext_auth();
        }
        if let Some((mechanism, ..)) = &self.behaviour.login {
            builder.enable_auth(mechanism.clone());
        }
        let mut stream: Box<dyn Stream> = if encryption == Encryption::FromTheStart {
            Box::new(self.acceptor.accept(stream).await?)
        } else {
            Box::new(stream)
        };
        let mut mailbox = Mailbox {
            behaviour: self.behaviour.clone(),
            mails: self.mails,
            mail: Received::default(),
        };
        mailbox.mail.encrypted = encryption != Encryption::None;
        let mut session = builder.build(peer, mailbox);
        stream.write_all(&session.greeting().buffer()?).await?;
        while talk(&mut stream, &mut session, self.behaviour.never_says_goodbye).await? {
            stream = Box::new(self.acceptor.accept(stream).await?);
            session.tls_active();
        }
        stream.shutdown().await
    }
}

/// Answers until the connection should be closed (`false`) or encrypted (`true`).
async fn talk(
    stream: &mut Box<dyn Stream>,
    session: &mut Session<Mailbox>,
    never_says_goodbye: bool,
) -> io::Result<bool> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if stream.read_until(b'\n', &mut line).await? == 0 {
            return Ok(false);
        }
        if never_says_goodbye && line.eq_ignore_ascii_case(b"QUIT\r\n") {
            std::future::pending::<()>().await;
        }
        let response = session.process(&line);
        stream.write_all(&response.buffer()?).await?;
        stream.flush().await?;
        match response.action {
            Action::Close => return Ok(false),
            Action::UpgradeTls => return Ok(true),
            Action::NoReply | Action::Reply => {}
        }
    }
}

/// Decides which mails are accepted, and sends them to the test.
struct Mailbox {
    behaviour: Behaviour,
    mails: UnboundedSender<Received>,
    mail: Received,
}

impl Mailbox {
    fn login(&mut self, mechanism: &AuthMechanism, user: &str, password: &str) -> Response {
        match &self.behaviour.login {
            Some((m, u, p)) if (m, *u, *p) == (mechanism, user, password) => {
                self.mail.user = Some(user.to_owned());
                AUTH_OK
            }
            _ => self
                .behaviour
                .refuses_login
                .clone()
                .unwrap_or(INVALID_CREDENTIALS),
        }
    }
}

impl Handler for Mailbox {
    fn helo(&mut self, _: IpAddr, domain: &str) -> Response {
        domain.clone_into(&mut self.mail.hello);
        OK
    }

    fn rcpt(&mut self, _: &str) -> Response {
        self.behaviour.recipient.clone().unwrap_or(OK)
    }

    fn data_start(&mut self, _: &str, from: &str, _: bool, to: &[String]) -> Response {
        from.clone_into(&mut self.mail.from);
        self.mail.to = to.to_vec();
        OK
    }

    fn data(&mut self, line: &[u8]) -> io::Result<()> {
        self.mail.content.extend(line);
        Ok(())
    }

    fn data_end(&mut self) -> Response {
        if let Some(response) = self.behaviour.content.clone() {
            return response;
        }
        let _ = self.mails.send(self.mail.clone());
        OK
    }

    fn auth_plain(&mut self, _: &str, user: &str, password: &str) -> Response {
        self.login(&AuthMechanism::Plain, user, password)
    }

    fn auth_login(&mut self, user: &str, password: &str) -> Response {
        self.login(&AuthMechanism::Login, user, password)
    }
}
