//! Kills the operator, the API server and etcd repeatedly while instances change.
//!
//! In the suite it kills only a few times, to be quick. For a long run: `STELLAGE_TEST_KILLS=200 STELLAGE_TEST_CHANGES=2000
//! STELLAGE_TEST_STORE_KILLS=200 cargo test --test integration -- webhooks::crashes --show-output`

use std::{
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use control_plane::ControlPlane;
use kube::{ResourceExt as _, api::ListParams};
use rand::RngExt as _;
use resources::InstanceState;
use tokio::time::timeout;

use super::{
    ALL,
    ledger::{Book, Done, Expected, Logged, Workload, balance, expected},
};
use crate::support::{
    Operator, PATIENCE, Supervised, Tenant, USUAL_LEASE, eventually, plane_with, receiver_arguments,
    receivers::{Answer, Receiver},
};

const INSTANCES: usize = 30;
/// The webhooks whose receivers always succeed. Such deliveries cost the API server next to nothing, so that there can be almost
/// 100 a second.
const STEADY: [&str; 3] = ["steady-0", "steady-1", "steady-2"];
/// One process in so many lives until it has logged what was sent.
const LONG_LIFE_EVERY: usize = 5;
/// The average pause between two changes of an instance. An API server that cannot keep up would delay the operator's
/// records, and kills would lead to more repetitions.
const PAUSE: Duration = Duration::from_secs(1);
/// A number from the environment, for longer runs than those of the suite.
pub fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

pub(super) fn arguments(plane: &ControlPlane, log: &str) -> Vec<String> {
    let ladder = ["200ms"; 20].join(",");
    let fixed = [
        "run",
        "--provisioning-seconds=0",
        "--delivery-retention=100000",
        &format!("--delivery-log={log}"),
        &format!("--retry-schedule={ladder}"),
    ];
    let mut arguments: Vec<String> = fixed.map(ToOwned::to_owned).to_vec();
    arguments.extend(receiver_arguments(plane));
    arguments
}

async fn start(plane: &ControlPlane, log: &str) -> Operator {
    let arguments = arguments(plane, log);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Operator::start(plane, &arguments).await
}

/// An operator that is killed repeatedly.
struct Mortal<'a> {
    plane: &'a ControlPlane,
    log: &'a str,
    operator: Operator,
    /// When the next process was about to start.
    kills: Vec<Instant>,
}

impl Mortal<'_> {
    /// Kills it, and waits until the next one leads.
    async fn kill(&mut self) {
        self.operator.die(self.plane).await;
        self.kills.push(Instant::now());
        self.operator = start(self.plane, self.log).await;
        let leads = async {
            while self.operator.metric("stellage_leader", "").await < 1.0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, leads).await.expect("to lead in time");
    }
}

/// Answers 200, mostly after some milliseconds. The rates of failures and of answers after a second are given per thousand.
fn answer(refused: u32, slow: u32) -> impl Fn() -> Answer + Send + Sync + 'static {
    move || {
        let mut rng = rand::rng();
        let dice = rng.random_range(0..1000);
        if dice < refused {
            return Answer::status(503);
        }
        let delay = if dice < refused + slow { 1000..1400 } else { 0..30 };
        Answer::ok().after(Duration::from_millis(rng.random_range(delay)))
    }
}

/// An account with running instances, receivers that always succeed, and one that sometimes fails.
pub(super) struct Scene {
    pub(super) tenant: Tenant,
    pub(super) names: Vec<String>,
    steady: Vec<(&'static str, Book)>,
    flaky: Book,
    logged: Logged,
    _receivers: Vec<Receiver>,
}

impl Scene {
    pub(super) async fn new(plane: &ControlPlane, operator: &Operator, account: &str, log: &str) -> Self {
        let tenant = Tenant::on(plane, operator, account).await;
        let (mut steady, mut receivers) = (Vec::new(), Vec::new());
        for name in STEADY {
            let book = Book::default();
            let receiver = book.start(answer(0, 0)).await;
            tenant.webhook(name, &receiver.url("/"), &ALL).await;
            steady.push((name, book));
            receivers.push(receiver);
        }
        let flaky = Book::default();
        let receiver = flaky.start(answer(50, 10)).await;
        tenant
            .webhook("flaky", &receiver.url("/"), &["instance.stopped"])
            .await;
        receivers.push(receiver);
        let names: Vec<String> = (0..INSTANCES).map(|i| format!("web-{i}")).collect();
        for name in &names {
            tenant.apply(name, |_| {}).await;
        }
        for name in &names {
            tenant.wait_for_state(name, InstanceState::Running).await;
        }
        Self {
            logged: Logged::watch(&tenant, log == "all"),
            tenant,
            names,
            steady,
            flaky,
            _receivers: receivers,
        }
    }

    /// Waits until what the steady receivers have accepted is logged.
    async fn is_logged(&self) {
        for (name, book) in &self.steady {
            book.is_logged(name, &self.logged).await;
        }
    }

