//! Middleware around every handler: request id, key, scope, rate limit, panics, metrics, and the error format.

mod authentication;
mod writes;

use std::{
    collections::HashMap,
    convert::Infallible,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Request},
    response::{IntoResponse as _, Response},
};
use futures::{
    FutureExt as _,
    future::{BoxFuture, Either, Ready, ready},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE},
};
use opentelemetry::context::FutureExt as _;
use prometheus_client::metrics::{counter::Counter, histogram::Histogram};
use tower::{Service, layer::layer_fn};
use tracing::{Instrument as _, Level};

pub use self::writes::Writes;

use self::{
    authentication::bearer,
    writes::{PER_ACCOUNT, Write},
};
use super::{
    AnsweredAs, App,
    extract::{
        Caller,
        query::{self, Known},
    },
    openapi::Served,
    rate_limit::{Allowance, Whose},
    response::{
        JSON, NO_STORE,
        error::{self, Error, ErrorCode},
    },
};
use crate::service::credentials::{Credential, Tenant};
use runtime::{
    Metrics, audit,
    http::Peer,
    metrics::{RequestLabels, RouteLabels, method_label},
    traces,
};

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static RATE_LIMIT_LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
static RATE_LIMIT_REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
static RATE_LIMIT_RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// A request that takes longer is slow (docs/runbooks.md, StellageApiSlow).
const SLOW: Duration = Duration::from_secs(2);
/// Maximum length of a request id accepted from a client.
const MAX_REQUEST_ID: usize = 128;

/// Adds the middleware to the routes. 404 and 405 for unknown paths and methods need no key; after those, the key, the
/// rate limit and the scope are checked, in this order.
pub(super) fn around(
    routes: Router<Arc<App>>,
    served: &[Served],
    app: &Arc<App>,
    metrics: &Metrics,
) -> Router {
    let observer = Arc::new(Observer::new(served, app.clone(), metrics.clone()));
    let layer = {
        let observer = observer.clone();
        layer_fn(move |inner| Surround {
            observer: observer.clone(),
            inner,
        })
    };
    routes
        .fallback(async || Error::new(ErrorCode::NotFound, "no such path"))
        .method_not_allowed_fallback(async move |path: MatchedPath| observer.method_not_allowed(&path))
        .layer(layer)
        .with_state(app.clone())
}

/// A served path.
struct Route {
    /// The path, with placeholders.
    label: &'static str,
    /// The methods, and the query parameters of each.
    methods: Vec<(Method, Vec<Known>)>,
    needs_key: bool,
    allow: HeaderValue,
    /// Created by the first request, so that routes without requests are not among the metrics.
    seconds: OnceLock<Histogram>,
    /// Counter of the most frequent case, a GET with 200, cached to avoid the look-up by labels.
    read: OnceLock<Counter>,
}

impl Route {
    fn new(label: &'static str, served: &Served) -> Self {
        let methods = served.methods.iter().map(|(method, _)| method.as_str());
        let allow = methods.collect::<Vec<_>>().join(", ");
        Self {
            label,
            methods: served.methods.clone(),
            needs_key: served.needs_key,
            allow: HeaderValue::try_from(allow).unwrap_or(HeaderValue::from_static("")),
            seconds: OnceLock::new(),
            read: OnceLock::new(),
        }
    }

    /// The query parameters of a method; `None` if it is not supported.
    fn query_of(&self, method: &Method) -> Option<&[Known]> {
        let mut methods = self.methods.iter();
        let (_, query) = methods.find(|(supported, _)| supported == method)?;
        Some(query)
    }

    /// 422 if the query has parameters that the method does not have.
    fn check_query(&self, request: &Request) -> Result<(), Error> {
        if request.uri().query().is_none() {
            return Ok(());
        }
        match self.query_of(request.method()) {
            Some(known) => query::check(request.uri(), known),
            // 404 or 405.
            None => Ok(()),
        }
    }
}

/// Admits requests, and counts them and their durations by route.
struct Observer {
    app: Arc<App>,
    /// The served paths. The first stands for unknown paths.
    routes: Vec<Route>,
    /// Index into `routes`, by path with placeholders.
    numbers: HashMap<&'static str, usize>,
    metrics: Metrics,
}

