//! What KubeVirt itself does, without Stellage: the rules, and the traps, that the provider is built on.

use std::time::Duration;

use k8s_openapi::api::{
    core::v1::{PersistentVolumeClaim, Pod, ServiceAccount},
    rbac::v1::{Role, RoleBinding},
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::wait::{Condition, await_condition},
};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    Change as _, PATIENCE, eventually,
    kubevirt::{
        self, Region, kinds,
        puppet::{Boot, End, Import},
    },
};
use control_plane::Identity;

const VM: &str = "vm";
const DISK: &str = "disk";

/// A namespace with one virtual machine and its disk.
struct Case {
    kubevirt: Region,
    namespace: &'static str,
    vms: Api<DynamicObject>,
    runs: Api<DynamicObject>,
}

impl Case {
    async fn new(namespace: &'static str) -> Self {
        Self::on(kubevirt::shared().await, namespace).await
    }

    async fn on(kubevirt: Region, namespace: &'static str) -> Self {
        kubevirt.namespace(namespace).await;
        let vms = kubevirt.api(&kinds::VM, namespace).await;
        let runs = kubevirt.api(&kinds::RUN, namespace).await;
        Self {
            kubevirt,
            namespace,
            vms,
            runs,
        }
    }

    /// Creates disk and virtual machine, switched on.
    async fn create(&self) {
        self.create_with(&vm()).await;
    }

    async fn create_with(&self, vm: &DynamicObject) {
        let disk = object(json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": DISK, "labels": {"test": "label"}},
            "spec": {
                "source": {"http": {"url": "https://images.example.com/debian.qcow2"}},
                "storage": {"resources": {"requests": {"storage": "1Gi"}}},
            },
        }));
        let params = PostParams::default();
        let disks = self.kubevirt.api(&kinds::DISK, self.namespace).await;
        disks.create(&params, &disk).await.unwrap();
        self.vms.create(&params, vm).await.unwrap();
    }

    /// Creates them, and waits until the guest runs.
    async fn running(namespace: &'static str) -> Self {
        let case = Self::new(namespace).await;
        case.create().await;
        case.run("Running").await;
        case
    }

    async fn vm(&self, what: &str, condition: impl Condition<DynamicObject>) -> DynamicObject {
        wait(&self.vms, what, condition).await.unwrap()
    }

    async fn status(&self, printable: &str) -> DynamicObject {
        let is = |vm: &DynamicObject| vm.data["status"]["printableStatus"] == printable;
        self.vm(printable, move |vm: Option<&DynamicObject>| vm.is_some_and(is))
            .await
    }

    /// Waits for a phase of the run.
    async fn run(&self, phase: &str) -> DynamicObject {
        let is = |run: &DynamicObject| run.data["status"]["phase"] == phase;
        let found = wait(&self.runs, phase, move |run: Option<&DynamicObject>| {
            run.is_some_and(is)
        });
        found.await.unwrap()
    }

    async fn no_run(&self) {
        wait(&self.runs, "no run", |run: Option<&DynamicObject>| run.is_none()).await;
        let is_off = |vm: &DynamicObject| vm.data["status"]["created"] != true;
        self.vm("off", move |vm: Option<&DynamicObject>| vm.is_some_and(is_off))
            .await;
    }

    async fn set_strategy(&self, strategy: &str) {
        let change = json!({"spec": {"runStrategy": strategy}});
        self.vms.merge(VM, &change).await;
    }

    async fn stored_strategy(&self, strategy: &str) {
        let is = |vm: &DynamicObject| vm.data["status"]["runStrategy"] == strategy;
        self.vm(strategy, move |vm: Option<&DynamicObject>| vm.is_some_and(is))
            .await;
    }

    /// Adds a volume, and returns the machine when virt-controller lists it: so it has dealt with all that was before, too.
    async fn settled(&self) -> DynamicObject {
        let add = serde_json::from_value(json!([
            {"op": "add", "path": "/spec/template/spec/domain/devices/disks/-", "value": {"name": "settled", "disk": {}}},
            {"op": "add", "path": "/spec/template/spec/volumes/-",
             "value": {"name": "settled", "emptyDisk": {"capacity": "1Mi"}}},
        ]));
        let add = Patch::<()>::Json(add.unwrap());
        self.vms.patch(VM, &PatchParams::default(), &add).await.unwrap();
        let is_listed = |vm: &DynamicObject| {
            let volumes = vm.data["status"]["volumeSnapshotStatuses"].as_array();
            volumes
                .into_iter()
                .flatten()
                .any(|volume| volume["name"] == "settled")
        };
        self.vm("settled", move |vm: Option<&DynamicObject>| {
            vm.is_some_and(is_listed)
        })
        .await
    }

    /// It is off, and stays so although it should be on.
    async fn assert_stays_off(&self) {
        self.settled().await;
        // After it was refused a run, virt-controller may say `Starting` until it looks again.
        let is_off = |vm: &DynamicObject| vm.data["status"]["printableStatus"] == "Stopped";
        let vm = self
            .vm("Stopped", move |vm: Option<&DynamicObject>| {
                vm.is_some_and(is_off)
            })
            .await;
        assert_eq!(vm.data["spec"]["runStrategy"], "RerunOnFailure", "{vm:#?}");
        assert!(self.runs.get_opt(VM).await.unwrap().is_none());
    }

    async fn stop_at_once(&self) -> StatusCode {
        let client = self.kubevirt.plane.client(Identity::Admin).await.unwrap();
        self.stop_at_once_as(client).await
    }

    async fn stop_at_once_as(&self, client: Client) -> StatusCode {
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachines/{VM}/stop",
            self.namespace
        );
        let request = http::Request::put(path)
            .header("content-type", "application/json")
            .body(Body::from(json!({"gracePeriod": 0}).to_string().into_bytes()))
            .unwrap();
        client.send(request).await.unwrap().status()
    }

    async fn pods(&self) -> Api<Pod> {
        Api::namespaced(
            self.kubevirt.plane.client(Identity::Admin).await.unwrap(),
            self.namespace,
        )
    }
}

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn vm() -> DynamicObject {
    object(json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": VM},
        "spec": {
            "runStrategy": "RerunOnFailure",
            "template": {"spec": {
                "terminationGracePeriodSeconds": 120,
                "evictionStrategy": "LiveMigrateIfPossible",
                "domain": {
                    "cpu": {"sockets": 1, "cores": 1, "threads": 1, "maxSockets": 1},
                    "memory": {"guest": "2Gi", "maxGuest": "2Gi"},
                    "devices": {
                        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                        "interfaces": [{"name": "public", "masquerade": {}, "macAddress": "02:5a:8e:11:c0:27"}],
                    },
                },
                "networks": [{"name": "public", "pod": {}}],
                "volumes": [{"name": "root", "dataVolume": {"name": DISK}}],
            }},
        },
    }))
}

