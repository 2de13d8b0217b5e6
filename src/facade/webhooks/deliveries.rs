//! `/v1/webhooks/{id}/deliveries`: what was sent to a webhook, is being sent, or is held. Read from the API server, in pages:
//! there may be so many that nobody should watch them.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use kube::{Api, Resource as _, api::ListParams, core::DeserializeGuard};
use serde_json::{Value, json};

use super::view::{DeliveryView, created_at, phase};
use crate::{
    events::EventType,
    facade::{
        App, answer,
        entry::Kept as _,
        error::{ApiError, Detail, ErrorCode},
        id::{DeliveryId, PublicId as _, WebhookId},
        idempotency,
        modify::{contended, pause},
        precondition::IfMatch,
        query::Parameters,
        request::{Asked, Caller, Inner, Target},
        view::{List, Pagination, Single},
    },
    resources::{
        Delivery, DeliveryPhase, Webhook,
        delivery::{EVENT_TYPE_LABEL, FINISHED_LABEL, PHASE_LABEL, WEBHOOK_LABEL},
        instance::IDEMPOTENCY_ANNOTATION,
    },
    runtime::client::bounded,
};

/// Deliveries asked for at once.
const PAGE: u32 = 500;
/// How long a request may read deliveries in all.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);
/// Attempts at one delivery before a request gives way to whoever else changes it.
const MAX_ATTEMPTS: u32 = 10;
/// The kind as messages call it.
const WORD: &str = "delivery";

/// What a list of deliveries is narrowed down to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) status: Option<DeliveryPhase>,
    pub(super) event_type: Option<EventType>,
}

impl Selection {
    /// The selection of a request; `None` if a value does not exist, so that nothing is selected.
    fn of(parameters: &Parameters) -> Option<Self> {
        let status = match parameters.get("status") {
            Some(text) => Some(
                DeliveryPhase::ALL
                    .into_iter()
                    .find(|phase| phase.as_str() == text)?,
            ),
            None => None,
        };
        let event_type = match parameters.get("event_type") {
            Some(text) => Some(EventType::parse(text)?),
            None => None,
        };
        Some(Self { status, event_type })
    }

    /// The label selector for the deliveries of a webhook. What is asked for again has the phase that it had, and no label
    /// that says finished.
    fn labels(self, webhook: &Webhook) -> String {
        let phase = match self.status {
            Some(phase) if phase.is_finished() => {
                format!(",{FINISHED_LABEL},{PHASE_LABEL}={}", phase.as_str())
            }
            Some(DeliveryPhase::Pending) => {
                format!(
                    ",!{FINISHED_LABEL},{PHASE_LABEL}!={}",
                    DeliveryPhase::Held.as_str()
                )
            }
            Some(held) => format!(",{PHASE_LABEL}={}", held.as_str()),
            None => String::new(),
        };
        let event_type = self.event_type.map_or_else(String::new, |event_type| {
            format!(",{EVENT_TYPE_LABEL}={event_type}")
        });
        format!("{WEBHOOK_LABEL}={}{phase}{event_type}", webhook.name())
    }

    /// Whether it is one of those that are selected, and of this very webhook.
    fn has(self, delivery: &Delivery, webhook: &Webhook) -> bool {
        self.status.is_none_or(|status| status == phase(delivery))
            && self
                .event_type
                .is_none_or(|wanted| wanted == delivery.spec.event_type)
            && is_of(delivery, webhook)
    }
}

/// Whether a delivery is of this webhook, and not of an earlier one that had its name.
fn is_of(delivery: &Delivery, webhook: &Webhook) -> bool {
    let mut owners = delivery.metadata.owner_references.iter().flatten();
    delivery.spec.webhook == webhook.name()
        && DeliveryId::parse(&delivery.id()).is_some()
        && owners.all(|owner| owner.kind != Webhook::kind(&()) || owner.uid == webhook.uid())
}

/// 503 for what takes too long.
pub(super) fn too_slow() -> ApiError {
    ApiError::unavailable("the deliveries could not be read in time; try again")
}

