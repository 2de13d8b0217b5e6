//! The log of a webhook's deliveries.

use askama::Template;
use axum::extract::Path;
use http::StatusCode;

use super::{
    SECTION,
    view::{Delivery, Webhook},
    webhook,
};
use crate::console::{
    call::{Call, Id, segment, with_query},
    form::Form,
    page::{CursorPager, Query, Shell, page},
    refresh::Refresh,
    refusal::Answer,
    session_request::SessionRequest,
    text::{Moment as _, indented},
};
use api::{CursorList, Single};
use domain::event::EventType;
use resources::DeliveryPhase;

#[derive(Template)]
#[template(path = "console/webhooks/deliveries.html")]
struct ListPage {
    shell: Shell,
    webhook: Webhook,
    query: Query,
    statuses: Vec<&'static str>,
    types: Vec<&'static str>,
    deliveries: Vec<Delivery>,
    pager: CursorPager,
    is_filtered: bool,
    refresh: Refresh,
}

/// Lists the deliveries.
pub async fn list(request: SessionRequest, Id(id): Id) -> Answer {
    let webhook = webhook(&request, &id).await?;
    let filters = ["status", "event_type"];
    let parameters = [
        ("status", request.query.get("status")),
        ("event_type", request.query.get("event_type")),
        ("after", request.query.get("after")),
    ];
    let call = Call::get(with_query(&format!("/v1/webhooks/{id}/deliveries"), &parameters));
    let CursorList {
        data: items,
        pagination,
    }: CursorList<Delivery> = request.get(&call).await?;
    let now = request.now();
    let is_under_way = items.iter().any(|delivery| delivery.is_under_way(now));
    let path = format!("/console/webhooks/{id}/deliveries");
    let template = ListPage {
        shell: request.shell_with(SECTION, "Deliveries", &[call]),
        webhook,
        statuses: DeliveryPhase::ALL.map(DeliveryPhase::as_str).to_vec(),
        types: EventType::ALL.map(EventType::as_str).to_vec(),
        pager: CursorPager::new(&pagination, &path, &request.query),
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(is_under_way),
        query: request.query,
        deliveries: items,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/webhooks/delivery.html")]
struct DetailPage {
    shell: Shell,
    webhook: Webhook,
    delivery: Delivery,
    body: String,
    form: Form,
    refresh: Refresh,
}

/// Shows a delivery with its request, its attempts and the answer.
pub async fn detail(request: SessionRequest, Path((id, delivery)): Path<(String, String)>) -> Answer {
    let (id, delivery) = (segment(&id), segment(&delivery));
    let webhook = webhook(&request, &id).await?;
    let path = format!("/v1/webhooks/{id}/deliveries/{delivery}");
    let call = Call::get(path.as_str());
    let Single { data: found, .. }: Single<Delivery> = request.get(&call).await?;
    let mut calls = vec![call];
    if request.may_write() {
        calls.push(Call::post(format!("{path}/redeliver")));
    }
    let body = found.request.as_ref().map(|request| indented(&request.body));
    let template = DetailPage {
        shell: request.shell_with(SECTION, "Delivery", &calls),
        refresh: request.refresh(found.is_under_way(request.now())),
        body: body.unwrap_or_default(),
        webhook,
        delivery: found,
        form: Form::new(),
    };
    Ok(page(StatusCode::OK, &template))
}

/// Sends a delivery now.
pub async fn resend(
    request: SessionRequest,
    Path((id, delivery)): Path<(String, String)>,
    form: Form,
) -> Answer {
    let (id, delivery) = (segment(&id), segment(&delivery));
    let call = Call::post(format!("/v1/webhooks/{id}/deliveries/{delivery}/redeliver")).once(form.key());
    let sent: Single<Delivery> = request.get(&call).await?;
    let path = format!("/console/webhooks/{id}/deliveries/{}", sent.data.id);
    Ok(request.done(&path, &sent.message.unwrap_or_default()).await)
}