async fn wait(
    api: &Api<DynamicObject>,
    what: &str,
    condition: impl Condition<DynamicObject>,
) -> Option<DynamicObject> {
    let Ok(found) = timeout(PATIENCE, await_condition(api.clone(), VM, condition)).await else {
        panic!("waited in vain for {what}: {:#?}", api.get_opt(VM).await);
    };
    found.unwrap()
}

fn condition<'a>(object: &'a DynamicObject, kind: &str) -> &'a Value {
    let conditions = object.data["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|it| it["type"] == kind);
    found.unwrap_or(&Value::Null)
}

fn has(kind: &'static str, reason: &'static str) -> impl Condition<DynamicObject> {
    move |object: Option<&DynamicObject>| object.is_some_and(|it| condition(it, kind)["reason"] == reason)
}

#[tokio::test]
async fn a_virtual_machine_runs_stops_and_goes_with_everything_that_is_its_own() {
    let case = Case::running("kv-life").await;
    let run = case.run("Running").await;
    let vm = case.status("Running").await;
    assert_eq!(run.owner_references()[0].uid, vm.uid().unwrap());
    assert_eq!(run.data["status"]["interfaces"][0]["mac"], "02:5a:8e:11:c0:27");
    let client = case.kubevirt.plane.client(Identity::Admin).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client, case.namespace);
    assert_eq!(claims.get(DISK).await.unwrap().labels()["test"], "label");
    case.set_strategy("Halted").await;
    case.no_run().await;
    case.status("Stopped").await;
    case.stored_strategy("Halted").await;
    case.set_strategy("RerunOnFailure").await;
    let second = case.run("Running").await;
    assert_ne!(second.uid(), run.uid());
    case.vms.delete(VM, &DeleteParams::default()).await.unwrap();
    wait(&case.vms, "no machine", |vm: Option<&DynamicObject>| vm.is_none()).await;
    let pods = case.pods().await;
    let left = async || pods.list(&ListParams::default()).await.unwrap().items.len();
    eventually("the Pods to go", left, |left| *left == 0).await;
    let disks = case.kubevirt.api(&kinds::DISK, case.namespace).await;
    disks.delete(DISK, &DeleteParams::default()).await.unwrap();
    let left = async || claims.get_opt(DISK).await.unwrap().is_some();
    eventually("the claim to go", left, |left| !left).await;
}