/// Lists the deliveries of a webhook
///
/// Newest first, then by id. Delivered and exhausted ones are kept for 24 hours, and at most 1,000 of them, unless the operator is set otherwise. Filters can be
/// combined with each other and with paging; a value that does not exist gives an empty list.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries",
    operation_id = "listDeliveries",
    tag = "deliveries",
    params(
        ("page" = Option<u64>, Query, description = "Page, counted from 1. Past the end: an empty list.", minimum = 1, maximum = 9_007_199_254_740_991_u64, example = 1),
        ("limit" = Option<u64>, Query, description = "Most deliveries on a page; 20 if it is left out.", minimum = 1, maximum = 100, example = 20),
        ("status" = Option<String>, Query, description = "Only deliveries with this status: `pending`, `held`, `delivered` or `exhausted`.", example = "exhausted"),
        ("event_type" = Option<String>, Query, description = "Only deliveries of this type of events.", example = "instance.created"),
    ),
    responses((status = 200, description = "A page of deliveries", body = List<DeliveryView<'static>>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let paging = parameters.paging()?;
    let shown = app.webhooks.find(caller.namespace(), id).await?;
    let skip = usize::try_from(paging.page.saturating_sub(1))
        .unwrap_or(usize::MAX)
        .saturating_mul(paging.limit);
    let mut newest: Vec<Delivery> = Vec::new();
    let mut total = 0;
    if let Some(selection) = Selection::of(&parameters) {
        let reading = app.each_delivery(&shown.webhook, selection, |page| {
            total += page.len();
            newest.extend(page);
            newest.sort_by_cached_key(|delivery| (Reverse(created_at(delivery)), delivery.id()));
            newest.truncate(skip.saturating_add(paging.limit));
        });
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| too_slow())??;
    }
    let data: Vec<_> = newest.iter().skip(skip).map(DeliveryView::of).collect();
    let pagination = Pagination::new(paging.page, paging.limit, total);
    answer::json(StatusCode::OK, &List { data, pagination }, 4096)
}

