//! What the tests of the planner share.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    names::{ACCOUNT, BOOT, INSTALLATION, INSTANCE_UID, RUN, Server, boot},
    plan::{Answer, Reach, Refusal, Seen},
    slim::{VirtualMachine, VirtualMachineInstance},
};
use domain::{
    catalogue::region::{
        EvictionStrategy, Image, ImageSource, Ipv4Prefix, Ipv6Prefix, KubeVirt, Namespaces, Network,
        ObjectName, PrivateNetworks, Profile, TaintEffect, Toleration, TolerationOperator,
    },
    provider::{Addresses, Deadlines},
};
use resources::{Instance, Operation};

pub const UID: &str = "7f1c9e2a-3b4d-4e5f-8a6b-1c2d3e4f5a6b";
pub const ACCOUNT_UID: &str = "0d6c0c5e-6a0f-4c0e-9f6d-0b0a8a0f3a11";
/// UID of the virtual machine in the tests that have only one.
pub const VM_UID: &str = "vm-1";

pub fn at(seconds: i64) -> Timestamp {
    let begin: Timestamp = "2026-11-26T20:51:04Z".parse().unwrap();
    begin + jiff::SignedDuration::from_secs(seconds)
}

pub fn object_name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

/// A region in which addresses are those of Pods.
pub fn region() -> KubeVirt {
    let image = |name: &str| Image {
        source: ImageSource::DataSource(object_name(&format!("stellage-images/{name}"))),
        user: "debian".to_owned(),
        user_data: None,
        config_drive: false,
    };
    KubeVirt {
        kubeconfig: "/kubeconfig".into(),
        installation: "prod-1".to_owned(),
        namespace_prefix: "stellage-".to_owned(),
        namespaces: Namespaces::Managed,
        storage_class: "ceph-block".to_owned(),
        snapshot_class: None,
        images: ["debian-13", "ubuntu-24.04"]
            .map(|name| (name.to_owned(), image(name)))
            .into(),
        network: Network {
            profile: Profile::Pod,
            ipv4: Vec::new(),
            ipv6: None,
            nameservers: vec!["9.9.9.9".parse().unwrap(), "2620:fe::fe".parse().unwrap()],
            internal_cidrs: ["10.244.0.0/16", "10.96.0.0/12", "192.168.7.0/24", "fd00:10::/48"]
                .map(|cidr| cidr.parse().unwrap())
                .into(),
            private_networks: PrivateNetworks::Nad,
            anti_spoofing_external: true,
        },
        node_selector: [("pool".to_owned(), "vms".to_owned())].into(),
        tolerations: vec![Toleration {
            key: Some("pool".to_owned()),
            operator: TolerationOperator::Equal,
            value: Some("vms".to_owned()),
            effect: Some(TaintEffect::NoSchedule),
        }],
        eviction_strategy: EvictionStrategy::LiveMigrateIfPossible,
        cpu_model: None,
        deadlines: Deadlines {
            soft_stop_grace: Duration::from_secs(120),
            create: Duration::from_secs(1800),
            rebuild: Duration::from_secs(1800),
            other: Duration::from_secs(900),
        },
        calls_at_once: 32,
        usage: None,
    }
}

/// The same with addresses of Stellage's own.
pub fn region_with_addresses(profile: Profile) -> KubeVirt {
    let mut region = region();
    region.network.profile = profile;
    region.network.ipv4 = vec![Ipv4Prefix {
        prefix: "203.0.113.0/24".parse().unwrap(),
        gateway: "203.0.113.1".parse().unwrap(),
        exclude: Vec::new(),
    }];
    region.network.ipv6 = Some(Ipv6Prefix {
        prefix: "2001:db8:10::/64".parse().unwrap(),
        gateway: "fe80::1".parse().unwrap(),
    });
    region
}

pub fn bridge() -> Profile {
    Profile::Bridge {
        attachment: object_name("stellage-networks/public"),
    }
}

pub fn reserved() -> Addresses {
    Addresses {
        ipv4: Some("203.0.113.27".to_owned()),
        ipv6: Some("2001:db8:10::1b".to_owned()),
        private: None,
    }
}

pub fn instance(status: &Value) -> Instance {
    serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": {
            "name": "web-1", "namespace": "acme", "uid": UID, "generation": 1,
            "creationTimestamp": "2026-11-26T20:51:04Z",
        },
        "spec": {
            "plan": "business", "region": "de-fra-1", "image": "debian-13",
            "sshKeys": ["ssh-ed25519 AAAA alice"],
        },
        "status": status,
    }))
    .unwrap()
}

