//! The order of startup, with an in-memory API server, and of shutdown.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use clap::Parser;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use super::{Candidate, Stores, after_load_balancers, rules, usage, used_regions};
use crate::settings::{CommonSettings, ControllerSettings};
use runtime::{
    Health, Metrics, ServerTime, SystemClock, shared_catalogue::SharedCatalogue, testing::answered_by,
    watch::Watches,
};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    common: CommonSettings,
    #[command(flatten)]
    controller: ControllerSettings,
}

/// An API server without any object, which lists the nodes once it may, and counts the requests for the Lease.
fn api_server(may_list_nodes: Arc<SetOnce<()>>, leases: Arc<AtomicUsize>) -> Client {
    answered_by(move |_, uri, _| {
        let (may_list_nodes, leases) = (may_list_nodes.clone(), leases.clone());
        async move {
            if uri.contains("/nodes") {
                may_list_nodes.wait().await;
            }
            if uri.contains("/leases") {
                leases.fetch_add(1, Ordering::Relaxed);
            }
            if uri.contains("/leases") || uri.contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let empty = json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "1" }, "items": [] });
            (200, empty)
        }
    })
}

/// The watches of a process with this client, and a candidate in it.
fn candidate(
    client: &Client,
    common: &CommonSettings,
    controller: ControllerSettings,
) -> (Watches, Candidate, Arc<SetOnce<()>>) {
    let watches = Watches {
        streams: client.clone(),
        client: client.clone(),
        health: Health::default(),
        metrics: Metrics::new(),
        shutdown: CancellationToken::new(),
    };
    let (rules, read) = rules(common, &watches, None);
    let candidate = Candidate::new(
        controller,
        common,
        SharedCatalogue::default(),
        usage(common, SharedCatalogue::default()),
        rules,
        &watches,
        Arc::new(SystemClock),
        ServerTime::default(),
    )
    .unwrap();
    (watches, candidate, read)
}

#[tokio::test]
async fn readiness_does_not_wait_for_the_watches_of_a_term() {
    let client = answered_by(|_, _, _| async {
        let forbidden = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403 });
        (403, forbidden)
    });
    let Flags { common, controller } = Flags::parse_from(["test"]);
    let (watches, candidate, _) = candidate(&client, &common, controller);
    let _end = watches.shutdown.clone().drop_guard();
    let term = watches.shutdown.child_token();
    let of_term = candidate.watches_of(&term);
    let quotas = of_term.spawn::<ResourceQuota>(Vec::new());
    assert_eq!(watches.health.not_ready(), Vec::<String>::new());
    term.cancel();
    assert!(quotas.wait_until_ready().await.is_err(), "they end with the term");
    assert_eq!(watches.health.not_ready(), Vec::<String>::new());
}

#[tokio::test]
async fn no_replica_leads_before_it_knows_the_addresses_of_the_cluster() {
    let (may_list_nodes, leases) = (Arc::new(SetOnce::new()), Arc::new(AtomicUsize::new(0)));
    let client = api_server(may_list_nodes.clone(), leases.clone());
    let Flags { common, controller } = Flags::parse_from(["test"]);
    let (watches, candidate, read) = candidate(&client, &common, controller);
    let _end = watches.shutdown.clone().drop_guard();
    let stores = Stores {
        accounts: watches.spawn(Vec::new()),
        webhooks: watches.spawn(Vec::new()),
        deliveries: watches.spawn(Vec::new()),
        instances: watches.spawn(Vec::new()),
        networks: watches.spawn(Vec::new()),
        backups: watches.spawn(Vec::new()),
        invoices: watches.spawn(Vec::new()),
    };
    let shown = stores.clone();
    let mut leading = pin!(candidate.stand(client, stores, read, CancellationToken::new()));
    let all_shown = async {
        shown.accounts.wait_until_ready().await.unwrap();
        shown.webhooks.wait_until_ready().await.unwrap();
        shown.deliveries.wait_until_ready().await.unwrap();
        shown.instances.wait_until_ready().await.unwrap();
        shown.networks.wait_until_ready().await.unwrap();
        shown.backups.wait_until_ready().await.unwrap();
        shown.invoices.wait_until_ready().await.unwrap();
        // Everything that is due happens within a few turns.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut leading => unreachable!("it ended"),
        () = all_shown => {}
    }
    assert_eq!(
        leases.load(Ordering::Relaxed),
        0,
        "nothing can be sent without the Lease"
    );

    may_list_nodes.set(()).unwrap();
    let asked = async {
        while leases.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut leading => unreachable!("it ended"),
        () = asked => {}
    }
}

#[tokio::test]
async fn after_the_signal_requests_are_accepted_for_a_while_by_a_process_that_is_no_longer_ready() {
    let delay = Duration::from_millis(50);
    let (shutdown, health) = (CancellationToken::new(), Health::default());
    let leaving = Arc::new(AtomicBool::new(false));
    let delayed = after_load_balancers(&shutdown, delay, &health, leaving.clone());
    assert!(health.not_ready().is_empty() && !leaving.load(Ordering::Relaxed));
    let asked_at = Instant::now();
    shutdown.cancel();
    delayed.cancelled().await;
    assert!(asked_at.elapsed() >= delay && leaving.load(Ordering::Relaxed));
    assert_eq!(
        health.not_ready(),
        ["shutdown: load balancers to stop sending requests"]
    );
    let at_once = after_load_balancers(&shutdown, Duration::ZERO, &Health::default(), leaving);
    assert!(at_once.is_cancelled());
}

#[test]
fn a_region_is_in_use_while_it_has_an_accepted_instance_a_real_backup_or_a_private_network() {
    fn objects<K: serde::de::DeserializeOwned>(all: Value) -> Vec<Arc<K>> {
        serde_json::from_value::<Vec<K>>(all)
            .unwrap()
            .into_iter()
            .map(Arc::new)
            .collect()
    }
    let instance = |region: &str, status: Value| {
        let spec = json!({ "region": region, "plan": "starter", "image": "debian-13" });
        json!({ "metadata": { "name": "web" }, "spec": spec, "status": status })
    };
    let backup = |region: &str, provider_state: Value| {
        let source = json!({
            "id": "i-1", "uid": "uid-1", "name": "web", "region": region, "plan": "starter", "image": "debian-13", "diskSizeGB": 40,
        });
        let status = json!({ "source": source, "providerState": provider_state });
        json!({ "metadata": { "name": "bkp" }, "spec": { "instance": "web" }, "status": status })
    };
    let network = |region: &str, status: Value| json!({ "metadata": { "name": "pn-a" }, "spec": { "region": region }, "status": status });
    let instances = json!([
        instance("fr-par-1", json!({ "state": "running" })),
        instance("xx-refused-1", json!({})),
    ]);
    let backups = json!([
        backup("de-fra-1", json!({ "provider": "kubevirt" })),
        backup("xx-simulated-1", json!({})),
    ]);
    let networks = json!([
        network("de-ber-1", json!({ "prefix": "10.128.4.0/24" })),
        network("xx-refused-2", json!({})),
    ]);
    let used = used_regions(&objects(instances), &objects(backups), &objects(networks));
    let used: Vec<&str> = used.iter().map(String::as_str).collect();
    assert_eq!(used, ["de-ber-1", "de-fra-1", "fr-par-1"]);
}
