//! What account holders are told, how often, and by whichever process. The API server is in memory, and mails are files.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use clap::Parser;
use http::Method;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Deps, GATHER, Notifier, worker::Worker};
use crate::{
    account::AccountDirectory,
    mail::{MailSettings, Mailer},
};
use resources::{Account, Webhook, WebhookStatus};
use runtime::{
    Clock, Metrics, ObjectRef,
    events::Events,
    lease::Tenure,
    objects,
    testing::{TestClock, answered_by},
    watch::{Change, Listener},
    work_queue::{Class, Reconcile as _},
};

/// What the API server has.
struct Stored {
    account: Value,
    webhooks: BTreeMap<String, Value>,
    /// Whether it refuses to write the statuses of webhooks.
    refuses: bool,
}

/// A leading process, and everything that outlives it.
struct World {
    clock: TestClock,
    stored: Arc<Mutex<Stored>>,
    folder: TempDir,
    has_mail: bool,
    process: Option<Process>,
}

struct Process {
    listeners: [Box<dyn Listener<Webhook>>; 2],
    worker: Worker,
}

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    mail: MailSettings,
}

impl World {
    /// The first process, and an account with webhooks numbered from 0.
    fn new(webhooks: usize) -> Self {
        let stored = Stored {
            account: account(),
            webhooks: (0..webhooks)
                .map(|number| (name(number), webhook(number)))
                .collect(),
            refuses: false,
        };
        let mut world = Self {
            clock: TestClock::at("2026-11-22T10:00:00Z".parse().unwrap()),
            stored: Arc::new(Mutex::new(stored)),
            folder: tempfile::tempdir().unwrap(),
            has_mail: true,
            process: None,
        };
        world.restart();
        world
    }

    /// Replaces the process with a new one, which knows what the API server has now.
    fn restart(&mut self) {
        let webhooks = self.webhooks();
        self.restart_with(webhooks);
    }

    /// Replaces the process with a new one, whose watch shows these webhooks.
    fn restart_with(&mut self, shown: Vec<Arc<Webhook>>) {
        let notifier = self.notifier();
        let mut listeners = notifier.listeners();
        for listener in &mut listeners {
            listener.changed(&Change::Replaced(shown.clone()));
        }
        let tenure = Tenure::until(Instant::now() + Duration::from_hours(1));
        let events = Events::new(notifier.deps.client.clone(), "test", "test");
        let Notifier { deps, untold, .. } = notifier;
        let worker = Worker::new(deps, untold, tenure, events, CancellationToken::new());
        self.process = Some(Process { listeners, worker });
    }

    fn notifier(&self) -> Notifier {
        let url = url::Url::from_file_path(self.folder.path()).unwrap();
        let url = format!("--smtp-url={url}");
        let flags: &[&str] = if self.has_mail { &["test", &url] } else { &["test"] };
        let mail = Flags::parse_from(flags).mail;
        Notifier::new(Deps {
            client: api_server(self.stored.clone()),
            mailer: Mailer::new(&mail).unwrap(),
            limits: mail.limits(),
            directory: directory(&self.stored.lock().account),
            metrics: Metrics::new(),
            clock: Arc::new(self.clock.clone()),
        })
    }

    /// Lets time pass, with whatever the work queue does in it.
    async fn pass(&self, minutes: i64) {
        let end = self.clock.now() + SignedDuration::from_mins(minutes);
        let worker = &self.process.as_ref().unwrap().worker;
        let mut next = Some(GATHER);
        while let Some(at) = next.map(|wait| self.clock.now() + wait)
            && at <= end
        {
            self.clock.set(at);
            next = worker.reconcile(&ObjectRef::new("", "ns"), Class::Normal).await;
        }
        self.clock.set(end);
    }

    fn webhooks(&self) -> Vec<Arc<Webhook>> {
        let stored = self.stored.lock();
        stored.webhooks.values().map(|it| Arc::new(read(it))).collect()
    }

