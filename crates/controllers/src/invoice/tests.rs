//! What the listeners take from the watches.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header::DATE};
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;

use super::{Deps, InvoiceController, InvoiceSettings};
use crate::{account::AccountDirectory, backup::BackupIndex, ledger::Ledger};
use domain::{
    catalogue::Catalogue,
    event::{Outbox, OutboxVersion},
};
use resources::{Account, Backup, Instance, money::Cents};
use runtime::{
    ByNamespace, Metrics, ReconcileQueue, ServerTime,
    events::Events,
    shared_catalogue::SharedCatalogue,
    testing::{TestClock, answered_by},
    watch::Change,
};

const NOW: &str = "2026-11-21T10:00:00Z";

fn now() -> Timestamp {
    NOW.parse().unwrap()
}

struct NoOutbox;

impl Outbox for NoOutbox {
    fn is_settled(&self, _: &str) -> bool {
        true
    }

    fn is_logged(&self) -> bool {
        false
    }

    fn has_unattempted(&self, _: &str) -> bool {
        false
    }

    fn recorded(&self, _: &OutboxVersion<'_>, _: i64) {}
}

/// An API server that stores nothing.
fn api_server() -> Client {
    answered_by(|method, _, body| async move {
        let missing = json!({ "status": "Failure", "code": 404, "reason": "NotFound" });
        if method == http::Method::GET {
            (404, missing)
        } else {
            (200, body)
        }
    })
}

/// A controller whose machine's clock is ahead by this much, with the accounts of the namespaces `ns-0`, `ns-1` and `ns-2`, and
/// its queue of reconcile requests.
fn controller(ahead: SignedDuration) -> (InvoiceController, UnboundedReceiver<String>) {
    let client = api_server();
    let (directory, ledger, server_time) = (
        AccountDirectory::default(),
        Ledger::default(),
        ServerTime::default(),
    );
    let date = HeaderValue::from_str(&httpdate::fmt_http_date(now().into())).unwrap();
    server_time.answered(&HeaderMap::from_iter([(DATE, date)]));
    let accounts = (0..3).map(|number| Arc::new(account(number))).collect();
    directory.listener(|_| {}).changed(&Change::Replaced(accounts));
    let mut catalogue = Catalogue::default();
    catalogue.prices = catalogue.prices.with_backups(Cents(5));
    let requests = ledger.open();
    let controller = InvoiceController::new(Deps {
        client: client.clone(),
        namespace: "system".to_owned(),
        directory,
        ledger,
        instances: ByNamespace::default(),
        settings: InvoiceSettings {
            bills_simulated: true,
            ..InvoiceSettings::default()
        },
        backups: BackupIndex::new(ReconcileQueue::default()),
        outbox: Arc::new(NoOutbox),
        catalogue: SharedCatalogue::new(catalogue),
        clock: Arc::new(TestClock::at(now() + ahead)),
        server_time,
        metrics: Metrics::new(),
        events: Events::new(client, "invoice-controller", "test"),
    });
    (controller, requests)
}

fn parsed<K: serde::de::DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn account(number: usize) -> Account {
    let namespace = format!("ns-{number}");
    parsed(json!({
        "metadata": { "name": format!("account-{number}"), "uid": format!("account-{number}") },
        "spec": { "email": "ada@example.com", "namespace": namespace },
        "status": { "namespace": namespace, "conditions": [{
            "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": NOW,
        }] },
    }))
}

fn instance(number: usize) -> Arc<Instance> {
    Arc::new(parsed(json!({
        "metadata": { "name": format!("web-{number}"), "namespace": format!("ns-{}", number % 3), "uid": number.to_string() },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "powerState": "Running" },
        "status": { "metering": { "since": NOW, "changes": [{ "hour": 0, "plan": "starter", "then": "starter" }] } },
    })))
}

fn backup(number: usize) -> Arc<Backup> {
    Arc::new(parsed(json!({
        "metadata": { "name": format!("bkp-{number}"), "namespace": format!("ns-{}", number % 3), "uid": number.to_string() },
        "spec": { "instance": "web" },
    })))
}

#[tokio::test]
async fn an_instance_that_is_gone_without_a_finalizer_ended_now_however_far_the_machines_clock_is_off() {
    let month = SignedDuration::from_hours(24 * 30);
    for off in [month, -month] {
        let (controller, _requests) = controller(off);
        let [mut before, _] = controller.instance_listeners();
        before.changed(&Change::Deleted(instance(0)));
        let ended = controller.shared.gone.lock()["account-0"]["0"].at;
        let is_now = ended.duration_since(now()).abs() < SignedDuration::from_mins(1);
        assert!(is_now, "{ended}");
    }
}

#[tokio::test]
async fn a_new_list_of_instances_or_backups_asks_for_each_account_once() {
    let (controller, mut requests) = controller(SignedDuration::ZERO);
    let mut asked = || {
        let mut asked = Vec::new();
        while let Ok(namespace) = requests.try_recv() {
            asked.push(namespace);
        }
        asked.sort_unstable();
        asked
    };
    let [_, mut instances] = controller.instance_listeners();
    instances.changed(&Change::Replaced((0..100).map(instance).collect()));
    assert_eq!(asked(), ["ns-0", "ns-1", "ns-2"]);
    assert!(controller.record_prices().await, "backups have one");
    let mut backups = controller.backup_listener();
    backups.changed(&Change::Replaced((0..100).map(backup).collect()));
    assert_eq!(asked(), ["ns-0", "ns-1", "ns-2"]);
    backups.changed(&Change::Applied(backup(1)));
    assert_eq!(asked(), ["ns-1"]);
}
