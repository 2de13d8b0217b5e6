//! Makes one attempt to deliver an event.

use std::{sync::Arc, time::Duration};

use http::HeaderValue;
use url::Url;

use crate::{
    secrets::{self, NoKeys, SecretProblem},
    webhook::shared::Shared,
};
use domain::delivery::{Event, Report, WebhookKey};
use resources::{Attempt, Webhook, times::milliseconds};
use runtime::{
    metrics::OutcomeLabels,
    traces::{self, Span, SpanKind},
};
use sender::signature;

/// Sends an event to a webhook once, as the attempt with this number.
pub(crate) async fn attempt(shared: &Arc<Shared>, key: &WebhookKey, event: &Event, number: i32) -> Report {
    let webhook = shared.state.lock().webhooks.get(key).cloned();
    let Some(webhook) = webhook else {
        return Report::Unready;
    };
    let keys = match secrets::keys(shared, key, &webhook).await {
        Ok(keys) => keys,
        Err(NoKeys::Problem(SecretProblem::Missing(why) | SecretProblem::Unusable(why))) => {
            return Report::Blocked(why);
        }
        Err(NoKeys::Unavailable) => return Report::Unready,
    };
    let at = shared.deps.clock.now();
    let event_type = event.event_type.as_str();
    let mut headers = signature::headers(&keys, &event.id, event_type, event.created_at, at, event.body());
    if !shared.leads() {
        return Report::Unready;
    }
    let span = traced(&webhook, event, number);
    if let Some(span) = &span
        && let Ok(parent) = HeaderValue::try_from(span.traceparent())
    {
        headers.insert(traces::TRACEPARENT, parent);
    }
    let receivers = &shared.deps.receivers;
    let outcome = receivers
        .post(&webhook.spec.url, headers, event.body().clone())
        .await;
    if let Some(span) = span {
        if let Some(status) = outcome.status {
            span.set("http.response.status_code", i64::from(status));
        }
        if outcome.error.is_some() {
            span.fail(outcome.label());
        }
    }
    let metrics = &shared.deps.metrics;
    let labels = OutcomeLabels {
        outcome: outcome.label(),
    };
    metrics.delivery_attempts.get_or_create(&labels).inc();
    metrics.delivery_seconds.observe(outcome.duration.as_secs_f64());
    if let Some(error) = outcome.error.as_ref().filter(|error| error.is_local()) {
        tracing::warn!(webhook = %key, %error, "cannot send; will try again");
        return Report::Unready;
    }
    let ended_at = shared.deps.clock.now();
    let retry_after: Option<Duration> = outcome.retry_after.map(|when| when.delay(ended_at));
    Report::Sent {
        attempt: Attempt {
            // The same time as in its headers.
            at: milliseconds(at),
            duration_ms: i64::try_from(outcome.duration.as_millis()).unwrap_or(i64::MAX),
            status_code: outcome.status.map(i32::from),
            error: outcome.error.as_ref().map(ToString::to_string),
            response: outcome.recorded_response(shared.deps.settings.kept_response_bytes.into()),
            url: Some(webhook.spec.url.clone()),
        },
        retry_after,
    }
}

/// The span of an attempt, if the event is traced. It contains only the receiver's host: path and query may contain the
/// receiver's secrets.
fn traced(webhook: &Webhook, event: &Event, number: i32) -> Option<Span> {
    let span = traces::continued(event.traceparent()?, "deliver event", SpanKind::Client)?;
    span.set("http.request.method", "POST");
    if let Ok(url) = Url::parse(&webhook.spec.url) {
        span.set("server.address", url.host_str().unwrap_or_default().to_owned());
        span.set("server.port", url.port_or_known_default().map_or(0, i64::from));
    }
    let namespace = webhook.metadata.namespace.clone();
    span.set("k8s.namespace.name", namespace.unwrap_or_default());
    span.set("stellage.webhook.id", webhook.id());
    span.set("stellage.event.id", event.id.to_string());
    span.set("stellage.event.type", event.event_type.as_str());
    span.set("stellage.delivery.attempt", i64::from(number));
    Some(span)
}
