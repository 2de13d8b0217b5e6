//! The Webhook controller: takes events from outboxes, delivers them, and keeps the records.
//!
//! What to do is decided by the [`crate::delivery::dispatch`]er; this is the shell around it.
//!
//! - `shared`: what the parts share: the dispatcher, the webhooks as they were last seen, and whom to wake;
//! - `listeners`: tells the dispatcher what the watches show;
//! - `worker`: carries out what the dispatcher commands;
//! - `send`: one attempt;
//! - `secrets`: reads the signing secrets; `secret_cache`: what they last were, and what is wrong with them;
//! - `write_queue`: which write of a Delivery is next; `store`: carries it out;
//! - `lookup`: makes sure that no webhook was overlooked;
//! - `status`: the status of a Webhook, decided purely; `status_writer`: writes it;
//! - `notify`: has the account holder told by e-mail of a webhook that was disabled;
//! - `retention`: clears finished Deliveries away.

mod listeners;
mod lookup;
mod notify;
mod retention;
mod secret_cache;
mod secrets;
mod send;
mod shared;
mod status;
mod status_writer;
mod store;
mod worker;
mod write_queue;

use std::{sync::Arc, time::Duration};

use kube::{Client, runtime::reflector::Store};
use tokio_util::sync::CancellationToken;

use shared::Shared;

use super::account::AccountDirectory;
use crate::{
    delivery::{DeliverySettings, ReceiverClient, TargetRules},
    events::Outbox,
    mail::Mailer,
    resources::{Delivery, Instance, Webhook},
    runtime::{Clock, Metrics, ReconcileQueue, events::Events, lease::Tenure, watch::Listener},
};

/// What the controller works with.
pub struct Deps {
    /// Client that reads and writes.
    pub client: Client,
    /// Sends to receivers.
    pub receivers: ReceiverClient,
    /// Whom webhooks may call.
    pub rules: TargetRules,
    /// Tells account holders.
    pub mailer: Mailer,
    /// Whose namespace is whose.
    pub directory: AccountDirectory,
    /// How deliveries are made and kept.
    pub settings: DeliverySettings,
    /// Writes to the API server under way at the same time.
    pub write_concurrency: u16,
    /// Where attempts are counted.
    pub metrics: Metrics,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
}

/// The controller. Its listeners have to hear of every change of the watches from the start.
pub struct WebhookController {
    shared: Arc<Shared>,
}

/// What it hears of.
pub struct Listeners {
    /// For the watch of Webhooks.
    pub webhooks: Box<dyn Listener<Webhook>>,
    /// For the watch of Deliveries that are not finished.
    pub deliveries: Box<dyn Listener<Delivery>>,
    /// For the watch of Instances.
    pub instances: Box<dyn Listener<Instance>>,
}

/// The stores of these watches.
#[derive(Clone)]
pub struct Stores {
    /// Webhooks.
    pub webhooks: Store<Webhook>,
    /// Deliveries that are not finished.
    pub deliveries: Store<Delivery>,
    /// Instances.
    pub instances: Store<Instance>,
}

impl WebhookController {
    /// A controller that does nothing until it [`run`](Self::run)s. `instances` has an Instance looked at again once its last
    /// event is settled.
    pub fn new(deps: Deps, instances: ReconcileQueue<Instance>) -> Self {
        Self {
            shared: Arc::new(Shared::new(deps, instances)),
        }
    }

    /// The way of events to webhooks.
    pub fn outbox(&self) -> Arc<dyn Outbox> {
        self.shared.clone()
    }

    /// The listeners to hand to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            webhooks: listeners::webhooks(&self.shared),
            deliveries: listeners::deliveries(&self.shared),
            instances: listeners::instances(&self.shared),
        }
    }

    /// Another Account owns a namespace, or none.
    pub fn owner_changed(&self) -> impl Fn(&str) + Send + 'static {
        let shared = self.shared.clone();
        move |namespace| shared.owner_changed(namespace)
    }

    /// Takes over what is there; from then on this replica leads, while `tenure` holds. Tries until the API server says what
    /// there is.
    pub async fn open(&self, stores: &Stores, tenure: Tenure) {
        let listed = lookup::list_all(&self.shared, &stores.deliveries).await;
        self.shared.open(stores, listed, tenure);
    }

    /// Delivers until shutdown; what is under way then gets `grace`.
    pub async fn run(self, events: Events, shutdown: CancellationToken, grace: Duration) {
        let shared = self.shared;
        tokio::join!(
            worker::run(shared.clone(), shutdown.clone(), grace),
            lookup::run(shared.clone(), shutdown.clone()),
            secrets::poll(shared.clone(), shutdown.clone()),
            status_writer::run(shared.clone(), events.clone(), shutdown.clone()),
            retention::run(shared.clone(), shutdown),
        );
        // What was decided while stopping is written too.
        status_writer::flush(&shared, &events).await;
    }
}
