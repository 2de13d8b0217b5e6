//! `/v1/events`: the events of the account; list, detail.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{StatusCode, header};
use serde_json::value::RawValue;

use super::{
    App,
    extract::{
        Caller, Charged, Target,
        query::{CursorPaging, Parameters},
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{
    events::{Cursor, EventFilter, Period, not_kept, not_logged},
    id::{EventId, InstanceId, PublicId},
};
use api::{CursorList, CursorPagination, Event, Single};
use domain::event::EventType;

/// The filter in the query; `None` if a value does not exist, so that nothing is selected.
fn filter(parameters: &Parameters, period: Period) -> Option<EventFilter> {
    let event_type = parameters.get("type").map(EventType::parse);
    let instance = parameters.get("instance_id").map(InstanceId::parse);
    let is_known = event_type != Some(None) && instance != Some(None);
    is_known.then_some(EventFilter {
        event_type: event_type.flatten(),
        instance: instance.flatten(),
        period,
    })
}

/// Lists the events of the account
///
/// The events of the last 24 hours, whether or not a webhook wanted them: to catch up, and to reconcile. Newest first. Each is
/// exactly as receivers get it; test events are not among them. An event is listed some two seconds after it has happened, and of
/// two events of different instances the later one may be listed first: to catch up, begin a minute before the last event that
/// you know, and leave out by their ids those that you know. An account with very many events has those of a shorter time.
/// Filters can be combined with each other and with paging. A filter that matches nothing gives an empty list. `pagination.next`
/// leads to the next page. Against the rate limits, every five pages of the log whose events are read count as one more request, so that
/// a `limit` of 20 costs up to five, and so does each further 500 that have to be gone through, which `since` saves. 404 if the operator is configured to log no events.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    params(
        Cursor<EventId>,
        CursorPaging,
        ("type" = Option<String>, Query, description = "Only events of this type.", example = "instance.created"),
        ("instance_id" = Option<String>, Query, description = "Only events about this instance, which may have been deleted.", example = "i-4q7hz0c9k2m8x1ta"),
    ),
    responses(
        (status = 200, description = "A page of events", body = CursorList<Event>),
        (status = 404, description = "Not Found", body = ErrorAnswer, example = json!(examples::error(not_logged()))),
        (status = 422, description = "Unprocessable Entity", body = ErrorAnswer, example = json!(examples::error(not_kept("event")))),
    ),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Error> {
    let (cursor, period) = parameters.cursor()?;
    let filter = filter(&parameters, period);
    let cost = Charged::new(&app, &caller);
    let listed = app
        .service
        .list_events(caller.tenant(), filter, cursor, &cost)
        .await?;
    let events: Result<Vec<_>, _> = listed.items.into_iter().map(RawValue::from_string).collect();
    let list = CursorList {
        data: events.map_err(|_| Error::fault())?,
        pagination: CursorPagination {
            limit: cursor.limit,
            next: listed.next,
        },
    };
    response::json(StatusCode::OK, &list, 1024 * (1 + list.data.len()))
}

/// Shows an event
///
/// Exactly as receivers get it. Each further 500 pages of the log that have to be gone through to find it count as one more request against
/// the rate limits. 404 if it happened more than 24 hours ago, or if the operator is configured to log no events.
#[utoipa::path(
    get,
    path = "/v1/events/{id}",
    operation_id = "getEvent",
    tag = "events",
    params(Target<EventId>),
    responses((status = 200, description = "The event", body = Single<Event>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<EventId>,
) -> Result<Response, Error> {
    let cost = Charged::new(&app, &caller);
    let body = app.service.event(caller.tenant(), id, &cost).await?;
    let mut response = response::rendered(StatusCode::OK, format!("{{\"data\":{body}}}"));
    if let Some(id) = id {
        // An event never changes.
        let version = response::tag(format!("\"{id}-1\""));
        response.headers_mut().insert(header::ETAG, version);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_with_an_unknown_value_selects_nothing() {
        let read = |query: &str| {
            let parameters = Parameters::of(&format!("/v1/events?{query}").parse().unwrap());
            filter(&parameters, Period::default())
        };
        assert_eq!(read(""), Some(EventFilter::default()));
        assert_eq!(
            read("type=instance.stopped&instance_id=i-abcdefgh01234567"),
            Some(EventFilter {
                event_type: Some(EventType::InstanceStopped),
                instance: InstanceId::parse("i-abcdefgh01234567"),
                period: Period::default(),
            })
        );
        for nothing in ["type=instance", "type=", "instance_id=web", "instance_id="] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