impl Observer {
    fn new(served: &[Served], app: Arc<App>, metrics: Metrics) -> Self {
        let route = |served: &Served| {
            // Labels of metrics are `'static`. This leaks one short string per route, once in the life of the program.
            let label: &'static str = served.path.clone().leak();
            Route::new(label, served)
        };
        let unknown = Route::new("unknown", &Served::default());
        let routes: Vec<_> = std::iter::once(unknown).chain(served.iter().map(route)).collect();
        let numbers = routes.iter().enumerate().skip(1);
        Self {
            app,
            numbers: numbers.map(|(number, route)| (route.label, number)).collect(),
            routes,
            metrics,
        }
    }

    /// The index of a route.
    fn number(&self, path: Option<&MatchedPath>) -> usize {
        let number = path.and_then(|path| self.numbers.get(path.as_str()));
        number.copied().unwrap_or(0)
    }

    fn method_not_allowed(&self, path: &MatchedPath) -> Response {
        let mut response = refuse(Error::new(
            ErrorCode::MethodNotAllowed,
            "this path does not support the method; the header Allow lists those that it does",
        ));
        let allow = self.routes[self.number(Some(path))].allow.clone();
        response.headers_mut().insert(ALLOW, allow);
        response
    }

    /// `tenant` is whose request it was, if it had a key.
    fn count(
        &self,
        route: &Route,
        method: &'static str,
        status: u16,
        took: Duration,
        tenant: Option<&Tenant>,
    ) {
        let seconds = || {
            let labels = RouteLabels { route: route.label };
            self.metrics.request_seconds.get_or_create_owned(&labels)
        };
        route.seconds.get_or_init(seconds).observe(took.as_secs_f64());
        let count = |status| {
            self.metrics.requests.get_or_create_owned(&RequestLabels {
                method,
                route: route.label,
                status,
            })
        };
        let account = tenant.map_or("", |tenant| &tenant.account);
        if status >= 500 {
            self.metrics.accounts_with_failed_requests.note(account);
        }
        if took > SLOW {
            self.metrics.accounts_with_slow_requests.note(account);
        }
        match status {
            200 if method == "GET" => route.read.get_or_init(|| count(200)).inc(),
            status => count(status).inc(),
        };
    }
}

/// Surrounds everything: request id, key, rate limit, scope, error format, panics and metrics.
///
/// One service rather than two `from_fn` layers, which clone the route twice for each request and move it through four more
/// futures.
#[derive(Clone)]
struct Surround<S> {
    observer: Arc<Observer>,
    inner: S,
}

impl<S> Service<Request> for Surround<S>
where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>,
{
    type Response = Response;
    type Error = Infallible;
    type Future =
        Either<Ready<Result<Response, Infallible>>, BoxFuture<'static, Result<Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        let started = Instant::now();
        let method = method_label(request.method());
        let request_id = request_id(request.headers());
        let observer = self.observer.clone();
        let number = observer.number(request.extensions().get());
        let route = &observer.routes[number];
        let takes_key = route.needs_key && route.query_of(request.method()).is_some();
        let (admitted, allowance) = if takes_key {
            observer.app.admit(&mut request)
        } else {
            (Ok(None), None)
        };
        let admitted = admitted.and_then(|write| route.check_query(&request).map(|()| write));
        // Those beyond its allowance change nothing, and would fill the log.
        let is_told = allowance
            .as_ref()
            .is_some_and(|allowance| allowance.exceeded.is_none());
        let asked =
            (is_told && !request.method().is_safe()).then(|| asked(&request, method, route, &request_id));
        // Requests without a valid key, or beyond their allowance, must not displace the spans of others.
        let is_traced = takes_key && admitted.is_ok();
        let traced = is_traced
            .then(|| traced(request.headers(), method, route))
            .flatten();
        if let Some(traced) = &traced {
            traced.set(
                "stellage.request_id",
                request_id.to_str().unwrap_or_default().to_owned(),
            );
        }
        let span = {
            let (request_id, trace_id) = (request_id.clone(), traced.as_ref().map(traces::Span::trace_id));
            // At the highest level, so that every log line about the request has its id, whatever the filter.
            move || {
                let request_id = request_id.to_str().unwrap_or_default();
                tracing::error_span!("request", request_id, trace_id = trace_id.map(display))
            }
        };
        let context = traced.as_ref().map(traces::Span::context);
        let tenant = request
            .extensions()
            .get()
            .map(|caller: &Caller| caller.credential.tenant.clone());
        // Combinators, because an async block would hold the inner future twice and be so large that its allocation is slow.
        let finish = move |mut response: Response| {
            if let Some(asked) = asked {
                answered(asked, &response).record();
            }
            finish(&mut response, &request_id);
            let status = response.status().as_u16();
            let route = &observer.routes[number];
            observer.count(route, method, status, started.elapsed(), tenant.as_deref());
            tracing::debug!(method, route = route.label, status, "answered");
            if let Some(traced) = traced {
                traced.set("http.response.status_code", i64::from(status));
                if response.status().is_server_error() {
                    traced.fail(status.to_string());
                }
            }
            let headers = response.headers_mut();
            if let Some(allowance) = allowance {
                add_rate_limit(headers, &allowance);
            }
            headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
            headers.insert(&X_REQUEST_ID, request_id);
            Ok(response)
        };
        match admitted {
            Ok(write) => {
                let mut answer = Box::pin(AssertUnwindSafe(self.inner.call(request)).catch_unwind());
                // Nearly all reads are answered at once, from memory, and log nothing above DEBUG. A span would cost them as much as the
                // look-up.
                let may_be_silent = method == "GET" && context.is_none() && !tracing::enabled!(Level::DEBUG);
                let answered = may_be_silent.then(|| answer.as_mut().now_or_never()).flatten();
                match (answered, context) {
                    (Some(Ok(Ok(response))), _) if !response.status().is_server_error() => {
                        Either::Left(ready(finish(response)))
                    }
                    (Some(answered), _) => {
                        Either::Left(ready(span().in_scope(|| finish(unless_panicked(answered)))))
                    }
                    (None, context) => {
                        let answer = answer.map(move |answered| {
                            drop(write);
                            finish(unless_panicked(answered))
                        });
                        Either::Right(match context {
                            None => Box::pin(answer.instrument(span())),
                            Some(context) => Box::pin(answer.with_context(context).instrument(span())),
                        })
                    }
                }
            }
            Err(refusal) => Either::Left(ready(span().in_scope(|| finish(refuse(refusal))))),
        }
    }
}

