//! The Webhook controller: takes events from outboxes, delivers them, and keeps the records.
//!
//! - `delivery`, `event_log`, `secrets`, beside it: deliver events, log them, read
//!   what signs them;
//! - `known`: the webhooks that it knows;
//! - `reconcile`: keeps their status: `observe` gathers what the decision ([`domain::webhook`]) depends on, `apply` writes it;
//!   `status_queue` and `write_budget` say when;
//! - `shared`: what all of these share.

mod apply;
mod known;
mod observe;
mod reconcile;
pub(crate) mod shared;
mod status_queue;
#[cfg(test)]
pub(crate) mod tests;
mod write_budget;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio_util::sync::CancellationToken;

use shared::Shared;

pub use crate::delivery::Source;
use crate::{
    account::AccountDirectory,
    delivery::{self, initial_state, listeners, lookup, worker},
    event_log, secrets,
};
use domain::{delivery::DeliverySettings, event::Outbox};
use resources::{Delivery, HasOutbox, Webhook};
use runtime::{Clock, Metrics, ServerTime, Store, events::Events, lease::Tenure, watch::Listener};
use sender::{ReceiverClient, TargetRules};

/// The controller's name in managedFields.
pub(crate) const FIELD_MANAGER: &str = "stellage-webhooks";

/// What the controller depends on.
pub struct Deps {
    /// Client of the API server.
    pub client: Client,
    /// HTTP client for receivers.
    pub receivers: ReceiverClient,
    /// Which receivers webhooks may call.
    pub rules: TargetRules,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// How events are delivered and recorded.
    pub settings: DeliverySettings,
    /// Maximum number of concurrent writes to the API server.
    pub write_concurrency: u16,
    /// Where attempts are counted.
    pub metrics: Metrics,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// The API server's time, used for the age of stored objects.
    pub server_time: ServerTime,
}

/// The controller. Its listeners must receive every change of the watches from the start.
pub struct WebhookController {
    pub(crate) shared: Arc<Shared>,
}

/// The controller's listeners.
pub struct Listeners {
    /// For the watch of Webhooks.
    pub webhooks: Box<dyn Listener<Webhook>>,
    /// For the watch of unfinished Deliveries.
    pub deliveries: Box<dyn Listener<Delivery>>,
}

/// The stores of these watches, and the objects whose events are delivered.
#[derive(Clone)]
pub struct Stores {
    pub webhooks: Store<Webhook>,
    /// Unfinished Deliveries.
    pub deliveries: Store<Delivery>,
    /// The kinds with an outbox, one source each.
    pub sources: Vec<Source>,
}

impl WebhookController {
    /// A controller that does nothing until [`run`](Self::run).
    pub fn new(deps: Deps) -> Self {
        Self {
            shared: Arc::new(Shared::new(deps)),
        }
    }

    /// The outbox to which the controllers of other kinds hand over events.
    pub fn outbox(&self) -> Arc<dyn Outbox> {
        self.shared.clone()
    }

    /// The listeners to pass to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            webhooks: listeners::webhooks(&self.shared),
            deliveries: listeners::deliveries(&self.shared),
        }
    }

    /// The listener for the watch of a kind with an outbox. Each such kind must have a [`Source`].
    pub fn outbox_listener<K: HasOutbox>(&self) -> Box<dyn Listener<K>> {
        listeners::outboxes(&self.shared)
    }

    /// The function to call when a namespace gets another owner or loses its owner.
    pub fn owner_changed(&self) -> impl Fn(&str) + Send + 'static {
        let shared = self.shared.clone();
        move |namespace| shared.owner_changed(namespace)
    }

    /// Loads the initial state, retrying until that succeeds. From then on this replica is the leader, as long as `tenure`
    /// holds.
    pub async fn open(&self, stores: &Stores, tenure: Tenure) {
        initial_state::prepare(&self.shared, stores);
        let listed = lookup::list_all(&self.shared, &stores.deliveries).await;
        initial_state::open(&self.shared, stores, listed, tenure).await;
    }

    /// Delivers events until shutdown, then waits up to `grace` for attempts and writes in flight.
    pub async fn run(self, events: Events, shutdown: CancellationToken, grace: Duration) {
        let shared = self.shared;
        tokio::join!(
            worker::run(shared.clone(), shutdown.clone(), grace),
            lookup::run(shared.clone(), shutdown.clone()),
            secrets::poll(shared.clone(), shutdown.clone()),
            reconcile::run(shared.clone(), events.clone(), shutdown.clone()),
            delivery::retention::run(shared.clone(), shutdown.clone()),
            event_log::retention::run(shared.clone(), shutdown),
        );
        reconcile::finish(&shared, &events).await;
    }
}
