//! Makes sure that no event misses a webhook: after an event is recorded, this lists the webhooks of its namespace again,
//! straight from etcd. A webhook whose creation was acknowledged before the operation is in that list, however far the watch
//! lags behind (decisions, section 5). Events within a short window share a list, so the cost does not grow with their rate.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc, time::Duration};

use futures::future::join_all;
use kube::{
    Api, Resource,
    api::ListParams,
    core::DeserializeGuard,
    runtime::reflector::{ObjectRef, Store},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    initial_state::Listed,
    shared::{AT_ONCE, Shared},
};
use crate::{
    resources::{Delivery, delivery::FINISHED_LABEL},
    runtime::{
        client::{CallError, bounded, next_page},
        watch::revision,
    },
};

/// Events within this window share one list call.
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a list, as a multiple of its duration, so that lists take at most a fifth of the time.
const REST: u32 = 4;
/// With events in more namespaces than this, one cluster-wide list is cheaper than one per namespace.
const MAX_NAMESPACES: usize = 8;
/// Webhooks on one page of a list.
const PAGE: u32 = 500;
/// Pause after a failed list.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A namespace, or `None` for all, and the events to verify with a list of its webhooks.
type Lookup = (Option<Arc<str>>, Vec<Arc<str>>);

/// Runs until shutdown.
pub(super) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = shared.unverified.notified() => {}
        }
        tokio::time::sleep(GATHER).await;
        loop {
            let begun = Instant::now();
            let unverified = unverified(&shared);
            if unverified.is_empty() {
                break;
            }
            // One list for many namespaces, else one for each, so that one namespace cannot delay another.
            let together = unverified.len() > MAX_NAMESPACES;
            let work: Vec<Lookup> = if together {
                vec![(None, unverified.into_values().flatten().collect())]
            } else {
                unverified
                    .into_iter()
                    .map(|(namespace, events)| (Some(namespace), events))
                    .collect()
            };
            let lookups = work
                .into_iter()
                .map(|(namespace, events)| look_up(shared.clone(), namespace, events));
            let failed = join_all(lookups).await.contains(&false);
            shared.wake.notify_one();
            let pause = if failed {
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
pub(super) fn unverified(shared: &Shared) -> BTreeMap<Arc<str>, Vec<Arc<str>>> {
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
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
        for (namespace, event) in some {
            all.entry(namespace).or_default().push(event);
        }
    }
}

/// Lists the webhooks of a namespace, or of all, for these events. Returns whether that succeeded.
async fn look_up(shared: Arc<Shared>, namespace: Option<Arc<str>>, events: Vec<Arc<str>>) -> bool {
    let client = shared.deps.client.clone();
    let api = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let webhooks = match pages(api, ListParams::default(), |webhook| webhook).await {
        Ok((webhooks, _)) => webhooks,
        Err(error) => {
            tracing::warn!(?namespace, %error, "cannot list webhooks; will retry, and events wait until it succeeds");
            return false;
        }
    };
    for webhook in webhooks {
        shared.webhook_seen(&mut shared.state.lock(), Arc::new(webhook), shared.now());
    }
    for some in events.chunks(AT_ONCE) {
        let now = shared.now();
        shared.state.lock().dispatcher.verified(some, now);
    }
    true
}

/// Lists all webhooks and all unfinished deliveries, straight from etcd, and retries until that succeeds. Deliveries that the
/// watch has in the same version are shared with its store, so they are in memory once.
pub(super) async fn list_all(shared: &Shared, shown: &Store<Delivery>) -> Listed {
    let shared_with_store = |delivery: Delivery| {
        let same = shown
            .get(&ObjectRef::from_obj(&delivery))
            .filter(|shown| revision(&**shown) == revision(&delivery));
        same.unwrap_or_else(|| Arc::new(delivery))
    };
    let client = &shared.deps.client;
    let unfinished = ListParams::default().labels(&format!("!{FINISHED_LABEL}"));
    loop {
        let listed = async {
            let (webhooks, _) =
                pages(Api::all(client.clone()), ListParams::default(), |webhook| webhook).await?;
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

/// Lists all objects, converted with `keep`, and returns them with the resourceVersion of the list. Leaves out objects that do
/// not match their schema: they are never part of a delivery.
async fn pages<K, T>(
    api: Api<DeserializeGuard<K>>,
    params: ListParams,
    keep: impl Fn(K) -> T,
) -> Result<(Vec<T>, u64), CallError>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = bounded(api.list(&params)).await?;
        let has_more = next_page(&mut params, &page.metadata);
        all.extend(
            page.items
                .into_iter()
                .filter_map(|object| object.0.ok())
                .map(|mut object: K| {
                    object.meta_mut().managed_fields = None;
                    keep(object)
                }),
        );
        if !has_more {
            let version = page.metadata.resource_version.as_deref();
            return Ok((all, version.and_then(|version| version.parse().ok()).unwrap_or(0)));
        }
    }
}
