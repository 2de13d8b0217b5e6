//! `/v1/webhooks/{id}/…`: test, rotate-secret, recover.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{Request, State},
    response::Response,
};
use futures::{StreamExt as _, TryStreamExt as _};
use http::StatusCode;
use jiff::Timestamp;
use kube::Resource as _;

use super::{
    ShownWebhook,
    deliveries::{DEADLINE, Selection, too_slow, unlabel},
    order::{RecoverWebhook, RotateSecret, TestWebhook},
    secret::random_secret,
    view::{DeliveryView, Recovery, WebhookWithSecret},
};
use crate::{
    events::{EventType, catalogue},
    facade::{
        App, answer,
        entry::Kept as _,
        error::ApiError,
        id::WebhookId,
        idempotency::{self, REQUEST_HASH_ANNOTATION},
        modify::Verdict,
        precondition::IfMatch,
        request::{Asked, Caller, Target},
        view::Single,
    },
    resources::{
        Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus, Webhook,
        delivery::{self, EVENT_TYPE_LABEL, PHASE_LABEL, WEBHOOK_LABEL},
        ids,
    },
};

/// Deliveries whose labels are taken away at the same time.
const RECOVERED_AT_ONCE: usize = 16;

/// Sends an example to a webhook
///
/// Signed and sent like any delivery, once, with an event id `evt_test_…`. Allowed while `active` is wanted, also
/// of a webhook that was disabled: that shows whether its receiver is mended.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/test", operation_id = "testWebhook", tag = "webhooks",
    request_body = TestWebhook,
    responses((status = 202, description = "The example is being sent", body = Single<DeliveryView<'static>>)),
)]
pub async fn test(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::maybe_with_body(request).await?;
    let suffix = asked.suffix(&caller.0.tenant.uid);
    let hash = suffix
        .as_ref()
        .map(|_| idempotency::body_hash(&asked.input.canonical));
    let wanted = TestWebhook::read(asked.input.fields)?;
    let event_id = format!("evt_test_{}", suffix.unwrap_or_else(ids::random_suffix));
    let namespace = caller.namespace();
    let shown = app.webhooks.find(namespace, id).await?;
    let name = ids::delivery_name(shown.webhook.uid(), &event_id);
    if let Some(hash) = &hash
        && let Some(before) = app.calls.get(namespace, &name).await?
    {
        return tested_before(&shown, &before, hash);
    }
    let decide = |shown: &ShownWebhook| {
        if_match.check(&*shown.webhook)?;
        wanted.type_for(&shown.webhook)?;
        Ok(Verdict::Leave)
    };
    let shown = app.webhooks.modify(namespace, id, decide).await?;
    let event_type = wanted.type_for(&shown.webhook)?;
    let delivery = example(
        &shown.webhook,
        &event_id,
        event_type,
        hash.clone(),
        app.clock.now(),
    );
    match (app.calls.create(namespace, &delivery).await, hash) {
        (Ok(delivery), _) => tested(&shown, &delivery),
        (Err(error), Some(hash)) if error.is_conflict() => match app.calls.get(namespace, &name).await? {
            Some(before) => tested_before(&shown, &before, &hash),
            None => Err(error.into()),
        },
        (Err(error), _) => Err(error.into()),
    }
}

fn tested(shown: &ShownWebhook, delivery: &Delivery) -> Result<Response, ApiError> {
    let message = format!(
        "An example of {} is being sent to {}.",
        delivery.spec.event_type, shown.webhook.spec.url
    );
    answer::single(
        StatusCode::ACCEPTED,
        delivery,
        DeliveryView::of(delivery),
        Some(message),
    )
}

fn tested_before(shown: &ShownWebhook, delivery: &Delivery, hash: &str) -> Result<Response, ApiError> {
    if delivery.annotation_of(REQUEST_HASH_ANNOTATION) != Some(hash) {
        return Err(idempotency::reused());
    }
    Ok(idempotency::replayed_if(true, tested(shown, delivery)?))
}

