//! What the controller requests from the API server, and how often.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::{Timestamp, ToSpan as _};
use parking_lot::Mutex;
use serde_json::json;

use super::{
    super::{Deps, WebhookController, event_log, lookup, status::Urgency, status_writer},
    deps,
    locks::{caches, controller, opening},
    webhook,
};
use crate::{
    delivery::dispatch::{Page, PageWritten},
    events::EventType,
    resources::LoggedEvent,
    runtime::{client::answered_by, lease::Tenure, watch::Change},
};

#[tokio::test]
async fn events_need_no_list_of_webhooks_once_the_watch_has_shown_their_version() {
    let (shared, mut listeners, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..1).await;
    let mut changed = webhook(0);
    changed.metadata.resource_version = Some("40".into());
    listeners.webhooks.changed(&Change::Applied(Arc::new(changed)));
    for (version, is_known) in [(40, true), (41, false)] {
        let unlisted = lookup::Unlisted::default();
        // There is no API server to ask.
        let found = lookup::look_up(shared.clone(), "ns".into(), unlisted, Some(version)).await;
        assert_eq!(found, is_known, "{version}");
    }
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
    let page = |at, begun| Page {
        at,
        begun,
        failures: 0,
        events: vec![LoggedEvent {
            id: "evt_1".to_owned(),
            event_type: EventType::InstanceCreated,
            created_at: at,
            sequence: 1,
            subject: "i".to_owned(),
            body: "{}".to_owned(),
            traceparent: None,
            deliveries: Vec::new(),
        }],
    };
    let in_a_minute = tokio::time::Instant::now() + Duration::from_mins(1);
    shared.state.lock().tenure = Some(Tenure::until(in_a_minute));
    let before = shared.now().wall;
    // By the API server's clock, the account is created a minute from now.
    own("first", before.checked_add(1.minutes()).unwrap());
    // Meanwhile this machine's clock is set back by an hour.
    for at in [before, before.checked_sub(1.hours()).unwrap()] {
        let of_first = page(at, Instant::now());
        let written = event_log::write(&shared, "ns", of_first).await;
        assert_eq!(written, PageWritten::Stored);
    }
    assert_eq!(created.lock().len(), 2);
    assert_eq!(created.lock()[1].2["spec"]["account"], "first");
    // What was begun for a former account is not for the next one, even if the API server's clock is behind.
    let of_former = page(before, Instant::now());
    own("second", before.checked_sub(1.minutes()).unwrap());
    let written = event_log::write(&shared, "ns", of_former).await;
    assert_eq!(written, PageWritten::Impossible);
    // A replica that no longer leads leaves it to the next leader.
    shared.state.lock().tenure = Some(Tenure::until(tokio::time::Instant::now()));
    let of_second = page(before, Instant::now());
    let written = event_log::write(&shared, "ns", of_second).await;
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
async fn counters_are_written_for_one_webhook_at_a_time_a_fifth_of_a_second_apart() {
    let (shared, _, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..3).await;
    let mut state = shared.state.lock();
    let keys: Vec<_> = state.webhooks.keys().cloned().collect();
    let now = Instant::now();
    let mut reserved = |at| -> Vec<_> {
        let write_at = |key| status_writer::write_at(&mut state, key, Urgency::Counters, at).unwrap();
        keys.iter()
            .map(write_at)
            .map(|write_at| write_at.duration_since(now).as_millis())
            .collect()
    };
    assert_eq!(reserved(now), [0, 200, 400]);
    assert_eq!(
        reserved(now + Duration::from_secs(1)),
        [0, 200, 400],
        "a time stays reserved until it is used"
    );
    for cached in state.webhooks.values_mut() {
        cached.write_counters_at = None;
    }
    let mut write_at = |key, at| status_writer::write_at(&mut state, key, Urgency::Counters, at).unwrap();
    assert_eq!(write_at(&keys[2], now), now + Duration::from_millis(600));
    let later = now + Duration::from_secs(60);
    assert_eq!(
        write_at(&keys[0], later),
        later,
        "time in which nobody wrote is lost"
    );
}

#[tokio::test]
async fn a_change_of_health_waits_for_other_changes_of_health_alone() {
    let (shared, _, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..300).await;
    let mut state = shared.state.lock();
    let keys: Vec<_> = state.webhooks.keys().cloned().collect();
    let now = Instant::now();
    let mut wait = |key, urgency| {
        let write_at = status_writer::write_at(&mut state, key, urgency, now);
        write_at.map(|write_at| write_at.duration_since(now).as_millis())
    };
    for key in &keys {
        wait(key, Urgency::Counters);
    }
    let health: Vec<_> = keys[..250]
        .iter()
        .map(|key| wait(key, Urgency::Failure))
        .collect();
    assert_eq!((health[0], health[200]), (Some(0), Some(10_000)));
    assert_eq!(wait(&keys[299], Urgency::Now), None);
    // If the health is back to what it was before its reserved time, that time is given up and a later one reserved.
    wait(&keys[0], Urgency::Counters);
    assert_eq!(wait(&keys[0], Urgency::Recovery), Some(12_500));
}

#[tokio::test]
async fn a_webhook_that_recovers_is_written_at_once_however_short_ago_its_failure_was() {
    let (shared, _, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..1).await;
    let mut state = shared.state.lock();
    let key = state.webhooks.keys().next().unwrap().clone();
    let now = Instant::now();
    state.webhooks.get_mut(&key).unwrap().written = Some(now);
    let mut wait = |urgency| {
        let write_at = status_writer::write_at(&mut state, &key, urgency, now);
        write_at.map(|write_at| write_at.duration_since(now).as_secs())
    };
    assert_eq!(wait(Urgency::Failure), Some(10));
    assert_eq!(wait(Urgency::Counters), Some(10));
    assert_eq!(wait(Urgency::Recovery), Some(0));
    assert_eq!(wait(Urgency::Now), None);
}
