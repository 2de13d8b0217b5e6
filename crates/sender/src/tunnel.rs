//! Asks a proxy for a connection to a receiver (HTTP CONNECT, RFC 9110, section 9.3.6).
//!
//! hyper-util's `Tunnel` is not used, because it does not report the status of a refusal. That status shows whether the
//! proxy refuses because of the receiver or because of itself, which decides whether the attempt counts.

use bytes::Bytes;
use futures::future::{Either, select};
use http::{
    HeaderValue, Request, Response, StatusCode, Uri,
    header::{HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION},
};
use http_body_util::Empty;
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::connect_error::ConnectError;

/// Largest head of the proxy's answer, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The proxy wants other credentials, which no receiver can cause.
pub(super) const CREDENTIALS: &str = "the proxy does not take this service's credentials";
const NOT_HTTP: &str = "the proxy does not speak HTTP";
/// Port of a URL that has none.
const HTTPS: u16 = 443;

/// Asks the proxy at the other end of `proxy` to connect to the host of `target`. Has no timeout; the caller sets one.
pub(super) async fn open(
    proxy: TokioIo<TcpStream>,
    target: &Uri,
    authorization: Option<&HeaderValue>,
) -> Result<TokioIo<TcpStream>, ConnectError> {
    let request = request(target, authorization).ok_or(ConnectError::NoAddress)?;
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEAD)
        .handshake(proxy)
        .await
        .map_err(|error| broken(&error))?;
    let answer = Box::pin(async move {
        let response = sender
            .send_request(request)
            .await
            .map_err(|error| broken(&error))?;
        if let Some(error) = refusal(&response) {
            return Err(error);
        }
        hyper::upgrade::on(response).await.map_err(|error| broken(&error))
    });
    let connection = Box::pin(connection.with_upgrades());
    let upgraded = match select(answer, connection).await {
        Either::Left((answer, _)) => answer?,
        Either::Right((_, answer)) => answer.await?,
    };
    match upgraded.downcast::<TokioIo<TcpStream>>() {
        Ok(parts) if parts.read_buf.is_empty() => Ok(parts.io),
        // These bytes come from the receiver, and a TLS server does not speak first.
        Ok(_) => Err(ConnectError::Closed),
        Err(_) => Err(ConnectError::BrokenProxy(NOT_HTTP)),
    }
}

fn request(target: &Uri, authorization: Option<&HeaderValue>) -> Option<Request<Empty<Bytes>>> {
    let port = target.port_u16().unwrap_or(HTTPS);
    let authority = format!("{}:{port}", target.host()?);
    let mut request = Request::connect(&authority).header(HOST, &authority);
    if let Some(authorization) = authorization {
        request = request.header(PROXY_AUTHORIZATION, authorization);
    }
    request.body(Empty::new()).ok()
}

/// What a response other than 2xx means. Only what the proxy says about the receiver counts as the receiver's failure.
fn refusal(response: &Response<Incoming>) -> Option<ConnectError> {
    let status = response.status();
    tracing::debug!(%status, "the proxy has answered");
    match status {
        _ if status.is_success() => None,
        StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
            Some(ConnectError::Proxy("the proxy could not reach it"))
        }
        StatusCode::PROXY_AUTHENTICATION_REQUIRED if response.headers().contains_key(PROXY_AUTHENTICATE) => {
            Some(ConnectError::BrokenProxy(CREDENTIALS))
        }
        // A 407 without a challenge is how Smokescreen refuses an address.
        StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Some(ConnectError::Proxy("the proxy does not allow it"))
        }
        _ => Some(ConnectError::BrokenProxy("the proxy answered with an error")),
    }
}

fn broken(error: &hyper::Error) -> ConnectError {
    tracing::debug!(%error, "the proxy made no connection");
    ConnectError::BrokenProxy(if error.is_parse() {
        NOT_HTTP
    } else {
        "the proxy closed the connection"
    })
}