/// The Delivery of an example, which is due at once.
fn example(
    webhook: &Webhook,
    event_id: &str,
    event_type: EventType,
    request_hash: Option<String>,
    now: Timestamp,
) -> Delivery {
    let mut delivery = Delivery::new(
        &ids::delivery_name(webhook.uid(), event_id),
        DeliverySpec {
            webhook: webhook.name().to_owned(),
            event_id: event_id.to_owned(),
            event_type,
            event_created_at: now,
            sequence: 0,
            subject: String::new(),
            body: catalogue::example_body(event_type, event_id, now),
            test: true,
        },
    );
    delivery.status = Some(DeliveryStatus::new(DeliveryPhase::Pending, Some(now)));
    delivery.metadata.labels = Some(BTreeMap::from(
        [
            (WEBHOOK_LABEL, webhook.name()),
            (PHASE_LABEL, DeliveryPhase::Pending.as_str()),
            (EVENT_TYPE_LABEL, event_type.as_str()),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned())),
    ));
    delivery.metadata.annotations =
        request_hash.map(|hash| BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)]));
    delivery.metadata.owner_references = webhook.controller_owner_ref(&()).map(|owner| vec![owner]);
    delivery
}

/// Rotates the signing secret of a webhook
///
/// `X-Service-Signature` is keyed with the new secret at once. While the overlap lasts, `webhook-signature` lists the
/// signatures of both. A rotation during an overlap begins a new one: the secret before the last is then valid no more. A
/// webhook that takes its secret from a Secret of your own has that one rotated, for all webhooks that name it. A repetition
/// with the same `Idempotency-Key` shows the secret as it is by then.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/rotate-secret", operation_id = "rotateWebhookSecret", tag = "webhooks",
    request_body = RotateSecret,
    responses((status = 200, description = "The webhook, with its new secret", body = Single<WebhookWithSecret<'static>>)),
)]
pub async fn rotate_secret(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::maybe_with_body(request).await?;
    let keyed = asked.keyed_action();
    let rotation = RotateSecret::read(asked.input.fields)?;
    let decide = |shown: &ShownWebhook| {
        if_match.check(&*shown.webhook)?;
        Ok(Verdict::Leave)
    };
    let shown = app.webhooks.modify(caller.namespace(), id, decide).await?;
    let until = rotation.expiry(app.clock.now());
    let secret = rotation.secret.unwrap_or_else(random_secret);
    let rotated = app
        .rotate_secret(&shown.webhook, &secret, until, keyed.as_ref())
        .await?;
    let message = match rotated.previous_until {
        Some(_) => {
            "Deliveries are signed with the new secret, and until the overlap ends with the previous one too."
        }
        None => "Deliveries are signed with the new secret.",
    };
    let data = WebhookWithSecret::of(&shown, &rotated.secret, rotated.previous_until);
    let response = answer::single(StatusCode::OK, &*shown.webhook, data, Some(message.to_owned()))?;
    Ok(idempotency::replayed_if(rotated.before, response))
}

/// Sends again what failed for good
///
/// Every exhausted delivery that is still kept, tests apart, or only those that were given up since a time, in the order of
/// their events, each with a fresh ladder of retries.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/recover", operation_id = "recoverWebhook", tag = "webhooks",
    request_body = RecoverWebhook,
    responses((status = 202, description = "The deliveries are being sent again", body = Single<Recovery>)),
)]
pub async fn recover(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::maybe_with_body(request).await?;
    let keyed = asked.keyed_action();
    let wanted = RecoverWebhook::read(asked.input.fields)?;
    let decide = |shown: &ShownWebhook| {
        if let Some(keyed) = &keyed
            && keyed.was_done(&*shown.webhook)?
        {
            return Ok(Verdict::Leave);
        }
        if_match.check(&*shown.webhook)?;
        Ok(Verdict::Leave)
    };
    let namespace = caller.namespace();
    let shown = app.webhooks.modify(namespace, id, decide).await?;
    let note = keyed
        .as_ref()
        .map(|keyed| keyed.note(&*shown.webhook))
        .transpose()?;
    if let Some(note) = note.flatten() {
        return Ok(idempotency::replayed_if(
            true,
            recovered(note.parse().unwrap_or(0))?,
        ));
    }
    let recovery = app.recover(&shown.webhook, wanted.since);
    let count = tokio::time::timeout(DEADLINE, recovery)
        .await
        .map_err(|_| too_slow())??;
    if let Some(keyed) = &keyed {
        // Only now: a crash before it leaves a request that, sent again, recovers the rest.
        let decide = |shown: &ShownWebhook| {
            Ok(Verdict::Write {
                spec: Box::new(shown.webhook.spec.clone()),
                done: Some(keyed.remember(&*shown.webhook, &count.to_string())),
            })
        };
        app.webhooks.modify(namespace, id, decide).await?;
    }
    recovered(count)
}

