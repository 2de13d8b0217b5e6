//! Deletion of accounts with everything in them. The timeouts are far shorter than the retry schedule of a delivery.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, api::DeleteParams};
use resources::{Account, InstanceState};

use super::{ALL, body, types};
use crate::support::{
    Tenant, eventually,
    receivers::{Answer, Hostile, HostileReceiver, Received, Receiver},
};

const INSTANCES: usize = 10;

async fn inhabited(name: &str, receiver: &Receiver, silent: &HostileReceiver) -> Tenant {
    let tenant = Tenant::new(name).await;
    tenant.webhook("healthy", &receiver.url("/"), &ALL).await;
    tenant.webhook("silent", &silent.url(), &ALL).await;
    tenant
        .webhook("without-secret", &receiver.url("/held"), &ALL)
        .await;
    let secrets: Api<Secret> = Api::namespaced(tenant.kube.clone(), name);
    secrets
        .delete("without-secret", &DeleteParams::default())
        .await
        .unwrap();
    for i in 0..INSTANCES {
        tenant.apply(&format!("web-{i}"), |_| {}).await;
    }
    for i in 0..INSTANCES {
        tenant
            .wait_for_state(&format!("web-{i}"), InstanceState::Running)
            .await;
    }
    tenant
}

/// The ids of the deletions that were received.
fn deleted(received: &[Received]) -> BTreeSet<String> {
    let bodies = received.iter().map(body);
    let deletions = bodies.filter(|event| event["type"] == "instance.deleted");
    deletions.map(|event| event["id"].to_string()).collect()
}

#[tokio::test]
async fn an_account_does_not_go_before_a_slow_receiver_has_got_its_last_events() {
    let receiver = Receiver::start(|_| Answer::ok().after(Duration::from_secs(6))).await;
    let tenant = Tenant::new("hooks-slow-end").await;
    let events = ["instance.created", "instance.started", "instance.deleted"];
    tenant.webhook("slow", &receiver.url("/"), &events).await;
    tenant.apply("web", |_| {}).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    accounts
        .delete("hooks-slow-end", &DeleteParams::default())
        .await
        .unwrap();
    eventually(
        "the account to go",
        async || accounts.get_opt("hooks-slow-end").await.unwrap(),
        Option::is_none,
    )
    .await;
    let types = types(&receiver.received());
    assert!(types.contains(&"instance.deleted".to_owned()), "{types:?}");
}

#[tokio::test]
async fn an_account_that_is_deleted_gets_the_last_events_of_its_instances_and_goes_quickly() {
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let silent = HostileReceiver::start(Hostile::SilentHttp);
    let tenant = inhabited("hooks-leaving", &receiver, &silent).await;
    let accounts: Api<Account> = Api::all(tenant.kube.clone());
    let namespaces: Api<Namespace> = Api::all(tenant.kube.clone());
    let begun = Instant::now();
    accounts
        .delete("hooks-leaving", &DeleteParams::default())
        .await
        .unwrap();
    eventually(
        "all last events to arrive",
        async || deleted(&receiver.received()),
        // Do not count requests, since an event may arrive twice.
        |events| events.len() == INSTANCES,
    )
    .await;
    eventually(
        "the account to go",
        async || accounts.get_opt("hooks-leaving").await.unwrap(),
        Option::is_none,
    )
    .await;
    eventually(
        "the namespace to go",
        async || namespaces.get_opt("hooks-leaving").await.unwrap(),
        Option::is_none,
    )
    .await;
    let took = begun.elapsed();
    println!(
        "farewell: an account with {INSTANCES} instances and 3 webhooks went within {took:.1?} of its deletion"
    );
}
