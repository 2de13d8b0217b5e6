//! One account's backlog stays within its bounds, and affects no other account.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use stellage::resources::{Instance, InstanceState, conditions, webhook::BACKLOG};

use crate::support::{
    Operator, Tenant, eventually, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

/// As many webhooks as an account may have. Of its requests in an hour and of the bounds of what it may be owed, a fortieth.
const WEBHOOKS: usize = 20;
const INSTANCES: usize = 6;
const ROUNDS: usize = 15;
const PER_WEBHOOK: usize = 25;
const PER_ACCOUNT: usize = 125;
/// How long an event of another account may take; some ten times what it takes on a quiet machine.
const PROMPT: Duration = Duration::from_secs(5);

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

/// The number of events of an instance so far.
fn sequence(instance: &Instance) -> i64 {
    instance.status.as_ref().map_or(0, |status| status.event_sequence)
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
    // Everything that is not there was dropped and counted, and each webhook tells.
    let look = async || {
        let events: i64 = bad.all_instances().await.iter().map(sequence).sum();
        let webhooks = bad.webhooks().list(&ListParams::default()).await.unwrap().items;
        let statuses = webhooks.into_iter().filter_map(|webhook| webhook.status);
        let (dropped, told): (Vec<i64>, Vec<bool>) = statuses
            .map(|status| (status.dropped, conditions::is_true(&status.conditions, BACKLOG)))
            .unzip();
        let told = told.into_iter().filter(|told| *told).count();
        (events, deliveries(&bad).await, dropped.iter().sum::<i64>(), told)
    };
    let is_accounted_for = |(events, left, dropped, told): &(i64, usize, i64, usize)| {
        let expected = events * i64::try_from(WEBHOOKS).unwrap();
        *left <= 2 * PER_ACCOUNT && i64::try_from(*left).unwrap() + dropped == expected && *told == WEBHOOKS
    };
    let (events, left, dropped, _) =
        eventually("all events to be accounted for", look, is_accounted_for).await;
    let metric = operator.metric("stellage_deliveries_dropped_total", "").await;
    assert!(metric >= f64::from(i32::try_from(dropped).unwrap()), "{metric}");
    println!(
        "backlog: {events} events for {WEBHOOKS} webhooks in {took:.1?}; at most {most} Deliveries, {left} in the end, {dropped} dropped; another account's event took {quiet:.1?} before, at most {slowest:.1?} meanwhile"
    );
    // Records of the newest may be written before those of the oldest are deleted.
    assert!(most <= 2 * PER_ACCOUNT + PER_ACCOUNT, "{most} Deliveries");
    assert!(slowest <= PROMPT, "{slowest:?}");
    operator.stop().await;
}
