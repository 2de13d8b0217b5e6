//! The Instance controller: watches instances, decides ([`crate::lifecycle`]), asks the provider for one step, and writes
//! the status.
//!
//! - `reconcile`: one pass over one instance: ask, decide, write;
//! - `unreadable`: a condition for objects that do not parse.

mod reconcile;
mod unreadable;

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use kube::{
    Client,
    runtime::{Controller, controller, reflector::Store},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use reconcile::Reconciler;

use crate::{
    catalogue::Catalogue,
    events::{Outbox, payload::User},
    providers::{Provider, Timings},
    resources::Instance,
    runtime::{Clock, Metrics, ReconcileQueue, backoff::Backoffs, events::Events},
};

/// The account holder that a namespace belongs to.
pub type HolderOf = Arc<dyn Fn(&str) -> Option<User> + Send + Sync>;

/// What the controller works with.
pub struct InstanceController<P> {
    /// Client that writes.
    pub client: Client,
    /// Makes servers real.
    pub provider: Arc<P>,
    /// The account holder that a namespace belongs to.
    pub holder_of: HolderOf,
    /// Takes events on their way.
    pub outbox: Arc<dyn Outbox>,
    /// Regions and images that can be had.
    pub catalogue: Catalogue,
    /// Times of the lifecycle.
    pub timings: Timings,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Where reconciles and provider calls are counted.
    pub metrics: Metrics,
    /// Publishes Events.
    pub events: Events,
    /// Instances reconciled at the same time.
    pub concurrency: u16,
    /// Writes to the API server under way at the same time.
    pub write_concurrency: u16,
    /// How long a provider call may take.
    pub provider_timeout: Duration,
}

impl<P: Provider> InstanceController<P> {
    /// Reconciles until shutdown; what is under way then is finished. Every instance in the store is looked at once at the
    /// start, so nothing that happened before is missed.
    pub async fn run(
        self,
        queue: ReconcileQueue<Instance>,
        store: Store<Instance>,
        shutdown: CancellationToken,
    ) {
        let (triggers, unreadable) = queue.open(&store);
        let complaints = tokio::spawn(unreadable::complain(
            self.client.clone(),
            unreadable,
            shutdown.clone(),
        ));
        // Objects that have failed share a quarter of the slots, so that a provider that hangs for many instances leaves
        // room for the others.
        let suspects = usize::from((self.concurrency / 4).max(1));
        let reconciler = Arc::new(Reconciler {
            writes: Semaphore::new(usize::from(self.write_concurrency)),
            suspects: Semaphore::new(suspects),
            backoffs: Backoffs::default(),
            queue,
            controller: self,
        });
        let concurrency = reconciler.controller.concurrency;
        Controller::for_shared_stream(triggers, store)
            .with_config(controller::Config::default().concurrency(concurrency))
            .graceful_shutdown_on(async move { shutdown.cancelled().await })
            .run(reconcile::reconcile, reconcile::on_error, reconciler)
            .for_each(|result| async move {
                if let Err(error) = result {
                    match error {
                        // The object went before its turn came.
                        controller::Error::ObjectNotFound(_) => {}
                        error => tracing::debug!(%error, "reconcile ended with an error"),
                    }
                }
            })
            .await;
        complaints.abort();
    }
}