    /// Changes a webhook as the webhook controller or its owner does, and shows it to the process.
    fn change(&mut self, number: usize, change: impl FnOnce(&mut Value)) {
        let changed = self.store(number, change);
        for listener in &mut self.process.as_mut().unwrap().listeners {
            listener.changed(&Change::Applied(changed.clone()));
        }
    }

    fn store(&self, number: usize, change: impl FnOnce(&mut Value)) -> Arc<Webhook> {
        let mut stored = self.stored.lock();
        let webhook = stored.webhooks.get_mut(&name(number)).unwrap();
        change(webhook);
        Arc::new(read(&changed(webhook)))
    }

    /// Disables a webhook whose receiver has answered 410.
    fn disable(&mut self, number: usize) {
        let now = self.clock.now();
        self.change(number, |webhook| set_disabled(webhook, now));
    }

    /// Enables a webhook again. A disablement that was not told of is kept in its status.
    fn enable(&mut self, number: usize) {
        self.change(number, |webhook| {
            let generation = webhook["metadata"]["generation"].as_i64().unwrap();
            webhook["metadata"]["generation"] = json!(generation + 1);
            let ended = webhook["status"]["disabled"].take();
            if ended["notifiedAt"].is_null() {
                webhook["status"]["unnotified"] = ended;
            }
        });
    }

    fn status(&self, number: usize) -> WebhookStatus {
        read(&self.stored.lock().webhooks[&name(number)]).status.unwrap()
    }

    /// The mails sent so far, sorted by file name, and so by what they are about.
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

fn webhook(number: usize) -> Value {
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook",
        "metadata": {
            "namespace": "ns", "name": name(number), "uid": format!("hook-{number}"), "resourceVersion": "10", "generation": 1,
        },
        "spec": {
            "url": "https://receiver.example.com", "events": ["instance.stopped"], "secretRef": { "name": "secret" },
        },
        "status": {},
    })
}

fn set_disabled(webhook: &mut Value, now: Timestamp) {
    webhook["status"]["disabled"] = json!({
        "at": now, "reason": "Gone", "message": "", "delivery": "dlv-1", "eventId": "evt_1",
        "eventType": "instance.stopped", "attempts": 1, "error": "status 410 Gone",
        "generation": webhook["metadata"]["generation"],
    });
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

/// An API server that reads Webhooks and the Account, and writes their statuses.
fn api_server(stored: Arc<Mutex<Stored>>) -> Client {
    answered_by(move |method, uri, body| {
        let path = uri.split('?').next().unwrap_or_default();
        let path = path.strip_prefix("/apis/stellage.dev/v1/").unwrap_or_default();
        let mut stored = stored.lock();
        std::future::ready(stored.answer(&method, path, &body))
    })
}

impl Stored {
    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let failure = |code: u16, reason: &str| {
            let status = json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code });
            (code, status)
        };
        let account = &mut self.account;
        match (method, path) {
            (&Method::GET, "accounts") => {
                let list = json!({ "kind": "AccountList", "metadata": {}, "items": [account] });
                return (200, list);
            }
            (&Method::PATCH, "accounts/ns/status") => {
                assert_eq!(body["metadata"]["uid"], account["metadata"]["uid"]);
                account["status"]["notifiedAt"] = body["status"]["notifiedAt"].clone();
                return (200, account.clone());
            }
            _ => {}
        }
        let name = path.strip_prefix("namespaces/ns/webhooks/").unwrap_or_default();
        let Some(webhook) = self.webhooks.get_mut(name.trim_end_matches("/status")) else {
            return failure(404, "NotFound");
        };
        match *method {
            Method::GET => (200, webhook.clone()),
            Method::PUT if self.refuses => failure(500, "InternalError"),
            Method::PUT if body["metadata"]["resourceVersion"] != webhook["metadata"]["resourceVersion"] => {
                failure(409, "Conflict")
            }
            Method::PUT => {
                webhook["status"] = body["status"].clone();
                (200, changed(webhook))
            }
            _ => failure(405, "MethodNotAllowed"),
        }
    }
}

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
    let account: Account = serde_json::from_value(account.clone()).unwrap();
    let directory = AccountDirectory::default();
    let all = Change::Replaced(vec![Arc::new(account)]);
    directory.listener(|_| {}).changed(&all);
    directory
}

