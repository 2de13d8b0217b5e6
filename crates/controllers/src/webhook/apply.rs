//! Writes the status of a Webhook.

use std::{borrow::Cow, sync::Arc, time::Instant};

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    FIELD_MANAGER,
    known::key_of,
    shared::{Shared, State},
};
use domain::delivery::{Disablement, WebhookKey};
use resources::{Webhook, WebhookStatus, origin, tracking::forget_foreign};
use runtime::{
    client::{self, CallError, bounded},
    events::Events,
};

/// Writes a status, publishes Events about it, and notes what was written.
pub(super) async fn write(shared: &Shared, events: &Events, webhook: Arc<Webhook>, status: WebhookStatus) {
    let webhook = &*webhook;
    let api: Api<Webhook> = Api::namespaced(
        shared.deps.client.clone(),
        webhook.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let key = key_of(webhook);
    let client = &shared.deps.client;
    let write = async {
        let marked = marked(shared, &api, webhook).await?;
        bounded(client::replace_status(client, &*marked, &status, FIELD_MANAGER)).await
    };
    match write.await {
        Ok(metadata) => {
            let mut written = Webhook {
                metadata,
                spec: webhook.spec.clone(),
                status: Some(status),
            };
            written.metadata.managed_fields = None;
            forget_foreign(&mut written);
            publish(events, webhook, &written);
            let now = shared.now();
            let mut state = shared.state.lock();
            shared.webhook_seen(&mut state, Arc::new(written), now);
            if let Some(cached) = state.webhooks.by_key.get_mut(&key) {
                cached.last_writes.succeeded = Some(Instant::now());
            }
            shared.statuses.lock().done(&key);
            release(&mut state, &key);
            drop(state);
            shared.wake.worker.notify_one();
        }
        // The webhook has changed or is gone.
        Err(error) if error.is_conflict() || error.is_not_found() => {
            look_up(shared, &api, &key, webhook).await;
            shared.statuses.lock().touch(key);
        }
        Err(error) => {
            tracing::warn!(webhook = %key, %error, "cannot write the status; will retry");
            let mut state = shared.state.lock();
            if let Some(cached) = state.webhooks.by_key.get_mut(&key) {
                cached.last_writes.failed = Some(Instant::now());
                shared.statuses.lock().touch(key);
            }
        }
    }
}

/// The webhook with its origin, which is written if it is missing: a webhook has no finalizer whose patch could add it.
async fn marked<'a>(
    shared: &Shared,
    api: &Api<Webhook>,
    webhook: &'a Webhook,
) -> Result<Cow<'a, Webhook>, CallError> {
    let metadata = &webhook.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if !origin::is_missing(metadata) || shared.deps.directory.account_of(namespace).is_none() {
        return Ok(Cow::Borrowed(webhook));
    }
    let mut patch =
        json!({ "metadata": { "resourceVersion": metadata.resource_version, "uid": metadata.uid } });
    origin::add_to(&mut patch, metadata);
    let params = PatchParams::apply(FIELD_MANAGER);
    let name = metadata.name.as_deref().unwrap_or_default();
    let written = bounded(api.patch_metadata(name, &params, &Patch::Merge(&patch))).await?;
    let mut marked = webhook.clone();
    marked.metadata = written.metadata;
    Ok(Cow::Owned(marked))
}

/// Reads the current version of a webhook, because the watch may lag far behind.
async fn look_up(shared: &Shared, api: &Api<Webhook>, key: &WebhookKey, webhook: &Webhook) {
    let found: Result<Option<Webhook>, CallError> =
        bounded(api.get_opt(webhook.metadata.name.as_deref().unwrap_or_default())).await;
    let now = shared.now();
    match found {
        Ok(Some(mut found)) => {
            found.metadata.managed_fields = None;
            forget_foreign(&mut found);
            shared.webhook_seen(&mut shared.state.lock(), Arc::new(found), now);
        }
        Ok(None) => shared.webhook_gone(&mut shared.state.lock(), key, webhook),
        Err(error) => tracing::debug!(webhook = %key, %error, "cannot look up a webhook"),
    }
}

/// Publishes Kubernetes Events for the changes in this write.
fn publish(events: &Events, before: &Webhook, after: &Webhook) {
    let disabled = |webhook: &Webhook| webhook.status.as_ref().and_then(|status| status.disabled.clone());
    match (disabled(before), disabled(after)) {
        (None, Some(disabled)) => {
            events.publish(after, true, "Disabled", "Deliver", &disabled.message);
        }
        (Some(_), None) => {
            events.publish(
                after,
                false,
                "Enabled",
                "Deliver",
                "the webhook is enabled again; held events are being sent",
            );
        }
        _ => {}
    }
}

/// Forgets a disablement that has been written, or that a change of the spec has made obsolete.
pub(super) fn release(state: &mut State, key: &WebhookKey) {
    let Some(cached) = state.webhooks.by_key.get_mut(key) else {
        return;
    };
    let is_over = |disablement: &Disablement| {
        cached.webhook.disabled().is_some() || !disablement.is_of(&cached.webhook)
    };
    if cached.disablement.as_ref().is_some_and(is_over) {
        cached.disablement = None;
        state.dispatcher.disablement_written(key);
    }
}
