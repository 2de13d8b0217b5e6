//! Traces, and if wanted the lines of [`audit`], sent over OTLP. The spans of a request, of the reconciles and provider calls that it causes, and of the
//! deliveries of its events form one trace.
//!
//! Spans begin where the work is done, rather than in a layer over `tracing`: there are few such places, the trace
//! passes through objects of the API server, and log lines stay as they are. Without an endpoint, each of these places
//! checks a static and does nothing.
//!
//! - `parent`: the `traceparent` of a caller, an annotation or an event;
//! - `export`: the HTTP client of the exporter.

mod export;
mod parent;

use std::{borrow::Cow, env, sync::OnceLock, time::Duration};

use clap::Args;
use futures::{FutureExt as _, future::ready};
use http::HeaderMap;
use opentelemetry::{
    Context, KeyValue, TraceId, Value,
    context::FutureExt as _,
    trace::{SpanContext, Status, TraceContextExt as _, Tracer as _, TracerProvider as _},
};
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    logs::SdkLoggerProvider,
    trace::{Sampler, SdkTracer, SdkTracerProvider},
};
use thiserror::Error;
use tracing::Instrument as _;
use url::Url;

pub use self::parent::TRACEPARENT;
pub use opentelemetry::trace::SpanKind;

use super::{Metrics, audit};

/// The standard variable that names the endpoint where the flag does not.
const ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// How long to wait at shutdown until the last spans have been sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The tracer of this process; none while there are no traces.
static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Settings of traces.
#[derive(Args, Clone, Debug)]
pub struct TraceSettings {
    /// URL of an OTLP/HTTP receiver to send traces to, such as `http://collector:4318`; by default the value of
    /// OTEL_EXPORTER_OTLP_ENDPOINT; if neither is set, no traces are sent
    #[arg(long, env = "STELLAGE_OTLP_ENDPOINT", value_name = "URL", value_parser = endpoint)]
    pub otlp_endpoint: Option<Url>,

    /// Share of the requests to trace, 0 to 1; no caller can raise it
    #[arg(long, env = "STELLAGE_TRACE_RATIO", default_value = "1", value_parser = ratio)]
    pub trace_ratio: f64,

    /// Send the audit lines, too, to the same receiver, which must take logs
    #[arg(long, env = "STELLAGE_OTLP_AUDIT")]
    pub otlp_audit: bool,
}

/// Why traces cannot be sent.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The standard variable is not a usable URL.
    #[error("invalid value of {ENDPOINT_VARIABLE}: {0}; change it, remove it, or set --otlp-endpoint")]
    Endpoint(String),
    /// The HTTP client cannot be built.
    #[error("cannot send traces: {0}")]
    Client(#[from] reqwest::Error),
    /// TLS cannot be set up.
    #[error("cannot send traces: {0}")]
    Tls(#[from] rustls::Error),
    /// A standard variable is invalid.
    #[error("cannot send traces: {0}")]
    Exporter(#[from] ExporterBuildError),
}

/// The sending of traces; [`finish`](Self::finish) it at shutdown.
#[derive(Debug)]
pub struct Sending {
    traces: SdkTracerProvider,
    audit: Option<SdkLoggerProvider>,
}

/// Starts to send traces, and the audit lines if they are wanted, as `service`, if the settings or the standard variable say where to. Call it once, in a runtime.
///
/// Both wait in queues, and are dropped when it is full: nothing waits for the receiver.
pub fn start(
    settings: &TraceSettings,
    service: &'static str,
    metrics: &Metrics,
) -> Result<Option<Sending>, TraceError> {
    let Some(url) = settings
        .otlp_endpoint
        .clone()
        .map_or_else(endpoint_of_environment, |url| Ok(Some(url)))?
    else {
        return Ok(None);
    };
    let client = export::Client::new(metrics.clone())?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client.clone())
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(signal_url(&url, "traces"))
        .build()?;
    let mut resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name(service);
    }
    let resource = resource.build();
    let audit = settings
        .otlp_audit
        .then(|| send_audit(&url, client, resource.clone()))
        .transpose()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        // Whether to make a span is decided before it is made.
        .with_sampler(Sampler::AlwaysOn)
        .with_resource(resource)
        .build();
    let tracer = Tracer {
        sdk: provider.tracer("stellage"),
        ratio: settings.trace_ratio,
    };
    let _ = TRACER.set(tracer);
    tracing::info!(endpoint = %url, ratio = settings.trace_ratio, "sending traces");
    Ok(Some(Sending {
        traces: provider,
        audit,
    }))
}

