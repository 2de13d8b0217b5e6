//! What the controller asks of the API server, and how often.

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
    runtime::{client::answered_by, watch::Change},
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
async fn events_of_an_account_that_has_just_been_made_are_logged_whatever_the_api_servers_clock_says() {
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
        events: vec![LoggedEvent {
            id: "evt_1".to_owned(),
            event_type: EventType::InstanceCreated,
            created_at: at,
            sequence: 1,
            subject: "i".to_owned(),
            body: "{}".to_owned(),
            deliveries: Vec::new(),
        }],
    };
    let before = shared.now().wall;
    // By the API server's clock, the account is made in a minute.
    own("first", before.checked_add(1.minutes()).unwrap());
    let of_first = page(shared.now().wall);
    let written = event_log::write(&shared, "ns", of_first).await;
    assert_eq!(written, PageWritten::Stored);
    assert_eq!(created.lock().len(), 1);
    assert_eq!(created.lock()[0].2["spec"]["account"], "first");
    // What was begun for a former account is not for the next one, even if the API server's clock is behind.
    own("second", before.checked_sub(1.minutes()).unwrap());
    let of_former = page(before.checked_sub(1.seconds()).unwrap());
    let written = event_log::write(&shared, "ns", of_former).await;
    assert_eq!(written, PageWritten::Impossible);
    assert_eq!(created.lock().len(), 1);
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
async fn the_counters_of_all_webhooks_take_turns_of_a_fifth_of_a_second() {
    let (shared, _, _) = controller();
    let caches = caches();
    opening(&shared, &caches.stores, 0..3).await;
    let mut state = shared.state.lock();
    let keys: Vec<_> = state.webhooks.keys().cloned().collect();
    let now = Instant::now();
    let mut turns = |at| -> Vec<_> {
        let turn = |key| status_writer::turn(&mut state, key, Urgency::Counters, at).unwrap();
        keys.iter()
            .map(turn)
            .map(|turn| turn.duration_since(now).as_millis())
            .collect()
    };
    assert_eq!(turns(now), [0, 200, 400]);
    assert_eq!(
        turns(now + Duration::from_secs(1)),
        [0, 200, 400],
        "a turn is kept until it is used"
    );
    for cached in state.webhooks.values_mut() {
        cached.counters_turn = None;
    }
    let mut turn = |key, at| status_writer::turn(&mut state, key, Urgency::Counters, at).unwrap();
    assert_eq!(turn(&keys[2], now), now + Duration::from_millis(600));
    let later = now + Duration::from_secs(60);
    assert_eq!(
        turn(&keys[0], later),
        later,
        "turns that nobody took are not made up for"
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
        let turn = status_writer::turn(&mut state, key, urgency, now);
        turn.map(|turn| turn.duration_since(now).as_millis())
    };
    for key in &keys {
        wait(key, Urgency::Counters);
    }
    let health: Vec<_> = keys[..250].iter().map(|key| wait(key, Urgency::Health)).collect();
    assert_eq!((health[0], health[200]), (Some(0), Some(10_000)));
    assert_eq!(wait(&keys[299], Urgency::Now), None);
    // One that is as it was before its turn has come takes another turn later.
    wait(&keys[0], Urgency::Counters);
    assert_eq!(wait(&keys[0], Urgency::Health), Some(12_500));
}
