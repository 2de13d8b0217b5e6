//! Several regions in one installation, each with an API server of its own.

use kube::{Api, ResourceExt as _};
use reqwest::{Method, StatusCode};
use resources::{
    InstanceState::{Error, Running, Stopped},
    PrivateNetwork,
};
use serde_json::json;

use super::installation::Case;
use crate::support::kubevirt::entry::{REGION, entry, region_rights, region_rights_with, write_catalogue};
use crate::support::{
    Change as _, Operator, Tenant, eventually,
    kubevirt::{self, kinds, puppet::End},
    network::{Mode, Network},
    own_plane,
    refusals::refusals_in_region,
};
use control_plane::Identity;

const SIMULATED: &str = "nl-ams-1";
/// The other region with KubeVirt.
const STEADY: &str = "fr-par-2";
const PREFIX: &str = "mixed-";
/// That of the other region, whose cluster later is that of both.
const STEADY_PREFIX: &str = "steady-";
/// Instances in each of the regions that can be reached, each time.
const EACH: usize = 3;

impl Case {
    /// Orders instances in both regions that can be reached, and waits until they run.
    async fn others_go_on(&self) {
        let mut ids = Vec::new();
        for region in [SIMULATED, STEADY] {
            for _ in 0..EACH {
                ids.push(self.create(json!({ "region": region })).await);
            }
        }
        for id in &ids {
            self.settles(id, Running).await;
        }
        for id in [&ids[0], &ids[EACH]] {
            self.act(id, "reboot", None, Running).await;
        }
    }

    /// Has the controller look at an instance, as any change of it does.
    async fn touch(&self, id: &str, how: &str) {
        let label = json!({ "metadata": { "labels": { "test/touched": how } } });
        self.tenant.merge(id, &label).await;
    }

    /// docs/runbooks.md, "The region is gone", with another cluster for it, in which nothing is.
    async fn comes_back_empty(&self, rebuilt: &str, deleted: &str, network: &str) {
        for id in [rebuilt, deleted] {
            self.settles(id, Error).await;
            self.shows_reason(id, "server_missing").await;
        }
        self.act(
            rebuilt,
            "rebuild",
            Some(&json!({ "image": "debian-13" })),
            Running,
        )
        .await;
        self.delete_server(deleted).await;
        let path = format!("/v1/instances/{deleted}");
        let status = async || self.tenant.call(Method::GET, &path, None).await.status;
        eventually("it to be gone", status, |status| *status == StatusCode::NOT_FOUND).await;
        // At once, rather than within ten minutes.
        let networks = Api::<PrivateNetwork>::namespaced(self.tenant.kube.clone(), &self.tenant.namespace);
        let touched = json!({ "metadata": { "labels": { "test/touched": "1" } } });
        networks.merge(network, &touched).await;
        let attachments = self.region.api(&kinds::NETWORK_ATTACHMENT, &self.namespace).await;
        let made = async || attachments.get_opt(network).await.unwrap();
        eventually("the network to be made anew", made, Option::is_some).await;
    }
}

