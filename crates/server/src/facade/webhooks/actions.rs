//! `/v1/webhooks/{id}/…`: test, rotate-secret, recover.

use axum::response::Response;
use http::StatusCode;

use super::{body, view};
use crate::{
    facade::{
        deliveries::{counted, view::with_request},
        extract::{
            Change, Charged, Post, Target,
            idempotency::{self, Retention},
        },
        openapi::examples,
        response::{
            self,
            error::{Error, ErrorAnswer},
        },
    },
    service::{
        deliveries::{Counted, When},
        error::quota_used_up,
        id::WebhookId,
        webhooks::not_active,
    },
};
use api::{Delivery, RecoverWebhook, Recovery, RotateSecret, Single, TestWebhook, WebhookWithSecret};

/// Sends a test event to a webhook
///
/// Signed and sent like any delivery, but without retries, with an event id `evt_test_…`. Works on a disabled webhook too, to
/// check whether its receiver works again; refused if `active` was set to `false`.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/test", operation_id = "testWebhook", tag = "webhooks",
    params(Target<WebhookId>),
    request_body(content = TestWebhook, example = json!({"type": "instance.created"})),
    responses(
        (status = 202, description = "The test event is being sent", body = Single<Delivery>, headers(("ETag")), example = json!({"data": {"event_id": "evt_test_2m8x1ta4q7hz0c9k", "attempts": [], "next_attempt_at": null, "request": {"headers": {"X-Service-Event-ID": "evt_test_2m8x1ta4q7hz0c9k", "webhook-id": "evt_test_2m8x1ta4q7hz0c9k", "webhook-timestamp": null}, "body": "{\"id\":\"evt_test_2m8x1ta4q7hz0c9k\",\"type\":\"instance.created\",\"created_at\":\"2026-11-21T10:02:31.000Z\",\"data\":{\"instance\":{\"id\":\"i-4q7hz0c9k2m8x1ta\",\"name\":\"web-1\",\"status\":\"provisioning\",\"plan\":\"starter\",\"region\":\"fr-par-1\",\"ip_address\":\"198.18.0.7\"},\"user\":{\"id\":\"usr_8x1ta4q7hz0c9k2m\",\"email\":\"ada@example.com\"}}}"}}, "message": "A test event of type instance.created is being sent to https://hooks.example.com/stellage."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("deliveries")))),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(not_active()))),
    ),
)]
pub async fn test(call: Change<WebhookId>) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    let wanted = body::test(post.fields)?.r#type;
    let (service, request) = (&call.app.service, post.idempotent.as_ref());
    let sending = service.test_webhook(call.caller.tenant(), call.id, wanted, request, &call.precondition);
    let sent = sending.await?;
    let delivery = &sent.delivery;
    let message = format!(
        "A test event of type {} is being sent to {}.",
        delivery.spec.event_type, sent.item.webhook.spec.url
    );
    let view = with_request(delivery, &sent.item.webhook);
    let mut response = response::single(StatusCode::ACCEPTED, delivery, view, Some(message))?;
    idempotency::mark(&mut response, request, sent.replayed, Retention::Resource);
    Ok(response)
}

/// Rotates the signing secret of a webhook
///
/// `X-Service-Signature` uses the new secret at once. During the overlap, `webhook-signature` lists the signatures of both
/// secrets. A rotation during an overlap starts a new overlap, and the older of the two previous secrets stops being valid. If
/// the webhook takes its secret from a Secret of your own, that must carry the label `stellage.dev/webhook-secret: "true"`, and
/// the rotation changes it for all webhooks that use it. A repetition with the same `Idempotency-Key` shows the current secret,
/// and is refused if the webhook has been given another Secret since.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/rotate-secret", operation_id = "rotateWebhookSecret", tag = "webhooks",
    params(Target<WebhookId>),
    request_body(content = RotateSecret, example = json!({"overlap_seconds": 86_400})),
    responses((status = 200, description = "The webhook, with its new secret", body = Single<WebhookWithSecret>, headers(("ETag")), example = json!({"data": {"previous_secret_expires_at": "2026-11-22T10:00:00Z"}, "message": "X-Service-Signature is made with the new secret from now on. Until the overlap ends, webhook-signature lists the signatures of both."}))),
)]
pub async fn rotate_secret(call: Change<WebhookId>) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    let rotation = body::rotate(post.fields)?;
    let (service, request) = (&call.app.service, post.idempotent.as_ref());
    let until = body::expiry(&rotation, service.now());
    let (item, rotated) = service
        .rotate_webhook_secret(
            call.caller.namespace(),
            call.id,
            rotation.secret,
            until,
            request,
            &call.precondition,
        )
        .await?;
    let message = match rotated.previous_until {
        Some(_) => {
            "X-Service-Signature is made with the new secret from now on. Until the overlap ends, webhook-signature lists the signatures of both."
        }
        None => "Deliveries are signed with the new secret.",
    };
    let sentences = [
        Some(message.to_owned()),
        view::remark_on_secret(Some(&rotated.secret)),
    ];
    let data = view::with_secret(&item, Some(rotated.secret), rotated.previous_until);
    let mut response = response::single(StatusCode::OK, &*item.webhook, data, view::message(sentences))?;
    idempotency::mark(&mut response, request, rotated.replayed, Retention::Actions);
    Ok(response)
}

/// Recovers exhausted deliveries
///
/// Sends every exhausted delivery that is still stored again, or only those that were exhausted since a given time. They are
/// sent in the order of their events, each with the full number of retries. Test events are left out. If the webhook is disabled,
/// not active or blocked, they are sent as soon as that changes, and `message` says so. Five of them count as one more request
/// against the rate limits, and so does each further hundred that has to be gone through.
#[utoipa::path(
    post, path = "/v1/webhooks/{id}/recover", operation_id = "recoverWebhook", tag = "webhooks",
    params(Target<WebhookId>),
    request_body(content = RecoverWebhook, example = json!({"since": "2026-11-21T00:00:00Z"})),
    responses((status = 202, description = "The deliveries are being sent again", body = Single<Recovery>, example = json!({"message": "3 deliveries are being sent again."}))),
)]
pub async fn recover(call: Change<WebhookId>) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    let since = body::recover(post.fields)?.since;
    let (namespace, request) = (call.caller.namespace(), post.idempotent.as_ref());
    let cost = Charged::new(&call.app, &call.caller);
    let service = &call.app.service;
    let recovering = service.recover(namespace, call.id, since, request, &call.precondition, &cost);
    let recovered = recovering.await?;
    let mut response = answer(recovered)?;
    idempotency::mark(&mut response, request, recovered.replayed, Retention::Actions);
    Ok(response)
}

fn answer(recovered: Counted) -> Result<Response, Error> {
    let message = match (recovered.count, recovered.when) {
        (0, _) => "There are no deliveries to send again.".to_owned(),
        (1, When::Now) => "One delivery is being sent again.".to_owned(),
        (many, When::Now) => format!("{many} deliveries are being sent again."),
        (count, when) => counted(count, when),
    };
    let body = Single {
        data: Recovery {
            recovered: recovered.count,
        },
        message: Some(message),
    };
    response::json(StatusCode::ACCEPTED, &body, 128)
}
