//! Completes the Deliveries with which account holders and the facade request that a delivery from the event log be sent again: the
//! content comes from the page that they name. Nothing that they write is signed.

use kube::{Api, ResourceExt as _, core::DeserializeGuard};

use super::store;
use crate::webhook::{FIELD_MANAGER, shared::Shared};
use domain::delivery::{job_key_of, key};
use resources::{
    Delivery, EventLog, Webhook, event_log::page_of, ids, instance::IDEMPOTENCY_ANNOTATION, origin,
};
use runtime::client::{CallError, bounded, written_by};

/// Queues a Delivery that is only a request, to be completed. Returns `false` if it is a complete one, which
/// is for the dispatcher.
pub(super) fn take(shared: &Shared, delivery: &Delivery) -> bool {
    let is_request = delivery.is_request();
    if is_request {
        shared.requests.lock().add(job_key_of(delivery));
    }
    is_request
}

/// Completes a request, which makes it an ordinary Delivery. Deletes a request that does not match the page that it
/// names.
pub(crate) async fn complete(shared: &Shared, namespace: &str, name: &str) -> Result<(), CallError> {
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    let request = bounded(api.get_opt(name)).await?;
    let Some(request) =
        request.filter(|request| request.is_request() && request.metadata.deletion_timestamp.is_none())
    else {
        return Ok(());
    };
    let logged = in_log(shared, namespace, &request).await?;
    if !shared.leads() {
        return Ok(());
    }
    let Some((logged, webhook)) = logged else {
        tracing::debug!(
            namespace,
            name,
            "a Delivery without a body is not in the page of the event log that it names; deleting it"
        );
        return store::delete(&api, &request, request.resource_version()).await;
    };
    let nonce = format!("{:.6}", shared.deps.clock.now());
    let mut delivery = logged.requested_again(&webhook, nonce);
    if let Some(done) = request.annotations().get(IDEMPOTENCY_ANNOTATION) {
        // Keeps the facade from carrying out the same request twice.
        delivery
            .annotations_mut()
            .insert(IDEMPOTENCY_ANNOTATION.to_owned(), done.clone());
    }
    delivery.metadata.resource_version = request.resource_version();
    match bounded(api.replace(name, &written_by(FIELD_MANAGER), &delivery)).await {
        // Somebody else has changed or deleted it; the watch shows the result.
        Err(error) if !error.is_conflict() && !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// The delivery that a request names, and its webhook, if the page contains it.
async fn in_log(
    shared: &Shared,
    namespace: &str,
    request: &Delivery,
) -> Result<Option<(Delivery, Webhook)>, CallError> {
    let Some(page) = page_of(&request.metadata) else {
        return Ok(None);
    };
    let Some(webhook) = webhook(shared, namespace, &request.spec.webhook).await? else {
        return Ok(None);
    };
    let pages: Api<EventLog> = Api::namespaced(shared.deps.client.clone(), namespace);
    let Some(page) = bounded(pages.get_opt(page)).await? else {
        return Ok(None);
    };
    let logged = page.delivery_of(&request.spec.event_id, origin::uid(&webhook.metadata));
    let logged = logged.filter(|logged| logged.metadata.name == request.metadata.name);
    Ok(logged.map(|logged| (logged, webhook)))
}

/// A webhook as known here, or else as stored: the watch of webhooks may be behind that of Deliveries.
async fn webhook(shared: &Shared, namespace: &str, name: &str) -> Result<Option<Webhook>, CallError> {
    let known = shared.state.lock().webhooks.get(&key(namespace, name)).cloned();
    if let Some(known) = known {
        return Ok(Some((*known).clone()));
    }
    // The account holder may have written it.
    if !ids::is_object_name(name) {
        return Ok(None);
    }
    let api: Api<DeserializeGuard<Webhook>> = Api::namespaced(shared.deps.client.clone(), namespace);
    // Nothing is ever sent to a webhook that does not match its schema.
    let stored = bounded(api.get_opt(name)).await?.and_then(|stored| stored.0.ok());
    Ok(stored.filter(|webhook| !webhook.is_deleting()))
}
