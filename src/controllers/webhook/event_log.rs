//! Writes the pages of the event log, and looks events up in them.

use std::{collections::HashSet, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use kube::{
    Api,
    api::{ListParams, PostParams},
    core::Status,
};

use super::{
    shared::Shared,
    store::{FIELD_MANAGER, is_hopeless},
};
use crate::{
    delivery::dispatch::{Mentions, Page, PageWritten},
    resources::{EventLog, PageIndex, event_log::written_at, quota},
    runtime::client::{CallError, bounded, next_page},
};

/// Pages on one page of a list.
const AT_ONCE: u32 = 100;
/// How much later the clock of one leader may be than that of the next.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(2);

/// Writes a page.
pub(super) async fn write(shared: &Shared, namespace: &str, page: Page) -> PageWritten {
    let account = shared.deps.directory.account_of(namespace);
    let Some(account) = account.and_then(|account| account.metadata.uid.clone()) else {
        // Nobody could read it.
        return PageWritten::Impossible;
    };
    let Some(page) = EventLog::page(namespace, &account, page.at, page.events) else {
        return PageWritten::Impossible;
    };
    let params = PostParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    };
    match bounded(api(shared, namespace).create(&params, &page)).await {
        Ok(_) => {}
        // An earlier try has succeeded after all: the name derives from the contents.
        Err(error) if error.status().is_some_and(Status::is_already_exists) => {}
        Err(error) if is_hopeless(&error) => return PageWritten::Impossible,
        Err(error) if is_refused(&error) => {
            tracing::error!(namespace, %error, "a page of the event log is refused; its {} events are not logged", page.spec.count);
            return PageWritten::Impossible;
        }
        Err(error) => {
            tracing::warn!(namespace, %error, "cannot write a page of the event log; will retry");
            return PageWritten::Failed;
        }
    }
    let bytes = PageIndex::read(&page.metadata).map_or(0, |index| index.bytes);
    shared.logged(namespace, page.spec.count.into(), bytes);
    PageWritten::Stored
}

/// Whether the API server will never take this page, so that it must not keep what waits for it.
fn is_refused(error: &CallError) -> bool {
    let is_final = |status: &Status| {
        status.is_invalid() || matches!(status.code, 400 | 413) || quota::is_exceeded(status)
    };
    error.status().is_some_and(is_final)
}

/// Which of these events are on pages of a namespace. The earliest of them happened at `since`.
pub(super) async fn mentions(
    shared: &Shared,
    namespace: &str,
    since: Timestamp,
    events: &[Arc<str>],
) -> Result<Mentions, CallError> {
    let api = api(shared, namespace);
    let since = since.saturating_sub(CLOCKS_DIFFER).unwrap_or(Timestamp::MIN);
    let mut wanted: HashSet<&str> = events.iter().map(|id| &**id).collect();
    let mut mentions = Mentions::new();
    let mut params = ListParams::default().limit(AT_ONCE);
    loop {
        let list = bounded(api.list_metadata(&params)).await?;
        let mut is_over = !next_page(&mut params, &list.metadata);
        for page in &list.items {
            let name = page.metadata.name.as_deref().unwrap_or_default();
            // The newest come first.
            is_over |= written_at(name).is_some_and(|at| at < since);
            let index = PageIndex::read(&page.metadata);
            if !index.is_some_and(|index| index.event_ids().any(|id| wanted.contains(&*id))) {
                continue;
            }
            let Some(page) = bounded(api.get_opt(name)).await? else {
                continue;
            };
            for event in page.spec.events {
                let delivered = event.deliveries.into_iter().map(|it| it.webhook_uid);
                if let Some(id) = events.iter().find(|id| ***id == *event.id)
                    && wanted.remove(&**id)
                {
                    mentions.insert(id.clone(), delivered.collect());
                }
            }
        }
        if is_over || wanted.is_empty() {
            return Ok(mentions);
        }
    }
}

fn api(shared: &Shared, namespace: &str) -> Api<EventLog> {
    Api::namespaced(shared.deps.client.clone(), namespace)
}
