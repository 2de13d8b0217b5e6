//! What the controller requests from the API server, and how often.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::Method;
use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    super::{Deps, WebhookController, known::key_of, reconcile, shared::Shared},
    deps,
    locks::{caches, controller, opening},
    webhook,
};
use crate::{
    delivery::{lookup, resend},
    event_log, secrets,
};
use domain::{
    delivery::{LogQuestion, Page, PageWritten, Unreadable},
    event::EventType,
};
use resources::{EventLog, LoggedDelivery, LoggedEvent};
use runtime::{events::Events, lease::Tenure, testing::answered_by, watch::Change};

/// A client whose every call gets this answer, and the paths of the calls.
fn answering(code: u16, answer: Value) -> (Client, Arc<Mutex<Vec<String>>>) {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let calls = paths.clone();
    let client = answered_by(move |_, path, _| {
        calls.lock().push(path);
        let answer = answer.clone();
        async move { (code, answer) }
    });
    (client, paths)
}

fn logged_event(created_at: Timestamp, deliveries: Vec<LoggedDelivery>) -> LoggedEvent {
    LoggedEvent {
        id: "evt_1".to_owned(),
        event_type: EventType::InstanceCreated,
        created_at,
        sequence: 1,
        subject: "i".to_owned(),
        body: "{}".to_owned(),
        traceparent: None,
        deliveries,
    }
}

fn shared_with(client: Client) -> Arc<Shared> {
    WebhookController::new(Deps { client, ..deps(&[]) }).shared
}

#[tokio::test]
async fn webhooks_are_listed_for_the_namespace_of_an_event_no_older_than_the_event() {
    let (client, paths) = answering(200, json!({ "metadata": {}, "items": [] }));
    let shared = shared_with(client);
    assert!(lookup::look_up(shared, "ns".into(), lookup::Unlisted::default(), Some(41)).await);
    let path = paths.lock().concat();
    let (path, query) = path.split_once('?').unwrap();
    assert_eq!(path, "/apis/stellage.dev/v1/namespaces/ns/webhooks");
    for parameter in ["resourceVersion=41", "resourceVersionMatch=NotOlderThan"] {
        assert!(query.split('&').any(|it| it == parameter), "{query}");
    }
}

#[tokio::test]
async fn secrets_are_read_from_the_api_servers_cache_no_older_than_the_version_that_is_known() {
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "secret", "resourceVersion": "7" } });
    let (client, paths) = answering(200, secret);
    let shared = shared_with(client);
    let mut webhook = webhook(0);
    for announced in [None, Some("9")] {
        let annotation = announced.map(|at| ("stellage.dev/secret-changed".to_owned(), at.to_owned()));
        webhook.metadata.annotations = annotation.map(|it| [it].into());
        let key = key_of(&webhook);
        shared.secrets.forget(&key);
        secrets::keys(&shared, &key, &webhook).await.unwrap_err();
    }
    let path = "/api/v1/namespaces/ns/secrets/secret?&resourceVersion=";
    assert_eq!(*paths.lock(), [format!("{path}0"), format!("{path}9")]);
}

#[tokio::test]
async fn a_log_that_may_not_be_read_is_told_from_one_that_could_not_be_read() {
    for (code, expected) in [
        (403, Unreadable::Refused),
        (404, Unreadable::Refused),
        (500, Unreadable::Failed),
    ] {
        let refusal =
            json!({ "kind": "Status", "status": "Failure", "reason": "R", "message": "no", "code": code });
        let (client, _) = answering(code, refusal);
        let question = LogQuestion {
            events: vec!["evt_1".into()],
            since: Timestamp::UNIX_EPOCH,
        };
        let found = event_log::mentions(&shared_with(client), "ns", &question).await;
        assert_eq!(event_log::unreadable(&found.unwrap_err()), expected);
    }
}

