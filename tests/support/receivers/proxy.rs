//! A proxy that accepts CONNECT requests.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// What a proxy does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxying {
    /// Connects to the port on loopback, whatever the name.
    Connects,
    /// Connects if user and password match.
    ConnectsFor(&'static str, &'static str),
    /// Answers with this status.
    Answers(&'static str),
    /// Connects, but answers with this status if the name of the receiver begins with `dead`.
    ConnectsOrAnswers(&'static str),
    /// Says nothing.
    IsSilent,
    /// Closes the connection.
    Drops,
}

/// A proxy on loopback. Ends when dropped.
pub struct ConnectProxy {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl ConnectProxy {
    pub async fn start(proxying: Proxying) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let targets = Arc::<Mutex<Vec<String>>>::default();
        let mut tasks = JoinSet::new();
        let asked = targets.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, proxying, asked.clone()));
            }
        });
        Self {
            address,
            targets,
            _tasks: tasks,
        }
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The targets of all requests so far.
    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().clone()
    }
}

async fn serve(client: TcpStream, proxying: Proxying, targets: Arc<Mutex<Vec<String>>>) {
    let mut client = BufReader::new(client);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if !matches!(client.read_line(&mut line).await, Ok(1..)) {
            return;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line.trim_end().to_owned());
    }
    let target = head
        .first()
        .and_then(|line| line.strip_prefix("CONNECT ")?.strip_suffix(" HTTP/1.1"));
    let Some(target) = target.map(ToOwned::to_owned) else {
        return;
    };
    let authorization = head.iter().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("proxy-authorization").then_some(value)
    });
    let status = match proxying {
        Proxying::ConnectsFor(user, password) => {
            let expected = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
            if authorization == Some(expected.as_str()) {
                "200 Connection established"
            } else {
                "407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"proxy\""
            }
        }
        Proxying::ConnectsOrAnswers(status) if target.starts_with("dead") => status,
        Proxying::Connects | Proxying::ConnectsOrAnswers(_) => "200 Connection established",
        Proxying::Answers(status) => status,
        Proxying::IsSilent | Proxying::Drops => "",
    };
    let port: u16 = target.rsplit(':').next().unwrap().parse().unwrap();
    targets.lock().push(target);
    if proxying == Proxying::Drops {
        return;
    }
    if status.is_empty() {
        let _ = client.read_line(&mut String::new()).await;
        return;
    }
    let answer = format!("HTTP/1.1 {status}\r\n\r\n");
    if !status.starts_with("200") {
        let _ = client.write_all(answer.as_bytes()).await;
        return;
    }
    let Ok(mut receiver) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else {
        let _ = client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
        return;
    };
    let _ = client.write_all(answer.as_bytes()).await;
    let _ = copy_bidirectional(&mut client, &mut receiver).await;
}
