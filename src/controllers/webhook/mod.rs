//! The Webhook controller: takes events from outboxes, delivers them, and keeps the records.
//!
//! What to do is decided by the [`crate::delivery::dispatch`]er; this is the shell around it.
//!
//! - `hub`: what the parts share: the dispatcher, the webhooks that are known, what is to be done next;
//! - `driver`: carries out what the dispatcher commands;
//! - `send`: one attempt;
//! - `secrets`: reads the signing secrets; `secret_cache`: what they last were, and what is wrong with them;
//! - `write_queue`: which write of a Delivery is next; `store` carries it out;
//! - `lookup`: makes sure that no webhook was overlooked;
//! - `health`: the status of a Webhook, decided purely; `report` writes it and has the account holder told;
//! - `retention`: clears finished Deliveries away.

mod driver;
mod health;
mod hub;
mod lookup;
mod report;
mod retention;
mod secret_cache;
mod secrets;
mod send;
mod store;
mod write_queue;

use std::{sync::Arc, time::Duration};

use kube::{Client, runtime::reflector::Store};
use tokio_util::sync::CancellationToken;

use hub::Hub;

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
    hub: Arc<Hub>,
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
            hub: Arc::new(Hub::new(deps, instances)),
        }
    }

    /// The way of events to webhooks.
    pub fn outbox(&self) -> Arc<dyn Outbox> {
        self.hub.clone()
    }

    /// The listeners to hand to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            webhooks: hub::webhook_listener(&self.hub),
            deliveries: hub::delivery_listener(&self.hub),
            instances: hub::instance_listener(&self.hub),
        }
    }

    /// Another Account owns a namespace, or none.
    pub fn owner_changed(&self) -> impl Fn(&str) + Send + 'static {
        let hub = self.hub.clone();
        move |namespace| hub.owner_changed(namespace)
    }

    /// Takes over what is there; from then on this replica leads, while `tenure` holds. Tries until the API server says what
    /// there is.
    pub async fn open(&self, stores: &Stores, tenure: Tenure) {
        let listed = lookup::list_all(&self.hub, &stores.deliveries).await;
        self.hub.open(stores, listed, tenure);
    }

    /// Delivers until shutdown; what is under way then gets `grace`.
    pub async fn run(self, events: Events, shutdown: CancellationToken, grace: Duration) {
        let hub = self.hub;
        tokio::join!(
            driver::run(hub.clone(), shutdown.clone(), grace),
            lookup::run(hub.clone(), shutdown.clone()),
            secrets::poll(hub.clone(), shutdown.clone()),
            report::run(hub.clone(), events.clone(), shutdown.clone()),
            retention::run(hub.clone(), shutdown),
        );
        // What was decided while stopping is written too.
        report::flush(&hub, &events).await;
    }
}
