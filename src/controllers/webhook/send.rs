//! One attempt.

use std::{sync::Arc, time::Duration};

use super::{
    hub::Hub,
    secret_cache::Problem,
    secrets::{self, NoKeys},
};
use crate::{
    delivery::{
        dispatch::{Event, LaneKey, Report},
        signature,
    },
    resources::Attempt,
    runtime::{clock::milliseconds, metrics::OutcomeLabels},
};

/// Sends an event to a webhook once.
pub(super) async fn attempt(hub: &Arc<Hub>, lane: &LaneKey, event: &Event) -> Report {
    let webhook = hub
        .state
        .lock()
        .webhooks
        .get(lane)
        .map(|known| known.webhook.clone());
    let Some(webhook) = webhook else {
        return Report::Unready;
    };
    let keys = match secrets::keys(hub, lane, &webhook).await {
        Ok(keys) => keys,
        Err(NoKeys::Problem(Problem::Missing(why) | Problem::Unusable(why))) => return Report::Blocked(why),
        Err(NoKeys::Unavailable) => return Report::Unready,
    };
    let headers = signature::headers(
        &keys,
        &event.id,
        event.event_type.as_str(),
        event.created_at,
        hub.deps.clock.now(),
        &event.body,
    );
    if !hub.leads() {
        return Report::Unready;
    }
    let receivers = &hub.deps.receivers;
    let outcome = receivers
        .post(&webhook.spec.url, headers, event.body.clone())
        .await;
    let metrics = &hub.deps.metrics;
    let labels = OutcomeLabels {
        outcome: outcome.label(),
    };
    metrics.delivery_attempts.get_or_create(&labels).inc();
    metrics.delivery_seconds.observe(outcome.duration.as_secs_f64());
    let ended_at = hub.deps.clock.now();
    let retry_after: Option<Duration> = outcome.retry_after.map(|when| when.delay(ended_at));
    Report::Sent {
        attempt: Attempt {
            at: milliseconds(outcome.started_at),
            duration_ms: i64::try_from(outcome.duration.as_millis()).unwrap_or(i64::MAX),
            status_code: outcome.status.map(i32::from),
            error: outcome.error.as_ref().map(ToString::to_string),
            response: Some(outcome.response).filter(|text| !text.is_empty()),
        },
        retry_after,
    }
}
