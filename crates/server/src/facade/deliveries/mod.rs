//! `/v1/webhooks/{id}/deliveries`: the deliveries of a webhook; list, detail, redeliver, retry.
//!
//! - `view`: deliveries as responses show them.

pub mod view;

use std::{collections::BTreeSet, sync::Arc};

use axum::{extract::State, response::Response};
use http::StatusCode;

use self::view::with_request;
use super::{
    App,
    extract::{
        Caller, Change, Charged, Inner, Post, Target,
        idempotency::{self, Retention},
        query::{CursorPaging, Parameters},
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{
    deliveries::{Selection, When},
    error::quota_used_up,
    events::Cursor,
    id::{DeliveryId, WebhookId},
    webhooks::not_active,
};
use api::{CursorList, CursorPagination, Delivery, Retry, Single};
use domain::event::{EventType, Period};
use resources::DeliveryPhase;

/// The selection in the query; `None` if a value does not exist, so that nothing is selected.
fn selection(parameters: &Parameters, period: Period) -> Option<Selection> {
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
    Some(Selection {
        status,
        event_type,
        period,
    })
}

/// Most events that `event_id` names.
const MAX_EVENTS: usize = 20;

/// The events that the query asks for; 422 if they are too many.
fn events(parameters: &Parameters) -> Result<Option<BTreeSet<String>>, Error> {
    let Some(text) = parameters.get("event_id") else {
        return Ok(None);
    };
    let events: BTreeSet<_> = text.split(',').map(|id| id.trim_ascii().to_owned()).collect();
    if events.len() > MAX_EVENTS {
        let must = "must be at most 20 ids, separated by commas";
        return Err(Error::invalid_value("event_id", must));
    }
    Ok(Some(events))
}

/// Lists the deliveries of a webhook
///
/// Newest first, then by id. Delivered and exhausted ones are kept for 24 hours, and at most 1,000 of those that failed at least
/// once, unless the operator is configured otherwise. One that succeeds at the first attempt is listed some two seconds later.
/// Filters can be combined with each other and with paging. A filter that matches nothing gives an empty
/// list. `pagination.next` leads to the next page. `since` and `until` are about the time of the event. Against the rate limits, every five
/// deliveries or pages of the event log whose contents are read count as one more request, so that a `limit` of 20 costs up to five, and
/// so does each further 500 that have to be gone through.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries",
    operation_id = "listDeliveries",
    tag = "deliveries",
    params(
        Target<WebhookId>,
        Cursor<DeliveryId>,
        CursorPaging,
        ("status" = Option<String>, Query, description = "Only deliveries with this status: `pending`, `held`, `delivered` or `exhausted`.", example = "exhausted"),
        ("event_type" = Option<String>, Query, description = "Only deliveries of this event type.", example = "instance.created"),
        ("event_id" = Option<String>, Query, description = "Only the delivery of this event; of several events, if there are up to 20 ids, separated by commas.", example = "evt_5m2k8x1ta4q7hz0c"),
    ),
    responses((status = 200, description = "A page of deliveries", body = CursorList<Delivery>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    parameters: Parameters,
) -> Result<Response, Error> {
    let (cursor, period) = parameters.cursor()?;
    let (selection, events) = (selection(&parameters, period), events(&parameters)?);
    let cost = Charged::new(&app, &caller);
    let listed = app
        .service
        .list_deliveries(caller.tenant(), id, selection, events, cursor, &cost)
        .await?;
    let list = CursorList {
        data: listed.items.iter().map(view::delivery).collect(),
        pagination: CursorPagination {
            limit: cursor.limit,
            next: listed.next,
        },
    };
    response::json(StatusCode::OK, &list, 4096)
}

/// Shows a delivery
///
/// Includes the request to the receiver, and every attempt.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}/deliveries/{delivery_id}",
    operation_id = "getDelivery",
    tag = "deliveries",
    params(Target<WebhookId>, Inner<DeliveryId>),
    responses((status = 200, description = "The delivery", body = Single<Delivery>, headers(("ETag")), example = json!({"data": {"request": {}}}))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    Inner(delivery): Inner<DeliveryId>,
) -> Result<Response, Error> {
    let cost = Charged::new(&app, &caller);
    let reading = app.service.delivery(caller.tenant(), id, delivery, &cost);
    let (webhook, delivery) = reading.await?;
    let view = with_request(&delivery, &webhook.webhook);
    response::single(StatusCode::OK, &delivery, view, None)
}

/// Sends a delivery now
///
/// Sends the same event, byte for byte, whatever the status of the delivery. A `delivered` or `exhausted` one is sent again, with
/// the full number of retries. A `pending` one is sent immediately; if that fails, the next attempt stays scheduled as before, and
/// no retry is used up. If the webhook is disabled, the delivery is sent once, which shows whether the receiver works again; if
/// that fails, it is held. If the webhook is not active or is blocked, the delivery is sent as soon as that changes, and `message`
/// says so. If an attempt is in progress, the delivery is sent again only if that attempt fails.
#[utoipa::path(
    post,
    path = "/v1/webhooks/{id}/deliveries/{delivery_id}/redeliver",
    operation_id = "redeliver",
    tag = "deliveries",
    params(Target<WebhookId>, Inner<DeliveryId>),
    responses(
        (status = 202, description = "The delivery is being sent", body = Single<Delivery>, headers(("ETag")), example = json!({"data": {"next_attempt_at": null, "request": {}}, "message": "Delivery dlv_4q7hz0c9k2m8x1ta is being sent now."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("deliveries")))),
    ),
)]
pub async fn redeliver(
    Inner(delivery): Inner<DeliveryId>,
    call: Change<WebhookId>,
) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    post.fields.finish()?;
    let (tenant, request) = (call.caller.tenant(), post.idempotent.as_ref());
    let cost = Charged::new(&call.app, &call.caller);
    let service = &call.app.service;
    let sending = service.redeliver(tenant, call.id, delivery, request, &call.precondition, &cost);
    let redelivered = sending.await?;
    let delivery = &redelivered.delivery;
    let message = format!("Delivery {} {}.", delivery.id(), redelivered.when.describe());
    let view = with_request(delivery, &redelivered.webhook.webhook);
    let mut response = response::single(StatusCode::ACCEPTED, delivery, view, Some(message))?;
    idempotency::mark(&mut response, request, redelivered.replayed, Retention::Actions);
    Ok(response)
}

