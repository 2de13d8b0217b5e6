//! The API client. Since kube 4 a plain request has no read timeout, so this module sets one: for the response head in a
//! layer below the client, for the whole call in [`bounded`].

use std::{
    borrow::Cow,
    fmt::Debug,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, Response, Uri, header};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::{
    Api, Client, Config, Resource,
    api::{DeleteParams, ListParams, ObjectList, ObjectMeta, PartialObjectMeta, PostParams, Preconditions},
    client::{Body, ClientBuilder, ConfigExt as _, RustlsTlsError, retry::RetryPolicy},
    core::{NamespaceResourceScope, Status},
};
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;
use tower::{BoxError, Layer, Service, ServiceBuilder, retry::RetryLayer};

use super::{Health, Metrics, ServerTime};

/// Timeout for the head of a response of the API server. Well below the server's own limit of 60 s, because a reconcile
/// that waits longer should rather start over.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a connection may be silent. Where there are pings, the API server gets one after half of this time, and has
/// the other half to answer.
const SILENCE: Duration = Duration::from_secs(10);

/// How much of an answer the API server may send before this process has consumed any of it, in bytes: a page of a
/// list, which it then writes without waiting. With HTTP/2's default of 64 KiB it would wait dozens of times per page.
const STREAM_WINDOW: u32 = 2 << 20;
/// The same for all answers on a connection, in bytes: lists of several kinds at once.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// Timeout for a whole API call.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(15);

/// The media type of an object's metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// An API call that failed.
#[derive(Debug, Error)]
pub enum CallError {
    /// No response in time.
    #[error("the API server did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// Too many other calls were waiting.
    #[error("too many calls of the API server were waiting")]
    Busy,
    /// The API server refused the call, or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
}

impl CallError {
    /// A static label for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Timeout => "api_timeout",
            Self::Busy => "api_busy",
            Self::Api(_) if self.is_own_answer(Status::is_conflict) => "conflict",
            Self::Api(kube::Error::Api(_)) => "api_refused",
            Self::Api(_) => "api_unreachable",
        }
    }

    /// The API server's error response, if it sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Api(kube::Error::Api(status)) => Some(status),
            _ => None,
        }
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.is_own_answer(Status::is_not_found)
    }

    /// Whether the object has changed, or already exists.
    pub fn is_conflict(&self) -> bool {
        self.is_own_answer(|status| status.code == 409)
    }

    /// Whether the API server no longer keeps the state that was asked for.
    pub fn is_expired(&self) -> bool {
        self.is_own_answer(|status| status.code == 410)
    }

    /// Whether an object with the name already exists.
    pub fn is_already_exists(&self) -> bool {
        self.is_own_answer(Status::is_already_exists)
    }

    /// Whether the API server itself gave this answer: admission webhooks may deny with any code and reason.
    fn is_own_answer(&self, is_so: impl Fn(&Status) -> bool) -> bool {
        self.status()
            .is_some_and(|status| is_so(status) && !is_denial(status))
    }
}

/// Whether an admission policy or webhook of the cluster denied the request. It may choose any code and reason.
pub fn is_denial(status: &Status) -> bool {
    let message = &status.message;
    // The API server begins a webhook's message with this text, and puts the object before a policy's message.
    let by_webhook = message.starts_with("admission webhook \"") && message.contains("\" denied the request");
    by_webhook || message.contains("ValidatingAdmissionPolicy '") && message.contains("denied request")
}

/// Whether the API server refuses to create an object because its namespace is being deleted.
pub fn is_namespace_terminating(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 403
        && causes
            .into_iter()
            .any(|cause| cause.reason == "NamespaceTerminating")
}

/// A list that is read page by page, each within [`CALL_TIMEOUT`].
pub struct Pages<K> {
    api: Api<K>,
    /// Of the next page; `None` after the last one.
    params: Option<ListParams>,
    /// Whether it goes on when the state that it began with is no longer kept.
    outlives_its_state: bool,
}

