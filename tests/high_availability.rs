//! What happens to leadership, and to the watches, when the API server cannot be reached or another replica takes over.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use parking_lot::Mutex;
use reqwest::{Method, StatusCode};
use serde_json::json;
use stellage::{resources::InstanceState, runtime::lease::LEASE_NAME};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    support::{
        Operator, Tenant, eventually,
        network::{Mode, Network},
        own_plane, receiver_arguments,
        receivers::{Answer, Receiver},
    },
    webhooks::body,
};

/// The shortest Lease there is, so that a takeover does not take long.
const SHORT_LEASE: &str = "--lease-duration-seconds=4";
/// One that a busy machine does not lose.
const LONG_LEASE: &str = "--lease-duration-seconds=60";

async fn leads(operator: &Operator, leads: bool) {
    let expected = f64::from(u8::from(leads));
    eventually(
        if leads { "it to lead" } else { "it to stop leading" },
        async || operator.metric("stellage_leader", "").await,
        |leader| (leader - expected).abs() < 0.5,
    )
    .await;
}

/// Starts or stops the instance `web`.
async fn power(tenant: &Tenant, state: &str) {
    let patch = json!({ "spec": { "powerState": state } });
    tenant
        .instances()
        .patch("web", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .unwrap();
}

async fn receiver() -> Receiver {
    Receiver::start(|_| Answer::ok()).await
}

/// Waits until this many events have arrived, each of them perhaps more than once. Fails if there are more in the end: then one
/// has arrived under two ids.
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

    // Somebody else takes the Lease, and gives it up later.
    let leases: Api<Lease> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "stellage-system");
    let hand_to = async |holder: &str| {
        let lease = json!({ "spec": { "holderIdentity": holder, "leaseDurationSeconds": 600 } });
        leases
            .patch(LEASE_NAME, &PatchParams::default(), &Patch::Merge(&lease))
            .await
            .unwrap();
    };
    hand_to("somebody-else").await;
    leads(&operator, false).await;
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
    power(&tenant, "Stopped").await;
    let after = tenant.wait_for_state("web", InstanceState::Stopped).await;
    let address = |instance: &stellage::resources::Instance| instance.status.clone().unwrap().ip_address;
    assert_eq!(address(&before), address(&after), "there is still one server");

    network.set(Mode::Open);
    expect_events(&tenant, &receiver, 2).await;
    // It follows again, and leads once the other one is gone.
    second.stop().await;
    leads(&first, true).await;
    power(&tenant, "Running").await;
    tenant.wait_for_state("web", InstanceState::Running).await;
    expect_events(&tenant, &receiver, 2).await;
    first.stop().await;
}

/// A load balancer of TCP connections, as a Service with its endpoints is one: those of the replicas that are ready.
struct Balancer {
    replicas: Arc<Mutex<Vec<Replica>>>,
    url: String,
}

struct Replica {
    address: String,
    metrics_url: String,
    is_ready: bool,
}

impl Balancer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let replicas: Arc<Mutex<Vec<Replica>>> = Arc::default();
        let endpoints = replicas.clone();
        tokio::spawn(async move {
            for turn in 0_usize.. {
                let (mut client, _) = listener.accept().await.unwrap();
                let next = || {
                    let replicas = endpoints.lock();
                    let ready: Vec<_> = replicas.iter().filter(|replica| replica.is_ready).collect();
                    let replica = ready.get(turn % ready.len().max(1))?;
                    Some(replica.address.clone())
                };
                let address = loop {
                    if let Some(address) = next() {
                        break address;
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                };
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(address).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                });
            }
        });
        let probed = replicas.clone();
        tokio::spawn(async move {
            loop {
                let urls: Vec<String> = probed
                    .lock()
                    .iter()
                    .map(|replica| replica.metrics_url.clone())
                    .collect();
                for url in urls {
                    let answer = reqwest::get(format!("{url}/readyz")).await;
                    let is_ready = answer.is_ok_and(|answer| answer.status() == StatusCode::OK);
                    let mut replicas = probed.lock();
                    if let Some(replica) = replicas.iter_mut().find(|replica| replica.metrics_url == url) {
                        replica.is_ready = is_ready;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self { replicas, url }
    }

    async fn add(&self, operator: &Operator) {
        self.replicas.lock().push(Replica {
            address: operator.url.strip_prefix("http://").unwrap().to_owned(),
            metrics_url: operator.metrics_url.clone(),
            is_ready: false,
        });
        let is_ready = async || {
            let replicas = self.replicas.lock();
            replicas
                .iter()
                .any(|replica| replica.metrics_url == operator.metrics_url && replica.is_ready)
        };
        eventually("the load balancer to find the replica", is_ready, |is_ready| {
            *is_ready
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_fails_while_the_replicas_of_the_rest_api_are_replaced_one_after_the_other() {
    let plane = own_plane().await;
    let mut controller = Operator::start(&plane, &["controller", "--provisioning-seconds=0"]).await;
    let balancer = Balancer::start().await;
    let mut old = Vec::new();
    for _ in 0..2 {
        // Long enough for the load balancer to notice, also on a busy machine.
        let replica = Operator::start(&plane, &["api", "--shutdown-delay-seconds=10"]).await;
        balancer.add(&replica).await;
        old.push(replica);
    }
    let tenant = Tenant::on(&plane, &old[0], "rolled").await;
    let stop = CancellationToken::new();
    let mut clients = JoinSet::new();
    for client in 0..4 {
        let (url, key, stop) = (balancer.url.clone(), tenant.key.clone(), stop.clone());
        clients.spawn(async move {
            // It keeps its connections, and repeats nothing.
            let http = reqwest::Client::builder().retry(reqwest::retry::never()).build().unwrap();
            let (mut answered, mut failed) = (0, Vec::new());
            for number in 0.. {
                if stop.is_cancelled() {
                    break;
                }
                let request = if number % 10 == 0 {
                    let name = format!("web-{client}-{number}");
                    let order = json!({ "name": name, "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
                    http.post(format!("{url}/v1/instances")).json(&order)
                } else {
                    http.get(format!("{url}/v1/instances"))
                };
                match request.bearer_auth(&key).send().await {
                    Ok(answer) if answer.status().is_success() => answered += 1,
                    Ok(answer) => failed.push(format!("{}: {}", answer.status(), answer.text().await.unwrap())),
                    Err(error) => failed.push(format!("{error:?}")),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (answered, failed)
        });
    }
    let mut new = Vec::new();
    for mut replica in old {
        let next = Operator::start(&plane, &["api"]).await;
        balancer.add(&next).await;
        replica.stop().await;
        let gone = replica.metrics_url.clone();
        balancer
            .replicas
            .lock()
            .retain(|replica| replica.metrics_url != gone);
        new.push(next);
    }
    stop.cancel();
    let results = clients.join_all().await;
    let answered: usize = results.iter().map(|(answered, _)| answered).sum();
    let failed: Vec<_> = results.into_iter().flat_map(|(_, failed)| failed).collect();
    assert!(
        failed.is_empty(),
        "{} of {answered} failed: {failed:#?}",
        failed.len()
    );
    assert!(answered > 40, "{answered} requests were answered");
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