/// Sends all pending deliveries now
///
/// Sends every pending delivery of the webhook immediately instead of at its next scheduled attempt, in the order of their events.
/// Five of them count as one more request against the rate limits, and so does each further hundred that has to be gone through.
/// If an attempt fails, the next one stays scheduled as before, and no retry is used up. Test events are left out. Held deliveries
/// are not pending: enable the webhook, or send one of them with `redeliver`. If the webhook is blocked, the deliveries are sent as
/// soon as that changes, and `message` says so.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/deliveries/retry", operation_id = "retryDeliveries", tag = "deliveries",
    params(Target<WebhookId>),
    responses(
        (status = 202, description = "The deliveries are being sent", body = Single<Retry>, example = json!({"message": "3 deliveries are being sent now."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(not_active()))),
    ),
)]
pub async fn retry(call: Change<WebhookId>) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    post.fields.finish()?;
    let (namespace, request) = (call.caller.namespace(), post.idempotent.as_ref());
    let cost = Charged::new(&call.app, &call.caller);
    let service = &call.app.service;
    let sending = service.retry(namespace, call.id, request, &call.precondition, &cost);
    let retried = sending.await?;
    let message = match retried.count {
        0 => "There are no pending deliveries.".to_owned(),
        count => counted(count, retried.when),
    };
    let body = Single {
        data: Retry {
            retried: retried.count,
        },
        message: Some(message),
    };
    let mut response = response::json(StatusCode::ACCEPTED, &body, 128)?;
    idempotency::mark(&mut response, request, retried.replayed, Retention::Actions);
    Ok(response)
}

/// A sentence that says what happens to this many deliveries.
pub(super) fn counted(count: usize, when: When) -> String {
    match count {
        1 => format!("One delivery {}.", when.describe()),
        many => format!("{many} deliveries {}.", when.describe_many()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_with_an_unknown_value_selects_nothing() {
        let selected = |query: &str| {
            let uri = format!("/v1/webhooks/x/deliveries?{query}").parse().unwrap();
            selection(&Parameters::of(&uri), Period::default())
        };
        assert_eq!(selected(""), Some(Selection::default()));
        assert_eq!(
            selected("status=pending&event_type=backup.failed"),
            Some(Selection {
                status: Some(DeliveryPhase::Pending),
                event_type: Some(EventType::BackupFailed),
                period: Period::default(),
            })
        );
        for unknown in ["status=Held", "status=", "event_type=instance"] {
            assert_eq!(selected(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn up_to_20_events_can_be_asked_for() {
        let of = |ids: &str| {
            let parameters = Parameters::of(&format!("/x?event_id={ids}").parse().unwrap());
            events(&parameters).map(|events| events.unwrap().len())
        };
        assert_eq!((of("evt_1"), of("evt_1,%20evt_2,evt_1")), (Ok(1), Ok(2)));
        let many = |count: u32| {
            (0..count)
                .map(|n| format!("evt_{n}"))
                .collect::<Vec<_>>()
                .join(",")
        };
        assert_eq!(of(&many(20)), Ok(20));
        assert_eq!(of(&many(21)).unwrap_err().details[0].field, "event_id");
        assert_eq!(events(&Parameters::of(&"/x".parse().unwrap())), Ok(None));
    }
}
