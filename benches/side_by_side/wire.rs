//! A minimal HTTP/1.1 client: one connection, one request at a time, bytes in, bytes out. The facade and the API server are
//! measured with the same code, so the client costs the same for both, except for TLS, which the API server requires.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    client::ConfigExt as _,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};

use crate::Result;

/// Timeout of a request. It is far longer than any request takes, and ends the run if a server hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// The address of a server and the credentials for it, as passed to a client in another process.
#[derive(Clone, Serialize, Deserialize)]
pub enum Server {
    /// A server on plain HTTP: `http://127.0.0.1:8080`.
    Plain {
        /// Its URL.
        url: String,
        /// The bearer token.
        token: String,
    },
    /// The API server, with the certificate check and the token that kube's client would use.
    Cluster {
        /// Path of the kubeconfig.
        kubeconfig: PathBuf,
    },
}

/// A server and the credentials for it.
#[derive(Clone)]
pub struct Target {
    server: Server,
    address: SocketAddr,
    tls: Option<TlsConnector>,
    token: String,
}

impl Target {
    /// The target of a server.
    pub async fn of(server: Server) -> Result<Self> {
        let kubeconfig = match server {
            Server::Plain { url, token } => return Self::plain(&url, &token),
            Server::Cluster { kubeconfig } => kubeconfig,
        };
        let text = std::fs::read(&kubeconfig)?;
        let parsed: serde_json::Value = serde_json::from_slice(&text)?;
        let token = parsed["users"][0]["user"]["token"].as_str();
        let token = token.ok_or("the kubeconfig has no token")?.to_owned();
        let config = kube::Config::from_custom_kubeconfig(
            Kubeconfig::read_from(&kubeconfig)?,
            &KubeConfigOptions::default(),
        )
        .await?;
        let authority = config
            .cluster_url
            .authority()
            .ok_or("a cluster without an address")?;
        Ok(Self {
            address: authority.as_str().parse()?,
            tls: Some(TlsConnector::from(Arc::new(config.rustls_client_config()?))),
            token,
            server: Server::Cluster { kubeconfig },
        })
    }

    /// A server on plain HTTP: `http://127.0.0.1:8080`.
    pub fn plain(url: &str, token: &str) -> Result<Self> {
        let authority = url.strip_prefix("http://").ok_or("not a plain HTTP URL")?;
        Ok(Self {
            server: Server::Plain {
                url: url.to_owned(),
                token: token.to_owned(),
            },
            address: authority.trim_end_matches('/').parse()?,
            tls: None,
            token: token.to_owned(),
        })
    }

    /// The server, for a client in another process.
    pub fn server(&self) -> Server {
        self.server.clone()
    }

    /// A complete request, which can be sent any number of times.
    pub fn request(&self, method: &str, path: &str, body: Option<(&str, &str)>) -> String {
        let Self { address, token, .. } = self;
        let (kind, body) = body.map_or((String::new(), ""), |(content_type, body)| {
            let length = body.len();
            (
                format!("content-type: {content_type}\r\ncontent-length: {length}\r\n"),
                body,
            )
        });
        format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\naccept: application/json\r\n\
             {kind}\r\n{body}"
        )
    }

    /// Opens a connection.
    pub async fn connect(&self) -> Result<Connection> {
        let stream = timeout(PATIENCE, TcpStream::connect(self.address)).await??;
        stream.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some(connector) => {
                let name = ServerName::IpAddress(self.address.ip().into());
                Stream::Tls(Box::new(
                    timeout(PATIENCE, connector.connect(name, stream)).await??,
                ))
            }
        };
        Ok(Connection {
            stream,
            buffer: Vec::with_capacity(256 * 1024),
            head: 0,
            chunked: false,
        })
    }

    /// Sends one request on its own connection, outside of measurements. Fails unless the request succeeds.
    pub async fn call(&self, method: &str, path: &str, body: Option<(&str, &str)>) -> Result<Answer> {
        let mut connection = self.connect().await?;
        let status = connection
            .exchange(self.request(method, path, body).as_bytes())
            .await?;
        let answer = connection.answer();
        if !(200..300).contains(&status) {
            let text = String::from_utf8_lossy(&answer.body);
            return Err(format!("{method} {path} was answered with {status}: {text}").into());
        }
        Ok(answer)
    }
}

