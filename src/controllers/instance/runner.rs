//! Reconciles the instances of the queue.

use std::{pin::pin, sync::Arc};

use futures::{Stream, StreamExt as _, stream::FuturesUnordered};
use kube::runtime::reflector::ObjectRef;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    queue::WorkQueue,
    reconcile::{Reconciler, reconcile},
};
use crate::{providers::Provider, resources::Instance, runtime::metrics::KindLabels};

/// Instances whose time has come that are queued before the next event is looked at.
const DUE_AT_ONCE: usize = 64;

/// Reconciles the instances of `triggers` until shutdown, then finishes the running reconciles.
pub(super) async fn run<P: Provider>(
    reconciler: &Reconciler<P>,
    triggers: impl Stream<Item = Arc<Instance>>,
    shutdown: &CancellationToken,
) {
    let kind = KindLabels { kind: "Instance" };
    let depth = reconciler
        .controller
        .metrics
        .queue_depth
        .get_or_create_owned(&kind);
    let mut queue = WorkQueue::new(reconciler.controller.concurrency);
    let mut running = FuturesUnordered::new();
    let mut triggers = pin!(triggers);
    loop {
        while let Some((key, class)) = queue.next() {
            running.push(async move {
                let again = reconcile(reconciler, &key, class).await;
                (key, class, again)
            });
        }
        depth.set(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
        let timer = queue.next_timer();
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some((key, class, again)) = running.next() => {
                let again_at = again.map(|delay| Instant::now() + delay);
                if queue.finished(&key, class, again_at) {
                    let class = reconciler.class(&key);
                    queue.request(key, class);
                }
            }
            Some(instance) = triggers.next() => {
                let key = Arc::new(ObjectRef::from_obj(&*instance));
                let class = reconciler.class(&key);
                queue.request(key, class);
            }
            () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                let now = Instant::now();
                for key in std::iter::from_fn(|| queue.due(now)).take(DUE_AT_ONCE).collect::<Vec<_>>() {
                    let class = reconciler.class(&key);
                    queue.request(key, class);
                }
            }
        }
    }
    while running.next().await.is_some() {}
    depth.set(0);
}
