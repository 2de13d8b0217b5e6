//! Latency of a client while hostile connections are held open and renewed, compared with the same client without them.
//!
//! A third of the hostile connections says nothing, a third sends half of a head, and a third asks for the OpenAPI document
//! and does not read it. They come from forty addresses, more of them than the facade accepts, none with a key.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use stellage::runtime::{http::Limits, open_files};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    convergence,
    load::{Client, Extent, Measured},
    product::Product,
    samples, say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

/// Number of connections of the client.
const CLIENT: usize = 4;
/// Number of loopback addresses that the attack uses.
const ADDRESSES: u8 = 40;
/// Pause before a closed connection is reopened, and how long a connection that reads nothing is held.
const RENEW_AFTER: Duration = Duration::from_secs(1);
const HELD: Duration = Duration::from_secs(30);
/// How long opening all connections may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures the client.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let wanted = sizes.hostile_connections;
    let fitting = open_files::fitting(Limits::of(wanted, wanted)).connections;
    if fitting < wanted {
        return Err(format!(
            "the limit of open files (ulimit -n) allows {fitting} connections, not {wanted}"
        )
        .into());
    }
    let cluster = Cluster::start().await?;
    // Fewer than the attack opens, at every size.
    let most = wanted * 8192 / 10_000;
    let mut product = Product::run_with(&cluster, &[format!("--max-connections={most}")]).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, "read", 100).await?;
    let target = product.facade(&account.key)?;
    let (mut quiet, mut attacked) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        quiet.push(turn("quiet", &target, sizes).await?);
        let attack = Attack::start(target.address(), wanted).await?;
        attacked.push(turn("under attack", &target, sizes).await?);
        say(&format!(
            "  {} hostile connections were opened in all",
            attack.stop().await
        ));
    }
    product.stop().await?;
    cluster.stop().await?;
    let p99 = |turns: &[Measured]| turns.iter().map(|turn| turn.millis(0.99)).collect();
    table.compare(
        &format!("p99 of reads under {wanted} hostile connections : quiet"),
        &p99(&attacked),
        &p99(&quiet),
        samples::MILLIS,
        Some(Aim::AtMost(2.0)),
    );
    Ok(())
}

async fn turn(name: &str, target: &Target, sizes: &Sizes) -> Result<Measured> {
    let request = target.request("GET", "/v1/instances?limit=20", None);
    let extent = Extent::For {
        warm_up: sizes.warm_up,
        measured: sizes.measured,
    };
    let measured = Client::repeating(target, CLIENT, request, extent).run().await?;
    say(&format!(
        "  {name}: {:.0} requests/s, p50 {:.2} ms, p99 {:.2} ms",
        measured.rate(),
        measured.millis(0.5),
        measured.millis(0.99)
    ));
    Ok(measured)
}

/// Hostile connections, each reopened when it ends.
struct Attack {
    tasks: JoinSet<()>,
    opened: Arc<AtomicU64>,
}

impl Attack {
    /// Starts the attack. Returns once as many connections have been opened as are held at a time.
    async fn start(address: SocketAddr, connections: usize) -> Result<Self> {
        let opened = Arc::<AtomicU64>::default();
        let mut tasks = JoinSet::new();
        for number in 0..connections {
            let opened = opened.clone();
            tasks.spawn(async move {
                loop {
                    // Refused connections are part of the attack.
                    let _ = hold(number, address, &opened).await;
                    sleep(RENEW_AFTER).await;
                }
            });
        }
        let begun = Instant::now();
        while opened.load(Ordering::Relaxed) < connections as u64 {
            if begun.elapsed() > PATIENCE {
                return Err("the hostile connections could not be opened in time".into());
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(Self { tasks, opened })
    }

    /// Ends the attack. Returns the number of connections that were opened.
    async fn stop(mut self) -> u64 {
        self.tasks.shutdown().await;
        self.opened.load(Ordering::Relaxed)
    }
}

/// Opens one connection and holds it for as long as the server does.
async fn hold(number: usize, address: SocketAddr, opened: &AtomicU64) -> std::io::Result<()> {
    let host = u8::try_from(number % usize::from(ADDRESSES)).unwrap_or(0);
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(4096)?;
    socket.bind((Ipv4Addr::new(127, 0, 1, host + 1), 0).into())?;
    let mut stream = socket.connect(address).await?;
    opened.fetch_add(1, Ordering::Relaxed);
    match number % 3 {
        0 => until_closed(&mut stream).await,
        1 => {
            stream
                .write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n")
                .await?;
            until_closed(&mut stream).await
        }
        _ => {
            let requests = "GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n".repeat(50);
            stream.write_all(requests.as_bytes()).await?;
            sleep(HELD).await;
            Ok(())
        }
    }
}

async fn until_closed(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 1024];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}
