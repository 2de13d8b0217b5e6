//! One account's backlog stays within its bounds, and affects no other account.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use stellage::resources::{InstanceState, conditions, webhook::BACKLOG};

use crate::support::{
    Operator, Tenant, eventually, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// As many webhooks as an account may have. Of its requests in an hour and of the bounds of what it may be owed, a fortieth.
const WEBHOOKS: usize = 20;
const INSTANCES: usize = 6;
const ROUNDS: usize = 6;
const PER_WEBHOOK: usize = 25;
const PER_ACCOUNT: usize = 125;
/// How long an event of another account may take, however busy the machine is.
const PROMPT: Duration = Duration::from_secs(30);

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

/// The number of events of an account's instances. How many there are depends on how soon the controller sees each change.
async fn events(tenant: &Tenant) -> i64 {
    let all = tenant.instances().list(&ListParams::default()).await.unwrap();
    let statuses = all.items.into_iter().filter_map(|instance| instance.status);
    statuses.map(|status| status.event_sequence).sum()
}

/// Stops and starts every instance of an account.
async fn churn(tenant: &Tenant, round: usize) {
    let (power, state) = if round.is_multiple_of(2) {
        ("Stopped", InstanceState::Stopped)
    } else {
        ("Running", InstanceState::Running)
    };
    join_all((0..INSTANCES).map(|number| async move {
        let name = format!("web-{number}");
        let patch = json!({ "spec": { "powerState": power } });
        let params = PatchParams::default();
        tenant
            .instances()
            .patch(&name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
        tenant.wait_for_state(&name, state).await;
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_whose_receivers_fail_is_owed_a_bounded_number_and_delays_nobody() {
    let plane = own_plane().await;
    let mut arguments = vec![
        "run".to_owned(),
        "--provisioning-seconds=0".to_owned(),
        format!("--pending-deliveries={PER_WEBHOOK}"),
        format!("--pending-deliveries-per-account={PER_ACCOUNT}"),
        format!("--held-deliveries={PER_WEBHOOK}"),
        format!("--held-deliveries-per-account={PER_ACCOUNT}"),
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
    let made = AtomicUsize::new(0);
    let deliver = async || {
        let (begun, number) = (Instant::now(), made.fetch_add(1, Ordering::Relaxed));
        good.apply(&format!("web-{number}"), |_| {}).await;
        healthy.wait_for(number + 1).await;
        begun.elapsed()
    };
    let quiet = deliver().await.max(deliver().await);

    let is_over = AtomicBool::new(false);
    let attack = async {
        join_all((0..INSTANCES).map(|number| {
            let bad = &bad;
            async move { bad.apply(&format!("web-{number}"), |_| {}).await }
        }))
        .await;
        for round in 0..ROUNDS {
            churn(&bad, round).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let observe = async {
        let (mut most, mut slowest) = (0, Duration::ZERO);
        while !is_over.load(Ordering::Relaxed) {
            most = most.max(deliveries(&bad).await);
            slowest = slowest.max(deliver().await);
        }
        (most, slowest)
    };
    let begun = Instant::now();
    let ((), (most, slowest)) = tokio::join!(attack, observe);
    let took = begun.elapsed();
    let events = events(&bad).await;
    // Everything that is to be dropped is dropped in the end, and counted.
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
    let expected = events * count(WEBHOOKS) - count(2 * PER_ACCOUNT);
    assert!(expected > count(2 * PER_ACCOUNT), "too few events: {events}");
    let told = |all: &Vec<(i64, bool)>| {
        all.iter().map(|(dropped, _)| dropped).sum::<i64>() == expected && all.iter().all(|(_, told)| *told)
    };
    eventually("the dropped ones to be counted and told", dropped, told).await;
    let metric = operator.metric("stellage_deliveries_dropped_total", "").await;
    assert!(metric >= f64::from(i32::try_from(expected).unwrap()), "{metric}");
    let is_bounded = |count: &usize| *count == 2 * PER_ACCOUNT;
    eventually(
        "as many to be left as are allowed",
        async || deliveries(&bad).await,
        is_bounded,
    )
    .await;
    println!(
        "backlog: {events} events for {WEBHOOKS} webhooks in {took:.1?}; at most {most} Deliveries; another account's event took {quiet:.1?} before, at most {slowest:.1?} meanwhile"
    );
    // Records of the newest may be written before those of the oldest are deleted.
    assert!(most <= 2 * PER_ACCOUNT + PER_ACCOUNT, "{most} Deliveries");
    assert!(slowest <= PROMPT, "{slowest:?}");
    operator.stop().await;
}