#[tokio::test]
async fn a_guest_that_crashes_is_restarted_and_one_that_shuts_itself_down_stays_off() {
    let case = Case::running("kv-ends").await;
    let first = case.run("Running").await.uid();
    let order = |end| {
        let puppet = &case.kubevirt.puppet;
        puppet.order(case.namespace, VM, |guest| guest.ends = Some(end));
    };
    order(End::Crashes);
    let is_another = |run: &DynamicObject| run.uid() != first && run.data["status"]["phase"] == "Running";
    let another = move |run: Option<&DynamicObject>| run.is_some_and(is_another);
    wait(&case.runs, "another run", another).await;
    order(End::ShutsDown);
    case.no_run().await;
    case.assert_stays_off().await;
}

/// Trap T1: a stop while KubeVirt has noted that it will restart a guest that crashed turns into `Always`.
#[tokio::test]
async fn halted_becomes_always_while_a_start_is_requested_unless_the_request_is_taken_back_first() {
    let case = Case::new("kv-t1").await;
    let puppet = &case.kubevirt.puppet;
    puppet.order(case.namespace, VM, |guest| guest.boot = Boot::Crashes);
    case.create().await;
    let waits_to_restart = |vm: &DynamicObject| {
        let status = &vm.data["status"];
        status["stateChangeRequests"][0]["action"] == "Start"
            && status["created"] != true
            && status["printableStatus"] == "CrashLoopBackOff"
    };
    let waiting = move |vm: Option<&DynamicObject>| vm.is_some_and(waits_to_restart);
    case.vm("a noted start", waiting).await;
    case.set_strategy("Halted").await;
    let is_always = |vm: &DynamicObject| vm.data["spec"]["runStrategy"] == "Always";
    case.vm("Always", move |vm: Option<&DynamicObject>| {
        vm.is_some_and(is_always)
    })
    .await;
    case.set_strategy("RerunOnFailure").await;
    case.vm("a noted start", waiting).await;
    let withdraw = serde_json::from_value(json!([
        {"op": "test", "path": "/status/stateChangeRequests/0/action", "value": "Start"},
        {"op": "remove", "path": "/status/stateChangeRequests"},
    ]));
    let withdraw = Patch::<()>::Json(withdraw.unwrap());
    case.vms
        .patch_status(VM, &PatchParams::default(), &withdraw)
        .await
        .unwrap();
    case.set_strategy("Halted").await;
    case.stored_strategy("Halted").await;
    let vm = case.settled().await;
    assert_eq!(vm.data["spec"]["runStrategy"], "Halted", "{vm:#?}");
    case.no_run().await;
}

/// Trap T2: a start whose run was refused once never comes.
#[tokio::test]
async fn a_start_that_was_refused_once_is_lost_until_the_machine_was_halted_again() {
    let case = Case::running("kv-t2").await;
    case.set_strategy("Halted").await;
    case.no_run().await;
    case.stored_strategy("Halted").await;
    case.kubevirt.refuse_runs(case.namespace, true).await;
    case.set_strategy("RerunOnFailure").await;
    case.stored_strategy("RerunOnFailure").await;
    case.kubevirt.refuse_runs(case.namespace, false).await;
    case.assert_stays_off().await;
    case.set_strategy("Halted").await;
    case.stored_strategy("Halted").await;
    case.set_strategy("RerunOnFailure").await;
    case.run("Running").await;
}

/// Trap T4: a drain looks like a guest that shut itself down, except for a moment.
#[tokio::test]
async fn a_guest_whose_pod_is_evicted_stays_off_and_only_its_run_has_told_why() {
    let case = Case::running("kv-t4").await;
    let takes = Duration::from_secs(3);
    let puppet = &case.kubevirt.puppet;
    puppet.order(case.namespace, VM, |guest| guest.shutdown_takes = takes);
    let pods = case.pods().await;
    let launcher = pods.list(&ListParams::default()).await.unwrap().items.remove(0);
    let terminating = wait(&case.runs, "PodTerminating", has("Ready", "PodTerminating"));
    let evicted = async {
        let (name, params) = (launcher.name_any(), EvictParams::default());
        pods.evict(&name, &params).await.unwrap();
    };
    let (run, ()) = tokio::join!(terminating, evicted);
    assert_eq!(run.unwrap().data["status"]["phase"], "Running");
    case.no_run().await;
    case.assert_stays_off().await;
}

