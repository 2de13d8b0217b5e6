//! What account holders are told, how often, and by whichever process. The API server is in memory, and mails are files.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    super::{
        Deps, Stores, WebhookController,
        initial_state::{self, Listed},
        notify,
        shared::Shared,
        status_writer,
    },
    deps, webhook,
};
use crate::{
    controllers::account::AccountDirectory,
    delivery::dispatch::{Disablement, key},
    events::EventType,
    resources::{DisableReason, Webhook, WebhookStatus},
    runtime::{Clock, client::answered_by, events::Events, lease::Tenure, objects::store, watch::Change},
};

/// The Webhooks of the API server, by name.
type Stored = Arc<Mutex<BTreeMap<String, Value>>>;

/// A clock that tests can set.
#[derive(Clone)]
struct TestClock(Arc<Mutex<Timestamp>>);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A leading process, and everything that outlives it.
struct World {
    shared: Arc<Shared>,
    events: Events,
    clock: TestClock,
    stored: Stored,
    account: Arc<Mutex<Value>>,
    folder: TempDir,
}

impl World {
    /// The first process, and an account with webhooks numbered from 0.
    async fn new(webhooks: usize) -> Self {
        let stored: BTreeMap<String, Value> = (0..webhooks)
            .map(|number| {
                let mut webhook = webhook(number);
                webhook.status = Some(WebhookStatus {
                    ..WebhookStatus::default()
                });
                (name(number), serde_json::to_value(&webhook).unwrap())
            })
            .collect();
        let clock = TestClock(Arc::new(Mutex::new("2026-11-22T10:00:00Z".parse().unwrap())));
        let account = Arc::new(Mutex::new(account()));
        Self::start(
            clock,
            Arc::new(Mutex::new(stored)),
            account,
            tempfile::tempdir().unwrap(),
        )
        .await
    }

    /// Replaces the process with a new one.
    async fn restart(self) -> Self {
        Self::start(self.clock, self.stored, self.account, self.folder).await
    }

    async fn start(clock: TestClock, stored: Stored, account: Arc<Mutex<Value>>, folder: TempDir) -> Self {
        let client = api_server(stored.clone(), account.clone());
        let url = url::Url::from_file_path(folder.path()).unwrap();
        let deps = Deps {
            client: client.clone(),
            directory: directory(&account.lock()),
            clock: Arc::new(clock.clone()),
            ..deps(&[&format!("--smtp-url={url}")])
        };
        let shared = WebhookController::new(deps).shared;
        let caches = Stores {
            webhooks: store().0,
            deliveries: store().0,
            sources: Vec::new(),
        };
        let webhooks = stored.lock().values().map(read).collect();
        initial_state::prepare(&shared, &caches);
        let listed = Listed {
            webhooks,
            deliveries: Vec::new(),
            revision: 1,
        };
        let tenure = Tenure::until(tokio::time::Instant::now() + Duration::from_secs(600));
        initial_state::open(&shared, &caches, listed, tenure).await;
        Self {
            shared,
            events: Events::new(client, "test", "test"),
            clock,
            stored,
            account,
            folder,
        }
    }

    /// Disables a webhook whose receiver has answered 410.
    async fn disable(&self, number: usize) {
        let webhook = read(&self.stored.lock()[&name(number)]);
        self.shared.disable(Disablement {
            webhook: key("ns", &name(number)),
            uid: webhook.metadata.uid.unwrap().into(),
            generation: webhook.metadata.generation.unwrap(),
            at: self.clock.now(),
            reason: DisableReason::Gone,
            delivery: "dlv-1".to_owned(),
            event_id: "evt_1".into(),
            event_type: EventType::InstanceStopped,
            last_status_code: Some(410),
            attempts: 1,
            error: "status 410 Gone".to_owned(),
        });
        status_writer::flush(&self.shared, &self.events).await;
        assert!(read(&self.stored.lock()[&name(number)]).disabled().is_some());
    }

    /// Changes the spec of a webhook, as its owner does to enable it again.
    async fn enable(&self, number: usize) {
        let webhook = {
            let mut stored = self.stored.lock();
            let webhook = stored.get_mut(&name(number)).unwrap();
            let generation = &mut webhook["metadata"]["generation"];
            *generation = json!(generation.as_i64().unwrap() + 1);
            changed(webhook)
        };
        let now = self.shared.now();
        self.shared
            .webhook_seen(&mut self.shared.state.lock(), Arc::new(read(&webhook)), now);
        status_writer::flush(&self.shared, &self.events).await;
    }

    /// Lets time pass, then sends the mails that are due and records them.
    async fn pass(&self, minutes: i64) {
        *self.clock.0.lock() += SignedDuration::from_mins(minutes);
        loop {
            let due = notify::due(&self.shared);
            if due.is_empty() {
                return;
            }
            for namespace in due {
                notify::send(&self.shared, &namespace).await;
            }
            status_writer::flush(&self.shared, &self.events).await;
        }
    }

    fn status(&self, number: usize) -> WebhookStatus {
        read(&self.stored.lock()[&name(number)]).status.unwrap()
    }

    /// The mails sent so far, sorted by file name.
    fn mails(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        let mails = files.iter().map(|file| std::fs::read_to_string(file).unwrap());
        mails.collect()
    }
}

