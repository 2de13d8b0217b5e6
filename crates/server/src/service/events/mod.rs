//! The log of an account's events: list and find them. It consists of pages ([`EventLog`]) that are read from the API server.
//!
//! - `pages`: lists and reads the pages;
//! - `newest`: what is shown of a list, of which only some pages are read.

mod newest;
mod pages;

use std::{cmp::Reverse, time::Duration};

use jiff::{SignedDuration, Timestamp};

pub use self::{
    newest::{Newest, Position},
    pages::{ListedPage, Pages},
};
pub use domain::event::{EventFilter, EventInstance, Period, instance_of};

use super::{
    Service,
    cost::Cost,
    credentials::Tenant,
    error::{Error, ErrorCode},
    id::EventId,
};
use resources::{EventLog, LoggedEvent, PageIndex};

/// How long a request may read the log in total.
const DEADLINE: Duration = Duration::from_secs(30);
/// The name of the kind in messages.
const WORD: &str = "event";

/// The page of a list that a request asks for. Its pages follow each other by cursors, since it changes while it is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor<I> {
    /// The item that it follows; `None` for the first page.
    pub after: Option<I>,
    /// Most items on it.
    pub limit: usize,
}

/// A page of such a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Slice<T> {
    /// Its items.
    pub items: Vec<T>,
    /// The item that the next page follows; `None` at the end.
    pub next: Option<String>,
}

impl<T> Slice<T> {
    /// Without items.
    pub const fn empty() -> Self {
        Self {
            items: Vec::new(),
            next: None,
        }
    }
}

impl Service {
    /// One page of an account's events, newest first, as the bodies that receivers get. A filter of `None` selects nothing.
    /// `invalid_input` if the event that it is to follow is not kept; `not_found` if events are not logged.
    pub async fn list_events(
        &self,
        tenant: &Tenant,
        filter: Option<EventFilter>,
        cursor: Cursor<EventId>,
        cost: &Cost,
    ) -> Result<Slice<String>, Error> {
        self.check_event_log()?;
        let Some(filter) = filter else {
            return Ok(Slice::empty());
        };
        tokio::time::timeout(DEADLINE, self.read_events(tenant, filter, cursor, cost))
            .await
            .map_err(|_| too_slow())?
    }

    /// The body of the event with this id; `not_found` if it is not in the account's log.
    pub async fn event(&self, tenant: &Tenant, id: Option<EventId>, cost: &Cost) -> Result<String, Error> {
        self.check_event_log()?;
        let unknown = || Error::no_such(WORD);
        let id = id.ok_or_else(unknown)?;
        let finding = async {
            let pages = self.pages(tenant, cost).await?;
            let event = find_event(&pages, id).await?.ok_or_else(unknown)?;
            Ok(event.body)
        };
        tokio::time::timeout(DEADLINE, finding)
            .await
            .map_err(|_| too_slow())?
    }

    /// The pages of an account's log. Waits for a permit to read them.
    pub(super) async fn pages<'a>(&'a self, tenant: &'a Tenant, cost: &'a Cost) -> Result<Pages<'a>, Error> {
        let retention = SignedDuration::from_hours(self.settings.log_retention_hours.into());
        let since = self.now().saturating_sub(retention);
        Pages::of(&self.calls, tenant, since.unwrap_or(Timestamp::MIN), cost).await
    }

    /// `not_found` if events are not logged.
    fn check_event_log(&self) -> Result<(), Error> {
        if self.settings.has_event_log {
            Ok(())
        } else {
            Err(not_logged())
        }
    }

    async fn read_events(
        &self,
        tenant: &Tenant,
        filter: EventFilter,
        cursor: Cursor<EventId>,
        cost: &Cost,
    ) -> Result<Slice<String>, Error> {
        let pages = self.pages(tenant, cost).await?;
        let after = match cursor.after {
            Some(id) => {
                let event = find_event(&pages, id).await?;
                Some(position(&event.ok_or_else(|| not_kept(WORD))?))
            }
            None => None,
        };
        let mut newest = Newest::of(cursor.limit, after);
        // Which events are about an instance, only the contents of the pages tell.
        let is_exact = filter.instance.is_none();
        let count = |_: &str, index: &PageIndex| index.count(filter.event_type);
        let selected = pages.select(&newest, filter.period, is_exact, count).await?;
        let items = |page: EventLog| {
            let matching = page.spec.events.into_iter().filter(|event| filter.matches(event));
            matching.map(|event| (position(&event), event.body)).collect()
        };
        pages.merge(selected, &mut newest, items).await?;
        let (events, has_more) = newest.finish();
        let last = events.last().map(|((_, id), _)| id.clone());
        Ok(Slice {
            items: events.into_iter().map(|(_, body)| body).collect(),
            next: last.filter(|_| has_more),
        })
    }
}

/// The event with this id, if it is in the log.
async fn find_event(pages: &Pages<'_>, id: EventId) -> Result<Option<LoggedEvent>, Error> {
    let id = id.to_string();
    let Some((page, ())) = pages.find(|index| index.has(&id).then_some(())).await? else {
        return Ok(None);
    };
    let page = pages.get(&page).await?;
    let mut events = page.into_iter().flat_map(|page| page.spec.events);
    Ok(events.find(|event| event.id == id))
}

/// The refusal of a cursor that names nothing: what follows it is not known.
pub fn not_kept(word: &str) -> Error {
    let must = format!(
        "must be the id of {} {word} that is still kept; to go on where you were, leave it out and use until, with a time just after the last {word} that you know",
        if word.starts_with('e') { "an" } else { "a" }
    );
    Error::invalid_value("after", must)
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
