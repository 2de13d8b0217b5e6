//! Completes the Deliveries with which account holders ask that a delivery in the event log be sent again: with what the page that
//! they name has of it. Nothing that an account holder writes is signed.

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, PostParams, Preconditions},
};

use super::{
    shared::{Shared, State},
    store::FIELD_MANAGER,
};
use crate::{
    delivery::dispatch::job_key_of,
    resources::{Delivery, EventLog, Webhook, event_log::page_of, origin},
    runtime::client::{CallError, bounded},
};

/// Takes a Delivery that is only a request, to complete it; `false` if it is a whole one, for the dispatcher.
pub(super) fn take(state: &mut State, delivery: &Delivery) -> bool {
    let is_request = delivery.is_request();
    if is_request {
        state.requests.push(job_key_of(delivery));
    }
    is_request
}

/// Completes a request, from when on it is an ordinary Delivery. Deletes one that does not fit the page it names.
pub(super) async fn complete(shared: &Shared, namespace: &str, name: &str) -> Result<(), CallError> {
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    let request = bounded(api.get_opt(name)).await?;
    let Some(request) = request.filter(Delivery::is_request) else {
        return Ok(());
    };
    let logged = in_log(shared, namespace, &request).await?;
    if !shared.leads() {
        return Ok(());
    }
    let version = request.resource_version();
    let written = match logged {
        Some((logged, webhook)) => {
            let nonce = format!("{:.6}", shared.deps.clock.now());
            let mut delivery = logged.requested_again(&webhook, nonce);
            delivery.metadata.resource_version = version;
            let params = PostParams {
                field_manager: Some(FIELD_MANAGER.to_owned()),
                ..PostParams::default()
            };
            bounded(api.replace(name, &params, &delivery)).await.map(drop)
        }
        None => {
            tracing::warn!(
                namespace,
                name,
                "a Delivery without a body is not in the page of the event log that it names; deleting it"
            );
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: request.uid(),
                    resource_version: version,
                }),
                ..DeleteParams::default()
            };
            bounded(api.delete(name, &params)).await.map(drop)
        }
    };
    match written {
        // The watch shows what somebody else has made of it.
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        written => written,
    }
}

/// The delivery that a request names, and its webhook, if the page has it.
async fn in_log(
    shared: &Shared,
    namespace: &str,
    request: &Delivery,
) -> Result<Option<(Delivery, Webhook)>, CallError> {
    let Some(page) = page_of(&request.metadata) else {
        return Ok(None);
    };
    let client = &shared.deps.client;
    let webhooks: Api<Webhook> = Api::namespaced(client.clone(), namespace);
    let Some(webhook) = bounded(webhooks.get_opt(&request.spec.webhook)).await? else {
        return Ok(None);
    };
    let pages: Api<EventLog> = Api::namespaced(client.clone(), namespace);
    let Some(page) = bounded(pages.get_opt(page)).await? else {
        return Ok(None);
    };
    let logged = page.delivery_of(&request.spec.event_id, origin::uid(&webhook.metadata));
    let logged = logged.filter(|logged| logged.metadata.name == request.metadata.name);
    Ok(logged.map(|logged| (logged, webhook)))
}