impl App {
    /// Authenticates a request and decides whether it may go on to its handler. Returns an allowance once the key is known.
    fn admit(&self, request: &mut Request) -> (Result<Option<Write>, Error>, Option<Allowance>) {
        let (credential, reads_in_console) = match request.extensions_mut().remove() {
            // Only code in this process can have set it.
            Some(AnsweredAs(credential)) => (credential, request.method().is_safe()),
            None => match self.authenticate(request.headers()) {
                Ok(credential) => (credential, false),
                Err(refusal) => return (Err(refusal), None),
            },
        };
        let caller = Caller {
            credential,
            reads_in_console,
        };
        let allowance = self.rate_limits.spend(&caller);
        // Even if the request is refused below: somebody has the key and uses it.
        self.service.note_use(&caller.credential);
        let admitted = self
            .check(request.method(), &caller.credential, &allowance)
            .and_then(|()| self.begin(request.method(), &caller.credential));
        request.extensions_mut().insert(caller);
        (admitted, Some(allowance))
    }

    fn authenticate(&self, headers: &HeaderMap) -> Result<Credential, Error> {
        let key = bearer(headers)?;
        self.service
            .credentials()
            .authenticate(key, || self.service.now())
    }

    /// Starts a request. If it may write, the account must not have too many writes in progress.
    fn begin(&self, method: &Method, credential: &Credential) -> Result<Option<Write>, Error> {
        if method.is_safe() {
            return Ok(None);
        }
        let write = self.writes.begin(&credential.tenant.uid);
        write.map(Some).ok_or_else(|| {
            Error::unavailable(format!(
                "the account has {PER_ACCOUNT} requests under way that are not reads; try again once some have been answered"
            ))
        })
    }

    /// Checks rate limit, scope, and whether the watches have listed everything once.
    fn check(&self, method: &Method, credential: &Credential, allowance: &Allowance) -> Result<(), Error> {
        if let Some(exceeded) = &allowance.exceeded {
            let seconds = exceeded.retry_after;
            let whose = match exceeded.whose {
                Whose::Account => "the account's keys have used up their",
                Whose::Key => "the key has used up its",
                Whose::Console => "the account's pages of the console have used up their",
            };
            let limit = exceeded.limit;
            let message = format!("{whose} {limit} requests per hour; try again in {seconds} s");
            return Err(Error {
                retry_after: Some(seconds),
                ..Error::new(ErrorCode::RateLimitExceeded, message)
            });
        }
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        if !is_read && !credential.may_write() {
            return Err(Error::new(
                ErrorCode::TokenReadonly,
                "this needs a key with the scope write; this key has the scope read",
            ));
        }
        if !is_read {
            credential.tenant.check_not_suspended()?;
        }
        if !self.service.is_synced() {
            return Err(Error::unavailable("the service is starting; try again"));
        }
        Ok(())
    }
}