/// Row 21 of the failure matrix.
#[tokio::test]
async fn the_eviction_of_a_server_that_must_migrate_and_cannot_is_refused_and_it_runs_on() {
    let case = Case::new("kv-row21").await;
    let mut vm = vm();
    vm.data["spec"]["template"]["spec"]["evictionStrategy"] = "LiveMigrate".into();
    case.create_with(&vm).await;
    let run = case.run("Running").await.uid();
    let pods = case.pods().await;
    let launcher = pods.list(&ListParams::default()).await.unwrap().items.remove(0);
    let mut config = case.kubevirt.plane.config(Identity::Admin).await.unwrap();
    // It would ask again for minutes.
    config.default_retry = false;
    let impatient = Api::<Pod>::namespaced(Client::try_from(config).unwrap(), case.namespace);
    let params = EvictParams::default();
    let refused = impatient.evict(&launcher.name_any(), &params).await;
    let Err(kube::Error::Api(status)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(status.code, 429, "{status:?}");
    assert_eq!(case.run("Running").await.uid(), run);
    assert!(
        pods.get(&launcher.name_any())
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_none()
    );
}

#[tokio::test]
async fn a_soft_stop_of_a_deaf_guest_turns_hard_by_a_second_request_and_a_third_is_refused() {
    let case = Case::running("kv-stop").await;
    let puppet = &case.kubevirt.puppet;
    puppet.order(case.namespace, VM, |guest| guest.is_deaf = true);
    case.set_strategy("Halted").await;
    let is_leaving = |run: &DynamicObject| run.metadata.deletion_timestamp.is_some();
    let leaving = move |run: Option<&DynamicObject>| run.is_some_and(is_leaving);
    wait(&case.runs, "the soft stop", leaving).await;
    case.status("Stopping").await;
    assert_eq!(case.stop_at_once().await, StatusCode::ACCEPTED);
    case.no_run().await;
    case.stored_strategy("Halted").await;
    assert_eq!(case.stop_at_once().await, StatusCode::CONFLICT);
}

#[tokio::test]
async fn the_aggregated_api_asks_for_the_rights_of_its_caller() {
    let case = Case::running("kv-rights").await;
    let admin = case.kubevirt.plane.client(Identity::Admin).await.unwrap();
    let params = PostParams::default();
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "stellage"}})).unwrap();
    let accounts = Api::namespaced(admin.clone(), case.namespace);
    accounts.create(&params, &account).await.unwrap();
    let kubeconfig = case.kubevirt.kubeconfig(case.namespace, "stellage").await;
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    assert_eq!(case.stop_at_once_as(client.clone()).await, StatusCode::FORBIDDEN);
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": "stops"},
        "rules": [{"apiGroups": ["subresources.kubevirt.io"], "resources": ["virtualmachines/stop"], "verbs": ["update"]}],
    }))
    .unwrap();
    Api::namespaced(admin.clone(), case.namespace)
        .create(&params, &role)
        .await
        .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "stops"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "stops"},
        "subjects": [{"kind": "ServiceAccount", "name": "stellage", "namespace": case.namespace}],
    }))
    .unwrap();
    Api::namespaced(admin, case.namespace)
        .create(&params, &binding)
        .await
        .unwrap();
    let answer = async || case.stop_at_once_as(client.clone()).await;
    eventually("the right to count", answer, |status| {
        *status == StatusCode::ACCEPTED
    })
    .await;
}

#[tokio::test]
async fn with_strict_validation_an_unknown_field_is_refused_and_without_it_forgotten() {
    let case = Case::new("kv-strict").await;
    let mut vm = vm();
    vm.data["spec"]["template"]["spec"]["domain"]["devices"]["unheardOf"] = json!({});
    let client = case.kubevirt.plane.client(Identity::Admin).await.unwrap();
    let create = async |validation: &str| {
        let path = format!(
            "/apis/kubevirt.io/v1/namespaces/{}/virtualmachines",
            case.namespace
        );
        let request = http::Request::post(format!("{path}?dryRun=All&fieldValidation={validation}"))
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&vm).unwrap())
            .unwrap();
        client.request::<DynamicObject>(request).await
    };
    let refused = create("Strict").await.unwrap_err().to_string();
    assert!(refused.contains("devices.unheardOf"), "{refused}");
    let pruned = create("Ignore").await.unwrap();
    let devices = &pruned.data["spec"]["template"]["spec"]["domain"]["devices"];
    assert!(devices.get("unheardOf").is_none(), "{devices:#}");
}

