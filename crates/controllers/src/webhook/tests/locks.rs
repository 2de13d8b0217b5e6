//! The work done under the lock of the state does not grow with the number of webhooks, deliveries or instances.

use std::{future::Future, sync::Arc, time::Duration};

use serde_json::json;

use super::{
    super::{
        Listeners, Source, Stores, WebhookController,
        shared::{AT_ONCE, Shared},
    },
    deps, webhook,
};
use crate::{
    delivery::{
        initial_state::{self, Listed},
        lookup,
    },
    secrets,
};
use domain::delivery::key;
use resources::{Delivery, Instance, Webhook};
use runtime::{
    Metrics, ReconcileQueue,
    lease::Tenure,
    objects::{Writer, store},
    watch::{Change, Listener},
};

const MANY: usize = 1000;

/// The listeners for all watches.
pub(super) struct AllListeners {
    pub(super) webhooks: Box<dyn Listener<Webhook>>,
    deliveries: Box<dyn Listener<Delivery>>,
    instances: Box<dyn Listener<Instance>>,
}

/// A controller that has not opened yet, its listeners, and its metrics.
pub(super) fn controller() -> (Arc<Shared>, AllListeners, Metrics) {
    let deps = deps(&[]);
    let metrics = deps.metrics.clone();
    let controller = WebhookController::new(deps);
    let Listeners { webhooks, deliveries } = controller.listeners();
    let listeners = AllListeners {
        webhooks,
        deliveries,
        instances: controller.outbox_listener(),
    };
    (controller.shared.clone(), listeners, metrics)
}

fn instance(number: usize, revision: u64) -> Arc<Instance> {
    let event = json!({
        "id": format!("evt_{number}"), "type": "instance.started", "sequence": 1,
        "createdAt": "2026-11-22T10:00:00Z", "body": "{}",
    });
    let instance = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": {
            "namespace": "ns", "name": format!("i-{number}"), "uid": format!("i-{number}"),
            "resourceVersion": revision.to_string(),
        },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        "status": { "outbox": [event] },
    });
    Arc::new(serde_json::from_value(instance).unwrap())
}

fn delivery(number: usize) -> Arc<Delivery> {
    let delivery = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": { "namespace": "ns", "name": format!("orphan-{number}"), "resourceVersion": "20" },
        "spec": {
            "webhook": "nowhere", "eventId": format!("evt_{number}"), "eventType": "instance.stopped",
            "eventCreatedAt": "2026-11-22T10:00:00Z", "sequence": 1, "body": "{}",
        },
        "status": { "phase": "Pending" },
    });
    Arc::new(serde_json::from_value(delivery).unwrap())
}

/// How often the lock has been taken.
fn locked(metrics: &Metrics) -> u64 {
    let page = metrics.render(runtime::metrics::Format::OpenMetrics).unwrap();
    let counts = page
        .lines()
        .filter_map(|line| line.strip_prefix("stellage_webhook_lock_hold_seconds_count "));
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Fails unless the lock is taken at least once for every [`AT_ONCE`] of `many` items.
fn in_steps(metrics: &Metrics, many: usize, what: &str, act: impl FnOnce()) {
    let before = locked(metrics);
    act();
    let times = locked(metrics) - before;
    assert!(times >= (many / AT_ONCE) as u64, "{what}: locked {times} times");
}

pub(super) struct Caches {
    pub(super) webhooks: Writer<Webhook>,
    pub(super) instances: Writer<Instance>,
    pub(super) stores: Stores,
}

pub(super) fn caches() -> Caches {
    let (webhooks, for_webhooks) = store();
    let (deliveries, _) = store();
    let (instances, for_instances) = store();
    Caches {
        stores: Stores {
            webhooks,
            deliveries,
            sources: vec![Source::new::<Instance>(instances, ReconcileQueue::default())],
        },
        webhooks: for_webhooks,
        instances: for_instances,
    }
}

pub(super) fn opening<'a>(
    shared: &'a Shared,
    stores: &'a Stores,
    webhooks: std::ops::Range<usize>,
) -> impl Future<Output = ()> + 'a {
    initial_state::prepare(shared, stores);
    let listed = Listed {
        webhooks: webhooks.map(webhook).collect(),
        deliveries: (0..MANY).map(delivery).collect(),
        revision: 20,
    };
    let tenure = Tenure::until(tokio::time::Instant::now() + Duration::from_secs(600));
    initial_state::open(shared, stores, listed, tenure)
}

