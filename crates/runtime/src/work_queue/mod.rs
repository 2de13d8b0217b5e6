//! Reconciles the objects of a kind: a bounded number at the same time, round-robin over the accounts.
//!
//! - `queue`: which objects are reconciled next;
//! - `slots`: the slots, which are assigned to accounts round-robin, and of which no region gets all; also for `fair_permits`.

mod queue;
mod slots;

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _, stream::FuturesUnordered};
use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use queue::Class;
use queue::WorkQueue;
pub(crate) use slots::{SlotKey, Slots};

use super::ObjectRef;

/// Number of due objects that are queued before the next event is looked at.
const DUE_AT_ONCE: usize = 64;

/// Reconciles objects of a kind.
pub trait Reconcile: Sync {
    /// The class of the slot that an object needs now.
    fn class(&self, object_ref: &ObjectRef) -> Class;

    /// The region whose cluster the reconcile of an object may have to wait for.
    fn region(&self, _: &ObjectRef) -> Option<Arc<str>> {
        None
    }

    /// Reconciles an object once, with a slot of this class. Returns after how long to do so again, unless the object
    /// changes before then.
    fn reconcile(
        &self,
        object_ref: &ObjectRef,
        class: Class,
    ) -> impl Future<Output = Option<Duration>> + Send;
}

/// Reconciles the objects of `triggers` until shutdown, then finishes the running reconciles. `concurrency` are reconciled at
/// the same time; `depth` shows how many are reconciled or wait for that.
pub async fn run(
    reconciler: &impl Reconcile,
    triggers: impl Stream<Item = ObjectRef> + Send,
    concurrency: u16,
    depth: Gauge,
    shutdown: &CancellationToken,
) {
    let mut queue = WorkQueue::new(concurrency);
    let request = |queue: &mut WorkQueue, object_ref: ObjectRef| {
        let (class, region) = (reconciler.class(&object_ref), reconciler.region(&object_ref));
        queue.request(object_ref, class, region);
    };
    let mut running = FuturesUnordered::new();
    let mut triggers = pin!(triggers);
    loop {
        while let Some((object_ref, class)) = queue.next() {
            running.push(async move {
                let again = reconciler.reconcile(&object_ref, class).await;
                (object_ref, class, again)
            });
        }
        depth.set(i64::try_from(queue.depth()).unwrap_or(i64::MAX));
        let timer = queue.next_timer();
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some((object_ref, class, again)) = running.next() => {
                let again_at = again.map(|delay| Instant::now() + delay);
                if queue.finished(&object_ref, class, again_at) {
                    request(&mut queue, object_ref);
                }
            }
            Some(object_ref) = triggers.next() => {
                request(&mut queue, object_ref);
            }
            () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                let now = Instant::now();
                for object_ref in std::iter::from_fn(|| queue.due(now)).take(DUE_AT_ONCE).collect::<Vec<_>>() {
                    request(&mut queue, object_ref);
                }
            }
        }
    }
    while running.next().await.is_some() {}
    depth.set(0);
}
