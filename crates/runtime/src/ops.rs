//! `/healthz`, `/readyz` and `/metrics` on a separate port.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    Health, Metrics,
    http::{ConnectionLimits, Options, connections},
};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
/// The media type of the text that `prometheus-client` writes.
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// Maximum number of simultaneous connections, in total and from one address. This port has its own limits, so that
/// clients of the REST API cannot keep probes from being answered; and a probe opens, asks and closes within
/// milliseconds.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_PEER: usize = 64;

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, health: Health, metrics: Metrics, shutdown: CancellationToken) {
    let service = hyper::service::service_fn(move |request: Request<super::http::Arriving>| {
        let response = answer(request.method(), request.uri().path(), &health, &metrics);
        async move { Ok::<_, Infallible>(response) }
    });
    let options = Options {
        limits: ConnectionLimits::of(CONNECTIONS, CONNECTIONS_PER_PEER),
        unreadable,
        certificate: None,
        grace: Duration::from_secs(1),
        leaving: Arc::default(),
    };
    connections(listener, service, options, shutdown).await;
}

fn unreadable(status: StatusCode) -> Response<Bytes> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut response = Response::new(Bytes::from(format!("{reason}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT);
    response
}

fn answer(method: &Method, path: &str, health: &Health, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, kind, text) = match path {
        _ if !matches!(*method, Method::GET | Method::HEAD) => (
            StatusCode::METHOD_NOT_ALLOWED,
            TEXT,
            "method not allowed; use GET\n".to_owned(),
        ),
        "/healthz" if health.is_live() => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/healthz" => (
            StatusCode::SERVICE_UNAVAILABLE,
            TEXT,
            "no watch has had a response from the API server for ten minutes\n".to_owned(),
        ),
        "/readyz" => match health.not_ready().as_slice() {
            [] => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            waiting => (
                StatusCode::SERVICE_UNAVAILABLE,
                TEXT,
                format!("not ready:\n{}\n", waiting.join("\n")),
            ),
        },
        "/metrics" => match metrics.render() {
            Ok(page) => (StatusCode::OK, OPEN_METRICS, page),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, String::new()),
        },
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "not found; try /healthz, /readyz or /metrics\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn get(path: &str, health: &Health) -> (u16, String) {
        let response = answer(&Method::GET, path, health, &Metrics::new());
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing() {
        let health = Health::default();
        health.expect("watch Instance", "the first list");
        let (status, text) = get("/readyz", &health).await;
        assert!(
            status == 503 && text.contains("watch Instance: the first list"),
            "{text}"
        );
        health.ready("watch Instance");
        assert_eq!(get("/readyz", &health).await.0, 200);
        assert_eq!(get("/healthz", &health).await.0, 200);
        assert_eq!(get("/", &health).await.0, 404);
    }

    #[tokio::test]
    async fn metrics_are_in_the_text_format() {
        let (status, text) = get("/metrics", &Health::default()).await;
        assert!(status == 200 && text.ends_with("# EOF\n"), "{text}");
    }
}
