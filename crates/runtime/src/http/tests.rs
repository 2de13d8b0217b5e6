//! A server under attack, on loopback, at a reduced scale.

use http_body_util::Full;
use tokio::{net::TcpSocket, task::JoinSet};

use super::*;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// The size of a body that does not fit into the buffers of the kernel.
const LARGE: usize = 16 * 1024 * 1024;

/// A server of `/`, which answers at once, `/peer`, which says from where it was asked, `/large`, and `/slow`, which takes half a second.
struct Served {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

fn plain(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("unreadable: {status}")));
    *response.status_mut() = status;
    response
}

impl Served {
    fn start(limits: ConnectionLimits) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), limits)
    }

    fn at(address: SocketAddr, limits: ConnectionLimits) -> Self {
        let listener = listen(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let large = Bytes::from(vec![b'x'; LARGE]);
        let service = hyper::service::service_fn(move |request: Request<Arriving>| {
            let large = large.clone();
            async move {
                let body = match request.uri().path() {
                    "/peer" => {
                        let Peer(address) = request.extensions().get::<Peer>().unwrap();
                        Bytes::from(format!("from {address}."))
                    }
                    "/large" => large,
                    "/slow" => {
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        Bytes::from_static(b"slow")
                    }
                    _ => Bytes::from_static(b"hello"),
                };
                Ok::<_, Infallible>(Response::new(Full::new(body)))
            }
        });
        let options = Options {
            limits,
            unreadable: plain,
            certificate: None,
            grace: PATIENCE,
            leaving: Arc::default(),
        };
        let task = tokio::spawn(connections(listener, service, options, shutdown.clone()));
        Self {
            address,
            shutdown,
            task,
        }
    }

    /// A connection from another address of the loopback.
    async fn connect_from(&self, host: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 1, host), 0).into()).unwrap();
        timeout(PATIENCE, socket.connect(self.address))
            .await
            .unwrap()
            .unwrap()
    }

    /// One request on a new connection.
    async fn ask(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        exchange(
            &mut stream,
            &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        )
        .await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

/// Sends a text and reads until the connection ends.
async fn exchange(stream: &mut TcpStream, text: &str) -> String {
    let mut answer = Vec::new();
    let exchanged = timeout(PATIENCE, async {
        let _ = stream.write_all(text.as_bytes()).await;
        // A reset after the answer is no failure here.
        let _ = stream.read_to_end(&mut answer).await;
    });
    exchanged.await.unwrap();
    String::from_utf8(answer).unwrap()
}

fn short() -> ConnectionLimits {
    ConnectionLimits {
        first_head: Duration::from_millis(300),
        write_progress: Duration::from_millis(300),
        ..ConnectionLimits::of(200, 200)
    }
}

#[tokio::test]
async fn a_server_that_listens_on_all_addresses_of_ipv6_serves_ipv4_and_knows_its_peers_by_their_own_addresses()
 {
    let limits = ConnectionLimits::of(10, 1);
    let mut served = Served::at((Ipv6Addr::UNSPECIFIED, 0).into(), limits);
    let port = served.address.port();
    served.address = (Ipv4Addr::LOCALHOST, port).into();
    let answer = served.ask("/peer").await;
    assert!(answer.contains("from 127.0.0.1."), "{answer}");
    // Each IPv4 address has a share of its own: mapped ones would all be in one /64 network.
    let mut held = Vec::new();
    for host in 1..=3 {
        let mut stream = served.connect_from(host).await;
        let asked = b"GET /peer HTTP/1.1\r\nhost: a\r\n\r\n";
        stream.write_all(asked).await.unwrap();
        let mut answer = [0; 1024];
        let count = timeout(PATIENCE, stream.read(&mut answer))
            .await
            .unwrap()
            .unwrap();
        let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
        assert!(answer.contains(&format!("from 127.0.1.{host}.")), "{answer}");
        held.push(stream);
    }
    served.address = (Ipv6Addr::LOCALHOST, port).into();
    // Not every machine has it.
    if TcpStream::connect(served.address).await.is_ok() {
        let answer = served.ask("/peer").await;
        assert!(answer.contains("from ::1."), "{answer}");
    }
    drop(held);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_hostile_connections_than_fit_leave_clients_their_answers() {
    for attack in [
        "",
        "GET / HTTP/1.1\r\nhost: a\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "GET /large HTTP/1.1\r\nhost: a\r\n\r\n",
    ] {
        // The deadlines are those of the shipped program, so that only making room can help.
        let served = Served::start(ConnectionLimits::of(200, 100));
        let mut kept = TcpStream::connect(served.address).await.unwrap();
        let mut hostile = Vec::new();
        let mut slow = 0;
        for n in 0..250_u8 {
            let mut stream = served.connect_from(1 + n % 5).await;
            stream.write_all(attack.as_bytes()).await.unwrap();
            hostile.push(stream);
            if n % 10 == 0 {
                let begun = Instant::now();
                assert!(served.ask("/").await.ends_with("hello"), "{attack:?}");
                // Also a request on a connection that is in use.
                kept.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                    .await
                    .unwrap();
                let mut answer = [0; 4096];
                let count = timeout(PATIENCE, kept.read(&mut answer)).await.unwrap().unwrap();
                assert!(answer[..count].ends_with(b"hello"), "{attack:?}");
                slow += u8::from(begun.elapsed() > Duration::from_secs(5));
            }
        }
        // The machine may stall once.
        assert!(slow <= 1, "{attack:?}: {slow} times clients waited long");
        drop(hostile);
        drop(kept);
        served.stop().await;
    }
}

#[tokio::test]
async fn one_address_cannot_take_the_connections_of_others() {
    let served = Served::start(ConnectionLimits::of(200, 10));
    let other = served.connect_from(2).await;
    let mut hostile = Vec::new();
    for _ in 0..50 {
        hostile.push(served.connect_from(1).await);
    }
    // The oldest forty were closed.
    for mut stream in hostile.drain(..40) {
        assert_eq!(exchange(&mut stream, "").await, "");
    }
    let mut other = other;
    assert!(
        exchange(&mut other, "GET / HTTP/1.0\r\n\r\n")
            .await
            .ends_with("hello")
    );
    for mut stream in hostile {
        assert!(
            exchange(&mut stream, "GET / HTTP/1.0\r\n\r\n")
                .await
                .ends_with("hello")
        );
    }
    served.stop().await;
}

#[tokio::test]
async fn a_late_first_head_ends_the_connection_with_408_unless_nothing_came() {
    let served = Served::start(short());
    let connect = async || TcpStream::connect(served.address).await.unwrap();
    let (mut silent, mut late) = (connect().await, connect().await);
    let answer = exchange(&mut late, "GET / HTTP/1.1\r\nhos").await;
    assert_eq!(exchange(&mut silent, "").await, "");
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    assert!(answer.ends_with("unreadable: 408 Request Timeout") && answer.contains("connection: close\r\n"));
    served.stop().await;
}

#[tokio::test]
async fn the_next_head_on_a_connection_in_use_may_take_longer_than_the_first() {
    let served = Served::start(short());
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    for _ in 0..2 {
        stream.write_all(request).await.unwrap();
        let mut answer = [0; 4096];
        let count = timeout(PATIENCE, stream.read(&mut answer))
            .await
            .unwrap()
            .unwrap();
        assert!(answer[..count].ends_with(b"hello"));
        // Longer than the deadline of the first head.
        tokio::time::sleep(2 * short().first_head).await;
    }
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut_off() {
    let served = Served::start(short());
    let mut stream = served.connect_from(1).await;
    stream
        .write_all(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    // The server closes the connection although the peer reads nothing, so it can stop.
    tokio::time::sleep(3 * short().write_progress).await;
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.len() < LARGE, "{} bytes arrived", rest.len());
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_reads_slowly_gets_everything() {
    let served = Served::start(ConnectionLimits {
        write_progress: Duration::from_secs(5),
        ..short()
    });
    let mut stream = served.connect_from(1).await;
    stream.write_all(b"GET /large HTTP/1.0\r\n\r\n").await.unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 1024 * 1024];
    loop {
        let count = timeout(PATIENCE, stream.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        if count == 0 {
            break;
        }
        read += count;
        if read < LARGE / 1000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!(read > LARGE);
    served.stop().await;
}

#[tokio::test]
async fn unreadable_heads_are_answered_in_the_format_of_the_server() {
    let served = Served::start(ConnectionLimits::of(200, 200));
    let large = format!(
        "GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n",
        "x".repeat(200 * 1024)
    );
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(101));
    let after_good = "GET / HTTP/1.1\r\nhost: a\r\n\r\nnonsense\r\n\r\n";
    for (request, status) in [
        ("nonsense\r\n\r\n", "400 Bad Request"),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n", "400 Bad Request"),
        (large.as_str(), "431 Request Header Fields Too Large"),
        (&many, "431 Request Header Fields Too Large"),
        (after_good, "400 Bad Request"),
    ] {
        let mut stream = TcpStream::connect(served.address).await.unwrap();
        let answer = exchange(&mut stream, request).await;
        assert!(answer.contains(&format!("HTTP/1.1 {status}\r\n")), "{answer}");
        assert!(answer.ends_with(&format!("unreadable: {status}")), "{answer}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_shutdown_waits_for_running_requests_and_closes_idle_connections() {
    let served = Served::start(ConnectionLimits::of(200, 200));
    let (idle, mut busy) = (
        TcpStream::connect(served.address).await.unwrap(),
        TcpStream::connect(served.address).await.unwrap(),
    );
    busy.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
        .await
        .unwrap();
    // Until the request is being handled.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut waiting = JoinSet::new();
    for mut stream in [idle, busy] {
        waiting.spawn(async move { exchange(&mut stream, "").await });
    }
    let begun = Instant::now();
    served.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    let mut answers = waiting.join_all().await;
    answers.sort();
    assert!(
        answers[0].is_empty() && answers[1].ends_with("slow"),
        "{answers:?}"
    );
}
