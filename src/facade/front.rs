//! What every request goes through before a handler and after it: request id, route, key, scope, rate limit, panics,
//! metrics, and the one error format.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use futures::FutureExt as _;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request,
    header::{ALLOW, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
};
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
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
    /// Where there is nothing.
    unknown: Route,
}

/// A path that is served.
struct Route {
    /// With placeholders.
    label: &'static str,
    methods: Vec<Method>,
    allow: HeaderValue,
    needs_key: bool,
    seconds: Histogram,
    /// Counts the usual case, a GET with 200, without looking the labels up.
    read: OnceLock<Counter>,
}

impl Route {
    fn new(label: &'static str, methods: Vec<Method>, needs_key: bool, metrics: &Metrics) -> Self {
        let allow = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        Self {
            label,
            methods,
            allow: HeaderValue::try_from(allow).unwrap_or(HeaderValue::from_static("")),
            needs_key,
            seconds: metrics
                .request_seconds
                .get_or_create_owned(&RouteLabels { route: label }),
            read: OnceLock::new(),
        }
    }
}

/// The routes of the document, which is made of those that are served.
struct Routes {
    /// Without placeholders.
    exact: HashMap<&'static str, Route>,
    /// With placeholders, by the number of segments.
    patterns: Vec<Vec<(Vec<&'static str>, Route)>>,
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
            let route = Route::new(label, methods, needs_key, metrics);
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

    fn find(&self, path: &str) -> Option<&Route> {
        if let Some(route) = self.exact.get(path) {
            return Some(route);
        }
        // Byte by byte: paths are short, and this is on the way of every request.
        let segments = || path.as_bytes().split(|byte| *byte == b'/');
        let candidates = self.patterns.get(segments().count())?;
        candidates
            .iter()
            .find(|(pattern, _)| {
                pattern.iter().zip(segments()).all(|(expected, found)| {
                    if expected.starts_with('{') {
                        !found.is_empty()
                    } else {
                        expected.as_bytes() == found
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
            unknown: Route::new("unknown", Vec::new(), false, &metrics),
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
        let route = self.routes.find(request.uri().path());
        let mut response = match route {
            Some(route) => self.answer_on(route, request).await,
            None => refuse(ApiError::new(
                ErrorCode::NotFound,
                "there is nothing at this path",
            )),
        };
        finish(&mut response, &request_id);
        let route = route.unwrap_or(&self.unknown);
        route.seconds.observe(started.elapsed().as_secs_f64());
        let status = response.status().as_u16();
        let count = |status| {
            self.metrics.requests.get_or_create_owned(&RequestLabels {
                method,
                route: route.label,
                status,
            })
        };
        match status {
            200 if method == "GET" => route.read.get_or_init(|| count(200)).inc(),
            status => count(status).inc(),
        };
        tracing::debug!(method, route = route.label, status, ?request_id, "answered");
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
        let credential = match self
            .app
            .keys
            .authenticate(request.headers(), || self.app.clock.now())
        {
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
        } else if !self.app.is_synced() {
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
    // axum has set it for the empty body that stood for the error.
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, JSON);
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
        let mut id = [b'0'; 32];
        // It is exactly long enough.
        let _ = hex::encode_to_slice(rand::random::<[u8; 16]>(), &mut id);
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
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

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use kube::{Client, Config};
    use serde_json::{Value, json};

    use super::{
        super::{Dependencies, Facade},
        *,
    };
    use crate::{
        catalogue::Catalogue,
        lifecycle::Timings,
        providers::simulator::SimulatedUsage,
        runtime::{SystemClock, watch::Change},
    };

    /// A facade whose API server cannot be reached, with one account and a key of each scope.
    fn facade() -> Facade {
        let nowhere = Config::new("http://127.0.0.1:1".parse().unwrap());
        let facade = Facade::new(Dependencies {
            client: Client::try_from(nowhere).unwrap(),
            clock: Arc::new(SystemClock),
            metrics: Metrics::new(),
            catalogue: Catalogue::default(),
            timings: Timings::default(),
            usage: Box::new(SimulatedUsage),
            receiver_check: Arc::new(|_| Ok(())),
        });
        let mut listeners = facade.listeners();
        let parse = |value: Value| Arc::new(serde_json::from_value(value).unwrap());
        listeners.accounts.changed(&Change::Replaced(vec![parse(json!({
            "metadata": { "name": "demo", "uid": "a" }, "spec": { "email": "ada@example.com" },
            "status": { "namespace": "demo", "conditions": [{
                "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-11-21T10:00:00Z"
            }] },
        }))]));
        let key = |text: &str| {
            let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(text));
            let object = json!({
                "metadata": { "name": text, "namespace": "demo", "uid": text }, "spec": { "sha256": digest, "scope": text },
            });
            Arc::new(serde_json::from_value(object).unwrap())
        };
        listeners
            .keys
            .changed(&Change::Replaced(vec![key("read"), key("write")]));
        facade
    }

    fn synced() -> Facade {
        let facade = facade();
        let mut listeners = facade.listeners();
        listeners.instances.changed(&Change::Replaced(Vec::new()));
        listeners.webhooks.changed(&Change::Replaced(Vec::new()));
        facade
    }

    async fn ask(facade: &Facade, method: &str, path: &str, key: Option<&str>) -> (u16, HeaderMap, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let response = facade.answer(request.body(Body::empty()).unwrap()).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        (head.status.as_u16(), head.headers, body)
    }

    #[tokio::test]
    async fn each_refusal_comes_in_its_turn() {
        let facade = synced();
        let id = "/v1/instances/i-0000000000000000";
        for (method, path, key, status, code) in [
            ("GET", "/nothing", None, 404, "not_found"),
            ("GET", "/v1/instances/", Some("write"), 404, "not_found"),
            ("PUT", "/v1/instances", None, 405, "method_not_allowed"),
            ("GET", "/v1/instances", None, 401, "unauthorized"),
            ("GET", "/v1/instances", Some("other"), 401, "unauthorized"),
            ("DELETE", id, Some("read"), 403, "token_readonly"),
            ("POST", "/v1/instances", Some("write"), 400, "json_error"),
            ("GET", "/v1/instances?limit=0", Some("read"), 422, "invalid_input"),
            ("GET", "/v1/instances/nonsense", Some("read"), 404, "not_found"),
            ("GET", id, Some("read"), 503, "service_unavailable"),
            (
                "POST",
                &format!("{id}/start"),
                Some("write"),
                503,
                "service_unavailable",
            ),
        ] {
            let (found, headers, body) = ask(&facade, method, path, key).await;
            let error = &body["error"];
            assert_eq!((found, &error["code"]), (status, &json!(code)), "{method} {path}");
            assert_eq!(error["request_id"], headers["x-request-id"].to_str().unwrap());
            assert!(
                !headers.contains_key(CONTENT_LENGTH),
                "a wrong one would break the connection"
            );
            let known = ["read", "write"].map(Some).contains(&key) && code != "not_found";
            assert_eq!(
                headers.contains_key("ratelimit-remaining"),
                known || path.ends_with("nonsense"),
                "{path}"
            );
            assert_eq!(headers.contains_key(RETRY_AFTER), status == 503);
            assert_eq!(headers.contains_key(WWW_AUTHENTICATE), status == 401);
        }
    }

    #[tokio::test]
    async fn what_needs_no_api_server_is_answered_without_one() {
        let facade = synced();
        for (method, path) in [
            ("GET", "/v1/instances"),
            ("HEAD", "/v1/plans"),
            ("GET", "/v1/openapi.json"),
        ] {
            assert_eq!(ask(&facade, method, path, Some("read")).await.0, 200, "{path}");
        }
        assert_eq!(ask(&facade, "GET", "/v1/openapi.json", None).await.0, 200);
    }

    #[tokio::test]
    async fn nothing_is_listed_before_the_first_list() {
        let (status, headers, _) = ask(&facade(), "GET", "/v1/instances", Some("read")).await;
        assert!(
            status == 503 && headers.contains_key(RETRY_AFTER),
            "an empty list would be a lie"
        );
    }

    #[tokio::test]
    async fn a_panic_is_a_500_in_the_format() {
        let app = synced().app;
        let path = "/v1/panic";
        let router = Router::new().route(path, get(async || -> &'static str { panic!("on purpose") }));
        let served = vec![openapi::Served {
            path: path.to_owned(),
            methods: vec![Method::GET],
            needs_key: false,
        }];
        let metrics = Metrics::new();
        let front = Front::with_router(app, metrics.clone(), router, served);
        let response = front
            .answer(Request::get(path).body(Body::empty()).unwrap())
            .await;
        assert_eq!(response.status(), 500);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "server_error");
        assert!(!body.to_string().contains("on purpose"));
        let page = metrics.render().unwrap();
        assert!(
            page.contains(r#"method="GET",route="/v1/panic",status="500""#),
            "{page}"
        );
    }

    #[tokio::test]
    async fn every_route_is_counted_under_its_own_label() {
        let facade = synced();
        for served in openapi::router(facade.app.clone()).1 {
            let path = served
                .path
                .replace("{id}", "i-0000000000000000")
                .replace("{delivery_id}", "dlv_0000000000000000");
            let route = facade.front.routes.find(&path).unwrap();
            assert_eq!(route.label, served.path);
        }
        ask(&facade, "GET", "/v1/nothing", None).await;
        let page = facade.front.metrics.render().unwrap();
        assert!(page.contains(r#"route="unknown",status="404""#), "{page}");
    }

    #[tokio::test]
    async fn a_request_id_of_the_client_is_kept_if_it_is_sane() {
        let id = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(&X_REQUEST_ID, HeaderValue::from_bytes(text).unwrap());
            request_id(&headers)
        };
        assert_eq!(id(b"mine-1"), "mine-1");
        for bad in [&b""[..], b"a b", b"\xc3\xa4", &[b'x'; 129]] {
            assert_eq!(id(bad).len(), 32);
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