#[tokio::test]
async fn what_happens_within_two_seconds_is_told_in_one_mail() {
    let world = World::new(3);
    let notifier = world.notifier();
    let mut listeners = notifier.listeners();
    let (empty, _writer) = objects::store();
    let tenure = Tenure::until(Instant::now() + Duration::from_hours(1));
    let events = Events::new(notifier.deps.client.clone(), "test", "test");
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(notifier.run(empty, tenure, events, shutdown.clone()));
    tokio::task::yield_now().await;
    for number in 0..3 {
        let change = Change::Applied(world.store(number, |webhook| set_disabled(webhook, world.clock.now())));
        for listener in &mut listeners {
            listener.changed(&change);
        }
        sleep(Duration::from_millis(300)).await;
    }
    let is_told = |number| world.status(number).disabled.unwrap().notified_at.is_some();
    while !(0..3).all(is_told) {
        sleep(Duration::from_millis(100)).await;
    }
    let mails = world.mails();
    assert_eq!(mails.len(), 1);
    assert!(
        mails[0].contains("Subject: The account ns has 3 disabled webhooks"),
        "{}",
        mails[0]
    );
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn a_webhook_that_is_disabled_again_is_told_of_an_hour_after_the_last_mail_about_it() {
    let mut world = World::new(2);
    world.disable(0);
    world.pass(1).await;
    assert_eq!(world.mails().len(), 1);
    world.enable(0);
    world.disable(0);
    world.pass(58).await;
    assert_eq!(world.mails().len(), 1, "an hour is not over");
    world.disable(1);
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 2, "another webhook need not wait");
    assert!(
        mails[1].contains("(hook-0001)") && !mails[1].contains("hook-0000"),
        "{}",
        mails[1]
    );
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 3);
    assert!(mails[1].contains("(hook-0000)"), "{}", mails[1]);
    assert!(world.status(0).disabled.unwrap().notified_at.is_some());
}

#[tokio::test]
async fn the_eleventh_mail_of_a_day_waits_whichever_process_sent_the_first_ten() {
    for is_gone in [false, true] {
        let mut world = World::new(2);
        // The first is sent after two seconds, the tenth after 549 minutes.
        for _ in 0..10 {
            world.disable(0);
            world.pass(61).await;
            world.enable(0);
        }
        assert_eq!(world.mails().len(), 10);
        if is_gone {
            world.stored.lock().webhooks.remove(&name(0));
        }
        world.restart();
        world.disable(1);
        world.pass(24 * 60 - 610).await;
        assert_eq!(world.mails().len(), 10);
        world.pass(1).await;
        let mails = world.mails();
        assert_eq!(mails.len(), 11);
        assert!(mails[10].contains("(hook-0001)"), "{}", mails[10]);
        let times = world.stored.lock().account["status"]["notifiedAt"].clone();
        assert_eq!(times.as_array().unwrap().len(), 10, "of one day");
    }
}

#[tokio::test]
async fn a_new_leader_tells_of_a_disablement_that_ended_before_its_mail_was_sent() {
    let mut world = World::new(1);
    world.disable(0);
    world.enable(0);
    world.restart();
    world.pass(1).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 1);
    assert!(mails[0].contains("(hook-0000)"), "{}", mails[0]);
    assert_eq!(world.status(0).unnotified, None);
    world.restart();
    world.pass(120).await;
    assert_eq!(world.mails().len(), 1, "it is told once");
}

