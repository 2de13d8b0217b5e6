//! `/v1/webhooks`: list, create, detail, change, delete. The actions are in [`actions`], what was sent in [`deliveries`].
//!
//! A webhook is two objects: the Webhook, which the watch shows, and the Secret with its signing secret ([`secret`]), which
//! is read from the API server where it is needed and nowhere kept.

pub mod actions;
pub mod deliveries;
pub mod order;
pub mod secret;
pub mod view;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use self::{
    order::{ChangeWebhook, NewWebhook},
    view::{WebhookView, WebhookWithSecret},
};
use super::{
    App, answer, body,
    create::KeyedCreate,
    entry::Entry,
    error::{ApiError, quota_used_up},
    id::WebhookId,
    idempotency,
    modify::Verdict,
    precondition::IfMatch,
    query::Parameters,
    request::{Asked, Caller, Target},
    view::{List, Pagination, Single},
};
use crate::resources::{Webhook, WebhookSpec};

/// A webhook as REST shows it.
#[derive(Debug)]
pub struct ShownWebhook {
    /// The object, the same that the watch's store has.
    pub webhook: Arc<Webhook>,
    /// Its public id.
    pub id: WebhookId,
}

impl Entry for ShownWebhook {
    type Object = Webhook;
    type Id = WebhookId;
    type Spec = WebhookSpec;

    const WORD: &'static str = "webhook";

    fn of(webhook: Arc<Webhook>) -> Self {
        Self {
            id: WebhookId::of(&webhook),
            webhook,
        }
    }

    fn id(&self) -> WebhookId {
        self.id
    }

    fn object(&self) -> &Webhook {
        &self.webhook
    }

    fn spec(&self) -> &WebhookSpec {
        &self.webhook.spec
    }
}

/// Lists webhooks
///
/// Newest first, then by id; never with their secrets.
#[utoipa::path(
    get,
    path = "/v1/webhooks",
    operation_id = "listWebhooks",
    tag = "webhooks",
    responses((status = 200, description = "A page of webhooks", body = List<WebhookView<'static>>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let paging = parameters.paging()?;
    let (page, total) = app
        .webhooks
        .index()
        .page(caller.namespace(), paging.page, paging.limit);
    let data: Vec<_> = page.iter().map(|shown| WebhookView::of(shown)).collect();
    let pagination = Pagination::new(paging.page, paging.limit, total);
    answer::json(StatusCode::OK, &List { data, pagination }, 512)
}

/// Creates a webhook
///
/// From the answer on, the events of every operation that is requested are sent to it. The secret is in this answer, and in
/// that of a rotation, and never again. A repetition with the same `Idempotency-Key` shows the secret as it is by then.
#[utoipa::path(
    post,
    path = "/v1/webhooks",
    operation_id = "createWebhook",
    tag = "webhooks",
    request_body = NewWebhook,
    responses((status = 201, description = "The webhook, with its secret", body = Single<WebhookWithSecret<'static>>)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let tenant = &caller.0.tenant;
    let asked = Asked::with_body(request).await?;
    let suffix = asked.suffix(&tenant.uid);
    let input = asked.input;
    // The digest beside the Webhook does not help to guess the secret: that of the whole body is beside the secret itself.
    let visible = input.fields.canonical(Some("secret"));
    let keyed = KeyedCreate::of(suffix, &visible)?;
    let hash = keyed.is_some().then(|| idempotency::body_hash(&input.canonical));
    let wanted = NewWebhook::read(input.fields, &*app.receiver_check)?;
    let build = |name: &str, hash: Option<String>| wanted.webhook(name, hash);
    // The native quota is what holds. This spares it attempts that it would count, and is there before it.
    let has_room = || {
        tenant.check_stays()?;
        let count = app.webhooks.index().count(&tenant.namespace);
        if count < usize::try_from(tenant.webhook_quota).unwrap_or(usize::MAX) {
            Ok(())
        } else {
            Err(quota_used_up("webhooks"))
        }
    };
    let made = app
        .webhooks
        .create_once(&tenant.namespace, keyed.as_ref(), has_room, build)
        .await?;
    let shown = &*made.entry;
    let ensured = app
        .secret_of_create(&shown.webhook, wanted.secret.as_deref(), hash, made.before)
        .await;
    let secret = match ensured {
        Ok(secret) => secret,
        Err(error) => {
            if !made.before {
                // Nobody could ever verify what it sends.
                if let Err(error) = app.webhooks.delete(shown, false).await {
                    tracing::warn!(webhook = %shown.id, %error, "a webhook without a secret could not be deleted");
                }
            }
            return Err(error);
        }
    };
    let data = WebhookWithSecret::of(shown, &secret, None);
    let mut response = answer::single(StatusCode::CREATED, &*shown.webhook, data, None)?;
    answer::locate(&mut response, "/v1/webhooks", shown.id);
    Ok(idempotency::replayed_if(made.before, response))
}

/// Shows a webhook
///
/// Without its secret. `active` is `false` also while it is disabled; `disabled` then says since when and why.
#[utoipa::path(
    get,
    path = "/v1/webhooks/{id}",
    operation_id = "getWebhook",
    tag = "webhooks",
    responses((status = 200, description = "The webhook", body = Single<WebhookView<'static>>)),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
) -> Result<Response, ApiError> {
    let shown = app.webhooks.find(caller.namespace(), id).await?;
    shown_as_it_is(&shown)
}

/// Changes a webhook
///
/// What is left out stays as it is; `events` are replaced as a whole. Any change of `url`, `events` or `active` enables a
/// webhook that was disabled, and so does `"active": true`: what was held is then sent. A new `secret` replaces the old one
/// at once; POST …/rotate-secret lets both sign for a while.
#[utoipa::path(
    patch,
    path = "/v1/webhooks/{id}",
    operation_id = "changeWebhook",
    tag = "webhooks",
    request_body = ChangeWebhook,
    responses((status = 200, description = "The webhook as it is now", body = Single<WebhookView<'static>>)),
)]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let change = ChangeWebhook::read(body::required(request).await?.fields, &*app.receiver_check)?;
    let decide = |shown: &ShownWebhook| {
        if_match.check(&*shown.webhook)?;
        Ok(Verdict::Write {
            spec: Box::new(change.apply(&shown.webhook, app.clock.now())),
            done: None,
        })
    };
    let shown = app.webhooks.modify(caller.namespace(), id, decide).await?;
    // After the spec, which admission may still refuse: then nothing has changed. The same request again finishes it.
    if let Some(secret) = &change.secret {
        app.replace_secret(&shown.webhook, secret).await?;
    }
    shown_as_it_is(&shown)
}

fn shown_as_it_is(shown: &ShownWebhook) -> Result<Response, ApiError> {
    answer::single(StatusCode::OK, &*shown.webhook, WebhookView::of(shown), None)
}

/// Deletes a webhook
///
/// Nothing is sent to it any more. Its deliveries go with it, and the secret that was made for it.
#[utoipa::path(
    delete,
    path = "/v1/webhooks/{id}",
    operation_id = "deleteWebhook",
    tag = "webhooks",
    responses((status = 204, description = "The webhook is gone")),
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<WebhookId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let check = |shown: &ShownWebhook| if_match.check(&*shown.webhook);
    app.webhooks
        .remove(caller.namespace(), id, if_match.is_present(), check)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}