impl Sending {
    /// Sends the last spans and lines, within some seconds.
    pub async fn finish(self) {
        let Self { traces, audit } = self;
        let audit = audit.map_or_else(
            || ready(true).left_future(),
            |audit| in_time(move || audit.shutdown_with_timeout(FLUSH_TIMEOUT)).right_future(),
        );
        let traces = in_time(move || traces.shutdown_with_timeout(FLUSH_TIMEOUT));
        if tokio::join!(traces, audit) != (true, true) {
            tracing::warn!("the last traces or audit lines could not be sent in time");
        }
    }
}

/// Whether the last of a signal could be sent.
async fn in_time(shutdown: impl FnOnce() -> OTelSdkResult + Send + 'static) -> bool {
    matches!(tokio::task::spawn_blocking(shutdown).await, Ok(Ok(())))
}

fn send_audit(
    endpoint: &Url,
    client: export::Client,
    resource: Resource,
) -> Result<SdkLoggerProvider, TraceError> {
    let exporter = LogExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(signal_url(endpoint, "logs"))
        .build()?;
    let provider = SdkLoggerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build();
    audit::send(&provider);
    Ok(provider)
}

/// A span of a request, which its caller may have begun, unless the ratio leaves it out.
pub fn of_request(headers: &HeaderMap, name: impl FnOnce() -> String) -> Option<Span> {
    let tracer = TRACER.get()?;
    let parent = tracer.follow(headers)?;
    Some(tracer.begin(name(), SpanKind::Server, &parent))
}

/// A span that goes on with the trace of a stored `traceparent`; `None` if that is not valid, or not sampled.
pub fn continued(traceparent: &str, name: &'static str, kind: SpanKind) -> Option<Span> {
    let tracer = TRACER.get()?;
    let parent = parent::sampled(traceparent)?;
    Some(tracer.begin(name, kind, &within_span(parent)))
}

/// A span within the one that runs now.
pub fn child(name: &'static str, kind: SpanKind) -> Option<Span> {
    let tracer = TRACER.get()?;
    let parent = Context::current();
    parent
        .has_active_span()
        .then(|| tracer.begin(name, kind, &parent))
}

/// The `traceparent` of the span that runs now, to be stored with what it causes.
pub fn current() -> Option<String> {
    TRACER.get()?;
    let context = Context::current();
    let span = context.span();
    let span = span.span_context();
    span.is_valid().then(|| parent::text(span))
}

/// The text, if there are traces and it is a valid `traceparent` of a trace that is sampled.
pub fn accepted(traceparent: &str) -> Option<&str> {
    TRACER.get()?;
    parent::sampled(traceparent).map(|_| traceparent)
}

/// Runs `work` in a span, if there is one: it is then what [`child`] and [`current`] see.
pub fn within<F: Future>(span: Option<&Span>, work: F) -> impl Future<Output = F::Output> {
    match span {
        None => work.left_future(),
        Some(span) => work.with_context(span.context()).right_future(),
    }
}

/// As [`within`], with the trace in the lines that `work` logs.
pub fn within_logged<F: Future>(span: Option<&Span>, work: F) -> impl Future<Output = F::Output> {
    within(span, work).instrument(in_logs(span))
}

fn in_logs(span: Option<&Span>) -> tracing::Span {
    span.map_or_else(
        tracing::Span::none,
        |span| tracing::error_span!("traced", trace_id = %span.trace_id()),
    )
}

/// A span of a trace that is sampled. It ends when it is dropped.
#[derive(Debug)]
pub struct Span(Context);

impl Span {
    /// Sets an attribute. No attribute may have a secret, a body, or the path or query of a URL.
    pub fn set(&self, key: &'static str, value: impl Into<Value>) {
        self.0.span().set_attribute(KeyValue::new(key, value));
    }

    /// Marks it as failed, for a reason with few values.
    pub fn fail(&self, error_type: impl Into<Value>) {
        self.set("error.type", error_type);
        self.0.span().set_status(Status::error(""));
    }

    /// The id of its trace.
    pub fn trace_id(&self) -> TraceId {
        self.0.span().span_context().trace_id()
    }

    /// The context in which [`child`] and [`current`] see it.
    pub fn context(&self) -> Context {
        self.0.clone()
    }

    /// Its `traceparent`, for those that it calls.
    pub fn traceparent(&self) -> String {
        parent::text(self.0.span().span_context())
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        self.0.span().end();
    }
}

#[derive(Debug)]
struct Tracer {
    sdk: SdkTracer,
    ratio: f64,
}

impl Tracer {
    /// What a request goes on with: the span of its caller, or nothing; `None` if it is not traced. A caller can keep its requests out,
    /// but not in: that is decided here, and not by the id of its trace, which it chooses.
    fn follow(&self, headers: &HeaderMap) -> Option<Context> {
        let caller = parent::of_caller(headers);
        let is_wanted = caller.as_ref().is_none_or(SpanContext::is_sampled);
        (is_wanted && rand::random::<f64>() < self.ratio)
            .then(|| caller.map_or_else(Context::new, within_span))
    }

