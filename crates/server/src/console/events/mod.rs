//! Events of the last 24 hours: list and detail.
//!
//! - `view`: events as pages show them; `sent`: the webhooks that they were sent to.

pub mod sent;
pub mod view;

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::StatusCode;
use jiff::SignedDuration;

use self::{
    sent::{Sent, sent},
    view::Event,
};
use super::{
    App,
    call::{Call, Id, with_query},
    page::{CursorPager, Query, Shell, page},
    refresh::Refresh,
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::{Moment as _, indented},
};
use api::{CursorList, Single};
use domain::event::EventType;

const SECTION: &str = "events";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/events", get(list))
        .route("/console/events/{id}", get(detail))
}

#[derive(Template)]
#[template(path = "console/events/list.html")]
struct ListPage {
    shell: Shell,
    query: Query,
    types: Vec<&'static str>,
    /// `None` if events are not logged.
    items: Option<Vec<Event>>,
    pager: Option<CursorPager>,
    is_filtered: bool,
    refresh: Refresh,
}

async fn list(request: SessionRequest) -> Answer {
    let filters = ["type", "instance_id", "since", "until"];
    let [since, until] = ["since", "until"].map(|name| in_utc(request.query.get(name)));
    let parameters = [
        ("type", request.query.get("type")),
        ("instance_id", request.query.get("instance_id")),
        ("since", &since),
        ("until", &until),
        ("after", request.query.get("after")),
    ];
    let call = Call::get(with_query("/v1/events", &parameters));
    let found: Option<CursorList<Event>> = request.find(&call).await?;
    let pager = found
        .as_ref()
        .map(|found| CursorPager::new(&found.pagination, "/console/events", &request.query));
    let template = ListPage {
        shell: request.shell_with(SECTION, "Events", &[call]),
        types: EventType::ALL.map(EventType::as_str).to_vec(),
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(false),
        query: request.query,
        items: found.map(|found| found.data),
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}

/// The time in a field, which has no zone, as UTC. Anything else goes to `/v1` unchanged, which says what is wrong with it.
fn in_utc(text: &str) -> String {
    match text.parse::<jiff::civil::DateTime>() {
        Ok(time) => format!("{time}Z"),
        Err(_) => text.to_owned(),
    }
}

#[derive(Template)]
#[template(path = "console/events/detail.html")]
struct DetailPage {
    shell: Shell,
    event: Event,
    body: String,
    /// The webhooks that got it, and those that subscribe to events of this type.
    sent: Vec<Sent>,
    /// `None` once nothing more is expected.
    refresh: Option<Refresh>,
}

async fn detail(request: SessionRequest, Id(id): Id) -> Answer {
    let call = Call::get(format!("/v1/events/{id}"));
    let answer = request.send(&call).await?;
    let Single { data: event, .. }: Single<Event> =
        serde_json::from_slice(&answer).map_err(|_| Refusal::fault())?;
    // Exactly as receivers get it, except for line breaks.
    let answer = String::from_utf8_lossy(&answer);
    let body = answer
        .strip_prefix("{\"data\":")
        .and_then(|rest| rest.strip_suffix('}'));
    let body = indented(body.unwrap_or(&answer));
    // Includes webhooks that got this event but no longer subscribe to its type.
    let mut sent = sent(&request, std::slice::from_ref(&event), |_| true).await?;
    sent.retain(|sent| sent.delivery_of(&event).is_some() || sent.webhook.wants(event.r#type));
    let is_under_way = sent.iter().any(|sent| sent.is_under_way(request.now()));
    // After a minute, no new delivery is expected, and each refresh costs a request for each webhook.
    let is_new = request.now().duration_since(event.created_at.0) < SignedDuration::from_mins(1);
    let mut calls = vec![call];
    calls.extend(sent.iter().map(|sent| sent.call.clone()));
    let template = DetailPage {
        shell: request.shell_with(SECTION, event.r#type.as_str(), &calls),
        refresh: (is_under_way || is_new).then(|| request.refresh(is_under_way)),
        event,
        body,
        sent,
    };
    Ok(page(StatusCode::OK, &template))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_field_is_in_utc() {
        assert_eq!(in_utc("2026-11-23T10:00"), "2026-11-23T10:00:00Z");
        assert_eq!(in_utc("2026-11-23T10:00:00Z"), "2026-11-23T10:00:00Z");
        assert_eq!((in_utc("x"), in_utc("")), ("x".to_owned(), String::new()));
    }
}
