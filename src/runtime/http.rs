//! HTTP/1.1 on a listener: bounded connections, bounded waits for a request's head, and an end that lets what runs finish.

use std::{convert::Infallible, error::Error, future::Future, sync::Arc, time::Duration};

use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1, service::Service};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

/// How long a connection may wait for a request's head, the first or the next. Longer than the 60 s after which load
/// balancers give up an idle connection, so that they are the ones who close it.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Largest head of a request, and so the most memory that a connection takes before it is read.
const MAX_HEAD: usize = 32 * 1024;
/// Most headers of a request.
const MAX_HEADERS: usize = 100;
/// Connections at the same time; more wait to be accepted.
const MAX_CONNECTIONS: usize = 8192;
/// Pause after an accept failed, for want of file descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `shutdown`: then nothing more is accepted, idle connections are closed, and requests that run get `grace` to
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
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // Answers are written at once; waiting for more to send only delays them.
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
        tracing::warn!("requests were still running after the grace");
    }
}