#[tokio::test]
async fn a_webhook_that_the_watch_has_not_shown_is_asked_for_before_a_request_to_send_again_is_refused() {
    let at: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
    let delivery = json!({
        "webhook": "hook-0000", "webhookUid": "hook-0", "at": at, "statusCode": 200, "durationMs": 5,
    });
    let event = logged_event(at, vec![serde_json::from_value(delivery).unwrap()]);
    let page = EventLog::page("ns", "usr", at, vec![event]).unwrap();
    let logged = page.delivery_of("evt_1", "hook-0").unwrap();
    let name = logged.metadata.name.clone().unwrap();
    for (webhook_name, is_deleting, is_sent) in [
        ("hook-0000", false, true),
        ("hook-0000", true, false),
        ("../../ns2/webhooks/hook-0000", false, false),
    ] {
        let request = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery",
            "metadata": {
                "namespace": "ns", "name": name, "uid": "d", "resourceVersion": "30",
                "annotations": { "stellage.dev/logged-in": page.metadata.name },
            },
            "spec": {
                "webhook": webhook_name, "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": at, "sequence": 1, "body": "",
            },
        });
        let (calls, page) = (Arc::new(Mutex::new(Vec::new())), page.clone());
        let log = calls.clone();
        let client = answered_by(move |method, path, _| {
            log.lock().push(format!("{method} {path}"));
            let answer = if path.contains("/deliveries/") {
                request.clone()
            } else if path.contains("/eventlogs/") {
                json!(page)
            } else {
                let mut webhook = webhook(0);
                webhook.metadata.deletion_timestamp = is_deleting.then_some(Time(at));
                json!(webhook)
            };
            async move { (200, answer) }
        });
        let shared = shared_with(client);
        let in_a_minute = tokio::time::Instant::now() + Duration::from_mins(1);
        shared.opening.lock().tenure = Some(Tenure::until(in_a_minute));
        resend::complete(&shared, "ns", &name).await.unwrap();
        let calls = calls.lock();
        let has = |call: &str| calls.iter().any(|it| it.starts_with(call));
        assert_eq!(has("PUT "), is_sent, "{calls:?}");
        assert_eq!(has("DELETE "), !is_sent, "{calls:?}");
        assert!(
            !has("GET /apis/stellage.dev/v1/namespaces/ns/webhooks/.."),
            "{calls:?}"
        );
    }
}

#[tokio::test]
async fn events_need_no_list_of_webhooks_once_the_watch_has_shown_their_version() {
    let (shared, mut listeners, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..1).await;
    let at_version = |version: u64| {
        let mut webhook = webhook(0);
        webhook.metadata.resource_version = Some(version.to_string());
        Arc::new(webhook)
    };
    let needs_list = async |version| {
        let unlisted = lookup::Unlisted::default();
        // There is no API server to ask.
        !lookup::look_up(shared.clone(), "ns".into(), unlisted, Some(version)).await
    };
    listeners.webhooks.changed(&Change::Applied(at_version(40)));
    assert!(!needs_list(40).await);
    assert!(needs_list(41).await);
    // Versions start over when etcd is restored.
    listeners
        .webhooks
        .changed(&Change::Replaced(vec![at_version(15)]));
    assert!(!needs_list(15).await);
    assert!(needs_list(16).await);
}

#[tokio::test]
async fn the_leader_logs_events_of_the_account_that_had_them_whatever_the_clocks_say() {
    let created = Arc::new(Mutex::new(Vec::new()));
    let requests = created.clone();
    let client = answered_by(move |method, path, body| {
        requests.lock().push((method, path, body.clone()));
        async move { (201, body) }
    });
    let deps = Deps { client, ..deps(&[]) };
    let directory = deps.directory.clone();
    let controller = WebhookController::new(deps);
    let shared = controller.shared.clone();
    let mut listener = directory.listener(controller.owner_changed());
    let mut own = |uid: &str, created: Timestamp| {
        let account = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account",
            "metadata": { "name": uid, "uid": uid, "creationTimestamp": created },
            "spec": { "email": "ada@example.com" },
            "status": { "namespace": "ns", "conditions": [{
                "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": created,
            }] },
        });
        let account = Arc::new(serde_json::from_value(account).unwrap());
        listener.changed(&Change::Replaced(vec![account]));
    };
    let page = |at| Page {
        at,
        failures: 0,
        events: vec![logged_event(at, Vec::new())],
    };
    let in_a_minute = tokio::time::Instant::now() + Duration::from_mins(1);
    shared.opening.lock().tenure = Some(Tenure::until(in_a_minute));
    let before = shared.now().wall;
    // By the API server's clock, the account is created a minute from now.
    own("first", before.checked_add(1.minutes()).unwrap());
    // Meanwhile this machine's clock is set back by an hour.
    for at in [before, before.checked_sub(1.hours()).unwrap()] {
        let written = event_log::write(&shared, "ns", page(at)).await;
        assert_eq!(written, PageWritten::Stored);
    }
    assert_eq!(created.lock().len(), 2);
    assert_eq!(created.lock()[1].2["spec"]["account"], "first");
    // A replica that no longer leads leaves it to the next leader.
    shared.opening.lock().tenure = Some(Tenure::until(tokio::time::Instant::now()));
    let written = event_log::write(&shared, "ns", page(before)).await;
    assert_eq!(written, PageWritten::Failed);
    assert_eq!(created.lock().len(), 2);
}

