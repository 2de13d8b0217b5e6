//! Webhooks: list, create, detail, and the actions on one.
//!
//! - `view`: webhooks and deliveries as pages show them;
//! - `edit`: the form for a new one and for changes; `operate`: test, secret, switch, resend, delete; `deliveries`: the log;
//! - `verify`: how receivers check signatures.

mod deliveries;
mod edit;
mod operate;
mod verify;
pub mod view;

use std::sync::Arc;

use askama::Template;
use axum::{
    Router,
    routing::{get, post},
};
use http::StatusCode;

use self::view::{Delivery, Webhook};
use super::{
    App,
    call::{Call, Id, with_query},
    form::Form,
    page::{Pager, Shell, page},
    refresh::Refresh,
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{CursorList, Single};
use domain::event::{EventType, catalogue};

/// The section of the navigation.
const SECTION: &str = "webhooks";
/// Deliveries on the page of a webhook.
const FEW: &str = "10";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/webhooks", get(list).post(edit::create))
        .route("/console/webhooks/new", get(edit::show_new))
        .route("/console/webhooks/verify", get(verify::show))
        .route("/console/webhooks/{id}", get(detail))
        .route(
            "/console/webhooks/{id}/edit",
            get(edit::show_edit).post(edit::change),
        )
        .route("/console/webhooks/{id}/test", post(operate::test))
        .route(
            "/console/webhooks/{id}/switch",
            get(operate::show_switch).post(operate::switch),
        )
        .route(
            "/console/webhooks/{id}/secret",
            get(operate::show_rotate).post(operate::rotate),
        )
        .route(
            "/console/webhooks/{id}/resend",
            get(operate::show_resend).post(operate::resend),
        )
        .route("/console/webhooks/{id}/retry", post(operate::retry))
        .route(
            "/console/webhooks/{id}/delete",
            get(operate::show_delete).post(operate::delete),
        )
        .route("/console/webhooks/{id}/deliveries", get(deliveries::list))
        .route(
            "/console/webhooks/{id}/deliveries/{delivery}",
            get(deliveries::detail),
        )
        .route(
            "/console/webhooks/{id}/deliveries/{delivery}/resend",
            post(deliveries::resend),
        )
}

/// An event type, and its description.
struct Kind {
    name: &'static str,
    description: &'static str,
    example: String,
}

/// All event types.
fn kinds() -> Vec<Kind> {
    let kind = |event: EventType| Kind {
        name: event.as_str(),
        description: match event {
            EventType::InstanceCreated => "An instance was created.",
            EventType::InstanceDeleted => "An instance was deleted, and its server is gone.",
            EventType::InstanceStarted => "An instance is running, after it was off or was power-cycled.",
            EventType::InstanceStopped => "An instance is off.",
            EventType::BackupCompleted => "A backup is completed and can be restored.",
            EventType::BackupFailed => "A backup failed; the event says why.",
            EventType::AlertTriggered => {
                "CPU, memory or disk usage of a monitored instance has been high for some time."
            }
            EventType::InvoiceCreated => "An invoice was issued.",
        },
        example: serde_json::to_string_pretty(&catalogue::example(event)).unwrap_or_default(),
    };
    EventType::ALL.map(kind).into()
}

async fn webhook(request: &SessionRequest, id: &str) -> Result<Webhook, Refusal> {
    let found: Single<Webhook> = request.get(&Call::get(format!("/v1/webhooks/{id}"))).await?;
    Ok(found.data)
}

#[derive(Template)]
#[template(path = "console/webhooks/list.html")]
struct ListPage {
    shell: Shell,
    items: Vec<Webhook>,
    pager: Pager,
    refresh: Refresh,
}

async fn list(request: SessionRequest) -> Answer {
    let (call, items, pager) = request.list("webhooks", &[], None).await?;
    let template = ListPage {
        shell: request.shell_with(SECTION, "Webhooks", &[call]),
        refresh: request.refresh(false),
        items,
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/webhooks/detail.html")]
struct DetailPage {
    shell: Shell,
    webhook: Webhook,
    deliveries: Vec<Delivery>,
    form: Form,
    refresh: Refresh,
}

async fn detail(request: SessionRequest, Id(id): Id) -> Answer {
    let webhook = webhook(&request, &id).await?;
    let log = Call::get(with_query(
        &format!("/v1/webhooks/{id}/deliveries"),
        &[("limit", FEW)],
    ));
    let deliveries: CursorList<Delivery> = request.get(&log).await?;
    let now = request.now();
    let is_under_way =
        webhook.is_sent_to() && deliveries.data.iter().any(|delivery| delivery.is_under_way(now));
    let mut calls = vec![Call::get(format!("/v1/webhooks/{id}")), log];
    if request.may_write() {
        calls.push(Call::post(format!("/v1/webhooks/{id}/test")));
        calls.push(operate::switch_call(&id, !webhook.active));
    }
    let template = DetailPage {
        shell: request.shell_with(SECTION, "Webhook", &calls),
        webhook,
        deliveries: deliveries.data,
        form: Form::new(),
        refresh: request.refresh(is_under_way),
    };
    Ok(page(StatusCode::OK, &template))
}