    /// Waits until all events have arrived. Returns the counters.
    pub(super) async fn close(&self, done: Done, begun: Instant, interruptions: &[Instant]) -> String {
        let took = begun.elapsed();
        let (changes, passed): (usize, usize) = (done.changes.values().sum(), done.passed.len());
        let all = expected(&self.tenant, &done).await;
        let is_stop = |(_, _, event_type): &(String, i64, &str)| *event_type == "instance.stopped";
        let stops: Expected = all
            .iter()
            .filter(|(_, event)| is_stop(event))
            .map(|(id, event)| (id.clone(), event.clone()))
            .collect();
        let mut steady = Vec::new();
        for (name, book) in &self.steady {
            let balance = balance(&self.tenant, book, &all, name, &self.logged, interruptions).await;
            steady.push(balance.to_string());
        }
        let flaky = balance(
            &self.tenant,
            &self.flaky,
            &stops,
            "flaky",
            &self.logged,
            interruptions,
        )
        .await;
        let settled = begun.elapsed().saturating_sub(took);
        for webhook in self.tenant.webhooks().list(&ListParams::default()).await.unwrap() {
            let dropped = webhook.status.as_ref().map_or(0, |status| status.dropped);
            assert_eq!(dropped, 0, "{} dropped events", webhook.name_any());
        }
        format!(
            " while {changes} changes and {passed} instances from creation to deletion, in {took:.0?}, and {settled:.0?} until all had arrived; at receivers that say yes: {}; at one that fails at times: {flaky}",
            steady.join(", and ")
        )
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_the_operator_is_killed_every_event_arrives_and_what_is_logged_is_not_sent_again() {
    let kills = setting("STELLAGE_TEST_KILLS", 16);
    kill_the_operator(kills, setting("STELLAGE_TEST_CHANGES", 200), "all").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_successes_are_not_logged_every_event_arrives_however_often_the_operator_is_killed() {
    let kills = setting("STELLAGE_TEST_KILLS", 16) / 4;
    kill_the_operator(kills, setting("STELLAGE_TEST_CHANGES", 200) / 4, "failures").await;
}

async fn kill_the_operator(kills: usize, changes: usize, log: &str) {
    let plane = plane_with(ControlPlane::options()).await;
    let operator = start(&plane, log).await;
    let scene = Scene::new(&plane, &operator, "killed", log).await;
    let mut mortal = Mortal {
        plane: &plane,
        log,
        operator,
        kills: Vec::new(),
    };
    let begun = Instant::now();
    let workload = Workload::start(&scene.tenant, &scene.names, PAUSE).await;
    let (mut killed, mut done, mut done_at) = (0, 0, begun);
    while killed < kills || done < changes {
        if workload.count() > done {
            (done, done_at) = (workload.count(), Instant::now());
        }
        assert!(
            done_at.elapsed() < PATIENCE,
            "changes have stopped after {killed} kills"
        );
        if log == "all" && killed < kills && killed % LONG_LIFE_EVERY == LONG_LIFE_EVERY - 1 {
            scene.is_logged().await;
        }
        let alive = rand::rng().random_range(50..500);
        tokio::time::sleep(Duration::from_millis(alive)).await;
        if killed < kills {
            killed += 1;
            mortal.kill().await;
        }
    }
    // Kill it once more when nothing changes any more: the next one has only the state that the dead one left
    // behind.
    let done = workload.stop().await;
    mortal.kill().await;
    println!(
        "{} kills of the operator, log {log},{}",
        mortal.kills.len(),
        scene.close(done, begun, &mortal.kills).await
    );
    mortal.operator.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_often_api_server_and_etcd_are_killed_every_event_arrives() {
    let kills: usize = setting("STELLAGE_TEST_STORE_KILLS", 4);
    let plane = Arc::new(plane_with(ControlPlane::options()).await);
    // An operator that cannot renew its Lease stops leading.
    let mut arguments = arguments(&plane, "all");
    arguments.push(USUAL_LEASE.to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let operator = Operator::start(&plane, &arguments).await;
    let scene = Scene::new(&plane, &operator, "stored", "all").await;
    let operator = Supervised::new(&plane, operator, &arguments);
    let begun = Instant::now();
    let workload = Workload::start(&scene.tenant, &scene.names, Duration::from_millis(200)).await;
    let (mut killings, mut risen) = (Vec::new(), begun);
    let mut longest = Duration::ZERO;
    for round in 0..kills {
        // Sometimes kill them again before everything has recovered.
        if round % 4 != 3 {
            let done = workload.count();
            eventually(
                "changes to go on",
                async || workload.count(),
                |now| *now >= done + INSTANCES,
            )
            .await;
            longest = longest.max(risen.elapsed());
        }
        let alive = rand::rng().random_range(0..1500);
        tokio::time::sleep(Duration::from_millis(alive)).await;
        killings.push(Instant::now());
        // The API server, etcd, or both, in either order.
        if round % 3 != 1 {
            plane.kill_apiserver().unwrap();
        }
        if round % 3 != 0 {
            plane.kill_etcd().unwrap();
        }
        let dead = rand::rng().random_range(0..1500);
        tokio::time::sleep(Duration::from_millis(dead)).await;
        plane.start_etcd().await.unwrap();
        plane.start_apiserver().await.unwrap();
        risen = Instant::now();
    }
    let figures = scene.close(workload.stop().await, begun, &killings).await;
    let restarts = operator.stop().await;
    println!(
        "{kills} kills of API server, etcd or both, {restarts} restarts of the operator, at most {longest:.1?} until {INSTANCES} changes were done again{figures}"
    );
}
