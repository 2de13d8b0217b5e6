//! Makes sure that no event misses a webhook: after an event is recorded, the webhooks of its namespace must be known as of that
//! write. They then include every webhook whose creation was acknowledged before the operation, however far the watch lags behind
//! (decisions, section 5). Unless the watch has already caught up, the webhooks are listed. Events within a short window share a list, so
//! the cost does not grow with their rate.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    api::{ListParams, VersionMatch},
    core::{DeserializeGuard, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::initial_state::Listed;
use crate::webhook::shared::{AT_ONCE, Shared};
use domain::delivery::key;
use resources::{Delivery, Webhook, delivery::FINISHED_LABEL, revision, tracking::forget_foreign};
use runtime::{
    ObjectRef, Store,
    client::{CallError, Pages, bounded},
};

/// Events within this window share one list call.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after the list calls, as a multiple of their duration, so that they take at most a fifth of the
/// time.
const REST: u32 = 4;
/// Number of namespaces whose webhooks are listed concurrently.
const CONCURRENCY: usize = 8;
/// Pause after a failed list.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The events of a namespace to verify.
#[derive(Debug, Default)]
pub(crate) struct Unlisted {
    pub(crate) events: Vec<Arc<str>>,
    /// The resourceVersion at which the namespace's webhooks must be known.
    revision: u64,
}

/// Runs until shutdown.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = shared.wake.lookup.notified() => {}
        }
        tokio::time::sleep(GATHER).await;
        let mut has_failed = false;
        loop {
            let begun = Instant::now();
            let unverified = unverified(&shared);
            if unverified.is_empty() {
                break;
            }
            let lookups = unverified.into_iter().map(|(namespace, unlisted)| {
                // After a restore of etcd, the API server may never reach a version that it does not know.
                let since = (!has_failed).then_some(unlisted.revision);
                look_up(shared.clone(), namespace, unlisted, since)
            });
            let lookups: Vec<_> = lookups.collect();
            let succeeded = futures::stream::iter(lookups).buffer_unordered(CONCURRENCY);
            has_failed = !succeeded.fold(true, async |all, one| all && one).await;
            shared.wake.worker.notify_one();
            let pause = if has_failed {
                AFTER_FAILURE
            } else {
                begun.elapsed() * REST
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// The events whose webhooks have not been listed since they were recorded, by namespace.
pub(crate) fn unverified(shared: &Shared) -> BTreeMap<Arc<str>, Unlisted> {
    let mut all: BTreeMap<_, Unlisted> = BTreeMap::new();
    let mut last = None;
    loop {
        let some = shared
            .state
            .lock()
            .dispatcher
            .unverified_after(last.as_ref(), AT_ONCE);
        last = some.last().cloned();
        if last.is_none() {
            return all;
        }
        for entry in some {
            let unlisted = all.entry(entry.namespace).or_default();
            unlisted.events.push(entry.event);
            unlisted.revision = unlisted.revision.max(entry.revision);
        }
    }
}

/// Makes sure that the webhooks of a namespace are known at a given version, or as of now, and marks the events as verified.
/// Returns whether that succeeded. Often the watch has already shown that version.
pub(crate) async fn look_up(
    shared: Arc<Shared>,
    namespace: Arc<str>,
    unlisted: Unlisted,
    since: Option<u64>,
) -> bool {
    let is_shown = since.is_some_and(|since| shared.state.lock().webhooks.shown >= since);
    if !is_shown && let Err(error) = list(&shared, &namespace, since).await {
        tracing::warn!(%namespace, %error, "cannot list webhooks; will retry, and events wait until it succeeds");
        return false;
    }
    for some in unlisted.events.chunks(AT_ONCE) {
        let now = shared.now();
        shared.state.lock().dispatcher.verified(some, now);
    }
    true
}

/// Lists the names and versions of the webhooks of a namespace, at a given version or as of now, and reads those that are
/// not known yet.
async fn list(shared: &Shared, namespace: &str, since: Option<u64>) -> Result<(), CallError> {
    let client = shared.deps.client.clone();
    let api: Api<DeserializeGuard<Webhook>> = Api::namespaced(client, namespace);
    let mut params = ListParams::default();
    if let Some(since) = since {
        params = params.at(&since.to_string()).matching(VersionMatch::NotOlderThan);
    }
    let mut pages = Pages::of(api.clone(), params);
    while let Some(page) = pages.next_metadata().await? {
        for some in page.items.chunks(AT_ONCE) {
            for name in news(shared, namespace, some) {
                let Some(found) = bounded(api.get_opt(&name)).await? else {
                    continue;
                };
                // Nothing is ever sent to a webhook that does not match its schema.
                if let Ok(mut webhook) = found.0 {
                    webhook.metadata.managed_fields = None;
                    forget_foreign(&mut webhook);
                    shared.webhook_seen(&mut shared.state.lock(), Arc::new(webhook), shared.now());
                }
            }
        }
    }
    Ok(())
}

/// The names of the listed webhooks that are not known in this version or a later one.
fn news(
    shared: &Shared,
    namespace: &str,
    listed: &[PartialObjectMeta<DeserializeGuard<Webhook>>],
) -> Vec<String> {
    let state = shared.state.lock();
    let is_news = |name: &&str, version: u64| {
        let known = state.webhooks.get(&key(namespace, name));
        known.is_none_or(|known| revision(&**known) < version)
    };
    let named = listed
        .iter()
        .filter_map(|webhook| Some((webhook.metadata.name.as_deref()?, revision(webhook))));
    named
        .filter(|(name, version)| is_news(name, *version))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Lists all webhooks and all unfinished deliveries straight from etcd, retrying until that succeeds. Deliveries that the
/// watch has in the same version are shared with its store, so that they are in memory only once.
pub(crate) async fn list_all(shared: &Shared, shown: &Store<Delivery>) -> Listed {
    let shared_with_store = |delivery: Delivery| {
        let same = shown
            .get(&ObjectRef::of(&delivery))
            .filter(|shown| revision(&**shown) == revision(&delivery));
        same.unwrap_or_else(|| Arc::new(delivery))
    };
    let client = &shared.deps.client;
    let unfinished = ListParams::default().labels(&format!("!{FINISHED_LABEL}"));
    loop {
        let listed = async {
            let webhook = |mut webhook: Webhook| {
                forget_foreign(&mut webhook);
                webhook
            };
            let (webhooks, _) = pages(Api::all(client.clone()), ListParams::default(), webhook).await?;
            let (deliveries, revision) =
                pages(Api::all(client.clone()), unfinished.clone(), shared_with_store).await?;
            Ok::<_, CallError>(Listed {
                webhooks,
                deliveries,
                revision,
            })
        };
        match listed.await {
            Ok(listed) => return listed,
            Err(error) => {
                tracing::warn!(%error, "cannot list webhooks and deliveries; will retry");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// Lists all objects, converted with `keep`, and returns them with the resourceVersion of the list. Objects that do not match
/// their schema are left out: they never take part in a delivery.
async fn pages<K, T>(
    api: Api<DeserializeGuard<K>>,
    params: ListParams,
    keep: impl Fn(K) -> T,
) -> Result<(Vec<T>, u64), CallError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut pages = Pages::of(api, params);
    let (mut all, mut version) = (Vec::new(), None);
    while let Some(page) = pages.next().await? {
        all.extend(
            page.items
                .into_iter()
                .filter_map(|object| object.0.ok())
                .map(|mut object: K| {
                    object.meta_mut().managed_fields = None;
                    keep(object)
                }),
        );
        version = page.metadata.resource_version;
    }
    Ok((all, version.and_then(|version| version.parse().ok()).unwrap_or(0)))
}