fn recovered(count: usize) -> Result<Response, ApiError> {
    let message = match count {
        0 => "There is nothing to be sent again.".to_owned(),
        1 => "One delivery is being sent again.".to_owned(),
        many => format!("{many} deliveries are being sent again."),
    };
    let body = Single {
        data: Recovery { recovered: count },
        message: Some(message),
    };
    answer::json(StatusCode::ACCEPTED, &body, 128)
}

impl App {
    /// Takes the label off every exhausted delivery that was not given up before `since`. Returns how many there were.
    async fn recover(&self, webhook: &Webhook, since: Option<Timestamp>) -> Result<usize, ApiError> {
        let selection = Selection {
            status: Some(DeliveryPhase::Exhausted),
            event_type: None,
        };
        // Those about one object one after the other, so that they are first attempted in order.
        let mut exhausted: BTreeMap<String, Vec<_>> = BTreeMap::new();
        self.each_delivery(webhook, selection, |page| {
            let wanted = page
                .into_iter()
                .filter(|delivery| !delivery.spec.test)
                .filter(|delivery| {
                    let given_up = delivery::finished_at(&delivery.metadata);
                    since.is_none_or(|since| given_up.unwrap_or(delivery.spec.event_created_at) >= since)
                });
            for delivery in wanted {
                let (spec, metadata) = (delivery.spec, delivery.metadata);
                let place = (spec.event_created_at, spec.sequence);
                let name = metadata.name.unwrap_or_default();
                let of_object = exhausted.entry(spec.subject).or_default();
                of_object.push((place, name, metadata.resource_version));
            }
        })
        .await?;
        let mut exhausted: Vec<_> = exhausted.into_values().collect();
        for of_object in &mut exhausted {
            of_object.sort_unstable();
        }
        exhausted.sort_unstable();
        futures::stream::iter(exhausted)
            .map(async |of_object| {
                let mut count = 0;
                for (_, name, version) in of_object {
                    count += usize::from(self.send_again(webhook.namespace(), &name, version).await?);
                }
                Ok::<_, ApiError>(count)
            })
            .buffered(RECOVERED_AT_ONCE)
            .try_fold(0, async |sum, count| Ok(sum + count))
            .await
    }

    /// Returns whether the delivery was there still, in this version: another request may have had it sent already.
    async fn send_again(
        &self,
        namespace: &str,
        name: &str,
        version: Option<String>,
    ) -> Result<bool, ApiError> {
        let patch = unlabel(version.as_deref());
        match self.calls.patch::<Delivery>(namespace, name, &patch).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_example_is_due_at_once_belongs_to_its_webhook_and_says_that_it_is_a_test() {
        let webhook: Webhook = serde_json::from_value(json!({
            "metadata": { "name": "orders", "namespace": "demo", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["backup.failed"], "secretRef": { "name": "s" } },
        }))
        .unwrap();
        let now: Timestamp = "2026-11-21T10:00:00.5Z".parse().unwrap();
        let id = "evt_test_abcdefgh01234567";
        let delivery = example(&webhook, id, EventType::BackupFailed, None, now);
        assert_eq!(delivery.metadata.name, Some(ids::delivery_name("u", id)));
        assert!(delivery.spec.test && delivery.spec.event_id == id);
        let status = delivery.status.as_ref().unwrap();
        assert_eq!(
            (status.phase, status.next_attempt_at),
            (DeliveryPhase::Pending, Some(now))
        );
        let labels = delivery.metadata.labels.unwrap();
        assert_eq!(labels["stellage.dev/webhook"], "orders");
        assert_eq!(labels["stellage.dev/phase"], "pending");
        assert_eq!(labels["stellage.dev/event-type"], "backup.failed");
        assert_eq!(delivery.metadata.owner_references.unwrap()[0].uid, "u");
        let body: serde_json::Value = serde_json::from_str(&delivery.spec.body).unwrap();
        assert_eq!(
            (&body["id"], &body["created_at"]),
            (&json!(id), &json!("2026-11-21T10:00:00.500Z"))
        );
    }
}
