//! What every request goes through before a handler and after it: request id, route, key, scope, rate limit, panics,
//! metrics, and the one error format.

use std::{collections::HashMap, panic::AssertUnwindSafe, sync::Arc, time::Instant};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request,
    header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE},
};
use prometheus_client::metrics::histogram::Histogram;
use tower::Service as _;

use super::{
    App,
    answer::JSON,
    error::{ApiError, ErrorCode},
    limit::Allowance,
    openapi,
};
use crate::runtime::{
    Metrics,
    metrics::{RequestLabels, RouteLabels},
};

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
static RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
static RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// Longest request id that is taken over from a client.
const MAX_REQUEST_ID: usize = 128;

/// The routes, and what goes before and after their handlers.
pub struct Front {
    app: Arc<App>,
    router: Router,
    routes: Routes,
    metrics: Metrics,
    unknown: Histogram,
}

/// A path that is served.
struct Route {
    /// With placeholders.
    label: &'static str,
    methods: Vec<Method>,
    allow: HeaderValue,
    needs_key: bool,
    seconds: Histogram,
}

/// The routes of the document, which is made of those that are served.
struct Routes {
    /// Without placeholders.
    exact: HashMap<&'static str, Arc<Route>>,
    /// With placeholders, by the number of segments.
    patterns: Vec<Vec<(Vec<&'static str>, Arc<Route>)>>,
}

impl Routes {
    fn new(served: Vec<openapi::Served>, metrics: &Metrics) -> Self {
        let mut routes = Self {
            exact: HashMap::new(),
            patterns: Vec::new(),
        };
        for openapi::Served {
            path,
            methods,
            needs_key,
        } in served
        {
            // Labels of metrics are static; there are as many as there are routes, once for the life of the program.
            let label: &'static str = path.leak();
            let allow = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
            let route = Arc::new(Route {
                label,
                methods,
                allow: HeaderValue::try_from(allow).unwrap_or(HeaderValue::from_static("")),
                needs_key,
                seconds: metrics.request_seconds.get_or_create_owned(&RouteLabels { route: label }),
            });
            if label.contains('{') {
                let segments: Vec<_> = label.split('/').collect();
                if routes.patterns.len() <= segments.len() {
                    routes.patterns.resize_with(segments.len() + 1, Vec::new);
                }
                routes.patterns[segments.len()].push((segments, route));
            } else {
                routes.exact.insert(label, route);
            }
        }
        routes
    }

    fn find(&self, path: &str) -> Option<&Arc<Route>> {
        if let Some(route) = self.exact.get(path) {
            return Some(route);
        }
        let candidates = self.patterns.get(path.split('/').count())?;
        candidates
            .iter()
            .find(|(pattern, _)| {
                pattern.iter().zip(path.split('/')).all(|(expected, found)| {
                    if expected.starts_with('{') {
                        !found.is_empty()
                    } else {
                        *expected == found
                    }
                })
            })
            .map(|(_, route)| route)
    }
}

impl Front {
    pub(super) fn new(app: Arc<App>, metrics: Metrics) -> Self {
        let (router, served) = openapi::router(app.clone());
        Self::with_router(app, metrics, router, served)
    }

    fn with_router(app: Arc<App>, metrics: Metrics, router: Router, served: Vec<openapi::Served>) -> Self {
        Self {
            routes: Routes::new(served, &metrics),
            unknown: metrics
                .request_seconds
                .get_or_create_owned(&RouteLabels { route: "unknown" }),
            app,
            router,
            metrics,
        }
    }

    /// Answers one request.
    pub(super) async fn answer<B>(&self, request: Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let started = Instant::now();
        let method = method_label(request.method());
        let request_id = request_id(request.headers());
        let route = self.routes.find(request.uri().path()).cloned();
        let mut response = match &route {
            Some(route) => self.answer_on(route, request).await,
            None => refuse(ApiError::new(ErrorCode::NotFound, "there is nothing at this path")),
        };
        finish(&mut response, &request_id);
        let (label, seconds) = route
            .as_ref()
            .map_or(("unknown", &self.unknown), |route| (route.label, &route.seconds));
        seconds.observe(started.elapsed().as_secs_f64());
        let status = response.status().as_u16();
        self.metrics
            .requests
            .get_or_create(&RequestLabels {
                method,
                route: label,
                status,
            })
            .inc();
        tracing::debug!(method, route = label, status, ?request_id, "answered");
        response.headers_mut().insert(&X_REQUEST_ID, request_id);
        response
    }

    async fn answer_on<B>(&self, route: &Route, request: Request<B>) -> Response
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        if !route.methods.contains(request.method()) {
            let mut response = refuse(ApiError::new(
                ErrorCode::MethodNotAllowed,
                "the path has no such method; the header Allow lists those that it has",
            ));
            response.headers_mut().insert(ALLOW, route.allow.clone());
            return response;
        }
        if !route.needs_key {
            return self.call(request.map(Body::new)).await;
        }
        let credential = match self.app.keys.authenticate(request.headers(), self.app.clock.now()) {
            Ok(credential) => credential,
            Err(refusal) => return refuse(refusal),
        };
        let allowance = credential.spend();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let mut response = if let Some(seconds) = allowance.retry_after {
            refuse(ApiError {
                retry_after: Some(seconds),
                ..ApiError::new(
                    ErrorCode::RateLimitExceeded,
                    format!(
                        "the key has used up its {} requests an hour; try again in {seconds} s",
                        allowance.limit
                    ),
                )
            })
        } else if !is_read && !credential.may_write() {
            refuse(ApiError::new(
                ErrorCode::TokenReadonly,
                "the key has the scope read; this needs one with the scope write",
            ))
        } else if !self.app.index.progress().is_synced() {
            refuse(ApiError::unavailable("the service is starting; try again"))
        } else {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(credential);
            self.call(request).await
        };
        tell(response.headers_mut(), &allowance);
        response
    }

    async fn call(&self, request: Request<Body>) -> Response {
        let mut router = self.router.clone();
        match AssertUnwindSafe(router.call(request)).catch_unwind().await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(panic) => {
                let text = panic
                    .downcast_ref::<&str>()
                    .copied()
                    .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                tracing::error!(panic = text, "a handler panicked");
                refuse(ApiError::fault())
            }
        }
    }
}

fn refuse(error: ApiError) -> Response {
    axum::response::IntoResponse::into_response(error)
}

/// Turns the error that an answer stands for into its body and headers.
fn finish(response: &mut Response, request_id: &HeaderValue) {
    let Some(error) = response.extensions_mut().remove::<ApiError>() else {
        return;
    };
    let request_id = request_id.to_str().unwrap_or_default();
    if error.code.status().is_server_error() {
        tracing::warn!(request_id, %error, "answered with an error");
    }
    *response.body_mut() = Body::from(error.body(request_id));
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, JSON);
    if error.code == ErrorCode::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = error.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}

fn tell(headers: &mut HeaderMap, allowance: &Allowance) {
    headers.insert(&RATE_LIMIT_LIMIT, allowance.limit.into());
    headers.insert(&RATE_LIMIT_REMAINING, allowance.remaining.into());
    headers.insert(&RATE_LIMIT_RESET, allowance.reset.into());
}

/// The client's own id if it is sane, else a random one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let own = headers.get(&X_REQUEST_ID).filter(|value| {
        (1..=MAX_REQUEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    own.cloned().unwrap_or_else(|| {
        let id = hex::encode(rand::random::<[u8; 16]>());
        HeaderValue::try_from(id).unwrap_or(HeaderValue::from_static("none"))
    })
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
