//! HTTP/1.1 on a listener: limits on connections and request heads, and a graceful shutdown.

use std::{convert::Infallible, error::Error, future::Future, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// Timeout for a request's head, also for the next request on an idle connection. Longer than the 60 s after which load
/// balancers close idle connections, so that the load balancer closes first and sends no request on a closed connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of a request, in bytes, and so the most memory that a connection takes before its request is read.
const MAX_HEAD: usize = 32 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// Connections at the same time; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 8192;
/// Pause after a failed accept, usually because the process has run out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`. Then it accepts nothing more, closes idle connections, and gives running requests `grace` to
/// finish.
pub async fn connections<S, B, F>(
    listener: TcpListener,
    service: S,
    shutdown: CancellationToken,
    grace: Duration,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future = F>
        + Clone
        + Send
        + 'static,
    F: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let running = GracefulShutdown::new();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.ok();
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = shutdown.cancelled() => break,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // A response is written at once, so Nagle's algorithm would only delay it.
        let _ = stream.set_nodelay(true);
        let connection = http.serve_connection(TokioIo::new(stream), service.clone());
        let connection = running.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(slot);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, running.shutdown()).await.is_err() {
        tracing::warn!("requests were still running after the grace period");
    }
}
