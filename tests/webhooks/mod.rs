//! Webhooks from an operation to a receiver, with the real program, the real API server and real TLS.

mod backlog;
mod chaos;
mod crashes;
mod delivery;
mod disablement;
mod fairness;
mod farewell;
mod full;
mod late;
mod ledger;
mod mails;
mod overlap;
mod proxy;
mod requests;
mod retention;
mod secrets;
mod targets;
mod writes;

pub use crashes::setting;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use resources::{Delivery, DeliveryPhase, EventLog, Webhook};
use serde_json::{Value, json};

use crate::support::{Change as _, Tenant, eventually, receivers::Received, remember_secret};

/// The signing secret of the tests' webhooks.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Every event of instances.
pub const ALL: [&str; 4] = [
    "instance.created",
    "instance.deleted",
    "instance.started",
    "instance.stopped",
];

impl Tenant {
    pub fn webhooks(&self) -> Api<Webhook> {
        Api::namespaced(self.kube.clone(), &self.namespace)
    }

    pub fn deliveries(&self) -> Api<Delivery> {
        Api::namespaced(self.kube.clone(), &self.namespace)
    }

    /// Creates a Secret and a Webhook for these events, as kubectl would.
    pub async fn webhook(&self, name: &str, url: &str, events: &[&str]) -> Webhook {
        self.secret(name, SECRET).await;
        let webhook = json!({
            "metadata": { "name": name },
            "spec": { "url": url, "events": events, "secretRef": { "name": name } },
        });
        let webhook = self.object(&webhook, "Webhook");
        self.webhooks()
            .create(&PostParams::default(), &webhook)
            .await
            .unwrap()
    }

    pub async fn secret(&self, name: &str, value: &str) {
        if value.len() > 12 {
            remember_secret(value);
        }
        let secrets: Api<Secret> = Api::namespaced(self.kube.clone(), &self.namespace);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": name, "labels": { "stellage.dev/webhook-secret": "true" } },
            "stringData": { "secret": value },
        });
        let params = PatchParams::apply("tests").force();
        secrets
            .patch(name, &params, &Patch::Apply(&secret))
            .await
            .unwrap();
    }

    fn object<K: serde::de::DeserializeOwned>(&self, value: &Value, kind: &str) -> K {
        let mut value = value.clone();
        value["apiVersion"] = json!("stellage.dev/v1");
        value["kind"] = json!(kind);
        value["metadata"]["namespace"] = json!(self.namespace);
        serde_json::from_value(value).unwrap()
    }

    /// Changes the spec of a webhook.
    pub async fn change_webhook(&self, name: &str, spec: Value) -> Webhook {
        let patch = json!({ "spec": spec });
        self.webhooks().merge(name, &patch).await
    }

    /// Waits until a webhook satisfies a condition.
    pub async fn wait_for_webhook(&self, name: &str, what: &str, is: impl Fn(&Webhook) -> bool) -> Webhook {
        let look = async || self.webhooks().get(name).await.unwrap();
        eventually(what, look, is).await
    }

    /// The pages of the event log, newest first.
    pub async fn pages(&self) -> Vec<EventLog> {
        let pages: Api<EventLog> = Api::namespaced(self.kube.clone(), &self.namespace);
        pages.list(&ListParams::default()).await.unwrap().items
    }

    /// The deliveries of a webhook, oldest event first: the Deliveries, and those that are only logged.
    pub async fn deliveries_of(&self, webhook: &str) -> Vec<Delivery> {
        let params = ListParams::default().labels(&format!("stellage.dev/webhook={webhook}"));
        let mut all = self.deliveries().list(&params).await.unwrap().items;
        for page in self.pages().await {
            let logged = page.spec.events.iter().filter_map(|event| {
                let to_it = event.deliveries.iter().find(|it| it.webhook == webhook)?;
                event.delivery_to(&to_it.webhook_uid, &page)
            });
            let is_known = |it: &Delivery| all.iter().any(|known| known.name_any() == it.name_any());
            let logged: Vec<_> = logged.filter(|it| !is_known(it)).collect();
            all.extend(logged);
        }
        all.sort_by_key(|delivery| (delivery.spec.event_created_at, delivery.spec.sequence));
        all
    }

    /// Waits until a webhook's deliveries satisfy a condition.
    pub async fn wait_for_deliveries(
        &self,
        webhook: &str,
        what: &str,
        are: impl Fn(&Vec<Delivery>) -> bool,
    ) -> Vec<Delivery> {
        eventually(what, async || self.deliveries_of(webhook).await, are).await
    }
}

/// Whether there are this many deliveries, all in this phase.
pub fn all_in(count: usize, phase: DeliveryPhase) -> impl Fn(&Vec<Delivery>) -> bool {
    move |all| all.len() == count && all.iter().all(|delivery| phase_of(delivery) == Some(phase))
}

pub fn phase_of(delivery: &Delivery) -> Option<DeliveryPhase> {
    delivery.status.as_ref().map(|status| status.phase)
}

/// The body of a received request.
pub fn body(received: &Received) -> Value {
    serde_json::from_slice(&received.body).unwrap()
}

/// The event types of requests, in the order of their arrival.
pub fn types(received: &[Received]) -> Vec<String> {
    received
        .iter()
        .map(|request| request.header("x-service-event-type").to_owned())
        .collect()
}
