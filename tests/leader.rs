//! Leader election against a real API server.

use std::time::{Duration, Instant};

use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};
use runtime::{
    Metrics,
    lease::{LEASE_NAME, LeaderElection, LeaseTimes},
};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{self, Change as _, LEASE_SECONDS, PATIENCE};

/// Renewed often, but not lost on a busy machine.
fn times() -> LeaseTimes {
    LeaseTimes {
        // Whole seconds, as in the Lease.
        duration: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(13),
        retry: Duration::from_millis(200),
        attempt: Duration::from_secs(6),
    }
}

struct Candidates {
    client: Client,
    namespace: String,
    leases: Api<Lease>,
}

impl Candidates {
    async fn new(namespace: &str) -> Self {
        let plane = support::shared().await.plane;
        support::kubectl(plane, &format!("create namespace {namespace}"), None).unwrap();
        let client = plane.client(Identity::Admin).await.unwrap();
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            client,
        }
    }

    fn candidate(&self, identity: &str) -> (LeaderElection, Metrics) {
        let metrics = Metrics::new();
        let election = LeaderElection::new(self.client.clone(), &self.namespace, identity, metrics.clone());
        (election.with_times(times()), metrics)
    }

    async fn holder(&self) -> Option<String> {
        self.leases.get(LEASE_NAME).await.unwrap().spec?.holder_identity
    }
}

#[tokio::test]
async fn the_lease_lasts_as_long_as_the_setting_says() {
    let plane = support::shared().await.plane;
    let leases: Api<Lease> = Api::namespaced(plane.client(Identity::Admin).await.unwrap(), "stellage-system");
    let seconds = async || {
        let lease = leases.get_opt(LEASE_NAME).await.unwrap();
        lease.and_then(|lease| lease.spec?.lease_duration_seconds)
    };
    support::eventually("the Lease", seconds, |seconds| *seconds == Some(LEASE_SECONDS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_lease_is_taken_over_at_once_and_only_one_leads_at_a_time() {
    let test = Candidates::new("leader-release").await;
    let never = CancellationToken::new();
    let ((first, first_metrics), (second, second_metrics)) =
        (test.candidate("first"), test.candidate("second"));
    let leads = timeout(PATIENCE, first.acquire(&never)).await.unwrap().unwrap();
    assert_eq!(
        (first_metrics.leader.get(), test.holder().await.as_deref()),
        (1, Some("first"))
    );

    // Held for longer than its duration: it was renewed, so no other replica gets it.
    assert!(
        timeout(times().duration.mul_f64(1.2), second.acquire(&never))
            .await
            .is_err()
    );
    assert!(!leads.lost.is_cancelled());
    assert_eq!(second_metrics.leader.get(), 0);

    leads.release().await;
    assert_eq!(first_metrics.leader.get(), 0);
    assert_eq!(
        test.holder().await.as_deref(),
        Some(""),
        "nobody waits for it to expire"
    );
    let leads = timeout(PATIENCE, second.acquire(&never)).await.unwrap().unwrap();
    assert_eq!(second_metrics.leader.get(), 1);
    leads.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_holder_is_succeeded_after_its_lease_and_shutdown_ends_the_wait() {
    let test = Candidates::new("leader-dead").await;
    let never = CancellationToken::new();
    // Acquired, but never renewed.
    let dead: Lease = serde_json::from_value(json!({
        "metadata": { "name": LEASE_NAME },
        "spec": { "holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z" },
    }))
    .unwrap();
    test.leases.create(&PostParams::default(), &dead).await.unwrap();
    let (candidate, _) = test.candidate("heir");
    let stop = CancellationToken::new();
    stop.cancel();
    assert!(candidate.acquire(&stop).await.is_none());

    let began = Instant::now();
    let leads = timeout(PATIENCE, candidate.acquire(&never))
        .await
        .unwrap()
        .unwrap();
    assert!(
        began.elapsed() >= times().duration,
        "an old renewTime by another clock proves nothing"
    );
    leads.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_lease_was_taken_or_deleted_knows_it_has_lost() {
    let test = Candidates::new("leader-lost").await;
    let never = CancellationToken::new();
    let (candidate, metrics) = test.candidate("holder");

    let leads = timeout(PATIENCE, candidate.acquire(&never))
        .await
        .unwrap()
        .unwrap();
    let steal = json!({ "spec": { "holderIdentity": "thief" } });
    test.leases.merge(LEASE_NAME, &steal).await;
    timeout(PATIENCE, leads.lost.cancelled()).await.unwrap();
    assert_eq!(metrics.leader.get(), 0);
    leads.release().await;
    assert_eq!(
        test.holder().await.as_deref(),
        Some("thief"),
        "what is not ours is not released"
    );

    test.leases
        .delete(LEASE_NAME, &DeleteParams::default())
        .await
        .unwrap();
    let leads = timeout(PATIENCE, candidate.acquire(&never))
        .await
        .unwrap()
        .unwrap();
    test.leases
        .delete(LEASE_NAME, &DeleteParams::default())
        .await
        .unwrap();
    timeout(PATIENCE, leads.lost.cancelled()).await.unwrap();

    // A label on the Lease changes its version, but not its holder.
    let leads = timeout(PATIENCE, candidate.acquire(&never))
        .await
        .unwrap()
        .unwrap();
    let label = json!({ "metadata": { "labels": { "any": "thing" } } });
    test.leases.merge(LEASE_NAME, &label).await;
    tokio::time::sleep(times().renew_deadline.mul_f64(1.2)).await;
    assert!(!leads.lost.is_cancelled());
    leads.release().await;
}