    fn begin(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind, parent: &Context) -> Span {
        let span = self.sdk.span_builder(name).with_kind(kind);
        Span(Context::new().with_span(span.start_with_context(&self.sdk, parent)))
    }
}

fn within_span(span: SpanContext) -> Context {
    Context::new().with_remote_span_context(span)
}

/// The URL for a signal (OTLP specification, section OTLP/HTTP request).
fn signal_url(endpoint: &Url, signal: &str) -> String {
    let mut url = endpoint.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(["v1", signal]);
    }
    url.into()
}

/// The endpoint that the standard variable names.
fn endpoint_of_environment() -> Result<Option<Url>, TraceError> {
    match env::var(ENDPOINT_VARIABLE) {
        Ok(text) if !text.is_empty() => endpoint(&text).map(Some).map_err(TraceError::Endpoint),
        _ => Ok(None),
    }
}

fn endpoint(text: &str) -> Result<Url, String> {
    const EXPECTED: &str = "must be the URL of an OTLP/HTTP receiver, such as http://collector:4318";
    let url = Url::parse(text).map_err(|error| format!("{EXPECTED} ({error})"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(EXPECTED.to_owned());
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err(format!(
            "{EXPECTED}, with neither credentials nor a query; put tokens into OTEL_EXPORTER_OTLP_HEADERS"
        ));
    }
    if url.path().trim_end_matches('/').ends_with("/v1/traces") {
        return Err(format!("{EXPECTED}, without /v1/traces, which is added"));
    }
    Ok(url)
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1.0).contains(&value) => Ok(value),
        _ => Err("must be a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7";

    fn tracer(ratio: f64) -> Tracer {
        Tracer {
            sdk: SdkTracerProvider::builder().build().tracer("test"),
            ratio,
        }
    }

    fn from(caller: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            http::HeaderName::from_static("traceparent"),
            caller.parse().unwrap(),
        )])
    }

    fn has_parent(context: &Context) -> bool {
        context.span().span_context().is_valid()
    }

    #[test]
    fn a_caller_can_keep_a_request_out_of_the_traces_but_not_in() {
        let sampled = from(&format!("{CALLER}-01"));
        let unsampled = from(&format!("{CALLER}-00"));
        assert!(has_parent(&tracer(1.0).follow(&sampled).unwrap()));
        assert!(tracer(1.0).follow(&unsampled).is_none());
        assert!(!has_parent(&tracer(1.0).follow(&from("nonsense")).unwrap()));
        for _ in 0..100 {
            assert!(tracer(0.0).follow(&sampled).is_none());
        }
        // Whatever the trace id is.
        let followed = (0..10_000).filter(|_| tracer(0.1).follow(&sampled).is_some());
        assert!((700..1300).contains(&followed.count()));
    }

    #[test]
    fn a_span_is_in_the_trace_of_its_parent_and_is_the_parent_of_what_it_causes() {
        let parent = parent::sampled(&format!("{CALLER}-01")).unwrap();
        let span = tracer(1.0).begin("a", SpanKind::Server, &within_span(parent));
        let text = span.traceparent();
        assert!(
            text.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && text.ends_with("-01"),
            "{text}"
        );
        assert_eq!(span.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert!(!text.contains("00f067aa0ba902b7"));
    }

    #[test]
    fn without_an_endpoint_there_are_no_spans() {
        let text = format!("{CALLER}-01");
        assert!(of_request(&from(&text), || unreachable!("no name is made")).is_none());
        assert!(
            continued(&text, "a", SpanKind::Internal).is_none() && child("a", SpanKind::Internal).is_none()
        );
        assert!(current().is_none() && accepted(&text).is_none());
    }

    #[test]
    fn an_endpoint_is_a_base_url_without_credentials() {
        for good in [
            "http://collector:4318",
            "https://[2001:db8::1]:4318/",
            "http://gateway/otlp",
        ] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("collector:4318", "such as http://"),
            ("collector", "such as http://"),
            ("grpc://collector:4317", "such as http://"),
            ("https://user:token@collector", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("https://collector/?token=x", "OTEL_EXPORTER_OTLP_HEADERS"),
            ("http://collector:4318/v1/traces", "without /v1/traces"),
        ] {
            let refusal = endpoint(bad).unwrap_err();
            assert!(refusal.contains(why), "{bad}: {refusal}");
        }
        for (text, is_good) in [
            ("0", true),
            ("0.05", true),
            ("1", true),
            ("1.1", false),
            ("-0", true),
            ("NaN", false),
        ] {
            assert_eq!(ratio(text).is_ok(), is_good, "{text}");
        }
    }
}
