//! One account's backlog stays within its limits, and affects neither etcd, nor the operator's memory, nor another account.
//!
//! The suite attacks at a fortieth of the size that an account's rate limit allows, against limits at a fortieth of the
//! defaults. To run it at a tenth: `STELLAGE_TEST_BACKLOG=10 cargo test --test integration -- webhooks::backlog --show-output`

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use control_plane::ControlPlane;
use futures::future::join_all;
use http::Method;
use kube::api::ListParams;
use resources::{Delivery, InstanceState, conditions, webhook::BACKLOG};
use serde_json::json;

use super::{
    crashes::setting,
    full::{compact, defragment},
};
use crate::support::{
    Operator, Tenant, eventually, plane_with, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// The maximum number of webhooks of an account.
const WEBHOOKS: usize = 20;
/// Number of changes of each instance.
const ROUNDS: usize = 8;
/// How long an event of another account may take, however busy the machine is.
const PROMPT: Duration = Duration::from_secs(120);
/// How many times the other account is measured before the attack, and at least as many times during it.
const MEASUREMENTS: usize = 5;
/// The factor, and the additional amount, by which the other account's medians during the attack may exceed
/// those before it.
const SLOWER: u32 = 10;
const SLOWER_BY: Duration = Duration::from_secs(5);
/// What the attack may add to etcd besides the Deliveries: instances and Kubernetes Events.
const OTHER_BYTES: u64 = 1024 * 1024;

/// How much the operator's resident memory may grow, in kB: per Delivery, and for the attack itself.
const DELIVERY_KB: usize = 16;
const ATTACK_KB: usize = 5 * 1024;

/// The size of the attack, and its bounds.
struct Scale {
    instances: usize,
    per_webhook: usize,
    per_account: usize,
}

impl Scale {
    /// What an account can do in an hour with its rate limit, and the default bounds, divided by `divisor`.
    fn new(divisor: usize) -> Self {
        Self {
            instances: 3600 / divisor / (ROUNDS + 1),
            per_webhook: 1000 / divisor,
            per_account: 5000 / divisor,
        }
    }
}

/// The bytes that etcd uses for the current versions of all objects.
async fn etcd_bytes(plane: &ControlPlane) -> u64 {
    compact(plane).await;
    defragment(plane).await;
    let page = reqwest::get(format!("{}/metrics", plane.etcd_url()))
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    let name = "etcd_mvcc_db_total_size_in_use_in_bytes ";
    let value = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    // Large numbers are written as 1.2e+07.
    format!("{:.0}", value.parse::<f64>().unwrap()).parse().unwrap()
}

/// How long another account waits.
#[derive(Default)]
struct Waits {
    /// For the answer to a create through REST.
    creates: Vec<Duration>,
    /// From the answer to the receipt of the event.
    events: Vec<Duration>,
}

impl Waits {
    /// Creates an instance, and waits for its event.
    async fn measure(&mut self, tenant: &Tenant, receiver: &Receiver) {
        let before = receiver.count();
        let begun = Instant::now();
        let order = json!({ "name": "web", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
        let created = tenant.call(Method::POST, "/v1/instances", Some(&order)).await;
        assert_eq!(created.status, 201, "{created:?}");
        self.creates.push(begun.elapsed());
        receiver.wait_for(before + 1).await;
        self.events.push(begun.elapsed());
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The number of Deliveries of an account.
async fn deliveries(tenant: &Tenant) -> usize {
    let page = tenant
        .deliveries()
        .list_metadata(&ListParams::default().limit(1))
        .await;
    let page = page.unwrap();
    let more = page.metadata.remaining_item_count.unwrap_or(0);
    page.items.len() + usize::try_from(more).unwrap()
}

/// The numbers of Deliveries of an account that are pending or held, and of those that are finished, which are far fewer.
async fn by_label(tenant: &Tenant) -> (usize, usize) {
    let finished = ListParams::default().labels("stellage.dev/finished");
    let finished = tenant.deliveries().list_metadata(&finished).await.unwrap();
    let finished = finished.items.len();
    (deliveries(tenant).await - finished, finished)
}

/// The number of events of an account's instances. How many there are depends on how soon the controller sees each change.
async fn events(tenant: &Tenant) -> i64 {
    let all = tenant.instances().list(&ListParams::default()).await.unwrap();
    let statuses = all.items.into_iter().filter_map(|instance| instance.status);
    statuses.map(|status| status.event_sequence).sum()
}

/// Stops and starts every instance of an account.
async fn churn(tenant: &Tenant, instances: usize, round: usize) {
    let (power, state) = if round.is_multiple_of(2) {
        ("Stopped", InstanceState::Stopped)
    } else {
        ("Running", InstanceState::Running)
    };
    join_all((0..instances).map(|number| async move {
        let name = format!("web-{number}");
        let patch = json!({ "spec": { "powerState": power } });
        tenant.merge(&name, &patch).await;
        tenant.wait_for_state(&name, state).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_whose_receivers_fail_is_owed_a_bounded_number_and_harms_nobody() {
    let Scale {
        instances,
        per_webhook,
        per_account,
    } = Scale::new(setting("STELLAGE_TEST_BACKLOG", 40));
    let plane = plane_with(ControlPlane::options()).await;
    let mut arguments = vec![
        "run".to_owned(),
        "--provisioning-seconds=0".to_owned(),
        format!("--pending-deliveries={per_webhook}"),
        format!("--pending-deliveries-per-account={per_account}"),
        format!("--held-deliveries={per_webhook}"),
        format!("--held-deliveries-per-account={per_account}"),
    ];
    arguments.extend(receiver_arguments(&plane));
    let mut operator =
        Operator::start(&plane, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let bad = Tenant::on(&plane, &operator, "hooks-backlog").await;
    let good = Tenant::on(&plane, &operator, "hooks-no-backlog").await;
    let failing = Receiver::start(|_| Answer::status(500)).await;
    let healthy = Receiver::start(|_| Answer::ok()).await;
    good.webhook("hook", &healthy.url("/"), &["instance.created"])
        .await;
    let urls = (0..WEBHOOKS).map(|number| (format!("hook-{number}"), failing.url("/")));
    join_all(urls.map(|(name, url)| {
        let bad = &bad;
        async move { bad.webhook(&name, &url, &super::ALL).await }
    }))
    .await;
    let mut quiet = Waits::default();
    for _ in 0..MEASUREMENTS {
        quiet.measure(&good, &healthy).await;
    }
    let (bytes_before, memory_before) = (etcd_bytes(&plane).await, operator.memory_kb("VmRSS"));

    let is_over = AtomicBool::new(false);
    let attack = async {
        join_all((0..instances).map(|number| {
            let bad = &bad;
            async move { bad.apply(&format!("web-{number}"), |_| {}).await }
        }))
        .await;
        for round in 0..ROUNDS {
            churn(&bad, instances, round).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let observe = async {
        let (mut most, mut attacked) = ((0, 0), Waits::default());
        while !is_over.load(Ordering::Relaxed) || attacked.events.len() < MEASUREMENTS {
            let (owed, finished) = by_label(&bad).await;
            most = (most.0.max(owed), most.1.max(finished));
            attacked.measure(&good, &healthy).await;
        }
        (most, attacked)
    };
    let begun = Instant::now();
    let ((), (most, attacked)) = tokio::join!(attack, observe);
    let took = begun.elapsed();
    let events = events(&bad).await;
    // Everything that must be dropped is dropped in the end, and counted.
    let dropped = async || {
        let all = bad.webhooks().list(&ListParams::default()).await.unwrap().items;
        let statuses = all.into_iter().filter_map(|webhook| webhook.status);
        let dropping = statuses.map(|status| {
            let is_told = conditions::is_true(&status.conditions, BACKLOG);
            (status.dropped, is_told)
        });
        dropping.collect::<Vec<_>>()
    };
    let count = |n: usize| i64::try_from(n).unwrap();
    let accounted = async || {
        let dropped = dropped().await.iter().map(|(dropped, _)| dropped).sum::<i64>();
        dropped + count(deliveries(&bad).await)
    };
    let all = events * count(WEBHOOKS);
    eventually("every event to be recorded or dropped", accounted, |accounted| {
        *accounted == all
    })
    .await;
    let (bytes, memory) = (
        etcd_bytes(&plane).await.saturating_sub(bytes_before),
        operator.memory_kb("VmHWM").saturating_sub(memory_before),
    );
    println!(
        "backlog: {events} events of {instances} instances for {WEBHOOKS} webhooks in {took:.1?}; at most {most:?} Deliveries, owed and finished; etcd has {} kB more, the operator had up to {memory} kB more than {memory_before}; another account's creates took {:.1?} before and {:.1?} during the attack, its events {:.1?} and {:.1?}, at most {:.1?}",
        bytes / 1024,
        median(&quiet.creates),
        median(&attacked.creates),
        median(&quiet.events),
        median(&attacked.events),
        attacked.events.iter().max().unwrap(),
    );
    let left = bad.deliveries().list(&ListParams::default()).await.unwrap().items;
    let size = |delivery: &Delivery| serde_json::to_vec(delivery).unwrap().len();
    let largest = left.iter().map(size).max().unwrap();
    let allowed = u64::try_from(3 * per_account * largest).unwrap() + OTHER_BYTES;
    assert!(
        bytes <= allowed,
        "etcd has {bytes} bytes more, of {allowed}; the largest Delivery has {largest}"
    );
    let memory_kb = u64::try_from(ATTACK_KB + 2 * per_account * DELIVERY_KB).unwrap();
    assert!(memory <= memory_kb, "{memory} kB more, of {memory_kb}");
    let expected = all - count(2 * per_account);
    assert!(expected > count(2 * per_account), "too few events: {events}");
    let told = |all: &Vec<(i64, bool)>| {
        all.iter().map(|(dropped, _)| dropped).sum::<i64>() == expected && all.iter().all(|(_, told)| *told)
    };
    eventually("the dropped ones to be counted and told", dropped, told).await;
    let metric = operator.metric("stellage_deliveries_dropped_total", "").await;
    assert!(metric >= f64::from(i32::try_from(expected).unwrap()), "{metric}");
    assert!(most.0 <= 2 * per_account, "{most:?} Deliveries");
    for (what, quiet, attacked) in [
        ("creates", &quiet.creates, &attacked.creates),
        ("events", &quiet.events, &attacked.events),
    ] {
        let (before, during) = (median(quiet), median(attacked));
        assert!(
            during <= SLOWER * before + SLOWER_BY,
            "{what}: {during:?}, {before:?} before"
        );
        let slowest = attacked.iter().max().unwrap();
        assert!(*slowest <= PROMPT, "{what}: {slowest:?}");
    }
    operator.stop().await;
}