/// A complete answer.
pub struct Answer {
    head: String,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        Ok(serde_json::from_slice(&self.body)?)
    }

    /// The header fields, names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (String, &str)> {
        self.head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim()))
    }
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A kept-alive connection.
pub struct Connection {
    stream: Stream,
    /// The last answer, unparsed.
    buffer: Vec<u8>,
    head: usize,
    chunked: bool,
}

impl Connection {
    /// Sends a request, reads the whole answer and returns its status.
    pub async fn exchange(&mut self, request: &[u8]) -> Result<u16> {
        timeout(PATIENCE, self.unbounded(request)).await?
    }

    async fn unbounded(&mut self, request: &[u8]) -> Result<u16> {
        match &mut self.stream {
            Stream::Plain(stream) => stream.write_all(request).await?,
            Stream::Tls(stream) => {
                stream.write_all(request).await?;
                stream.flush().await?;
            }
        }
        self.buffer.clear();
        let head = loop {
            let seen = self.buffer.len().saturating_sub(3);
            self.read().await?;
            if let Some(at) = find(&self.buffer[seen..], b"\r\n\r\n") {
                break Head::parse(&self.buffer[..seen + at + 4])?;
            }
        };
        self.head = head.length;
        self.chunked = head.content_length.is_none();
        if let Some(length) = head.content_length {
            while self.buffer.len() < head.length + length {
                self.read().await?;
            }
        } else {
            let mut at = head.length;
            while !self.skip_chunks(&mut at)? {
                self.read().await?;
            }
        }
        Ok(head.status)
    }

    async fn read(&mut self) -> Result<()> {
        let read = match &mut self.stream {
            Stream::Plain(stream) => stream.read_buf(&mut self.buffer).await?,
            Stream::Tls(stream) => stream.read_buf(&mut self.buffer).await?,
        };
        if read == 0 {
            return Err("the server closed the connection in the middle of an answer".into());
        }
        Ok(())
    }

    /// Moves `at` past the complete chunks. Returns whether the last chunk was among them.
    fn skip_chunks(&self, at: &mut usize) -> Result<bool> {
        while let Some((start, size)) = self.chunk(*at)? {
            let end = start + size + 2;
            if self.buffer.len() < end {
                return Ok(false);
            }
            *at = end;
            if size == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The start and the size of the data of the chunk at `at`, if its first line has arrived.
    fn chunk(&self, at: usize) -> Result<Option<(usize, usize)>> {
        let Some(line) = find(&self.buffer[at..], b"\r\n") else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(&self.buffer[at..at + line])?;
        Ok(Some((at + line + 2, usize::from_str_radix(digits, 16)?)))
    }

    /// The last answer.
    pub fn answer(&self) -> Answer {
        Answer {
            head: String::from_utf8_lossy(&self.buffer[..self.head]).into_owned(),
            body: self.body(),
        }
    }

    /// The body of the last answer, without its framing.
    pub fn body(&self) -> Vec<u8> {
        if !self.chunked {
            return self.buffer[self.head..].to_vec();
        }
        let (mut body, mut at) = (Vec::new(), self.head);
        while let Ok(Some((start, size))) = self.chunk(at)
            && size > 0
        {
            body.extend_from_slice(&self.buffer[start..start + size]);
            at = start + size + 2;
        }
        body
    }
}

struct Head {
    status: u16,
    length: usize,
    content_length: Option<usize>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes)?;
        let status = text.get(9..12).ok_or("not an HTTP answer")?.parse()?;
        // No Content.
        let none = (status == 204).then_some(0);
        let content_length = text
            .split("\r\n")
            .find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim())
            })
            .map(str::parse)
            .transpose()?
            .or(none);
        Ok(Self {
            status,
            length: bytes.len(),
            content_length,
        })
    }
}

fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}
