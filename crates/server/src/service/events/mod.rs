//! The log of an account's events: list and find them. It consists of pages ([`EventLog`]) that are read from the API server.
//!
//! - `pages`: lists and reads the pages;
//! - `window`: which pages a part of a list needs;
//! - `filter`: which events a request asks for.

mod filter;
mod pages;
mod window;

use std::{cmp::Reverse, ops::ControlFlow, time::Duration};

use futures::TryStreamExt as _;
use jiff::Timestamp;

pub use self::{
    pages::{ListedPage, Pages, Selected},
    window::{Merge, Position, Segment, Span, plan},
};
pub use domain::event::{EventFilter, EventInstance, instance_of};

use super::{
    Service,
    cost::Cost,
    credentials::Tenant,
    error::{Error, ErrorCode},
    id::EventId,
};
use resources::{EventLog, LoggedEvent};

/// How long a request may read the log in total.
const DEADLINE: Duration = Duration::from_secs(30);
/// The error message for a page that is too deep.
const TOO_DEEP: &str =
    "must not lead beyond the newest 10000 events; use the filters type, instance_id and since";
/// The name of the kind in messages.
const WORD: &str = "event";

impl Service {
    /// One page of an account's events, newest first, as the bodies that receivers get, and their total number. `page` counts
    /// from 1. A filter of `None` selects nothing. `invalid_input` if the page is too deep, but not past the end; `not_found`
    /// if events are not logged.
    pub async fn list_events(
        &self,
        tenant: &Tenant,
        filter: Option<EventFilter>,
        page: u64,
        limit: usize,
        cost: &Cost,
    ) -> Result<(Vec<String>, usize), Error> {
        self.check_event_log()?;
        let Some(filter) = filter else {
            return Ok((Vec::new(), 0));
        };
        let reading = self.read_events(tenant, filter, Span::of(page, limit), cost);
        tokio::time::timeout(DEADLINE, reading)
            .await
            .map_err(|_| too_slow())?
    }

    /// The body of the event with this id; `not_found` if it is not in the account's log.
    pub async fn event(&self, tenant: &Tenant, id: Option<EventId>, cost: &Cost) -> Result<String, Error> {
        self.check_event_log()?;
        let unknown = || Error::no_such(WORD);
        let id = id.ok_or_else(unknown)?.to_string();
        let finding = async {
            let pages = self.pages(tenant, cost).await?;
            let found = pages.find(|index| index.has(&id).then_some(())).await?;
            let (page, ()) = found.ok_or_else(unknown)?;
            let page = pages.get(&page).await?;
            let mut events = page.into_iter().flat_map(|page| page.spec.events);
            let event = events.find(|event| event.id == id).ok_or_else(unknown)?;
            Ok(event.body)
        };
        tokio::time::timeout(DEADLINE, finding)
            .await
            .map_err(|_| too_slow())?
    }

    /// The pages of an account's log. Waits for a permit to read them.
    pub(super) async fn pages<'a>(&'a self, tenant: &'a Tenant, cost: &'a Cost) -> Result<Pages<'a>, Error> {
        let since = self.now().saturating_sub(self.log_retention);
        Pages::of(&self.calls, tenant, since.unwrap_or(Timestamp::MIN), cost).await
    }

    /// `not_found` if events are not logged.
    fn check_event_log(&self) -> Result<(), Error> {
        if self.has_event_log {
            Ok(())
        } else {
            Err(not_logged())
        }
    }

    async fn read_events(
        &self,
        tenant: &Tenant,
        filter: EventFilter,
        span: Span,
        cost: &Cost,
    ) -> Result<(Vec<String>, usize), Error> {
        let pages = self.pages(tenant, cost).await?;
        let items = |page: EventLog| {
            let matching = page.spec.events.into_iter().filter(|event| filter.matches(event));
            matching.map(|event| (position(&event), event.body)).collect()
        };
        let (mut selected, mut cut) = (Vec::new(), Vec::new());
        let see = |page: ListedPage| {
            if filter.since.is_some_and(|since| page.is_before(since)) {
                return ControlFlow::Break(());
            }
            if let Some(segment) = filter::selected(&filter, &page.index) {
                let to = if filter.cuts(&page.index) {
                    &mut cut
                } else {
                    &mut selected
                };
                to.push(Selected {
                    name: page.name,
                    segment,
                });
            }
            ControlFlow::Continue(())
        };
        pages.each(see).await?;
        if filter.instance.is_some() {
            // All contents have to be read.
            let mut merge = Merge::new(span, 0);
            pages.merge(cut, &mut merge, items).await?;
            let (shown, total) = merge.finish();
            span.check(total, TOO_DEEP)?;
            return Ok((shown, total));
        }
        // For pages that reach back beyond `since`, only the contents tell how many events match.
        let mut contents =
            std::pin::pin!(pages.read(cut.iter().map(|page| page.name.clone()).collect::<Vec<_>>()));
        for page in &mut cut {
            let events = contents
                .try_next()
                .await?
                .flatten()
                .into_iter()
                .flat_map(|page| page.spec.events);
            page.segment.count = events.filter(|event| filter.matches(event)).count();
        }
        selected.extend(cut);
        let segments: Vec<Segment> = selected.iter().map(|page| page.segment).collect();
        let total = segments.iter().map(|segment| segment.count).sum();
        span.check(total, TOO_DEEP)?;
        let plan = plan(&segments, span);
        let mut merge = Merge::new(span, plan.before);
        let needed = plan.needed.iter().map(|index| selected[*index].clone());
        pages.merge(needed.collect(), &mut merge, items).await?;
        Ok((merge.finish().0, total))
    }
}

/// The position of an event in a list.
pub fn position(event: &LoggedEvent) -> Position {
    (Reverse((event.created_at, event.sequence)), event.id.clone())
}

/// The error for an installation that logs no events.
pub fn not_logged() -> Error {
    Error::new(
        ErrorCode::NotFound,
        "events are not logged: the operator runs with --delivery-log failures; with --delivery-log all, the events of the last 24 hours are here",
    )
}

/// The error for a request that takes too long.
fn too_slow() -> Error {
    Error::unavailable("reading the events took too long; try again")
}