/// Shows a delivery
///
/// With every attempt.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries/{delivery_id}",
    operation_id = "getDelivery",
    tag = "deliveries",
    responses((status = 200, description = "The delivery", body = Single<DeliveryView<'static>>)),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    Inner(delivery): Inner<DeliveryId>,
) -> Result<Response, ApiError> {
    let shown = app.webhooks.find(caller.namespace(), id).await?;
    let delivery = app.delivery(&shown.webhook, delivery).await?;
    answer::single(StatusCode::OK, &delivery, DeliveryView::of(&delivery), None)
}

/// Sends a delivery again
///
/// The same event, byte for byte, with a fresh ladder of retries. Allowed from `delivered` and `exhausted`; 409 for one that
/// is `pending` or `held`, which goes out by itself.
#[utoipa::path(
    post,
    path = "/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver",
    operation_id = "redeliver",
    tag = "deliveries",
    responses((status = 202, description = "The delivery is being sent again", body = Single<DeliveryView<'static>>)),
)]
pub async fn redeliver(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    Inner(delivery_id): Inner<DeliveryId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let asked = Asked::maybe_with_body(request).await?;
    let keyed = asked.keyed_action();
    asked.input.fields.finish()?;
    let shown = app.webhooks.find(caller.namespace(), id).await?;
    let answer = |delivery: &Delivery, before: bool| {
        let again = if shown.webhook.is_active() {
            "is being sent again"
        } else {
            "is sent again once the webhook is active"
        };
        let message = format!("Delivery {} {again}.", delivery.id());
        let view = DeliveryView::of(delivery);
        let response = answer::single(StatusCode::ACCEPTED, delivery, view, Some(message))?;
        Ok(idempotency::replayed_if(before, response))
    };
    for attempt in 1..=MAX_ATTEMPTS {
        let delivery = app.delivery(&shown.webhook, delivery_id).await?;
        let mut patch = unlabel(delivery.metadata.resource_version.as_deref());
        if let Some(keyed) = &keyed {
            if keyed.was_done(&delivery)? {
                return answer(&delivery, true);
            }
            let done = keyed.remember(&delivery, "");
            patch["metadata"]["annotations"] = json!({ IDEMPOTENCY_ANNOTATION: done });
        }
        if_match.check(&delivery)?;
        check_finished(phase(&delivery))?;
        let patched = app
            .calls
            .patch::<Delivery>(delivery.namespace(), delivery.name(), &patch);
        match patched.await {
            Ok(delivery) => return answer(&delivery, false),
            Err(error) if error.is_conflict() => pause(attempt).await,
            Err(error) => return Err(error.into()),
        }
    }
    Err(contended(WORD))
}

/// Has a delivery sent again, in this version only: nothing is sent twice because two asked for it.
pub(super) fn unlabel(version: Option<&str>) -> Value {
    json!({ "metadata": { "resourceVersion": version, "labels": { FINISHED_LABEL: null } } })
}

/// 409 `invalid_state` for what is on its way anyway.
pub(in crate::facade) fn check_finished(phase: DeliveryPhase) -> Result<(), ApiError> {
    if phase.is_finished() {
        return Ok(());
    }
    let message = format!(
        "is {}; redeliver is allowed from delivered, exhausted",
        phase.as_str()
    );
    Err(ApiError {
        details: vec![Detail::new("status", "invalid_state", message.clone())],
        ..ApiError::new(ErrorCode::InvalidState, format!("the delivery {message}"))
    })
}

impl App {
    /// The delivery of a webhook that a path names; 404 for any other.
    async fn delivery(&self, webhook: &Webhook, id: Option<DeliveryId>) -> Result<Delivery, ApiError> {
        let unknown = || ApiError::no_such(WORD);
        let name = id.ok_or_else(unknown)?.name();
        let delivery: Option<Delivery> = self.calls.get(webhook.namespace(), &name).await?;
        delivery
            .filter(|delivery| is_of(delivery, webhook) && !delivery.is_leaving())
            .ok_or_else(unknown)
    }

    /// Hands every selected delivery of a webhook on, some hundreds at a time, in no order, without bodies.
    pub(super) async fn each_delivery(
        &self,
        webhook: &Webhook,
        selection: Selection,
        mut see: impl FnMut(Vec<Delivery>),
    ) -> Result<(), ApiError> {
        // One that does not parse must not hide the others.
        let api: Api<DeserializeGuard<Delivery>> = self.calls.api(webhook.namespace());
        let mut parameters = ListParams::default()
            .labels(&selection.labels(webhook))
            .limit(PAGE);
        loop {
            let page = {
                let _turn = self.calls.turn().await;
                bounded(api.list(&parameters)).await?
            };
            let readable = page.items.into_iter().filter_map(|object| object.0.ok());
            let selected =
                readable.filter(|delivery| !delivery.is_leaving() && selection.has(delivery, webhook));
            see(selected
                .map(|mut delivery| {
                    delivery.spec.body = String::new();
                    delivery.metadata.managed_fields = None;
                    delivery
                })
                .collect());
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook() -> Webhook {
        serde_json::from_value(json!({
            "metadata": { "name": "orders", "namespace": "demo", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
        }))
        .unwrap()
    }

    #[test]
    fn a_filter_becomes_labels_and_an_unknown_value_nothing() {
        let labels = |query: &str| {
            let uri = format!("/v1/webhooks/x/deliveries?{query}").parse().unwrap();
            Selection::of(&Parameters::of(&uri)).map(|selection| selection.labels(&webhook()))
        };
        for (query, expected) in [
            ("", Some("stellage.dev/webhook=orders")),
            (
                "status=exhausted",
                Some("stellage.dev/webhook=orders,stellage.dev/finished,stellage.dev/phase=exhausted"),
            ),
            (
                "status=pending&event_type=backup.failed",
                Some(
                    "stellage.dev/webhook=orders,!stellage.dev/finished,stellage.dev/phase!=held,stellage.dev/event-type=backup.failed",
                ),
            ),
            (
                "status=held",
                Some("stellage.dev/webhook=orders,stellage.dev/phase=held"),
            ),
            ("status=Held", None),
            ("status=", None),
            ("event_type=instance", None),
        ] {
            assert_eq!(labels(query).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn a_delivery_of_an_earlier_webhook_of_the_same_name_is_not_this_ones() {
        let delivery = |webhook: &str, owner: &str| -> Delivery {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "dlv-abcdefgh01234567",
                    "ownerReferences": [{ "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": webhook, "uid": owner }],
                },
                "spec": {
                    "webhook": webhook, "eventId": "evt_1", "eventType": "instance.created",
                    "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{}",
                },
            }))
            .unwrap()
        };
        assert!(is_of(&delivery("orders", "u"), &webhook()));
        assert!(!is_of(&delivery("orders", "other"), &webhook()));
        assert!(!is_of(&delivery("others", "u"), &webhook()));
    }
}