/// The span of a request, if it is traced. It contains neither the path, in which a client may have put anything, nor the query.
fn traced(headers: &HeaderMap, method: &'static str, route: &Route) -> Option<traces::Span> {
    let span = traces::of_request(headers, || format!("{method} {}", route.label))?;
    span.set("http.request.method", method);
    span.set("http.route", route.label);
    Some(span)
}

/// Who asks for what, in a request with a known key.
fn asked(request: &Request, method: &str, route: &Route, request_id: &HeaderValue) -> audit::Entry {
    let mut entry = audit::Entry {
        client: request.extensions().get().map(|Peer(address)| *address),
        operation: format!("{method} {}", route.label),
        object: request.uri().path().to_owned(),
        request_id: request_id.to_str().unwrap_or_default().to_owned(),
        ..audit::Entry::default()
    };
    if let Some(Caller { credential, .. }) = request.extensions().get() {
        credential.sign(&mut entry);
    }
    entry
}

/// The same, with what came of it.
fn answered(asked: audit::Entry, response: &Response) -> audit::Entry {
    let created = response
        .headers()
        .get(LOCATION)
        .and_then(|path| path.to_str().ok());
    let error = response.extensions().get::<Error>();
    audit::Entry {
        object: created.map_or(asked.object, str::to_owned),
        status: response.status().as_u16(),
        error: error.map_or_else(String::new, |error| error.code.as_str().to_owned()),
        ..asked
    }
}

/// The answer of a handler. A panic becomes a 500.
fn unless_panicked(answered: std::thread::Result<Result<Response, Infallible>>) -> Response {
    let answered = answered.map(|Ok(response)| response);
    answered.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        tracing::error!(panic = text, "a handler panicked");
        refuse(Error::fault())
    })
}

fn refuse(error: Error) -> Response {
    error.into_response()
}

/// Writes the body and headers of an error answer.
fn finish(response: &mut Response, request_id: &HeaderValue) {
    let Some(error) = response.extensions_mut().remove::<Error>() else {
        return;
    };
    let request_id = request_id.to_str().unwrap_or_default();
    if error::status(error.code).is_server_error() {
        tracing::warn!(%error, "answered with an error");
    }
    *response.body_mut() = Body::from(error::body(&error, request_id));
    let headers = response.headers_mut();
    // axum has set it for the empty body of the error.
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, JSON);
    if error.code == ErrorCode::Unauthorized {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = error.retry_after {
        headers.insert(RETRY_AFTER, seconds.into());
    }
}

fn add_rate_limit(headers: &mut HeaderMap, allowance: &Allowance) {
    headers.insert(&RATE_LIMIT_LIMIT, allowance.limit.into());
    headers.insert(&RATE_LIMIT_REMAINING, allowance.remaining.into());
    headers.insert(&RATE_LIMIT_RESET, allowance.reset.into());
}

/// The client's request id if it is short and visible ASCII, otherwise a random one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let own = headers.get(&X_REQUEST_ID).filter(|value| {
        (1..=MAX_REQUEST_ID).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
    });
    // A clone would keep the whole head of the request in memory.
    let copied = own.and_then(|own| HeaderValue::from_bytes(own.as_bytes()).ok());
    copied.unwrap_or_else(|| {
        let mut id = [b'0'; 32];
        // The buffer has exactly the right length.
        let _ = hex::encode_to_slice(rand::random::<[u8; 16]>(), &mut id);
        HeaderValue::from_bytes(&id).unwrap_or(HeaderValue::from_static("none"))
    })
}