/// Also row 38 of the failure matrix: a watch that is silent without having ended.
#[tokio::test]
async fn a_region_that_is_cut_off_holds_up_no_other_costs_no_writes_while_idle_and_converges_on_return_and_in_another_cluster()
 {
    let steady = kubevirt::shared().await;
    let (lost, plane) = kubevirt::own_with_plane().await;
    let with_networks = json!({ "privateNetworks": "kubeOvn" });
    let account = region_rights_with(&lost, "mixed", PREFIX, &with_networks).await;
    let network = Network::through(&lost.plane, &account).await;
    let account = region_rights(&steady, "steady", STEADY_PREFIX).await;
    let mut regions = [
        json!(SIMULATED),
        entry(REGION, &network.kubeconfig, "mixed", PREFIX),
        entry(STEADY, &account, "steady", STEADY_PREFIX),
    ];
    regions[1]["kubevirt"]["network"]["privateNetworks"] = json!("kubeOvn");
    let catalogue = format!(
        "--catalogue={}",
        write_catalogue(&regions, plane.folder()).display()
    );
    let arguments = ["run", "--provisioning-seconds=0.5", &catalogue];
    let mut operator = Operator::start(&plane, &arguments).await;
    let tenant = Tenant::on(&plane, &operator, "mixed").await;
    let mut case = Case {
        namespace: format!("{PREFIX}mixed"),
        region: lost,
        tenant,
    };
    let mut ids = Vec::new();
    for name in ["quiet", "off", "ends", "busy"] {
        ids.push(case.create(json!({ "name": name })).await);
    }
    let [quiet, off, ends, busy] = &ids[..] else {
        unreachable!()
    };
    for id in &ids {
        case.settles(id, Running).await;
    }
    case.act(off, "stop", None, Stopped).await;
    let idle = [quiet, off, ends];
    for id in [quiet, ends] {
        case.is_sealed(id).await;
    }
    case.tenant.wait_for_clear_outboxes().await;
    let (run, rebooted) = (case.run(quiet).await, case.run(busy).await);
    let is_up = async |operator: &Operator| operator.metric("stellage_region_up", REGION).await > 0.5;
    eventually("the metric", async || is_up(&operator).await, |up| *up).await;

    network.set(Mode::Cut);
    let writes = || -> Vec<String> {
        let requests = plane.requests().unwrap().into_iter();
        let written = requests.filter(|request| {
            request.user == Identity::Operator.user() && request.is_write() && request.resource == "instances"
        });
        written.map(|request| request.name).collect()
    };
    let before = writes().len();
    // Nobody can see that before the region is back.
    case.region
        .puppet
        .order(&case.namespace, ends, |guest| guest.ends = Some(End::ShutsDown));
    for id in idle {
        case.touch(id, "at-first").await;
    }
    eventually("the loss to be seen", async || is_up(&operator).await, |up| !up).await;
    case.ask(busy, "reboot", None).await;
    let late = &case.create(json!({ "name": "late" })).await;
    for id in [busy, late] {
        case.shows_reason(id, "region_unreachable").await;
    }
    for id in idle {
        case.touch(id, "then").await;
    }
    case.others_go_on().await;
    // One that has never seen the region looks at all instances, too.
    operator.die(&plane).await;
    operator = Operator::start(&plane, &arguments).await;
    case.tenant.url.clone_from(&operator.url);
    case.others_go_on().await;
    for id in [busy, late] {
        case.shows_reason(id, "region_unreachable").await;
    }
    assert!(!is_up(&operator).await);
    let written = &writes()[before..];
    let of = |ids: &[&String]| written.iter().filter(|name| ids.contains(name)).count();
    assert_eq!(of(&idle), 0, "idle instances cost writes: {written:?}");
    assert!(of(&[busy]) <= 4, "{written:?}");
    for (id, state) in [(quiet, Running), (off, Stopped), (ends, Running)] {
        case.settles(id, state).await;
    }

    network.set(Mode::Open);
    case.settles(busy, Running).await;
    assert_ne!(case.run(busy).await, rebooted);
    case.settles(late, Running).await;
    case.settles(ends, Stopped).await;
    case.tells(
        ends,
        &["instance.created", "instance.started", "instance.stopped"],
    )
    .await;
    assert_eq!(case.run(quiet).await, run);
    eventually("the metric", async || is_up(&operator).await, |up| *up).await;

    network.set(Mode::OldOnesSilent);
    case.region
        .puppet
        .order(&case.namespace, quiet, |guest| guest.ends = Some(End::ShutsDown));
    case.settles(quiet, Stopped).await;
    case.act(off, "start", None, Running).await;
    let private = case.order_network(REGION).await;
    case.is_ready(&private).await;
    let requests = case.region.plane.requests().unwrap();
    let refused = refusals_in_region(&requests, &[]).unexcused;
    assert!(refused.is_empty(), "{refused:#?}");

    // The region is another cluster from now on.
    let account = region_rights_with(&steady, "mixed", PREFIX, &with_networks).await;
    network.set(Mode::Cut);
    std::fs::copy(&account, &network.kubeconfig).unwrap();
    let _lost = std::mem::replace(&mut case.region, steady);
    case.comes_back_empty(off, busy, &private).await;
    operator.stop().await;
}

/// Nothing is concluded from a cluster that has never shown a list: its API server answers 404 for every server.
#[tokio::test]
async fn row_60_without_kubevirts_kinds_a_region_is_unreachable_and_its_servers_are_not_missing() {
    let plane = own_plane().await;
    let regions = [
        json!(SIMULATED),
        entry(REGION, &plane.kubeconfig(Identity::Admin), "bare", PREFIX),
    ];
    let catalogue = format!(
        "--catalogue={}",
        write_catalogue(&regions, plane.folder()).display()
    );
    let arguments = ["run", &catalogue];
    let mut operator = Operator::start(&plane, &arguments).await;
    let mut tenant = Tenant::on(&plane, &operator, "bare").await;
    operator.die(&plane).await;
    // One that was made when KubeVirt was there.
    let made = tenant
        .apply("made", |instance| REGION.clone_into(&mut instance.spec.region))
        .await;
    let status = json!({ "status": {
        "state": "running", "power": "Running", "powerState": "Running", "announcedPower": "Running",
        "plan": "starter", "image": "debian-13", "diskSizeGB": 40, "eventSequence": 2,
        "provisionedAt": made.creation_timestamp(), "observedGeneration": 1,
        "providerState": { "provider": "kubevirt", "vmi": "a-run", "disk": "a-disk", "sealed": "a-disk" },
    } });
    // Nobody else may write it.
    let client = plane.client(Identity::Operator).await.unwrap();
    kube::Api::<resources::Instance>::namespaced(client, &tenant.namespace)
        .merge_status("made", &status)
        .await;
    operator = Operator::start(&plane, &arguments).await;
    tenant.url.clone_from(&operator.url);
    let is_seen = |instance: Option<&resources::Instance>| {
        instance.is_some_and(|instance| !instance.finalizers().is_empty())
    };
    let seen = tenant.wait("made", "it to be seen", is_seen).await;
    assert_eq!(seen.status.unwrap().state, Some(Running));
    let reboot = json!({ "spec": { "rebootRequestedAt": "2026-11-27T10:00:00Z" } });
    tenant.merge("made", &reboot).await;
    let waits = |instance: Option<&resources::Instance>| {
        let status = instance.and_then(|instance| instance.status.as_ref());
        status.is_some_and(|status| {
            let ready = resources::conditions::find(&status.conditions, "Ready");
            ready.is_some_and(|ready| ready.reason == "RegionUnreachable")
        })
    };
    let waiting = tenant.wait("made", "the operation to wait", waits).await;
    assert_eq!(
        waiting.status.unwrap().power,
        Some(resources::PowerState::Running)
    );
    operator.stop().await;
}
