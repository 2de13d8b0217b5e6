//! `/v1/webhooks`: list, create, detail, change, delete.
//!
//! - `actions`: test, rotate-secret, recover;
//! - `body`: request bodies;
//! - `view`: webhooks as responses show them.

pub mod actions;
pub mod body;
pub mod view;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use super::{
    App,
    extract::{
        Caller, Change, Post, Target,
        body::required,
        idempotency::{self, Retention},
        query::Paging,
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{error::quota_used_up, id::WebhookId, webhooks::IndexedWebhook};
use api::{ChangeWebhook, CreateWebhook, List, Seconds, Single, Webhook, WebhookWithSecret};

/// Lists webhooks
///
/// Newest first, then by id; without their secrets.
#[utoipa::path(
    get,
    path = "/v1/webhooks",
    operation_id = "listWebhooks",
    tag = "webhooks",
    params(Paging),
    responses((status = 200, description = "A page of webhooks", body = List<Webhook>)),
)]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, paging: Paging) -> Result<Response, Error> {
    let webhooks = app.service.list_webhooks(caller.namespace(), paging);
    response::list(paging, webhooks, |item| view::webhook(item))
}

/// Creates a webhook
///
/// The webhook gets the events of all operations requested after this answer. The secret is shown only in this answer and in
/// that of a rotation. A repetition with the same `Idempotency-Key` shows the current secret, for a day. `message` says if
/// another webhook sends the same events to this URL, and if the secret begins or ends in white space, which is part of it.
#[utoipa::path(
    post,
    path = "/v1/webhooks",
    operation_id = "createWebhook",
    tag = "webhooks",
    request_body(content = CreateWebhook, example = json!({
        "url": "https://hooks.example.com/stellage", "description": "orders", "events": ["instance.created", "instance.deleted"]
    })),
    responses(
        (status = 201, description = "The webhook, with its secret", body = Single<WebhookWithSecret>, headers(("ETag")), example = json!({"data": {"events": ["instance.created", "instance.deleted"]}})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("webhooks")))),
    ),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_body(request).await?;
    let check = |url: &str| app.service.check_receiver(url);
    let (tenant, request) = (caller.tenant(), post.idempotent.as_ref());
    let secret = post.fields.peek("secret").map(str::to_owned);
    let created = match body::create(post.fields, &check) {
        Ok(new) => app.service.create_webhook(tenant, &new, request).await?,
        // The receiver may have been allowed when the request was sent first.
        Err(refusal) => {
            let secret = secret.as_deref();
            let created = app.service.webhook_created_by(tenant, secret, request).await?;
            created.ok_or(refusal)?
        }
    };
    let item = &*created.item;
    let remarks = [
        view::remark_on_secret(secret.as_deref()),
        remark_on_url(&app, item),
    ];
    let data = view::with_secret(item, created.secret.clone(), None);
    let mut response = response::single(StatusCode::CREATED, &*item.webhook, data, view::message(remarks))?;
    response::locate(&mut response, "/v1/webhooks", item.id);
    idempotency::mark(&mut response, request, created.replayed, Retention::Resource);
    Ok(response)
}

/// Shows a webhook
///
/// Without its secret. While the webhook is disabled, `active` is `false`, and `disabled` says since when and why.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}",
    operation_id = "getWebhook",
    tag = "webhooks",
    params(Target<WebhookId>),
    responses((status = 200, description = "The webhook", body = Single<Webhook>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
) -> Result<Response, Error> {
    let item = app.service.webhook(caller.namespace(), id).await?;
    detail_of(&app, &item, None).await
}

/// Changes a webhook
///
/// Fields left out stay as they are; `events` replaces all event types. `"active": true`, and any change of `url`, `events`,
/// `description` or `active`, enables a disabled webhook, and held deliveries are sent. A new `secret` replaces the old one at once;
/// `POST …/rotate-secret` lets both sign for a while.
#[utoipa::path(
    patch,
    path = "/v1/webhooks/{id}",
    operation_id = "changeWebhook",
    tag = "webhooks",
    params(Target<WebhookId>),
    request_body(content = ChangeWebhook, example = json!({"events": ["instance.created"], "active": true})),
    responses((status = 200, description = "The changed webhook", body = Single<Webhook>, headers(("ETag")))),
)]
pub async fn change(call: Change<WebhookId>) -> Result<Response, Error> {
    let (app, namespace) = (&call.app, call.caller.namespace());
    let service = &app.service;
    let check = |url: &str| service.check_receiver(url);
    let change = body::change(required(call.request).await?, &check)?;
    let changing = service.change_webhook(namespace, call.id, &change, &call.precondition);
    let item = changing.await?;
    let has_moved = change.url.is_some() || change.events.is_some();
    let remarks = [
        view::remark_on_secret(change.secret.as_deref()),
        has_moved.then(|| remark_on_url(app, &item)).flatten(),
    ];
    detail_of(app, &item, view::message(remarks)).await
}

/// An answer with the detail of a webhook, without its secret.
async fn detail_of(app: &App, item: &IndexedWebhook, message: Option<String>) -> Result<Response, Error> {
    let until = app.service.previous_secret_until(&item.webhook).await;
    let data = Webhook {
        previous_secret_expires_at: until.map(Seconds),
        ..view::webhook(item)
    };
    response::single(StatusCode::OK, &*item.webhook, data, message)
}

/// Says which other webhooks send events of this one to the same URL.
fn remark_on_url(app: &App, item: &IndexedWebhook) -> Option<String> {
    let (others, total) = app.service.webhooks_beside(item);
    let mut names: Vec<_> = others.iter().map(|other| other.id.to_string()).collect();
    if names.is_empty() {
        return None;
    }
    if total > names.len() {
        names.push(format!("{} more", total - names.len()));
    }
    Some(format!(
        "This URL also gets events of these types from {}, so it receives each of them more than once, with the same id.",
        names.join(", ")
    ))
}

/// Deletes a webhook
///
/// Nothing more is sent to it. Its deliveries, and the secret created for it, are deleted too.
#[utoipa::path(
    delete,
    path = "/v1/webhooks/{id}",
    operation_id = "deleteWebhook",
    tag = "webhooks",
    params(Target<WebhookId>),
    responses((status = 204, description = "The webhook is deleted")),
)]
pub async fn delete(call: Change<WebhookId>) -> Result<StatusCode, Error> {
    let (service, namespace) = (&call.app.service, call.caller.namespace());
    let deleting = service.delete_webhook(namespace, call.id, &call.precondition);
    deleting.await?;
    Ok(StatusCode::NO_CONTENT)
}