#[tokio::test]
async fn what_hinders_a_boot_shows_in_the_status_of_the_machine() {
    let case = Case::new("kv-boot").await;
    let puppet = &case.kubevirt.puppet;
    puppet.import(case.namespace, Import::IsAt("42.0%".to_owned()));
    puppet.order(case.namespace, VM, |guest| guest.boot = Boot::FindsNoNode);
    case.create().await;
    case.status("Provisioning").await;
    let message = "Unable to process data: 404 Not Found";
    puppet.import(case.namespace, Import::Fails(message.to_owned()));
    case.status("DataVolumeError").await;
    puppet.import(case.namespace, Import::Succeeds);
    case.status("ErrorUnschedulable").await;
    puppet.order(case.namespace, VM, |guest| guest.boot = Boot::FindsNoImage);
    case.status("ErrImagePull").await;
    puppet.order(case.namespace, VM, |guest| guest.boot = Boot::Waits);
    case.run("Scheduled").await;
    case.status("Starting").await;
    puppet.order(case.namespace, VM, |guest| guest.boot = Boot::Succeeds);
    case.status("Running").await;
}

/// KubeVirt says that a quota was exceeded only of a DataVolume that it has made itself from a template.
#[tokio::test]
async fn a_disk_beyond_a_quota_looks_like_a_missing_one_and_one_that_the_importer_gave_up_like_an_error() {
    let case = Case::new("kv-disk").await;
    let puppet = &case.kubevirt.puppet;
    puppet.import(case.namespace, Import::ExceedsQuota);
    case.create().await;
    case.status("ErrorPvcNotFound").await;
    let disks = case.kubevirt.api(&kinds::DISK, case.namespace).await;
    let bound = async || condition(&disks.get(DISK).await.unwrap(), "Bound").clone();
    eventually("the quota to be named", bound, |bound| {
        bound["reason"] == "ErrExceededQuota"
    })
    .await;
    puppet.import(case.namespace, Import::GivesUp);
    case.status("DataVolumeError").await;
    puppet.import(case.namespace, Import::Succeeds);
    case.status("Running").await;
}

#[tokio::test]
async fn a_failed_disk_and_a_lost_node_show_in_the_conditions_of_the_run() {
    let case = Case::running("kv-trouble").await;
    let puppet = &case.kubevirt.puppet;
    puppet.order(case.namespace, VM, |guest| guest.is_paused = true);
    wait(&case.runs, "the pause", has("Paused", "PausedIOError")).await;
    case.status("Paused").await;
    puppet.order(case.namespace, VM, |guest| guest.is_paused = false);
    case.status("Running").await;
    let is = |status: &'static str| {
        let is = move |run: &DynamicObject| condition(run, "Ready")["status"] == status;
        move |run: Option<&DynamicObject>| run.is_some_and(is)
    };
    puppet.order(case.namespace, VM, |guest| guest.is_lost = true);
    let run = wait(&case.runs, "not ready", is("False")).await.unwrap();
    assert_eq!(run.data["status"]["phase"], "Running");
    puppet.order(case.namespace, VM, |guest| guest.is_lost = false);
    wait(&case.runs, "ready", is("True")).await;
}

#[tokio::test]
async fn without_virt_controller_nothing_moves_and_without_virt_api_nothing_is_admitted() {
    let case = Case::on(kubevirt::own().await, "kv-killed").await;
    case.create().await;
    let first = case.run("Running").await.uid();
    case.kubevirt.kill_virt_controller();
    let puppet = &case.kubevirt.puppet;
    puppet.order(case.namespace, VM, |guest| guest.ends = Some(End::Crashes));
    assert_eq!(case.run("Failed").await.uid(), first);
    case.kubevirt.kill_virt_api();
    let change = Patch::Merge(json!({"spec": {"runStrategy": "Halted"}}));
    let refused = case
        .vms
        .patch(VM, &PatchParams::default(), &change)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("failed calling webhook"),
        "{refused}"
    );
    case.kubevirt.start_virt_api().await;
    case.kubevirt.start_virt_controller().await;
    let is_another = |run: &DynamicObject| run.uid() != first && run.data["status"]["phase"] == "Running";
    let another = move |run: Option<&DynamicObject>| run.is_some_and(is_another);
    wait(&case.runs, "another run", another).await;
}
