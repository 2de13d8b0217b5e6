//! `/v1/webhooks/{id}/…`: test, rotate-secret, recover.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use super::{body, view};
use crate::{
    facade::{
        App,
        deliveries::{counted, view::with_request},
        extract::{
            Caller, Charged, IfMatch, Post, Target,
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
        (status = 202, description = "The test event is being sent", body = Single<Delivery>, headers(("ETag")), example = json!(examples::test_event())),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("deliveries")))),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(not_active()))),
    ),
)]
pub async fn test(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    IfMatch(precondition): IfMatch,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_optional_body(request).await?;
    let wanted = body::test(post.fields)?;
    let sent = app
        .service
        .test_webhook(
            caller.tenant(),
            id,
            wanted.r#type,
            post.idempotent.as_ref(),
            &precondition,
        )
        .await?;
    let delivery = &sent.delivery;
    let message = format!(
        "A test event of type {} is being sent to {}.",
        delivery.spec.event_type, sent.item.webhook.spec.url
    );
    let view = with_request(delivery, &sent.item.webhook);
    let response = response::single(StatusCode::ACCEPTED, delivery, view, Some(message))?;
    Ok(idempotency::answered(
        post.idempotent.as_ref(),
        sent.replayed,
        Retention::Resource,
        response,
    ))
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
    responses((status = 200, description = "The webhook, with its new secret", body = Single<WebhookWithSecret>, headers(("ETag")), example = json!(examples::rotated_webhook()))),
)]
pub async fn rotate_secret(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    IfMatch(precondition): IfMatch,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_optional_body(request).await?;
    let rotation = body::rotate(post.fields)?;
    let until = body::expiry(&rotation, app.service.now());
    let (item, rotated) = app
        .service
        .rotate_webhook_secret(
            caller.namespace(),
            id,
            rotation.secret,
            until,
            post.idempotent.as_ref(),
            &precondition,
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
    let response = response::single(StatusCode::OK, &*item.webhook, data, view::message(sentences))?;
    Ok(idempotency::answered(
        post.idempotent.as_ref(),
        rotated.replayed,
        Retention::Actions,
        response,
    ))
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
    responses((status = 202, description = "The deliveries are being sent again", body = Single<Recovery>, example = json!(examples::begun(Recovery { recovered: 3 }, "3 deliveries are being sent again.")))),
)]
pub async fn recover(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    IfMatch(precondition): IfMatch,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_optional_body(request).await?;
    let wanted = body::recover(post.fields)?;
    let cost = Charged::new(&app, &caller);
    let recovered = app
        .service
        .recover(
            caller.namespace(),
            id,
            wanted.since,
            post.idempotent.as_ref(),
            &precondition,
            &cost,
        )
        .await?;
    let response = answer(recovered)?;
    Ok(idempotency::answered(
        post.idempotent.as_ref(),
        recovered.replayed,
        Retention::Actions,
        response,
    ))
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