#[cfg(test)]
mod tests {
    use axum::routing::{get, post};
    use http_body_util::BodyExt as _;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        facade::{Facade, openapi},
        service::{Service, deliveries::pending_delivery},
    };
    use resources::api_key::{self, test_key};
    use runtime::{testing::answered_by, watch::Change};

    /// A facade whose API server cannot be reached, with one account and a key of each scope.
    fn facade(metrics: &Metrics) -> Facade {
        facade_of(Service::without_cluster(), metrics)
    }

    fn facade_of(service: Service, metrics: &Metrics) -> Facade {
        let service = Arc::new(service);
        let mut listeners = service.listeners();
        let parse = |value: Value| Arc::new(serde_json::from_value(value).unwrap());
        listeners.accounts.changed(&Change::Replaced(vec![parse(json!({
            "metadata": { "name": "demo", "uid": "a" }, "spec": { "email": "ada@example.com" },
            "status": { "namespace": "demo", "conditions": [{
                "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-11-21T10:00:00Z"
            }] },
        }))]));
        let key = |text: &str| {
            let digest = hex::encode(api_key::digest("a", &test_key("a", text)));
            let object = json!({
                "metadata": { "name": text, "namespace": "demo", "uid": text }, "spec": { "sha256": digest, "scope": text },
            });
            Arc::new(serde_json::from_value(object).unwrap())
        };
        listeners
            .keys
            .changed(&Change::Replaced(vec![key("read"), key("write")]));
        Facade::new(service, Duration::from_secs(150), None, metrics)
    }

    fn synced_with(metrics: &Metrics) -> Facade {
        synced_facade(facade(metrics))
    }

    fn synced_facade(facade: Facade) -> Facade {
        let mut listeners = facade.app.service.listeners();
        listeners.instances.changed(&Change::Replaced(Vec::new()));
        listeners.networks.changed(&Change::Replaced(Vec::new()));
        listeners.backups.changed(&Change::Replaced(Vec::new()));
        listeners.webhooks.changed(&Change::Replaced(Vec::new()));
        facade
    }

    fn synced() -> Facade {
        synced_with(&Metrics::new())
    }

    async fn ask(facade: &Facade, method: &str, path: &str, key: Option<&str>) -> (u16, HeaderMap, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {}", test_key("a", key)));
        }
        let response = facade.answer(request.body(Body::empty()).unwrap()).await;
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        (head.status.as_u16(), head.headers, body)
    }

    #[tokio::test]
    async fn every_parameter_of_an_operation_is_known_and_those_that_are_arrays_may_be_repeated() {
        let facade = synced();
        let all =
            "/v1/instances?page=1&limit=2&status=x&region=x&name=x&search=x&private_network=x&tag=a&tag=b";
        for method in ["GET", "HEAD"] {
            assert_eq!(ask(&facade, method, all, Some("read")).await.0, 200, "{method}");
        }
        let (_, _, body) = ask(&facade, "GET", &format!("{all}&tags=x"), Some("read")).await;
        assert_eq!(
            body["error"]["details"][0]["message"],
            "is not known; the query parameters of this request are page, limit, status, region, name, tag, private_network, search"
        );
    }

    /// Objects by path.
    type Stored = Arc<parking_lot::Mutex<std::collections::BTreeMap<String, Value>>>;

    /// An API server that stores what it gets, and what it has stored.
    fn storing() -> (kube::Client, Stored) {
        let stored = Stored::default();
        let server = stored.clone();
        let client = answered_by(move |method, path, mut body| {
            let mut stored = server.lock();
            let mut path = path.split('?').next().unwrap_or_default().to_owned();
            let answer = if method == Method::POST {
                path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap_or_default());
                body["metadata"]["namespace"] = json!("demo");
                body["metadata"]["uid"] = json!("u");
                body["metadata"]["generation"] = json!(1);
                stored.insert(path, body.clone());
                (201, body)
            } else if let Some(object) = stored.get_mut(&path) {
                for place in ["/metadata/annotations", "/spec"] {
                    for (name, value) in body
                        .pointer(place)
                        .and_then(Value::as_object)
                        .into_iter()
                        .flatten()
                    {
                        object.pointer_mut(place).unwrap()[name] = value.clone();
                    }
                }
                (200, object.clone())
            } else {
                (
                    404,
                    json!({ "status": "Failure", "reason": "NotFound", "code": 404 }),
                )
            };
            async move { answer }
        });
        (client, stored)
    }

    #[tokio::test]
    async fn a_repeated_create_or_rebuild_is_answered_although_what_it_names_is_no_longer_there() {
        let (client, stored) = storing();
        // The catalogue and the rules for receivers before and after.
        let facade = |is_open: bool| {
            let mut service = Service::with_client(client.clone());
            if !is_open {
                service = service.without_images_and_receivers();
            }
            synced_facade(facade_of(service, &Metrics::new()))
        };
        let (before, after) = (facade(true), facade(false));
        let post = async |facade: &Facade, path: &str, key: &str, body: &Value| {
            let request = Request::post(path)
                .header("authorization", format!("Bearer {}", test_key("a", "write")))
                .header("idempotency-key", key)
                .body(Body::from(body.to_string()));
            let (head, body) = facade.answer(request.unwrap()).await.into_parts();
            let bytes = body.collect().await.unwrap().to_bytes();
            let replayed = head.headers.contains_key("idempotency-replayed");
            let body: Value = serde_json::from_slice(&bytes).unwrap();
            (head.status.as_u16(), replayed, body)
        };
        let instance = json!({ "name": "web", "plan": "starter", "region": "de-fra-1", "image": "beos-5" });
        let webhook =
            json!({ "url": "https://hooks.example.com", "events": ["instance.created"], "secret": "s" });
        let mut id = String::new();
        for (path, body) in [("/v1/webhooks", &webhook), ("/v1/instances", &instance)] {
            let (status, replayed, first) = post(&before, path, "k", body).await;
            assert_eq!((status, replayed), (201, false), "{first}");
            let count = stored.lock().len();
            let (status, replayed, again) = post(&after, path, "k", body).await;
            assert_eq!((status, replayed), (201, true), "{again}");
            assert_eq!(again["data"]["id"], first["data"]["id"]);
            assert_eq!(again["data"]["secret"], first["data"]["secret"]);
            assert_eq!(stored.lock().len(), count);
            let (status, ..) = post(&after, path, "other", body).await;
            assert_eq!(status, 422, "{path}");
            let mut other = body.clone();
            other["nonsense"] = json!(1);
            let (_, _, reused) = post(&after, path, "k", &other).await;
            assert_eq!(reused["error"]["code"], "idempotency_key_reused");
            id = first["data"]["id"].as_str().unwrap_or_default().to_owned();
        }
        for object in stored.lock().values_mut() {
            if object["metadata"]["name"] == id.as_str() {
                object["status"] = json!({
                    "state": "running", "power": "Running", "powerState": "Running", "plan": "starter", "image": "beos-5",
                    "observedGeneration": 1, "provisionedAt": "2026-11-21T10:00:00Z",
                });
            }
        }
        let (path, body) = (
            format!("/v1/instances/{id}/rebuild"),
            json!({ "image": "beos-6" }),
        );
        let (status, replayed, first) = post(&before, &path, "r", &body).await;
        assert_eq!((status, replayed), (202, false), "{first}");
        let (status, replayed, again) = post(&after, &path, "r", &body).await;
        assert_eq!((status, replayed), (202, true), "{again}");
        assert_eq!(again["message"], first["message"]);
        assert_eq!(post(&after, &path, "other", &body).await.0, 422);
    }

    #[tokio::test]
    async fn checks_are_made_in_order() {
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
            ("GET", "/v1/instances?tags=x", Some("read"), 422, "invalid_input"),
            (
                "GET",
                "/v1/instances?page=1&page=2",
                Some("read"),
                422,
                "invalid_input",
            ),
            ("GET", "/v1/openapi.json?pretty=1", None, 422, "invalid_input"),
            ("GET", "/nothing?x=1", None, 404, "not_found"),
            ("PUT", "/v1/instances?x=1", None, 405, "method_not_allowed"),
            (
                "DELETE",
                &format!("{id}?force=true"),
                Some("write"),
                422,
                "invalid_input",
            ),
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
            let length = body.to_string().len();
            assert!(
                headers
                    .get(CONTENT_LENGTH)
                    .is_none_or(|header| *header == *length.to_string()),
                "a wrong Content-Length would break the connection"
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
    async fn reads_are_answered_without_the_api_server() {
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
    async fn lists_are_refused_before_the_first_sync() {
        let (status, headers, _) = ask(&facade(&Metrics::new()), "GET", "/v1/instances", Some("read")).await;
        assert!(
            status == 503 && headers.contains_key(RETRY_AFTER),
            "an empty list would be wrong"
        );
    }

    #[tokio::test]
    async fn a_request_uses_its_key_also_if_its_scope_does_not_allow_it_or_the_console_makes_it() {
        let facade = synced();
        let credentials = facade.app.service.credentials();
        let is_used = |key: &str| credentials.unrecorded_use("demo", key).is_some();
        ask(&facade, "GET", "/v1/plans", Some("other")).await;
        ask(&facade, "GET", "/v1/openapi.json", Some("write")).await;
        assert!(!is_used("read") && !is_used("write"));
        let refused = ask(&facade, "POST", "/v1/instances", Some("read")).await;
        assert_eq!((refused.0, is_used("read"), is_used("write")), (403, true, false));
        let write = credentials
            .authenticate(&test_key("a", "write"), Timestamp::now)
            .ok()
            .unwrap();
        let request = Request::get("/v1/plans").body(Body::empty()).unwrap();
        facade.answer_as(write, request).await;
        assert!(is_used("write"));
    }

    #[tokio::test]
    async fn a_panic_is_answered_with_500_in_the_error_format() {
        let app = synced().app;
        let path = "/v1/panic";
        let panics = Router::new().route(path, get(async || -> &'static str { panic!("on purpose") }));
        let served = Served {
            path: path.to_owned(),
            methods: vec![(Method::GET, Vec::new())],
            needs_key: true,
        };
        let metrics = Metrics::new();
        let router = around(panics, &[served], &app, &metrics);
        let (status, headers, body) = ask(
            &Facade {
                app,
                router,
                mounted: None,
            },
            "GET",
            path,
            Some("read"),
        )
        .await;
        assert_eq!((status, &body["error"]["code"]), (500, &json!("server_error")));
        assert!(headers.contains_key("ratelimit-remaining"));
        assert!(!body.to_string().contains("on purpose"));
        let page = metrics.render(runtime::metrics::Format::OpenMetrics).unwrap();
        assert!(
            page.contains(r#"method="GET",route="/v1/panic",status="500""#),
            "{page}"
        );
        assert!(
            page.contains("\nstellage_accounts_with_failed_requests{within=\"6h\"} 1\n"),
            "{page}"
        );
    }

    #[tokio::test]
    async fn writes_whose_clients_have_hung_up_are_bounded_and_the_next_one_is_refused_before_its_body_is_read()
     {
        let app = synced().app;
        let (path, gate) = ("/v1/wait", Arc::new(tokio::sync::Semaphore::new(0)));
        let waiting = {
            let gate = gate.clone();
            async move || gate.acquire().await.map(drop).map_err(|_| Error::fault())
        };
        let waiting = Router::new().route(path, post(waiting).get(async || ()));
        let served = Served {
            path: path.to_owned(),
            methods: vec![(Method::GET, Vec::new()), (Method::POST, Vec::new())],
            needs_key: true,
        };
        let facade = Facade {
            router: around(waiting, &[served], &app, &Metrics::new()),
            app,
            mounted: None,
        };
        for _ in 0..PER_ACCOUNT {
            let request =
                Request::post(path).header("authorization", format!("Bearer {}", test_key("a", "write")));
            drop(facade.answer(request.body(Body::empty()).unwrap()));
        }
        let request =
            Request::post(path).header("authorization", format!("Bearer {}", test_key("a", "write")));
        let never = Body::from_stream(futures::stream::pending::<Result<bytes::Bytes, Infallible>>());
        let refused = facade.answer(request.body(never).unwrap());
        let refused = tokio::time::timeout(Duration::from_secs(10), refused)
            .await
            .unwrap();
        assert_eq!(refused.status(), 503);
        assert!(refused.headers().contains_key(RETRY_AFTER));
        let (status, _, body) = ask(&facade, "POST", path, Some("write")).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert!(status == 503 && message.contains("256 requests"), "{message}");
        assert_eq!(ask(&facade, "GET", path, Some("write")).await.0, 200);
        gate.close();
        facade.app.writing.close();
        facade.app.writing.wait().await;
        assert_eq!(
            ask(&facade, "POST", path, Some("write")).await.0,
            500,
            "it is no longer refused"
        );
    }

    /// What is left of the key's allowance of 3,600, which refills at one per second.
    async fn left(facade: &Facade) -> u32 {
        let (_, headers, _) = ask(facade, "GET", "/v1/plans", Some("write")).await;
        headers["ratelimit-remaining"].to_str().unwrap().parse().unwrap()
    }

    /// A facade whose API server has a webhook with 200 pending deliveries on eight pages. Patches of all but the first hundred are
    /// answered with this code. The event log has 40 pages.
    fn with_deliveries(after_100: u16) -> Facade {
        let patches = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let client = answered_by(move |method, path, _| {
            let patches = patches.clone();
            async move {
                let next = path
                    .split_once("continue=")
                    .map_or(0, |(_, next)| next.parse().unwrap());
                if method == Method::PATCH {
                    if patches.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 100 {
                        return (200, pending_delivery(0));
                    }
                    let failure = json!({ "kind": "Status", "status": "Failure", "code": after_100 });
                    let is_patched = after_100 == 200;
                    (after_100, if is_patched { pending_delivery(0) } else { failure })
                } else if path.contains("/deliveries") {
                    let more = (next < 7).then(|| (next + 1).to_string());
                    let items: Vec<Value> = (25 * next..25 * (next + 1)).map(pending_delivery).collect();
                    (200, json!({ "metadata": { "continue": more }, "items": items }))
                } else if path.contains("/eventlogs") {
                    let next = (next < 39).then(|| (next + 1).to_string());
                    (200, json!({ "metadata": { "continue": next }, "items": [] }))
                } else {
                    let webhook = json!({
                        "metadata": {
                            "namespace": "demo", "name": "wh-abcdefgh01234567", "uid": "u", "resourceVersion": "1",
                        },
                        "spec": {
                            "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" },
                        },
                    });
                    (200, webhook)
                }
            }
        });
        let service = Service::with_client(client);
        synced_facade(facade_of(service, &Metrics::new()))
    }

    #[tokio::test]
    async fn five_deliveries_and_each_further_page_of_them_count_as_a_request_also_if_it_fails() {
        for (after_100, status, expected) in [(200, 202, 40 + 7), (500, 503, 20 + 7)] {
            let facade = with_deliveries(after_100);
            let path = "/v1/webhooks/wh_abcdefgh01234567/deliveries/retry";
            let (answered, _, body) = ask(&facade, "POST", path, Some("write")).await;
            assert_eq!(answered, status, "{body}");
            let charged = 3600 - 2 - left(&facade).await;
            assert!(charged.abs_diff(expected) <= 2, "{after_100}: {charged}");
        }
    }

    #[tokio::test]
    async fn each_further_page_of_the_event_log_counts_as_a_request_of_the_key_or_of_the_console() {
        let facade = with_deliveries(200);
        for path in ["/v1/events", "/v1/events/evt_0000000000000001"] {
            let before = left(&facade).await;
            ask(&facade, "GET", path, Some("write")).await;
            let charged = before - 2 - left(&facade).await;
            assert!(charged.abs_diff(39) <= 2, "{path}: {charged}");
        }
        let before = left(&facade).await;
        let credentials = facade.app.service.credentials();
        let write = credentials
            .authenticate(&test_key("a", "write"), Timestamp::now)
            .ok()
            .unwrap();
        let in_console = async || -> u32 {
            let request = Request::get("/v1/events").body(Body::empty()).unwrap();
            let answer = facade.answer_as(write.clone(), request).await;
            let remaining = answer.headers()["ratelimit-remaining"].to_str().unwrap();
            remaining.parse().unwrap()
        };
        let charged = in_console().await - 1 - in_console().await;
        assert!(
            (20..=39).contains(&charged),
            "ten of the console's are refilled each second: {charged}"
        );
        assert!(before - left(&facade).await <= 1, "the key has spent nothing");
    }

    #[test]
    fn a_request_id_that_is_kept_does_not_keep_the_head_of_its_request() {
        let head = bytes::Bytes::from(vec![b'x'; 1 << 15]);
        let mut headers = HeaderMap::new();
        let own = HeaderValue::from_maybe_shared(head.slice(..8)).unwrap();
        headers.insert(&X_REQUEST_ID, own);
        let kept = request_id(&headers);
        drop(headers);
        assert_eq!(kept, "xxxxxxxx");
        assert!(head.is_unique());
    }

    #[tokio::test]
    async fn every_route_is_counted_under_its_own_label() {
        let metrics = Metrics::new();
        let facade = synced_with(&metrics);
        for Served { path, .. } in openapi::router().1 {
            let asked = path
                .replace("{id}", "i-0000000000000000")
                .replace("{delivery_id}", "dlv_0000000000000000");
            ask(&facade, "PUT", &asked, None).await;
            let page = metrics.render(runtime::metrics::Format::OpenMetrics).unwrap();
            let counted = format!(r#"method="PUT",route="{path}",status="405""#);
            assert!(page.contains(&counted), "{counted}: {page}");
        }
        ask(&facade, "GET", "/v1/nothing", None).await;
        let page = metrics.render(runtime::metrics::Format::OpenMetrics).unwrap();
        assert!(page.contains(r#"route="unknown",status="404""#), "{page}");
    }

    #[tokio::test]
    async fn a_valid_request_id_of_the_client_is_kept() {
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

    #[test]
    fn metrics_name_the_methods_that_are_served_and_no_others() {
        for method in ["GET", "HEAD", "POST", "PATCH", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(method_label(&method.parse().unwrap()), method);
        }
        assert_eq!(method_label(&"BREW".parse().unwrap()), "other");
    }
}