#[tokio::test]
async fn nothing_under_the_lock_grows_with_all_webhooks_deliveries_or_instances() {
    let (shared, mut listeners, metrics) = controller();
    let caches = caches();
    for number in 0..MANY {
        caches.instances.apply(instance(number, 15));
    }
    let before = locked(&metrics);
    opening(&shared, &caches.stores, 0..MANY).await;
    assert!(locked(&metrics) - before >= 3 * (MANY / AT_ONCE) as u64);
    assert_eq!(shared.state.lock().webhooks.by_key.len(), MANY);

    let unverified = || lookup::unverified(&shared);
    in_steps(&metrics, MANY, "events to verify", || {
        assert_eq!(unverified()["ns"].events.len(), MANY);
    });
    in_steps(&metrics, MANY, "secrets", || {
        secrets::forget_deleted(&shared);
    });
    in_steps(&metrics, MANY, "secrets", || {
        secrets::old(&shared);
    });
    let newer: Vec<_> = (0..MANY).map(|number| instance(number + MANY, 30)).collect();
    in_steps(&metrics, 2 * MANY, "a list of instances", || {
        listeners.instances.changed(&Change::Replaced(newer));
    });
    assert_eq!(shared.state.lock().dispatcher.objects_after(None, 1).len(), 0);
    in_steps(&metrics, 2 * MANY, "a list of webhooks", || {
        let all = (0..MANY).map(|number| Arc::new(webhook(number))).collect();
        listeners.webhooks.changed(&Change::Replaced(all));
    });
    // They are newer than an empty list, so only a second list shows that they are gone.
    for _ in 0..2 {
        in_steps(&metrics, MANY, "a list of deliveries", || {
            listeners.deliveries.changed(&Change::Replaced(Vec::new()));
        });
    }
    assert_eq!(shared.state.lock().dispatcher.orphans_after(None, 1).len(), 0);

    // Once they have been unclaimed for longer than the grace period, entries are taken over, a few at a time.
    let mut now = shared.now();
    now.mono += Duration::from_secs(10);
    let mut state = shared.state.lock();
    let before = state.outboxes.unclaimed.len();
    assert!(before >= MANY);
    let next = shared.claim(&mut state, now);
    assert!(before - state.outboxes.unclaimed.len() <= AT_ONCE);
    assert!(next.is_some_and(|at| at <= now.mono), "there are more");
}

#[tokio::test]
async fn what_the_watches_show_while_the_initial_state_is_loaded_is_neither_lost_nor_overtaken() {
    let (shared, mut listeners, _) = controller();
    let caches = caches();
    for number in 0..MANY {
        caches.webhooks.apply(Arc::new(webhook(number)));
    }
    let mut open = Box::pin(opening(&shared, &caches.stores, 0..MANY));
    assert!(futures::poll!(&mut open).is_pending());
    let loaded = shared.state.lock().webhooks.by_key.len();
    assert!((1..=AT_ONCE).contains(&loaded), "{loaded}");
    // Others get the lock in between: the last webhook, which has not been loaded yet, is deleted, another one changes, and
    // a new webhook and an event appear.
    assert!(!shared.leads());
    let mut newer = webhook(MANY - 2);
    newer.metadata.resource_version = Some("40".to_owned());
    newer.metadata.generation = Some(2);
    let changes = [
        Change::Deleted(Arc::new(webhook(MANY - 1))),
        Change::Applied(Arc::new(newer)),
        Change::Applied(Arc::new(webhook(MANY))),
    ];
    for change in &changes {
        listeners.webhooks.changed(change);
    }
    // A new list, and a webhook that is created after it.
    let listed = (0..MANY - 1).map(|number| Arc::new(webhook(number))).collect();
    listeners.webhooks.changed(&Change::Replaced(listed));
    for webhook in [webhook(MANY), webhook(MANY + 1)] {
        let webhook = Arc::new(webhook);
        caches.webhooks.apply(webhook.clone());
        listeners.webhooks.changed(&Change::Applied(webhook));
    }
    caches.webhooks.delete(&webhook(MANY - 1).metadata);
    listeners.instances.changed(&Change::Applied(instance(1, 41)));
    listeners.deliveries.changed(&Change::Deleted({
        let mut gone = (*delivery(7)).clone();
        gone.metadata.resource_version = Some("42".to_owned());
        Arc::new(gone)
    }));
    open.await;
    assert!(shared.leads());
    let state = shared.state.lock();
    let generation = |number: usize| {
        let known = state.webhooks.get(&key("ns", &format!("hook-{number:04}")))?;
        known.metadata.generation
    };
    assert_eq!([generation(0), generation(MANY - 2)], [Some(1), Some(2)]);
    assert_eq!([generation(MANY - 1), generation(MANY)], [None, Some(1)]);
    assert_eq!(generation(MANY + 1), Some(1));
    assert_eq!(
        state.dispatcher.webhooks_in("ns").len(),
        state.webhooks.by_key.len()
    );
    assert_eq!(state.outboxes.unclaimed.len(), 1);
    let orphans = state.dispatcher.orphans_after(None, MANY);
    assert_eq!(orphans.len(), MANY - 1);
    assert!(!orphans.contains(&key("ns", "orphan-7")));
    drop(state);
    // From now on, changes are handled immediately.
    listeners.webhooks.changed(&Change::Deleted(Arc::new(webhook(0))));
    assert_eq!(shared.state.lock().webhooks.by_key.len(), MANY);
}
