//! `/v1/events`: the events of the account; list, detail.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{StatusCode, header};

use super::{
    App,
    extract::{
        Caller, Charged, Target,
        query::{Paging, Parameters, not_a_time},
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{
    events::{EventFilter, not_logged},
    id::{EventId, InstanceId, PublicId},
};
use api::{Event, List, Pagination, Single};
use domain::event::EventType;

/// The filter in the query; `None` if a value does not exist, so that nothing is selected. 422 if `since` is not a time.
fn filter(parameters: &Parameters) -> Result<Option<EventFilter>, Error> {
    let since = parameters.time("since")?;
    let event_type = parameters.get("type").map(EventType::parse);
    let instance = parameters.get("instance_id").map(InstanceId::parse);
    let is_known = event_type != Some(None) && instance != Some(None);
    Ok(is_known.then_some(EventFilter {
        event_type: event_type.flatten(),
        instance: instance.flatten(),
        since,
    }))
}

/// Lists the events of the account
///
/// The events of the last 24 hours, whether or not a webhook wanted them: to catch up, and to reconcile. Newest first. Each is
/// exactly as receivers get it; test events are not among them. An event is listed some two seconds after it has happened, and of
/// two events of different instances the later one may be listed first: to catch up, begin a minute before the last event that
/// you know, and leave out by their ids those that you know. An account with very many events has those of a shorter time.
/// Filters can be combined with each other and with paging. A filter that matches nothing gives an empty list. Pages do not lead
/// beyond the newest 10,000 events that match. Each further 500 pages of the log that have to be gone through count as one more request
/// against the rate limits; `since` saves them. 404 if the operator is configured to log no events.
#[utoipa::path(
    get,
    path = "/v1/events",
    operation_id = "listEvents",
    tag = "events",
    params(
        Paging,
        ("type" = Option<String>, Query, description = "Only events of this type.", example = "instance.created"),
        ("instance_id" = Option<String>, Query, description = "Only events about this instance, which may have been deleted.", example = "i-4q7hz0c9k2m8x1ta"),
        ("since" = Option<String>, Query, description = "Only events that happened at this RFC 3339 time or later.", example = "2026-11-21T10:00:00Z"),
    ),
    responses(
        (status = 200, description = "A page of events", body = List<Event>, example = json!(examples::page(examples::event()))),
        (status = 404, description = "Not Found", body = ErrorAnswer, example = json!(examples::error(not_logged()))),
        (status = 422, description = "Unprocessable Entity", body = ErrorAnswer, example = json!(examples::error(not_a_time("since")))),
    ),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Error> {
    let paging = parameters.paging()?;
    let filter = filter(&parameters)?;
    let cost = Charged::new(&app, &caller);
    let (bodies, total) = app
        .service
        .list_events(caller.tenant(), filter, paging.page, paging.limit, &cost)
        .await?;
    response::page(&bodies, Pagination::new(paging.page, paging.limit, total))
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
    responses((status = 200, description = "The event", body = Single<Event>, headers(("ETag")), example = json!(examples::single(examples::event())))),
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
    fn a_filter_with_an_unknown_value_selects_nothing_and_since_must_be_a_time() {
        let read = |query: &str| filter(&Parameters::of(&format!("/v1/events?{query}").parse().unwrap()));
        assert_eq!(read(""), Ok(Some(EventFilter::default())));
        let all = "type=instance.stopped&instance_id=i-abcdefgh01234567&since=2026-11-21T10:00:00Z";
        assert_eq!(
            read(all),
            Ok(Some(EventFilter {
                event_type: Some(EventType::InstanceStopped),
                instance: InstanceId::parse("i-abcdefgh01234567"),
                since: Some("2026-11-21T10:00:00Z".parse().unwrap()),
            }))
        );
        for nothing in ["type=instance", "type=", "instance_id=web", "instance_id="] {
            assert_eq!(read(nothing), Ok(None), "{nothing}");
        }
        for wrong in [
            "since=",
            "since=yesterday",
            "since=2026-11-21",
            "since=2026-11-21T10:00:00&type=x",
        ] {
            assert_eq!(read(wrong).unwrap_err().details[0].field, "since", "{wrong}");
        }
    }
}
