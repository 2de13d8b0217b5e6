//! What happens to leadership, and to the watches, when the API server cannot be reached or another replica takes over.

use std::{
    collections::BTreeSet,
    process::Command,
    time::{Duration, Instant},
};

use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams},
};
use reqwest::{Method, StatusCode};
use resources::{ApiKey, Instance, InstanceState};
use runtime::lease::LEASE_NAME;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    support::{
        Change as _, Operator, Tenant, eventually,
        network::{Mode, Network},
        own_plane, receiver_arguments,
        receivers::{Answer, Receiver},
        rolling::{Answers, Balancer, Clients},
        run,
    },
    webhooks::body,
};

/// The shortest possible Lease, so that a takeover does not take long.
const SHORT_LEASE: &str = "--lease-duration-seconds=4";
/// A Lease that is renewed in time even on a busy machine: no leader notices too late that it no longer
/// leads.
const STEADY_LEASE: &str = "--lease-duration-seconds=12";
/// Its duration.
const STEADY: Duration = Duration::from_secs(12);
/// A Lease that is not lost even on a busy machine.
const LONG_LEASE: &str = "--lease-duration-seconds=60";
/// How much longer than the Lease it takes until the next replica leads: a second, plus what a busy machine needs. Less than the
/// long Lease.
const FAILOVER_MARGIN: Duration = Duration::from_secs(20);

async fn leads(operator: &Operator, leads: bool) {
    let expected = f64::from(u8::from(leads));
    eventually(
        if leads { "it to lead" } else { "it to stop leading" },
        async || operator.metric("stellage_leader", "").await,
        |leader| (leader - expected).abs() < 0.5,
    )
    .await;
}

async fn receiver() -> Receiver {
    Receiver::start(|_| Answer::ok()).await
}