#[test]
fn the_api_server_is_never_made_to_wait_for_a_version_of_a_secret_that_does_not_exist() {
    // The webhook has version 10.
    for (announced, version) in [("9", Some(9)), ("10", Some(10)), ("11", None), ("pending", None)] {
        let mut webhook = webhook(0);
        let annotation = ("stellage.dev/secret-changed".to_owned(), announced.to_owned());
        webhook.metadata.annotations = Some([annotation].into());
        assert_eq!(webhook.announced_secret(), version, "{announced}");
    }
}

#[tokio::test]
async fn counters_wait_for_the_budget_and_at_shutdown_all_are_written() {
    let writes = Arc::new(Mutex::new(Vec::new()));
    let uids: HashMap<_, _> = (0..4)
        .map(|number| webhook(number).metadata)
        .map(|metadata| (metadata.name.unwrap(), metadata.uid.unwrap()))
        .collect();
    let version = Arc::new(AtomicUsize::new(100));
    let (log, is_conflict) = (writes.clone(), Arc::new(AtomicBool::new(false)));
    let conflict = is_conflict.clone();
    let client = answered_by(move |method, path, mut body| {
        let answer = if method == Method::PUT && !conflict.swap(false, Ordering::Relaxed) {
            let mut log = log.lock();
            let name = path.rsplit('/').nth(1).unwrap();
            log.push(name.to_owned());
            let metadata = body["metadata"].as_object_mut().unwrap();
            metadata.insert("uid".to_owned(), json!(uids[name]));
            metadata.insert("generation".to_owned(), json!(1));
            metadata.insert(
                "resourceVersion".to_owned(),
                json!(version.fetch_add(1, Ordering::Relaxed).to_string()),
            );
            (200, body)
        } else {
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409 });
            (409, status)
        };
        async move { answer }
    });
    let shared = shared_with(client.clone());
    let events = Events::new(client, "test", "test");
    let caches = caches();
    opening(&shared, &caches.stores, 0..4).await;
    // Each first status says that the namespace belongs to no Account.
    reconcile::flush(&shared, &events).await;
    let written = || {
        let mut written = std::mem::take(&mut *writes.lock());
        written.sort();
        written
    };
    let all = ["hook-0000", "hook-0001", "hook-0002", "hook-0003"];
    assert_eq!(written(), all);

    let count = || {
        let mut state = shared.state.lock();
        for (key, cached) in &mut state.webhooks.by_key {
            cached.base.delivered += 1;
            cached.last_writes.succeeded = None;
            shared.statuses.lock().touch(key.clone());
        }
    };
    count();
    reconcile::flush(&shared, &events).await;
    assert_eq!(written().len(), 1);
    let others = async {
        while writes.lock().len() < 3 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            reconcile::flush(&shared, &events).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), others)
        .await
        .unwrap();
    assert_eq!(written().len(), 3);

    count();
    reconcile::flush(&shared, &events).await;
    is_conflict.store(true, Ordering::Relaxed);
    reconcile::finish(&shared, &events).await;
    assert_eq!(written(), all);
    assert!(shared.statuses.lock().is_idle());
}
