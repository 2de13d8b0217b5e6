//! Makes sure that no webhook was overlooked: after an event was recorded, the webhooks of its namespace are listed once more,
//! straight from etcd. A webhook whose creation was acknowledged before the operation is in that list, however far the watch
//! lags behind (decisions, section 5). Events that come together share a list, so the cost does not grow with their rate.

use std::{fmt::Debug, sync::Arc, time::Duration};

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

use super::shared::{Listed, Shared};
use crate::{
    resources::{Delivery, delivery::FINISHED_LABEL},
    runtime::{
        client::{CallError, bounded},
        watch::revision,
    },
};

/// Events of so long share a list.
const GATHER: Duration = Duration::from_millis(50);
/// Lists take at most a fifth of the time.
const REST: u32 = 4;
/// Namespaces that are listed one by one; of more, all webhooks of the cluster are listed.
const MAX_NAMESPACES: usize = 8;
/// Webhooks on one page of a list.
const PAGE: u32 = 500;
/// Pause after a list failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// A namespace, or all, and events that wait for its webhooks.
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
            let unverified = shared.state.lock().dispatcher.unverified();
            if unverified.is_empty() {
                break;
            }
            // Of many namespaces, all at once; else each on its own, so that one cannot hold up another.
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

/// Lists the webhooks of a namespace, or all, for these events. Returns whether that worked.
async fn look_up(shared: Arc<Shared>, namespace: Option<Arc<str>>, events: Vec<Arc<str>>) -> bool {
    let client = shared.deps.client.clone();
    let api = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let webhooks = match pages(api, ListParams::default(), |webhook| webhook).await {
        Ok((webhooks, _)) => webhooks,
        Err(error) => {
            tracing::warn!(?namespace, %error, "webhooks cannot be listed; events wait for it, it will be tried again");
            return false;
        }
    };
    let now = shared.now();
    let mut state = shared.state.lock();
    for webhook in webhooks {
        shared.webhook_seen(&mut state, Arc::new(webhook), now);
    }
    state.dispatcher.verified(&events, now);
    true
}

/// All webhooks, and all deliveries that are not finished, straight from etcd. Tried until it works. What the watch has in the
/// same version is in memory once.
pub(super) async fn list_all(shared: &Shared, shown: &Store<Delivery>) -> Listed {
    let once = |delivery: Delivery| {
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
            let (deliveries, revision) = pages(Api::all(client.clone()), unfinished.clone(), once).await?;
            Ok::<_, CallError>(Listed {
                webhooks,
                deliveries,
                revision,
            })
        };
        match listed.await {
            Ok(listed) => return listed,
            Err(error) => {
                tracing::warn!(%error, "webhooks and deliveries cannot be listed; it will be tried again");
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

/// All objects, as they are to be kept, and the version of the list. Objects that do not parse are left out: nothing is ever
/// sent to or of them.
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
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        all.extend(
            page.items
                .into_iter()
                .filter_map(|object| object.0.ok())
                .map(|mut object: K| {
                    object.meta_mut().managed_fields = None;
                    keep(object)
                }),
        );
        let Some(token) = next else {
            let version = page.metadata.resource_version.as_deref();
            return Ok((all, version.and_then(|version| version.parse().ok()).unwrap_or(0)));
        };
        params = params.continue_token(&token);
    }
}