/// How often a page is asked for whose state is no longer kept.
const PAGE_TRIES: usize = 3;

impl<K: Clone + Debug + DeserializeOwned> Pages<K> {
    /// The objects that `params` select. A page has 500 of them unless `params` say otherwise.
    pub fn of(api: Api<K>, mut params: ListParams) -> Self {
        params.limit.get_or_insert(500);
        Self {
            api,
            params: Some(params),
            outlives_its_state: false,
        }
    }

    /// Goes on with the objects as they are now, from where it is, once the API server no longer keeps the state that the list began with:
    /// after five minutes, usually. Otherwise such a list fails. No object that was there all the time is left out.
    #[must_use]
    pub const fn outliving_its_state(mut self) -> Self {
        self.outlives_its_state = true;
        self
    }

    /// Whether there is a next page.
    pub const fn has_next(&self) -> bool {
        self.params.is_some()
    }

    /// The next page; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<ObjectList<K>>, CallError> {
        for tries_left in (0..PAGE_TRIES).rev() {
            let Some(params) = &self.params else {
                return Ok(None);
            };
            match bounded(self.api.list(params)).await {
                Ok(page) => {
                    self.turn(&page.metadata);
                    return Ok(Some(page));
                }
                Err(error) if self.outlives_its_state && tries_left > 0 && error.is_expired() => {
                    self.leave_state(&error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Asks for the rest as it is now. The API server says where that begins, unless it has not answered with any page yet.
    fn leave_state(&mut self, expired: &CallError) {
        let metadata = expired.status().and_then(|status| status.metadata.as_ref());
        let rest = metadata.and_then(|metadata| metadata.continue_.clone());
        if let Some(params) = &mut self.params {
            params.continue_token = rest.filter(|token| !token.is_empty());
            (params.resource_version, params.version_match) = (None, None);
        }
    }

    /// The metadata of the objects on the next page; `None` after the last one.
    pub async fn next_metadata(&mut self) -> Result<Option<ObjectList<PartialObjectMeta<K>>>, CallError> {
        let Some(params) = &self.params else {
            return Ok(None);
        };
        let page = bounded(self.api.list_metadata(params)).await?;
        self.turn(&page.metadata);
        Ok(Some(page))
    }

    /// Points the parameters at the page after this one, if there is one.
    fn turn(&mut self, page: &ListMeta) {
        let token = page.continue_.clone().filter(|token| !token.is_empty());
        self.params = self.params.take().filter(|_| token.is_some());
        if let Some(params) = &mut self.params {
            params.continue_token = token;
        }
    }
}

/// Runs an API call with a timeout of [`CALL_TIMEOUT`].
pub async fn bounded<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(CallError::Timeout),
    }
}

/// Parameters of a creation or replacement by this field manager.
pub fn written_by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// Deletes only the object with this UID, and only at this version if one is given.
pub fn only(uid: Option<String>, version: Option<String>) -> DeleteParams {
    DeleteParams::default().preconditions(Preconditions {
        uid,
        resource_version: version,
    })
}

/// Creates an object. The API server answers with its metadata alone: the caller has the rest, and encoding it would cost more.
pub async fn create<K>(client: &Client, object: &K, params: &PostParams) -> kube::Result<ObjectMeta>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
{
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    answered_with_metadata(client, requests(object).create(params, body)).await
}

/// Replaces the status of this version of an object, so that the API server refuses a stale decision. Only metadata and status are
/// sent, and as with [`create`] the answer is the metadata alone. A PUT costs the API server less than server-side apply.
pub async fn replace_status<K>(
    client: &Client,
    object: &K,
    status: &impl Serialize,
    field_manager: &str,
) -> kube::Result<ObjectMeta>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let update = StatusUpdate {
        api_version: K::api_version(&()),
        kind: K::kind(&()),
        metadata: this_version(object.meta()),
        status,
    };
    let body = serde_json::to_vec(&update).map_err(kube::Error::SerdeError)?;
    let name = object.meta().name.as_deref().unwrap_or_default();
    let request = requests(object).replace_subresource("status", name, &written_by(field_manager), body);
    answered_with_metadata(client, request).await
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusUpdate<'a, S> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    metadata: ObjectMeta,
    status: &'a S,
}

/// The identity of an object and its resourceVersion.
fn this_version(metadata: &ObjectMeta) -> ObjectMeta {
    ObjectMeta {
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        ..ObjectMeta::default()
    }
}

fn requests<K>(object: &K) -> kube::core::Request
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    kube::core::Request::new(K::url_path(&(), object.meta().namespace.as_deref()))
}

