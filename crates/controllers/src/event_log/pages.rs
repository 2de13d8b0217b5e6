//! Writes the pages of the event log, and looks up events in them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use jiff::Timestamp;
use kube::{Api, api::ListParams, core::Status};

use crate::{
    delivery::store::is_hopeless,
    webhook::{FIELD_MANAGER, shared::Shared},
};
use domain::delivery::{LogQuestion, Mentions, Page, PageWritten, Unreadable};
use resources::{
    EventLog, PageIndex,
    event_log::{CLOCKS_DIFFER, written_at},
    origin, quota,
};
use runtime::client::{self, CallError, Pages, bounded, is_denial, written_by};

/// Event log pages per list request.
const AT_ONCE: u32 = 100;
/// How often to retry a page whose write is forbidden: for some seconds, in which the rights may be granted.
const MAX_REFUSALS: u32 = 5;

pub(crate) async fn write(shared: &Shared, namespace: &str, page: Page) -> PageWritten {
    if !shared.leads() {
        // The next leader logs what has not been logged yet. Writing here as well could put an event on two
        // pages.
        return PageWritten::Failed;
    }
    let failures = page.failures;
    // Without an account nobody could read the page.
    let Some(account) = shared.deps.directory.account_of(namespace) else {
        tracing::debug!(
            namespace,
            "the events of a namespace without an account are not logged"
        );
        return PageWritten::Impossible;
    };
    let Some(page) = EventLog::page(namespace, origin::uid(&account.metadata), page.at, page.events) else {
        return PageWritten::Impossible;
    };
    let params = written_by(FIELD_MANAGER);
    match bounded(client::create(&shared.deps.client, &page, &params)).await {
        Ok(_) => {}
        // An earlier attempt succeeded after all: the name is derived from the contents.
        Err(error) if error.is_already_exists() => {}
        Err(error) if is_hopeless(&error) => return PageWritten::Impossible,
        // The account holder's own doing.
        Err(error) if error.status().is_some_and(quota::is_exceeded) => {
            tracing::debug!(namespace, %error, "a quota refuses a page of the event log");
            return PageWritten::Impossible;
        }
        Err(error) if is_refused(&error, failures) => {
            let events = page.spec.count;
            tracing::error!(namespace, events, %error, "a page of the event log is refused; its events are not logged");
            return PageWritten::Impossible;
        }
        Err(error) => {
            tracing::warn!(namespace, %error, "cannot write a page of the event log; will retry");
            return PageWritten::Failed;
        }
    }
    shared.logged(namespace, page.spec.count.into(), page.spec.bytes());
    PageWritten::Stored
}

/// Whether the API server will never accept this page, so that it must not block the events behind it.
fn is_refused(error: &CallError, failures: u32) -> bool {
    let is_final = |status: &Status| {
        status.is_invalid()
            || matches!(status.code, 400 | 413)
            // Refused because of etcd's size limit.
            || status.message.contains("too large")
            || failures >= MAX_REFUSALS && (is_forbidden(status) || is_denial(status))
    };
    error.status().is_some_and(is_final)
}

/// Why the pages could not be read.
pub(crate) fn unreadable(error: &CallError) -> Unreadable {
    if error.status().is_some_and(is_forbidden) {
        Unreadable::Refused
    } else {
        Unreadable::Failed
    }
}

/// Whether the operator lacks the permission or the kind does not exist, because rights or CRDs are of an
/// earlier version.
const fn is_forbidden(status: &Status) -> bool {
    matches!(status.code, 403 | 404)
}

/// Returns which events are on pages of a namespace.
pub(crate) async fn mentions(
    shared: &Shared,
    namespace: &str,
    question: &LogQuestion,
) -> Result<Mentions, CallError> {
    let api = api(shared, namespace);
    let since = question.since.saturating_sub(CLOCKS_DIFFER);
    let since = since.unwrap_or(Timestamp::MIN);
    let wanted: HashMap<&str, &Arc<str>> = question.events.iter().map(|id| (&**id, id)).collect();
    let mut mentions = Mentions::new();
    let mut pages = Pages::of(api.clone(), ListParams::default().limit(AT_ONCE));
    while let Some(list) = pages.next_metadata().await? {
        let mut is_over = false;
        for page in &list.items {
            let name = page.metadata.name.as_deref().unwrap_or_default();
            // The newest pages come first.
            is_over |= written_at(name).is_some_and(|at| at < since);
            let index = PageIndex::read(&page.metadata);
            if !index.is_some_and(|index| index.event_ids().any(|id| wanted.contains_key(&*id))) {
                continue;
            }
            let Some(page) = bounded(api.get_opt(name)).await? else {
                continue;
            };
            for event in page.spec.events {
                let delivered = event.deliveries.into_iter().map(|it| it.webhook_uid);
                if let Some(id) = wanted.get(&*event.id) {
                    let mentioned: &mut HashSet<String> = mentions.entry((*id).clone()).or_default();
                    mentioned.extend(delivered);
                }
            }
        }
        if is_over {
            break;
        }
    }
    Ok(mentions)
}

fn api(shared: &Shared, namespace: &str) -> Api<EventLog> {
    Api::namespaced(shared.deps.client.clone(), namespace)
}
