//! Everything dies again and again while instances change: the operator, the API server, etcd.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use rand::RngExt as _;
use serde_json::json;
use stellage::{resources::InstanceState, runtime::lease::LEASE_NAME};

use super::{
    ALL,
    ledger::{Book, Driver, Logged, balance, expected},
};
use crate::support::{Operator, Tenant, eventually, own_plane, receiver_arguments, receivers::Answer};

const INSTANCES: usize = 20;

/// A number from the environment, for longer runs than that of the suite.
fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

fn arguments(plane: &ControlPlane) -> Vec<String> {
    let ladder = ["200ms"; 20].join(",");
    let fixed = [
        "run",
        "--provisioning-seconds=0",
        "--delivery-retention=100000",
        &format!("--retry-schedule={ladder}"),
    ];
    let mut arguments: Vec<String> = fixed.map(ToOwned::to_owned).to_vec();
    arguments.extend(receiver_arguments(plane));
    arguments
}

async fn start(plane: &ControlPlane) -> Operator {
    let arguments = arguments(plane);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Operator::start(plane, &arguments).await
}

/// An operator that dies.
struct Mortal<'a> {
    plane: &'a ControlPlane,
    leases: Api<Lease>,
    operator: Operator,
}

impl Mortal<'_> {
    async fn kill(&mut self) {
        self.operator.kill();
        // Whoever knows that the holder is dead may say so; else the next one waits until the Lease has expired.
        let free = json!({ "spec": { "holderIdentity": "" } });
        self.leases
            .patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(&free))
            .await
            .unwrap();
    }

    async fn rise(&mut self) {
        self.operator = start(self.plane).await;
        while self.operator.metric("stellage_leader", "").await < 1.0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "stellage-system")
}

/// Answers yes, mostly after some milliseconds; how often not, and how often only after the patience of the sender is over,
/// is told per thousand.
fn answer(refused: u32, slow: u32) -> impl Fn() -> Answer + Send + Sync + 'static {
    move || {
        let mut rng = rand::rng();
        let dice = rng.random_range(0..1000);
        if dice < refused {
            return Answer::status(503);
        }
        let delay = if dice < refused + slow {
            1000..1400
        } else {
            0..30
        };
        Answer::ok().after(Duration::from_millis(rng.random_range(delay)))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_the_operator_is_killed_every_event_arrives_and_what_is_logged_is_not_sent_again() {
    let kills: usize = setting("STELLAGE_TEST_KILLS", 200);
    let changes: usize = setting("STELLAGE_TEST_CHANGES", 2000);
    let plane = own_plane().await;
    let operator = start(&plane).await;
    let tenant = Tenant::on(&plane, &operator, "killed").await;
    let (steady, flaky) = (Book::default(), Book::default());
    let at_steady = steady.start(answer(0, 0)).await;
    let at_flaky = flaky.start(answer(50, 10)).await;
    tenant.webhook("steady", &at_steady.url("/"), &ALL).await;
    tenant
        .webhook("flaky", &at_flaky.url("/"), &["instance.stopped"])
        .await;
    let logged = Logged::watch(&tenant);
    let names: Vec<String> = (0..INSTANCES).map(|i| format!("web-{i}")).collect();
    for name in &names {
        tenant.apply(name, |_| {}).await;
    }
    for name in &names {
        tenant.wait_for_state(name, InstanceState::Running).await;
    }

    let mut mortal = Mortal {
        plane: &plane,
        leases: leases(&plane.client(Identity::Admin).await.unwrap()),
        operator,
    };
    let begun = Instant::now();
    let driver = Driver::start(&tenant, &names, Duration::from_millis(100)).await;
    let mut killed = 0;
    while killed < kills || driver.count() < changes {
        let alive = rand::rng().random_range(50..500);
        tokio::time::sleep(Duration::from_millis(alive)).await;
        if killed < kills {
            killed += 1;
            mortal.kill().await;
            mortal.rise().await;
        }
    }
    let changed = driver.stop().await;
    let took = begun.elapsed();
    let total: usize = changed.values().sum();
    let all = expected(&tenant, &changed).await;
    let stops = all
        .clone()
        .into_iter()
        .filter(|(_, (.., event_type))| *event_type == "instance.stopped")
        .collect();
    let steady = balance(&steady, &all, "steady", &logged).await;
    let flaky = balance(&flaky, &stops, "flaky", &logged).await;
    println!(
        "kills: {killed} kills while {total} changes, in {took:.0?}, and {:.0?} until all had arrived; a steady receiver: \
         {steady}; one that fails at times: {flaky}",
        begun.elapsed() - took
    );
    mortal.operator.stop().await;
}