async fn answered_with_metadata(
    client: &Client,
    request: Result<Request<Vec<u8>>, kube::core::request::Error>,
) -> kube::Result<ObjectMeta> {
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    let metadata = HeaderValue::from_static(METADATA);
    request.headers_mut().insert(header::ACCEPT, metadata);
    let answer: PartialObjectMeta = client.request(request).await?;
    Ok(answer.metadata)
}

/// A client for `config` whose requests fail if the response head takes longer than [`HEAD_TIMEOUT`]. A connection that
/// has been idle for ten seconds is not reused: after a network loss, each dead connection would cost a request its
/// whole timeout.
pub fn connect(config: Config, observers: Observers) -> kube::Result<Client> {
    Connections::Pooled.client(config, observers)
}

/// Like [`connect`], for the Lease and for watches, which must notice soon that the peer is gone; to a watch, a dead
/// peer looks as if nothing happened. It has one HTTP/2 connection, on which the API server must answer pings. A server
/// that speaks only HTTP/1.1 must answer the kernel's probes, which a load balancer may answer in its place.
pub fn connect_with_pings(config: Config, observers: Observers) -> kube::Result<Client> {
    Connections::Pinged.client(config, observers)
}

/// The connections of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connections {
    /// As many as there are requests at once, with HTTP/1.1.
    Pooled,
    /// One, with HTTP/2 and pings.
    Pinged,
}

impl Connections {
    fn client(self, config: Config, observers: Observers) -> kube::Result<Client> {
        let bounded = Bounded(observers);
        if config.proxy_url.is_some() {
            return Ok(ClientBuilder::try_from(config)?.with_layer(&bounded).build());
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(config.connect_timeout);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(SILENCE / 2));
        tcp.set_keepalive_interval(Some(SILENCE / 2));
        tcp.set_keepalive_retries(Some(1));
        let mut tls = HttpsConnectorBuilder::new()
            .with_tls_config(config.rustls_client_config()?)
            .https_or_http();
        if let Some(name) = &config.tls_server_name {
            let name = name.clone().try_into().map_err(RustlsTlsError::InvalidServerName);
            let name = name.map_err(kube::Error::RustlsTls)?;
            tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let connector = match self {
            Self::Pooled => tls.enable_http1().wrap_connector(tcp),
            Self::Pinged => tls.enable_all_versions().wrap_connector(tcp),
        };
        let http = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(SILENCE)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(SILENCE / 2)
            .http2_keep_alive_timeout(SILENCE / 2)
            .http2_keep_alive_while_idle(true)
            .build(connector);
        let stack = ServiceBuilder::new()
            .layer(bounded)
            .layer(config.base_uri_layer())
            .option_layer(
                config
                    .default_retry
                    .then(|| RetryLayer::new(RetryPolicy::server_retry())),
            )
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(http);
        Ok(Client::new(stack, config.default_namespace))
    }
}

/// The components that are notified of answers.
#[derive(Clone, Default)]
pub struct Observers {
    /// Is notified of the progress of watches.
    pub health: Health,
    /// Counts and times all answers.
    pub metrics: Metrics,
    /// Learns the API server's time.
    pub time: ServerTime,
}

#[derive(Clone)]
struct Bounded(Observers);

impl<S> Layer<S> for Bounded {
    type Service = BoundedService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BoundedService {
            inner,
            observers: self.0.clone(),
        }
    }
}