/// An Instance with this operation in progress, which began at 0 s.
pub fn during(operation: &Value, power: Option<&str>) -> Instance {
    let mut all = json!({
        "startedAt": at(0), "endsIn": "Running", "plan": "business", "image": "debian-13",
    });
    for (key, value) in operation.as_object().unwrap() {
        all[key] = value.clone();
    }
    let is_made = all["kind"] != "Create";
    let mut status = json!({ "state": "running", "operation": all, "plan": "business", "diskSizeGB": 80 });
    if is_made {
        status["provisionedAt"] = json!(at(-1000));
        status["ipAddress"] = "10.244.0.7".into();
    }
    if let Some(power) = power {
        status["power"] = power.into();
    }
    instance(&status)
}

/// An Instance of which nothing is asked.
pub fn idle(power: &str, state: &Value) -> Instance {
    instance(&json!({
        "state": "running", "power": power, "plan": "business", "diskSizeGB": 80,
        "provisionedAt": at(-1000), "providerState": state,
    }))
}

pub fn operation(instance: &Instance) -> &Operation {
    instance.status.as_ref().unwrap().operation.as_ref().unwrap()
}

pub fn server(instance: &Instance) -> Server {
    Server::of(instance, &region())
}

/// A virtual machine of an Instance that virt-controller has seen.
pub fn vm(instance: &Instance, strategy: &str, more: &Value) -> Value {
    let server = server(instance);
    let mut vm = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": server.name, "namespace": server.namespace, "uid": VM_UID, "resourceVersion": "100",
            "generation": 3,
            "labels": { INSTANCE_UID: UID, INSTALLATION: "prod-1", ACCOUNT: ACCOUNT_UID },
            "annotations": { RUN: strategy, BOOT: "Start/before/abcdef" },
        },
        "spec": {
            "runStrategy": strategy,
            "template": { "spec": {
                "hostname": "web-1",
                "domain": { "cpu": { "sockets": 2 }, "memory": { "guest": "4Gi" } },
                "volumes": [
                    { "name": "root", "dataVolume": { "name": format!("{}-old", server.name) } },
                    { "name": "cloudinit", "cloudInitNoCloud": { "secretRef": { "name": format!("{}-old", server.name) } } },
                ],
            } },
        },
        "status": { "runStrategy": strategy },
    });
    merge(&mut vm, more);
    vm
}

/// The same, powered on by the operation in progress.
pub fn booted_vm(instance: &Instance, more: &Value) -> Value {
    let mut vm = vm(instance, "RerunOnFailure", more);
    let boot = boot(operation(instance));
    vm["metadata"]["annotations"][BOOT] = boot.into();
    vm
}

/// A run of a virtual machine, with its boot annotation.
pub fn run_of(vm: &Value, uid: &str, phase: &str, more: &Value) -> Value {
    let mut run = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {
            "name": vm["metadata"]["name"], "namespace": vm["metadata"]["namespace"], "uid": uid,
            "creationTimestamp": at(0),
            "annotations": { BOOT: vm["metadata"]["annotations"][BOOT] },
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": vm["metadata"]["name"],
                "uid": vm["metadata"]["uid"],
            }],
        },
        "spec": { "terminationGracePeriodSeconds": 180 },
        "status": { "phase": phase, "interfaces": [{ "name": "default", "ipAddress": "10.244.0.7" }] },
    });
    merge(&mut run, more);
    run
}

/// Applies a JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

pub fn parse_vm(vm: &Value) -> Arc<VirtualMachine> {
    let mut vm: VirtualMachine = serde_json::from_value(vm.clone()).unwrap();
    vm.prune();
    Arc::new(vm)
}

pub fn parse_run(run: &Value) -> Arc<VirtualMachineInstance> {
    let mut run: VirtualMachineInstance = serde_json::from_value(run.clone()).unwrap();
    run.prune();
    Arc::new(run)
}

/// What is known of a server with these objects.
pub fn seen(vm: Option<&Value>, run: Option<&Value>) -> Seen {
    let user = "system:serviceaccount:stellage:stellage".to_owned();
    let mut seen = Seen::new(Reach::Live, ACCOUNT_UID.to_owned(), user);
    seen.vm = vm.map(parse_vm);
    seen.run = run.map(parse_run);
    seen.has_namespace = true;
    seen
}

/// A call that is refused.
pub fn refused(status: u16, message: &str) -> Answer {
    Answer::Refused(Refusal {
        status,
        reason: String::new(),
        message: message.to_owned(),
    })
}

/// Compares with the file of this name in `golden/`. With `UPDATE_GOLDEN=1`, writes it.
pub fn golden(name: &str, written: &str) {
    let path = format!("{}/src/kubevirt/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, written).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(wanted == written, "{path} differs; written is:\n{written}");
}