/// Waits until this many events have arrived, each of them perhaps more than once. Fails if there are more in the end, because
/// one of them has then arrived under two ids.
async fn expect_events(tenant: &Tenant, receiver: &Receiver, count: usize) {
    let ids = async || {
        let received = receiver.received();
        let ids = received
            .iter()
            .map(|request| body(request)["id"].as_str().unwrap().to_owned());
        ids.collect::<BTreeSet<String>>()
    };
    eventually("all events", ids, |ids| ids.len() >= count).await;
    tenant.wait_for_clear_outboxes().await;
    assert_eq!(ids().await.len(), count, "{:?}", ids().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn losing_the_lease_ends_leading_not_the_process_and_rest_goes_on() {
    let plane = own_plane().await;
    let mut arguments = vec!["run", SHORT_LEASE, "--provisioning-seconds=0"];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "unseated").await;
    let receiver = receiver().await;
    tenant
        .webhook("hook", &receiver.url("/"), &["instance.created"])
        .await;
    tenant.apply("before", |_| {}).await;
    tenant.wait_for_state("before", InstanceState::Running).await;
    leads(&operator, true).await;

    // Another holder takes the Lease and gives it up later.
    let leases: Api<Lease> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "stellage-system");
    let hand_to = async |holder: &str| {
        let lease = json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 600 } });
        leases.merge(LEASE_NAME, &lease).await;
    };
    hand_to("somebody-else").await;
    leads(&operator, false).await;
    // The watches that only a leader runs are up to date afterwards.
    let answered = async |resource: &str| {
        let metric = "stellage_watch_last_response_timestamp_seconds";
        operator.metric(metric, resource).await
    };
    for resource in ["\"namespaces\"", "\"rolebindings\"", "\"resourcequotas\""] {
        eventually(resource, async || answered(resource).await, |last| *last < 0.5).await;
    }
    assert!(answered("\"instances\"").await > 0.5);
    let count = async |kind: &str| operator.metric("stellage_objects", kind).await;
    let of_leader = async || count("\"Namespace\"").await;
    eventually("no more Namespaces to be shown", of_leader, |count| *count < 0.5).await;
    assert!(count("\"Instance\"").await > 0.5);
    let order = json!({ "name": "meanwhile", "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    let answer = tenant.call(Method::POST, "/v1/instances", Some(&order)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text);
    let id = answer.json()["data"]["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/instances/{id}");
    let answer = tenant.call(Method::GET, &path, None).await;
    assert_eq!(answer.json()["data"]["status"], "provisioning");

    hand_to("").await;
    leads(&operator, true).await;
    eventually(
        "what was ordered meanwhile to run",
        async || tenant.call(Method::GET, &path, None).await.json()["data"]["status"].clone(),
        |status| *status == json!("running"),
    )
    .await;
    expect_events(&tenant, &receiver, 2).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_cut_off_from_the_api_server_stops_leading_before_another_one_starts_and_then_stands_by() {
    let plane = own_plane().await;
    let network = Network::to(&plane).await;
    let mut arguments = vec!["run", SHORT_LEASE, "--provisioning-seconds=0"];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut first = Operator::start_with(&plane, &arguments, &network.kubeconfig).await;
    leads(&first, true).await;
    let tenant = Tenant::on(&plane, &first, "cut-off").await;
    let receiver = receiver().await;
    tenant
        .webhook(
            "hook",
            &receiver.url("/"),
            &["instance.created", "instance.stopped"],
        )
        .await;
    tenant.apply("web", |_| {}).await;
    let before = tenant.wait_for_state("web", InstanceState::Running).await;
    arguments[1] = LONG_LEASE;
    let mut second = Operator::start(&plane, &arguments).await;

    network.set(Mode::Cut);
    leads(&first, false).await;
    leads(&second, true).await;
    tenant.power("web", "Stopped").await;
    let after = tenant.wait_for_state("web", InstanceState::Stopped).await;
    let address = |instance: &Instance| instance.status.clone().unwrap().ip_address;
    assert_eq!(address(&before), address(&after), "there is still one server");

    network.set(Mode::Open);
    expect_events(&tenant, &receiver, 2).await;
    // It becomes a follower again, and leads once the other one is gone.
    second.stop().await;
    leads(&first, true).await;
    tenant.power("web", "Running").await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    expect_events(&tenant, &receiver, 2).await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_the_api_that_is_cut_off_accepts_no_key_after_half_a_minute_and_says_so() {
    let plane = own_plane().await;
    let network = Network::to(&plane).await;
    let mut controller = Operator::start(&plane, &["controller", "--provisioning-seconds=0"]).await;
    let mut cut_off = Operator::start_with(&plane, &["api"], &network.kubeconfig).await;
    let tenant = Tenant::on(&plane, &cut_off, "revoked").await;
    let http = reqwest::Client::new();
    let list = async || {
        let url = format!("{}/v1/instances", cut_off.url);
        let answer = http.get(url).bearer_auth(&tenant.key).send().await.unwrap();
        answer.status().as_u16()
    };
    let ready = async || {
        let answer = reqwest::get(format!("{}/readyz", cut_off.metrics_url))
            .await
            .unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!((list().await, ready().await.0), (200, 200));

    network.set(Mode::Cut);
    let cut = Instant::now();
    let keys: Api<ApiKey> = Api::namespaced(tenant.kube.clone(), &tenant.namespace);
    for key in keys.list(&ListParams::default()).await.unwrap() {
        keys.delete(&key.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
    eventually("the key not to be accepted", list, |status| *status == 503).await;
    assert!(cut.elapsed() < Duration::from_secs(60), "{:?}", cut.elapsed());
    let (status, said) = ready().await;
    assert!(
        status == 503 && said.contains("no API key is accepted"),
        "{status}: {said}"
    );

    network.set(Mode::Open);
    eventually("the revocation to be seen", list, |status| *status == 401).await;
    eventually("readiness", ready, |(status, _)| *status == 200).await;
    cut_off.stop().await;
    controller.stop().await;
}

/// The replicas among these that lead. Each is given with the URL of its metrics.
async fn leaders(http: &reqwest::Client, replicas: &[(&'static str, String)]) -> BTreeSet<&'static str> {
    let mut leaders = BTreeSet::new();
    for (name, url) in replicas {
        // A replica that is gone does not answer.
        let Ok(answer) = http.get(url).send().await else {
            continue;
        };
        let page = answer.text().await.unwrap_or_default();
        leaders.extend(
            page.lines()
                .any(|line| line == "stellage_leader 1")
                .then_some(*name),
        );
    }
    leaders
}

/// Checks that no two replicas lead at the same time, and that the leader holds the Lease.
struct Referee {
    end: CancellationToken,
    looks: JoinHandle<u32>,
}

impl Referee {
    /// Checks repeatedly. Each replica's name is the prefix of its identity.
    async fn of(plane: &ControlPlane, replicas: &[(&'static str, &Operator)]) -> Self {
        let leases: Api<Lease> =
            Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "stellage-system");
        let replicas: Vec<_> = replicas
            .iter()
            .map(|(name, operator)| (*name, format!("{}/metrics", operator.metrics_url)))
            .collect();
        let http = reqwest::Client::new();
        let end = CancellationToken::new();
        let ended = end.clone();
        let looks = tokio::spawn(async move {
            let mut looks = 0;
            while !ended.is_cancelled() {
                // A replica that leads before and after also leads in between.
                let before = leaders(&http, &replicas).await;
                let lease = leases.get_opt(LEASE_NAME).await.unwrap();
                let after = leaders(&http, &replicas).await;
                let leading: Vec<_> = before.intersection(&after).collect();
                assert!(leading.len() <= 1, "{leading:?} lead at the same time");
                if let Some(leader) = leading.first() {
                    let holder = lease
                        .and_then(|lease| lease.spec?.holder_identity)
                        .unwrap_or_default();
                    assert!(
                        holder.starts_with(**leader),
                        "{leader} leads, and {holder} holds the Lease"
                    );
                }
                looks += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            looks
        });
        Self { end, looks }
    }

    /// Ends the checks. Fails the test if they found a violation, or observed nothing.
    async fn ends(self) {
        self.end.cancel();
        let looks = self.looks.await.unwrap();
        assert!(looks > 2, "it has looked {looks} times only");
    }
}

/// Waits until a replica leads. This may take as long as the last leader's Lease, or no time if that Lease was released, plus
/// what a busy machine needs.
async fn follows(operator: &Operator, lease: Duration) {
    let begun = Instant::now();
    leads(operator, true).await;
    let took = begun.elapsed();
    assert!(took < lease + FAILOVER_MARGIN, "it led only after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_no_time_do_two_replicas_lead_while_one_is_cut_off_one_is_stopped_and_one_is_killed_and_the_next_follows_in_time()
 {
    let plane = own_plane().await;
    let network = Network::to(&plane).await;
    let first = ["controller", "--identity=first", STEADY_LEASE];
    let first = Operator::start_with(&plane, &first, &network.kubeconfig).await;
    leads(&first, true).await;
    let mut second = Operator::start(&plane, &["controller", "--identity=second", LONG_LEASE]).await;
    let mut third = Operator::start(&plane, &["controller", "--identity=third", STEADY_LEASE]).await;
    let replicas = [("first", &first), ("second", &second), ("third", &third)];
    let referee = Referee::of(&plane, &replicas).await;

    // The first is cut off, so one of the others follows.
    network.set(Mode::Cut);
    let cut = Instant::now();
    let others =
        async || second.metric("stellage_leader", "").await + third.metric("stellage_leader", "").await;
    eventually("another one to lead", others, |leaders| *leaders > 0.5).await;
    assert!(cut.elapsed() < STEADY + FAILOVER_MARGIN, "{:?}", cut.elapsed());
    leads(&first, false).await;
    // Without the third replica, the second follows, whose Lease is long.
    third.stop().await;
    follows(&second, STEADY).await;
    network.set(Mode::Open);
    // When it is stopped, it hands over immediately.
    second.stop().await;
    follows(&first, Duration::ZERO).await;
    referee.ends().await;

    let mut last = Operator::start(&plane, &["controller", "--identity=last", STEADY_LEASE]).await;
    let referee = Referee::of(&plane, &[("first", &first), ("last", &last)]).await;
    run(
        Command::new("kill").args(["-KILL", &first.pid().to_string()]),
        None,
    )
    .unwrap();
    follows(&last, STEADY).await;
    eventually("the first to be gone", async || first.ended(), Option::is_some).await;
    referee.ends().await;
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_frozen_in_the_middle_of_an_operation_for_longer_than_its_lease_changes_nothing_when_it_is_woken()
 {
    let plane = own_plane().await;
    let network = Network::to(&plane).await;
    // Its Lease outlasts the provisioning, during which it cannot be renewed, and expires before the API server gives up a
    // connection that has not answered pings for 45 seconds.
    let mut arguments = vec!["run", "--lease-duration-seconds=20", "--provisioning-seconds=4"];
    let receivers = receiver_arguments(&plane);
    arguments.extend(receivers.iter().map(String::as_str));
    let mut first = Operator::start_with(&plane, &arguments, &network.kubeconfig).await;
    leads(&first, true).await;
    let tenant = Tenant::on(&plane, &first, "frozen").await;
    let receiver = receiver().await;
    let events = ["instance.created", "instance.started", "instance.stopped"];
    tenant.webhook("hook", &receiver.url("/"), &events).await;
    arguments[1] = LONG_LEASE;
    let mut second = Operator::start(&plane, &arguments).await;

    // It has decided that the server is running, and is frozen before the API server learns of it.
    tenant.apply("web", |_| {}).await;
    let before = tenant.wait_for_state("web", InstanceState::Provisioning).await;
    network.set(Mode::Held);
    // Two seconds after the end of the provisioning, to allow for a busy machine.
    let sent = Instant::now() + Duration::from_secs(6);
    let in_flight = async || {
        let depth = first.metric("stellage_reconcile_queue_depth", "Instance").await;
        depth > 0.5 && Instant::now() > sent
    };
    eventually("a reconcile that waits for the API server", in_flight, |waits| {
        *waits
    })
    .await;
    first.halt();
    leads(&second, true).await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    network.set(Mode::Open);

    first.resume();
    leads(&first, false).await;
    tenant.power("web", "Stopped").await;
    let after = tenant.wait_for_state("web", InstanceState::Stopped).await;
    expect_events(&tenant, &receiver, events.len()).await;
    let server = |instance: &Instance| {
        let status = instance.status.clone().unwrap();
        (status.id, status.ip_address, status.ipv6_address)
    };
    assert_eq!(server(&before), server(&after), "there is still one server");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_replicas_of_the_rest_api_are_replaced_one_after_the_other() {
    let plane = own_plane().await;
    let mut controller = Operator::start(&plane, &["controller", "--provisioning-seconds=0"]).await;
    let balancer = Balancer::start().await;
    let mut old = Vec::new();
    for _ in 0..2 {
        // Long enough for the load balancer to notice, even on a busy machine.
        let replica = Operator::start(&plane, &["api", "--shutdown-delay-seconds=10"]).await;
        balancer.add(&replica.url, &replica.metrics_url).await;
        old.push(replica);
    }
    let tenant = Tenant::on(&plane, &old[0], "rolled").await;
    let clients = Clients::start(&balancer.url, &tenant.key);
    let mut new = Vec::new();
    for mut replica in old {
        let next = Operator::start(&plane, &["api"]).await;
        balancer.add(&next.url, &next.metrics_url).await;
        replica.stop().await;
        balancer.remove(&replica.metrics_url);
        new.push(next);
    }
    let Answers { succeeded, failed } = clients.stop().await;
    assert!(
        failed.is_empty(),
        "{} failed, {succeeded} did not: {failed:#?}",
        failed.len()
    );
    assert!(succeeded > 40, "{succeeded} requests were answered");
    for mut replica in new {
        replica.stop().await;
    }
    controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_peer_is_gone_is_opened_again_within_seconds() {
    let plane = own_plane().await;
    let network = Network::to(&plane).await;
    let mut controller = Operator::start(&plane, &["controller", "--provisioning-seconds=0"]).await;
    let mut api = Operator::start_with(&plane, &["api"], &network.kubeconfig).await;
    let tenant = Tenant::on(&plane, &api, "half-open").await;
    tenant.apply("before", |_| {}).await;
    let seen = async || {
        let answer = tenant.call(Method::GET, "/v1/instances", None).await;
        answer.json()["data"].as_array().map_or(0, Vec::len)
    };
    eventually("the first one in the list", seen, |count| *count == 1).await;

    network.set(Mode::OldOnesSilent);
    tenant.apply("after", |_| {}).await;
    // The API server itself would end the watch after 200 seconds.
    let seen = tokio::time::timeout(
        Duration::from_secs(60),
        eventually("the second one in the list", seen, |count| *count == 2),
    );
    seen.await.expect("the watch to be opened again");
    api.stop().await;
    controller.stop().await;
}