#[derive(Clone)]
struct BoundedService<S> {
    inner: S,
    observers: Observers,
}

impl<S, B> Service<Request<Body>> for BoundedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(latest) = as_of_now(request.uri()) {
            *request.uri_mut() = latest;
        }
        let is_watch = request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"));
        // The last segment of the path is the resource, since whole kinds are watched.
        let watched = is_watch.then(|| {
            let path = request.uri().path();
            path.rsplit('/').next().unwrap_or_default().to_owned()
        });
        let method = request.method().clone();
        let Observers {
            health,
            metrics,
            time,
        } = self.observers.clone();
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = tokio::time::timeout(HEAD_TIMEOUT, answer).await;
            let answered = answer.as_ref().ok().and_then(|answer| answer.as_ref().ok());
            let status = answered.map(Response::status);
            match watched {
                None => metrics.kubernetes_answered(&method, status.map(|s| s.as_u16()), started.elapsed()),
                Some(resource) => {
                    health.watch_progressed();
                    if status.is_some_and(|status| status.is_success()) {
                        health.watch_answered(&resource);
                        metrics.watch_answered(&resource);
                    }
                }
            }
            let answer = answer
                .map_err(|_| {
                    format!(
                        "the API server did not begin to answer within {} s",
                        HEAD_TIMEOUT.as_secs()
                    )
                })?
                .map_err(Into::into)?;
            time.answered(answer.headers());
            Ok(answer)
        })
    }
}

