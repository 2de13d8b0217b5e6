//! Middleware around every page: where requests may come from, response headers, compression, panics, and metrics.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use flate2::Compression;
use futures::FutureExt as _;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use url::Url;

use super::{
    App,
    assets::{self, accepts_gzip, compressed},
    page::{Shell, problem},
    refusal::Refusal,
    same_origin, session_request,
};
use crate::public_url::{PublicUrl, is_safe};
use api::ErrorCode;
use runtime::metrics::RequestLabels;

/// What pages may load and do: only the console's own files. `style-src` has no exception for inline styles.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The policy of the page with a console: its script may also open WebSockets to the gateway, and make style elements, which have this
/// nonce.
pub fn policy(nonce: &str, gateway: &str) -> String {
    POLICY
        .replace("style-src 'self'", &format!("style-src 'self' 'nonce-{nonce}'"))
        .replace("connect-src 'self'", &format!("connect-src 'self' {gateway}"))
}

/// Shorter pages are not worth compressing.
const WORTH_COMPRESSING: usize = 1024;

/// Surrounds a page.
pub async fn surround(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let headers = request.headers().clone();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut response = if let Some(reason) = refused(&app, &method, &path, &headers) {
        Refusal::new(ErrorCode::Forbidden, reason).into_response()
    } else {
        let answered = AssertUnwindSafe(next.run(request)).catch_unwind().await;
        answered.unwrap_or_else(|_| {
            tracing::error!("a page of the console panicked");
            Refusal::fault().into_response()
        })
    };
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        let section = Shell::section_of(&path);
        response = problem(
            &refusal,
            &path,
            session_request::shell_of(&app, &headers, section).await,
        );
        if headers.contains_key("hx-request") && response.status() == StatusCode::NOT_FOUND {
            // The object that an open page shows is gone: reload the whole page, which says so.
            let reload = HeaderValue::from_static("true");
            response.headers_mut().insert("hx-refresh", reload);
        }
    }
    if method == Method::GET
        && response.status() == StatusCode::OK
        && !headers.contains_key("hx-request")
        && let Some(told) = app.cookies.told(&headers)
        && !response.headers().contains_key(header::CONTENT_ENCODING)
    {
        response.headers_mut().append(header::SET_COOKIE, told);
    }
    response = complete(response, app.facade.public_url(), accepts_gzip(&headers)).await;
    app.count(&RequestLabels {
        method: if method == Method::POST { "POST" } else { "GET" },
        route: "/console",
        status: response.status().as_u16(),
    });
    let added = response.headers_mut();
    // A printable invoice has a policy of its own.
    added
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(POLICY));
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    ] {
        added.insert(name, HeaderValue::from_static(value));
    }
    added
        .entry(header::CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Why a request is refused, whatever its path.
fn refused(app: &App, method: &Method, path: &str, headers: &HeaderMap) -> Option<&'static str> {
    if app.cookies.insecure && !path.starts_with(assets::FOLDER) && !is_of_this_machine(headers) {
        return Some("over plain HTTP, the console is for this machine alone; from others, it needs HTTPS");
    }
    (!same_origin::is_allowed(method, headers))
        .then_some("this request comes from another site; open the console and try again there")
}

/// Whether the browser asks for a name or an address of the machine that it runs on, as with a forwarded port.
fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let url = host.and_then(|host| Url::parse(&format!("http://{host}")).ok());
    url.is_some_and(|url| is_safe(&url))
}

/// Adds the path of the public URL to the links of a page, and compresses it. Another site cannot mix input of its own into what the page shows, because the session's cookie is `SameSite=Strict`.
async fn complete(response: Response, public_url: Option<&PublicUrl>, is_accepted: bool) -> Response {
    let is_page = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    // A printable invoice is sent while it is being read; all other pages are complete when they are answered.
    let is_complete = response.body().size_hint().exact().is_some();
    let public_url = public_url.filter(|url| !url.path().is_empty());
    if !is_page || !is_complete || !is_accepted && public_url.is_none() {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let bytes = body.collect().await.map(http_body_util::Collected::to_bytes);
    let mut bytes = bytes.unwrap_or_default();
    if let Some(public_url) = public_url {
        bytes = public_url.links_below(&String::from_utf8_lossy(&bytes)).into();
        head.headers.remove(header::CONTENT_LENGTH);
    }
    if !is_accepted || bytes.len() < WORTH_COMPRESSING {
        return Response::from_parts(head, Body::from(bytes));
    }
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers
        .insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    head.headers
        .insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(head, Body::from(compressed(&bytes, Compression::fast())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_an_address_of_loopback_is_this_machine() {
        let asked = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            is_of_this_machine(&headers)
        };
        for own in ["localhost:8080", "127.0.0.1:80", "127.1.2.3", "[::1]:8080"] {
            assert!(asked(own), "{own}");
        }
        for other in [
            "192.0.2.1:8080",
            "localhost.example",
            "127.0.0.1.example",
            "[2001:db8::1]",
            "",
            "a@b",
        ] {
            assert!(!asked(other), "{other}");
        }
        assert!(!is_of_this_machine(&HeaderMap::new()));
    }
}