fn name(number: usize) -> String {
    format!("hook-{number:04}")
}

fn read(webhook: &Value) -> Webhook {
    serde_json::from_value(webhook.clone()).unwrap()
}

/// Gives a changed object its next resourceVersion.
fn changed(object: &mut Value) -> Value {
    let version = &mut object["metadata"]["resourceVersion"];
    let number: u64 = version.as_str().unwrap().parse().unwrap();
    *version = json!((number + 1).to_string());
    object.clone()
}

/// An API server that stores the statuses of Webhooks and of the Account.
fn api_server(stored: Stored, account: Arc<Mutex<Value>>) -> Client {
    answered_by(move |method, uri, body| {
        let path = uri.split('?').next().unwrap_or_default();
        if method == Method::PATCH && path == "/apis/stellage.dev/v1/accounts/ns/status" {
            let mut account = account.lock();
            assert_eq!(body["metadata"]["uid"], account["metadata"]["uid"]);
            account["status"]["notifiedAt"] = body["status"]["notifiedAt"].clone();
            return std::future::ready((200, account.clone()));
        }
        let name = path
            .strip_prefix("/apis/stellage.dev/v1/namespaces/ns/webhooks/")
            .and_then(|rest| rest.strip_suffix("/status"));
        let mut stored = stored.lock();
        let answer = match name.and_then(|name| stored.get_mut(name)) {
            Some(webhook) if method == Method::PUT => {
                assert_eq!(
                    body["metadata"]["resourceVersion"],
                    webhook["metadata"]["resourceVersion"]
                );
                webhook["status"] = body["status"].clone();
                (200, changed(webhook))
            }
            _ => (404, json!({ "kind": "Status", "status": "Failure", "code": 404 })),
        };
        std::future::ready(answer)
    })
}

/// The one Account.
fn account() -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account",
        "metadata": { "name": "ns", "uid": "account" },
        "spec": { "email": "ada@example.com" },
        "status": { "namespace": "ns", "conditions": [{
            "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-11-22T09:00:00Z",
        }] },
    })
}

/// The directory with this Account.
fn directory(account: &Value) -> AccountDirectory {
    let account = serde_json::from_value(account.clone());
    let directory = AccountDirectory::default();
    let all = Change::Replaced(vec![Arc::new(account.unwrap())]);
    directory.listener(|_| {}).changed(&all);
    directory
}

#[tokio::test]
async fn a_webhook_that_is_disabled_again_is_told_of_an_hour_after_the_last_mail_about_it() {
    let world = World::new(2).await;
    world.disable(0).await;
    world.pass(1).await;
    assert_eq!(world.mails().len(), 1);
    world.enable(0).await;
    world.disable(0).await;
    world.pass(58).await;
    assert_eq!(world.mails().len(), 1, "an hour is not over");
    world.disable(1).await;
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 2, "another webhook need not wait");
    assert!(
        mails[1].contains("(hook-0001 ") && !mails[1].contains("hook-0000"),
        "{}",
        mails[1]
    );
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 3);
    assert!(mails[1].contains("(hook-0000 "), "{}", mails[1]);
    assert!(world.status(0).disabled.unwrap().notified_at.is_some());
}

#[tokio::test]
async fn the_eleventh_mail_of_a_day_waits_whichever_process_sent_the_first_ten() {
    let world = World::new(2).await;
    // The first is sent after 61 minutes, the tenth after 610.
    for _ in 0..10 {
        world.disable(0).await;
        world.pass(61).await;
        world.enable(0).await;
    }
    assert_eq!(world.mails().len(), 10);
    assert_eq!(world.status(0).account_notified_at.len(), 10);
    let world = world.restart().await;
    world.disable(1).await;
    world.pass(24 * 60 + 61 - 610 - 1).await;
    assert_eq!(world.mails().len(), 10);
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 11);
    assert!(mails[10].contains("(hook-0001 "), "{}", mails[10]);
    assert_eq!(world.status(1).account_notified_at.len(), 10, "of one day");
}

#[tokio::test]
async fn mails_count_although_the_webhooks_that_they_were_about_are_gone() {
    let world = World::new(2).await;
    for _ in 0..10 {
        world.disable(0).await;
        world.pass(61).await;
        world.enable(0).await;
    }
    assert_eq!(world.mails().len(), 10);
    world.stored.lock().remove(&name(0));
    let world = world.restart().await;
    world.disable(1).await;
    world.pass(24 * 60 + 61 - 610 - 1).await;
    assert_eq!(world.mails().len(), 10);
    world.pass(1).await;
    assert_eq!(world.mails().len(), 11);
}

#[tokio::test]
async fn a_new_leader_tells_of_a_disablement_that_ended_before_its_mail_was_sent() {
    let world = World::new(1).await;
    world.disable(0).await;
    world.enable(0).await;
    assert!(world.status(0).unnotified.is_some());
    assert_eq!(world.mails().len(), 0);
    let world = world.restart().await;
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 1);
    assert!(mails[0].contains("(hook-0000 "), "{}", mails[0]);
    assert_eq!(world.status(0).unnotified, None);
    let world = world.restart().await;
    world.pass(120).await;
    assert_eq!(world.mails().len(), 1, "it is told once");
}