/// The request for a streamed list that is as recent as the request. kube asks for whatever the API server has in its
/// cache, which may lack an existing object or still have a deleted one.
fn as_of_now(uri: &Uri) -> Option<Uri> {
    let whole = uri.path_and_query()?.as_str();
    let latest = whole
        .contains("sendInitialEvents=true")
        .then(|| whole.strip_suffix("&resourceVersion=0"))??;
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(latest.parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn refused(code: u16, reason: &str, message: &str) -> CallError {
        let status = json!({ "status": "Failure", "code": code, "reason": reason, "message": message });
        let status: Status = serde_json::from_value(status).unwrap();
        CallError::Api(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn only_a_streamed_list_is_asked_for_as_of_now() {
        let base = "https://api/apis/stellage.dev/v1/instances?watch=true&timeoutSeconds=200&allowWatchBookmarks=true";
        let uri = |query: &str| format!("{base}{query}").parse::<Uri>().unwrap();
        let initial = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let streamed = uri(&format!("{initial}&resourceVersion=0"));
        assert_eq!(as_of_now(&streamed), Some(uri(initial)));
        assert_eq!(as_of_now(&uri("&resourceVersion=0")), None);
        assert_eq!(as_of_now(&uri("&resourceVersion=70")), None);
    }

    #[tokio::test]
    async fn a_status_is_replaced_without_the_spec_and_only_the_metadata_is_asked_for() {
        let service = tower::service_fn(async |request: Request<Body>| {
            let (head, body) = request.into_parts();
            assert_eq!(head.method, http::Method::PUT);
            assert_eq!(
                head.uri.to_string(),
                "/api/v1/namespaces/ns/pods/web/status?&fieldManager=manager"
            );
            assert_eq!(head.headers[header::ACCEPT], METADATA);
            let sent: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
            assert_eq!(
                sent,
                json!({
                    "apiVersion": "v1", "kind": "Pod", "status": { "phase": "Running" },
                    "metadata": { "name": "web", "namespace": "ns", "resourceVersion": "7", "uid": "u" },
                })
            );
            let answer = json!({
                "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "resourceVersion": "8" },
            });
            Ok::<_, BoxError>(Response::new(Body::from(serde_json::to_vec(&answer)?)))
        });
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "ns", "resourceVersion": "7", "uid": "u", "labels": { "a": "b" } },
            "spec": { "containers": [] },
        }))
        .unwrap();
        let client = Client::new(service, "default");
        let status = json!({ "phase": "Running" });
        let metadata = replace_status(&client, &pod, &status, "manager").await.unwrap();
        assert_eq!(metadata.resource_version.as_deref(), Some("8"));
    }

    /// A list of two pages at version 7, of which the API server keeps nothing any more when it is asked for `expired`. What it was asked for.
    async fn read_pages(
        expired: &'static str,
        outlives: bool,
    ) -> (Vec<String>, Result<Vec<String>, CallError>) {
        let asked = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let seen = asked.clone();
        let client = crate::testing::answered_by(move |_, path: String, _| {
            let query = path.split_once('?').map_or("", |(_, query)| query).to_owned();
            seen.lock().push(query.clone());
            let page = |names: &[&str], token: &str| {
                let items: Vec<Value> = names
                    .iter()
                    .map(|name| json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": { "containers": [] } }))
                    .collect();
                json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "7", "continue": token }, "items": items })
            };
            let gone = json!({
                "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old",
                "metadata": if query.contains("continue=") { json!({ "continue": "rest" }) } else { json!({}) },
            });
            async move {
                match &*query {
                    query if query.ends_with(expired) => (410, gone),
                    query if query.contains("continue=") => (200, page(&["b"], "")),
                    _ => (200, page(&["a"], "next")),
                }
            }
        });
        let params = ListParams::default()
            .limit(1)
            .at("7")
            .matching(kube::api::VersionMatch::Exact);
        let mut pages = Pages::<Pod>::of(Api::all(client), params);
        if outlives {
            pages = pages.outliving_its_state();
        }
        let mut names = Vec::new();
        let read = loop {
            match pages.next().await {
                Ok(Some(page)) => names.extend(page.items.into_iter().filter_map(|pod| pod.metadata.name)),
                Ok(None) => break Ok(names),
                Err(error) => break Err(error),
            }
        };
        let asked = asked.lock().clone();
        (asked, read)
    }

    #[tokio::test]
    async fn a_list_whose_state_is_no_longer_kept_goes_on_where_it_was_only_if_it_may() {
        let (asked, read) = read_pages("continue=next", true).await;
        assert_eq!(read.unwrap(), ["a", "b"]);
        assert!(asked[2].ends_with("continue=rest"), "{asked:?}");
        let (_, read) = read_pages("continue=next", false).await;
        assert!(read.unwrap_err().is_expired());
        // From its beginning on, if there is nothing to go on with.
        let (asked, read) = read_pages("resourceVersionMatch=Exact", true).await;
        assert_eq!(read.unwrap(), ["a", "b"]);
        assert!(!asked[1].contains("resourceVersion"), "{asked:?}");
    }

    #[test]
    fn a_denial_is_no_conflict_and_no_missing_object_whatever_code_it_has() {
        for (code, reason) in [(404, "NotFound"), (409, "Conflict"), (409, "AlreadyExists")] {
            let denied = refused(code, reason, "admission webhook \"x\" denied the request: no");
            assert!(
                !denied.is_not_found() && !denied.is_conflict() && !denied.is_already_exists(),
                "{reason}"
            );
            assert_eq!(denied.label(), "api_refused");
            // Only where the API server itself writes it: messages also contain names of objects and texts of tenants.
            let quoted = refused(
                code,
                reason,
                "\"admission webhook \"x\" denied the request\" exists",
            );
            assert!(quoted.is_not_found() || quoted.is_conflict(), "{reason}");
        }
        assert!(refused(409, "AlreadyExists", "it exists").is_already_exists());
        assert_eq!(refused(409, "Conflict", "modified").label(), "conflict");
    }
}
