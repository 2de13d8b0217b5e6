//! `/healthz`, `/readyz` and `/metrics` on a separate port.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ACCEPT, ALLOW, CONTENT_TYPE},
};
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    Health, Metrics,
    http::{ConnectionLimits, Options, connections},
    metrics::Format,
};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Maximum number of simultaneous connections, in total and from one address. This port has its own limits, so that
/// clients of the REST API cannot keep probes from being answered; and a probe opens, asks and closes within
/// milliseconds.
const CONNECTIONS: usize = 256;
const CONNECTIONS_PER_PEER: usize = 64;

/// Serves until `shutdown`.
pub async fn serve(listener: TcpListener, health: Health, metrics: Metrics, shutdown: CancellationToken) {
    let service = hyper::service::service_fn(move |request: Request<super::http::Arriving>| {
        let response = answer(&request, &health, &metrics);
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

fn answer<B>(request: &Request<B>, health: &Health, metrics: &Metrics) -> Response<Full<Bytes>> {
    let (status, kind, text) = match request.uri().path() {
        _ if !matches!(*request.method(), Method::GET | Method::HEAD) => (
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
            waiting => {
                let mut text = format!("not ready:\n{}\n", waiting.join("\n"));
                if health.is_stale() {
                    text += "until it is back, no API key is accepted\n";
                }
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }
        },
        "/metrics" => {
            let accept = request.headers().get_all(ACCEPT).iter();
            let accept: Vec<_> = accept.filter_map(|value| value.to_str().ok()).collect();
            let format = Format::accepted(&accept.join(","));
            metrics.api_ready.set(i64::from(health.not_ready().is_empty()));
            match metrics.render(format) {
                Ok(page) => (
                    StatusCode::OK,
                    HeaderValue::from_static(format.media_type()),
                    page,
                ),
                Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, String::new()),
            }
        }
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
        let request = Request::get(path).body(()).unwrap();
        let response = answer(&request, health, &Metrics::new());
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
    async fn metrics_tell_whether_the_api_is_ready() {
        let health = Health::default();
        health.expect("watch Instance", "the first list");
        let (_, page) = get("/metrics", &health).await;
        assert!(page.contains("\nstellage_api_ready 0\n"), "{page}");
        health.ready("watch Instance");
        let (_, page) = get("/metrics", &health).await;
        assert!(page.contains("\nstellage_api_ready 1\n"), "{page}");
    }

    #[tokio::test]
    async fn metrics_are_in_the_format_that_is_asked_for_and_in_that_of_prometheus_by_default() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        for (accept, is_open) in [
            (None, false),
            (Some("*/*"), false),
            (Some("text/plain"), false),
            (Some("text/plain;version=0.0.4;q=0.5,*/*;q=0.1"), false),
            (Some("application/openmetrics-text;version=0.0.1"), false),
            (Some("application/openmetrics-text;q=0"), false),
            (Some("application/openmetrics-text;q=0.1, text/plain"), false),
            (Some("application/openmetrics-text; version=1.0.0"), true),
            (Some("application/OpenMetrics-text"), true),
            (Some(prometheus), true),
        ] {
            let mut request = Request::get("/metrics").body(()).unwrap();
            if let Some(accept) = accept {
                request.headers_mut().insert(ACCEPT, accept.parse().unwrap());
            }
            let response = answer(&request, &Health::default(), &Metrics::new());
            assert_eq!(response.status(), StatusCode::OK);
            let kind = response.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let text = String::from_utf8(body.to_vec()).unwrap();
            assert_eq!(text.ends_with("# EOF\n"), is_open, "{accept:?}");
            if is_open {
                assert_eq!(kind, "application/openmetrics-text; version=1.0.0; charset=utf-8");
            } else {
                assert_eq!(kind, "text/plain; version=0.0.4; charset=utf-8");
                for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
                    let kind = line.rsplit(' ').next().unwrap();
                    assert!(
                        ["counter", "gauge", "histogram", "untyped"].contains(&kind),
                        "{line}"
                    );
                }
            }
        }
    }
}
