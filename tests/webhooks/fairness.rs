//! Hostile receivers do not affect healthy ones.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use kube::api::PostParams;
use resources::Webhook;
use serde_json::json;

use super::types;
use crate::support::{
    Operator, Tenant, eventually, own_plane, receiver_arguments,
    receivers::{Answer, Hostile, HostileReceiver, Receiver},
};

/// Number of receivers of each kind.
const EACH: usize = 50;
const TIMEOUT_SECONDS: u64 = 10;
/// Memory limit of the operator with all receivers at once. It uses about 40 MB with none.
const MAX_MEMORY_KB: u64 = 250_000;

/// The ids of the received events.
fn events(receiver: &Receiver) -> BTreeSet<String> {
    let requests = receiver.received();
    let ids = requests
        .iter()
        .map(|request| request.header("x-service-event-id"));
    ids.map(ToOwned::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_of_every_hostile_receiver_at_once_keep_no_event_from_a_healthy_one_and_take_little_memory() {
    let plane = own_plane().await;
    let mut arguments = vec![
        "run".to_owned(),
        "--provisioning-seconds=0".to_owned(),
        format!("--receiver-timeout-seconds={TIMEOUT_SECONDS}"),
        // On a busy machine, even a healthy receiver may be too slow once.
        format!("--retry-schedule={}", ["15s"; 20].join(",")),
    ];
    arguments.extend(receiver_arguments(&plane));
    let mut operator =
        Operator::start(&plane, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let bad = Tenant::with(&plane, &operator, "hooks-hostile", |spec| {
        spec.webhook_quota = Some(10_000);
    })
    .await;
    let good = Tenant::on(&plane, &operator, "hooks-healthy").await;
    let healthy = Receiver::start(|_| Answer::ok()).await;
    good.webhook("hook", &healthy.url("/hook"), &["instance.created"])
        .await;

    let kinds = Hostile::all(Duration::from_secs(TIMEOUT_SECONDS + 1));
    let hostile: Vec<HostileReceiver> = kinds.iter().map(|kind| HostileReceiver::start(*kind)).collect();
    bad.secret("hook", super::SECRET).await;
    let bad = &bad;
    futures::stream::iter(hostile.iter().enumerate().flat_map(|(kind, receiver)| {
        (0..EACH).map(move |number| (format!("hook-{kind}-{number}"), receiver.url()))
    }))
    .for_each_concurrent(16, |(name, url)| async move {
        let webhook: Webhook = serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": name },
            "spec": { "url": url, "events": ["instance.created"], "secretRef": { "name": "hook" } },
        }))
        .unwrap();
        bad.webhooks()
            .create(&PostParams::default(), &webhook)
            .await
            .unwrap();
    })
    .await;
    // One event for each of them; while these are in flight, one after the other for the healthy one.
    bad.apply("bait", |_| {}).await;
    let mut slowest = Duration::ZERO;
    let mut rounds = 0;
    while hostile.iter().filter(|receiver| receiver.accepted() == 0).count() > 0 || rounds < 20 {
        let begun = Instant::now();
        good.apply(&format!("web-{rounds}"), |_| {}).await;
        rounds += 1;
        eventually(
            "the event of the healthy one",
            async || events(&healthy),
            |events| events.len() >= rounds,
        )
        .await;
        slowest = slowest.max(begun.elapsed());
    }
    assert_eq!(events(&healthy).len(), rounds);
    assert!(
        types(&healthy.received())
            .iter()
            .all(|event_type| event_type == "instance.created")
    );
    let memory = operator.memory_kb("VmHWM");
    let accepted: usize = hostile.iter().map(HostileReceiver::accepted).sum();
    println!(
        "{} hostile webhooks, {accepted} connections; {rounds} events of the healthy one, the slowest in {slowest:?}; {memory} kB",
        kinds.len() * EACH
    );
    assert!(memory <= MAX_MEMORY_KB, "{memory} kB");
    operator.stop().await;
}