#[tokio::test]
async fn a_new_leader_whose_watch_lags_tells_nothing_twice() {
    let mut world = World::new(1);
    world.disable(0);
    let before = world.webhooks();
    world.pass(1).await;
    assert_eq!(world.mails().len(), 1);
    std::fs::remove_file(
        std::fs::read_dir(world.folder.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path(),
    )
    .unwrap();
    world.restart_with(before);
    world.pass(120).await;
    assert_eq!(world.mails(), [""; 0]);
}

#[tokio::test]
async fn a_mail_that_fails_is_retried_as_it_was_and_the_status_says_why() {
    let mut world = World::new(2);
    let folder = world.folder.path().to_owned();
    std::fs::remove_dir(&folder).unwrap();
    std::fs::write(&folder, "").unwrap();
    world.disable(0);
    world.pass(1).await;
    let disabled = world.status(0).disabled.unwrap();
    assert_eq!(
        (disabled.notified_at, disabled.notification_error.as_deref()),
        (None, Some("cannot send the e-mail; will retry"))
    );
    world.disable(1);
    std::fs::remove_file(&folder).unwrap();
    world.pass(10).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 2);
    assert!(
        mails[0].contains("(hook-0000)") && !mails[0].contains("(hook-0001)"),
        "{}",
        mails[0]
    );
    let disabled = world.status(0).disabled.unwrap();
    assert!(disabled.notified_at.is_some() && disabled.notification_error.is_none());
}

#[tokio::test]
async fn a_mail_that_cannot_be_recorded_is_not_sent_again() {
    let mut world = World::new(1);
    world.stored.lock().refuses = true;
    world.disable(0);
    world.pass(1).await;
    assert_eq!(world.mails().len(), 1);
    std::fs::remove_file(
        std::fs::read_dir(world.folder.path())
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path(),
    )
    .unwrap();
    world.pass(120).await;
    assert_eq!(world.status(0).disabled.unwrap().notified_at, None);
    world.stored.lock().refuses = false;
    world.pass(11).await;
    let sent = world.status(0).disabled.unwrap().notified_at.unwrap();
    assert!(
        world.clock.now().duration_since(sent) > SignedDuration::from_mins(130),
        "{sent}"
    );
    assert_eq!(world.mails(), [""; 0]);
}

#[tokio::test]
async fn a_disablement_that_ends_while_its_mail_is_sent_counts_as_told() {
    let mut world = World::new(1);
    world.stored.lock().refuses = true;
    world.disable(0);
    world.pass(1).await;
    world.enable(0);
    assert!(world.status(0).unnotified.is_some());
    world.stored.lock().refuses = false;
    world.pass(120).await;
    assert_eq!(world.status(0).unnotified, None);
    assert_eq!(world.mails().len(), 1);
}

#[tokio::test]
async fn a_backlog_is_told_once_even_if_it_has_ended() {
    let mut world = World::new(1);
    let since = world.clock.now();
    world.change(0, |webhook| {
        webhook["status"]["backlog"] = json!({ "since": since, "droppedBefore": 4 });
        webhook["status"]["dropped"] = json!(7);
    });
    world.pass(1).await;
    assert!(world.status(0).backlog.unwrap().notified_at.is_some());
    world.pass(120).await;
    let mails = world.mails();
    assert_eq!(mails.len(), 1);
    assert!(
        mails[0].contains("Deliveries:  0 held, 3 dropped"),
        "{}",
        mails[0]
    );
}

#[tokio::test]
async fn without_a_mail_server_the_status_says_so_until_there_is_one() {
    let mut world = World::new(1);
    world.has_mail = false;
    world.restart();
    world.disable(0);
    world.pass(1).await;
    let error = world.status(0).disabled.unwrap().notification_error;
    assert_eq!(error.as_deref(), Some("this installation sends no e-mails"));
    world.has_mail = true;
    world.restart();
    world.pass(1).await;
    assert_eq!(world.mails().len(), 1);
    assert_eq!(world.status(0).disabled.unwrap().notification_error, None);
}
