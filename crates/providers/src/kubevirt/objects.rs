//! What is written to a region's cluster.

use std::{collections::BTreeMap, fmt::Write as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use ipnet::{IpNet, Ipv4Net};
use serde_json::{Value, json};

use super::{
    names::{
        BOOT, DELETE_AFTER_COMPLETION, DISK, INSTALLED, INSTANCE, IPV4, IPV6, MANAGED_BY, NetworkNames,
        PREPOPULATED, RUN, STELLAGE, Server, Snapshot, account_labels, boot, hex, labels, network_labels,
        run_labels,
    },
    slim::{DataVolume, NetworkAttachment, RunStrategy, VirtualMachine},
};
use domain::{
    catalogue::region::{Image, ImageSource, KubeVirt, ObjectName, PrivateNetworks, Profile, PullMethod},
    provider::Addresses,
    user_data::{UserData, UserDataFormat},
};
use resources::{Instance, Operation, Plan};

/// Name of the RoleBinding and of the NetworkPolicy in the namespaces of servers.
const NAME: &str = "stellage";
/// Prefix of the user names of ServiceAccounts.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";
/// Longest host name.
const MAX_HOSTNAME: usize = 63;
/// How cloud-init merges a part into the ones before it: these take precedence, and lists are joined.
const MERGE: &str = "list(append)+dict(no_replace,recurse_list)+str()";

/// What the objects of a server are made from.
#[derive(Clone, Copy, Debug)]
pub struct Maker<'a> {
    /// The Instance.
    pub instance: &'a Instance,
    /// Its region.
    pub region: &'a KubeVirt,
    /// Where the server is there.
    pub server: &'a Server,
    /// UID of the Account.
    pub account_uid: &'a str,
    /// The addresses that are reserved for the server.
    pub addresses: &'a Addresses,
    /// What the account holder wants cloud-init to do.
    pub user_data: Option<&'a UserData>,
    /// The address of the server in its private network, with the length of the prefix; `None` if DHCP is to give one.
    pub private_address: Option<Ipv4Net>,
}

/// How a server is attached to its private network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The NetworkAttachmentDefinition.
    pub name: ObjectName,
    /// The Subnet of kube-ovn, if it is one of its networks.
    pub subnet: Option<String>,
}

/// What a disk is filled from.
#[derive(Clone, Copy, Debug)]
pub enum Fill<'a> {
    /// An image of the region.
    Image(&'a Image),
    /// A backup.
    Backup(&'a Snapshot),
}

/// What a virtual machine boots with.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    /// The operation that powers it on.
    pub operation: &'a Operation,
    /// Whether it is powered on; only prepared otherwise.
    pub run: RunStrategy,
    /// Name of the root disk, and of the Secret for cloud-init.
    pub disk: &'a str,
    /// The guest's host name.
    pub hostname: &'a str,
    /// Whether the image reads a config drive rather than a `NoCloud` disk.
    pub config_drive: bool,
    /// How it is attached to its private network, if it is in one.
    pub attachment: Option<&'a Attachment>,
}

/// The namespace of an account's servers.
pub fn namespace(region: &KubeVirt, account_uid: &str, name: &str) -> Value {
    let mut labels = json!(account_labels(region, account_uid));
    // Launchers add a capability and set no seccomp profile. Account holders cannot create Pods here.
    labels["pod-security.kubernetes.io/enforce"] = "privileged".into();
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } })
}

/// Gives us, whom the cluster knows by this user name, the rights in the namespace of an account's servers.
pub fn role_binding(region: &KubeVirt, account_uid: &str, namespace: &str, user: &str) -> Value {
    // As the region's chart names it.
    let role = format!("{}servers", region.namespace_prefix);
    let account = user
        .strip_prefix(SERVICE_ACCOUNT)
        .and_then(|name| name.split_once(':'));
    let subject = match account {
        Some((namespace, name)) => {
            json!({ "kind": "ServiceAccount", "namespace": namespace, "name": name })
        }
        None => json!({ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user }),
    };
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": NAME, "namespace": namespace, "labels": account_labels(region, account_uid) },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [subject],
    })
}

/// Keeps the servers of an account away from the cluster's own networks. It concerns the Pod network only.
pub fn network_policy(region: &KubeVirt, account_uid: &str, namespace: &str) -> Value {
    let (v4, v6): (Vec<_>, Vec<_>) = region
        .network
        .internal_cidrs
        .iter()
        .partition(|cidr| matches!(cidr, IpNet::V4(_)));
    let texts = |cidrs: &[&IpNet], more: &[&str]| {
        let cidrs = cidrs.iter().map(ToString::to_string);
        let more = more.iter().map(|cidr| (*cidr).to_owned());
        let mut all: Vec<_> = cidrs.chain(more).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let block = |cidr: &str, except: Vec<String>| {
        if except.is_empty() {
            json!({ "ipBlock": { "cidr": cidr } })
        } else {
            json!({ "ipBlock": { "cidr": cidr, "except": except } })
        }
    };
    let peers = |more_v4: &[&str], more_v6: &[&str]| {
        json!([
            block("0.0.0.0/0", texts(&v4, more_v4)),
            block("::/0", texts(&v6, more_v6)),
        ])
    };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": NAME, "namespace": namespace, "labels": account_labels(region, account_uid) },
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": peers(&[], &[]) }],
            "egress": [{ "to": peers(&["169.254.0.0/16"], &["fe80::/10"]) }],
        },
    })
}

impl Maker<'_> {
    /// The Secret with what cloud-init is to do. It has the name of the disk that it belongs to.
    pub fn secret(&self, disk: &str, image: Option<&Image>) -> Value {
        let user_data = self.merged_user_data(image);
        let network_data = pretty(&self.network_data());
        let mut labels = json!(labels(self.region, self.account_uid, self.server));
        labels[DISK] = self.server.suffix(disk).into();
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": disk, "namespace": self.server.namespace, "labels": labels },
            "immutable": true,
            "stringData": { "userdata": user_data, "networkdata": network_data },
        })
    }

    /// All that cloud-init is to do: what the account holder wants takes precedence over what is ours, and that over what the
    /// image needs. Lists, such as those of keys and packages, are joined.
    fn merged_user_data(&self, image: Option<&Image>) -> String {
        let ours = format!("#cloud-config\n{}", pretty(&self.cloud_config()));
        let needed = image.and_then(|image| image.user_data.as_ref());
        if self.user_data.is_none() && needed.is_none() {
            return ours;
        }
        // A part is merged into what the parts before it have made.
        let theirs = self.user_data.map(their_part);
        let ours = part("text/cloud-config", Some(MERGE), &ours);
        let of_image = needed.map(|data| {
            let is_marked = data.starts_with('#');
            let content_type = if is_marked {
                "text/plain"
            } else {
                "text/cloud-config"
            };
            part(content_type, Some(MERGE), data)
        });
        archive(
            &theirs
                .into_iter()
                .chain([ours])
                .chain(of_image)
                .collect::<Vec<_>>(),
        )
    }

    fn cloud_config(&self) -> Value {
        let name = self.instance.display_name();
        let host = name.split('.').next().unwrap_or(name);
        json!({
            "hostname": host,
            "fqdn": name,
            "preserve_hostname": false,
            // Else `sudo` cannot resolve the name, and says so each time.
            "manage_etc_hosts": "localhost",
            "ssh_pwauth": false,
            "ssh_authorized_keys": self.instance.spec.ssh_keys,
        })
    }

    /// The guest's network settings, in version 2 of cloud-init's format.
    fn network_data(&self) -> Value {
        let network = &self.region.network;
        let public = public_interface(self.region);
        let of = |interface: &str, set_name: &str| json!({ "match": { "macaddress": self.server.mac(interface) }, "set-name": set_name });
        let mut settings = of(public, "eth0");
        if network.profile == Profile::Pod {
            settings["dhcp4"] = true.into();
            // There are no router advertisements behind a masquerade. If the cluster has IPv6, its prefixes are named here.
            let has_ipv6 = |cidr: &IpNet| matches!(cidr, IpNet::V6(_));
            if network.internal_cidrs.iter().any(has_ipv6) {
                settings["addresses"] = json!(["fd10:0:2::2/120"]);
                settings["routes"] = json!([{ "to": "::/0", "via": "fd10:0:2::1" }]);
            }
        } else {
            let mut addresses = Vec::new();
            let mut routes = Vec::new();
            if let Some(ipv4) = &self.addresses.ipv4 {
                addresses.push(format!("{ipv4}/32"));
                let of = |prefix: &&domain::catalogue::region::Ipv4Prefix| {
                    ipv4.parse()
                        .is_ok_and(|ip: std::net::Ipv4Addr| prefix.prefix.contains(&ip))
                };
                if let Some(prefix) = network.ipv4.iter().find(of) {
                    routes.push(json!({ "to": "0.0.0.0/0", "via": prefix.gateway, "on-link": true }));
                }
            }
            if let Some(ipv6) = &self.addresses.ipv6 {
                addresses.push(format!("{ipv6}/128"));
                if let Some(prefix) = &network.ipv6 {
                    routes.push(json!({ "to": "::/0", "via": prefix.gateway, "on-link": true }));
                }
            }
            settings["addresses"] = json!(addresses);
            settings["routes"] = json!(routes);
            settings["nameservers"] = json!({ "addresses": network.nameservers });
        }
        let mut all = json!({ "version": 2, "ethernets": { public: settings } });
        if self.is_in_private_network() {
            let mut settings = of(PRIVATE, "eth1");
            if let Some(address) = self.private_address {
                settings["addresses"] = json!([address.to_string()]);
            } else {
                settings["dhcp4"] = true.into();
                settings["dhcp4-overrides"] = json!({ "use-routes": false, "use-dns": false });
            }
            settings["optional"] = true.into();
            all["ethernets"][PRIVATE] = settings;
        }
        all
    }

    /// Whether the server is in a private network.
    fn is_in_private_network(&self) -> bool {
        let is_offered = self.region.network.private_networks != PrivateNetworks::None;
        self.instance.spec.private_network.is_some() && is_offered
    }

    /// The disk that an operation makes.
    pub fn data_volume(&self, operation: &Operation, fill: Fill<'_>, size_gb: i32) -> Value {
        let name = self.server.disk(operation);
        let mut labels = json!(labels(self.region, self.account_uid, self.server));
        labels[DISK] = self.server.suffix(&name).into();
        let mut object = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {
                "name": name, "namespace": self.server.namespace, "labels": labels,
                "annotations": { DELETE_AFTER_COMPLETION: "false" },
            },
            "spec": {
                "storage": {
                    "storageClassName": self.region.storage_class,
                    "resources": { "requests": { "storage": gibibytes(size_gb) } },
                },
            },
        });
        let named = |of: &ObjectName| json!({ "namespace": of.namespace, "name": of.name });
        let image = match fill {
            Fill::Image(image) => image,
            Fill::Backup(Snapshot { namespace, name, .. }) => {
                object["spec"]["source"]["snapshot"] = json!({ "namespace": namespace, "name": name });
                return object;
            }
        };
        let source = match &image.source {
            ImageSource::DataSource(source) => {
                let mut reference = named(source);
                reference["kind"] = "DataSource".into();
                object["spec"]["sourceRef"] = reference;
                return object;
            }
            ImageSource::Snapshot(source) => json!({ "snapshot": named(source) }),
            ImageSource::Pvc(source) => json!({ "pvc": named(source) }),
            ImageSource::Registry { url, pull_method } => {
                let method = match pull_method {
                    PullMethod::Pod => "pod",
                    PullMethod::Node => "node",
                };
                json!({ "registry": { "url": url, "pullMethod": method } })
            }
            ImageSource::Http { url, cert_config_map } => {
                let mut http = json!({ "url": url });
                if let Some(name) = cert_config_map {
                    http["certConfigMap"] = name.as_str().into();
                }
                json!({ "http": http })
            }
        };
        object["spec"]["source"] = source;
        object
    }

    /// The virtual machine.
    pub fn virtual_machine(&self, boot: &Boot<'_>) -> Value {
        let mut annotations = self.annotations(boot);
        let of = &self.instance.metadata;
        let instance = [&of.namespace, &of.name].map(|name| name.as_deref().unwrap_or_default());
        annotations[INSTANCE] = instance.join("/").into();
        json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {
                "name": self.server.name, "namespace": self.server.namespace,
                "labels": labels(self.region, self.account_uid, self.server),
                "annotations": annotations,
            },
            "spec": { "runStrategy": boot.run.as_str(), "template": self.template(boot) },
        })
    }

    /// The merge patch that powers a virtual machine on, or only prepares it for that. Its template is sent whole, so what a newer
    /// version adds to it reaches a server at its next power cycle.
    pub fn boot_patch(&self, vm: &VirtualMachine, boot: &Boot<'_>) -> Value {
        let mut template = self.template(boot);
        if self.region.cpu_model.is_none() {
            template["spec"]["domain"]["cpu"]["model"] = Value::Null;
        }
        let selected = &self.region.node_selector;
        let before = vm.spec.template.spec.node_selector.iter();
        for gone in before.filter(|label| !selected.contains_key(*label)) {
            template["spec"]["nodeSelector"][gone] = Value::Null;
        }
        let mut patch = fenced(vm, self.annotations(boot));
        patch["spec"] = json!({ "runStrategy": boot.run.as_str(), "template": template });
        patch
    }

    /// The annotations that change with a boot.
    fn annotations(&self, booted: &Boot<'_>) -> Value {
        let operation = booted.operation;
        let mut annotations = json!({ RUN: booted.run.as_str(), BOOT: boot(operation) });
        if makes_disk(booted.disk, self.server, operation) {
            let mut installed = json!({ "image": operation.image });
            if let Some(backup) = &operation.restore_from {
                installed["restoreFrom"] = backup.as_str().into();
            }
            annotations[INSTALLED] = installed.to_string().into();
        }
        for (key, address) in [(IPV4, &self.addresses.ipv4), (IPV6, &self.addresses.ipv6)] {
            if let Some(address) = address {
                annotations[key] = address.as_str().into();
            }
        }
        annotations
    }

    /// The interfaces of a run, and the networks that they are in.
    fn interfaces(
        &self,
        attachment: Option<&Attachment>,
        annotations: &mut Value,
    ) -> (Vec<Value>, Vec<Value>) {
        let region = self.region;
        let public = public_interface(region);
        let mac = |interface: &str| self.server.mac(interface);
        let mut interface = json!({ "name": public, "model": "virtio", "macAddress": mac(public) });
        let binding = if region.network.profile == Profile::Pod {
            "masquerade"
        } else {
            "bridge"
        };
        interface[binding] = json!({});
        let multus = |of: &ObjectName| json!({ "name": public, "multus": { "networkName": format!("{}/{}", of.namespace, of.name) } });
        let pod = json!({ "name": public, "pod": {} });
        let network = match &region.network.profile {
            Profile::Pod => pod,
            Profile::Bridge { attachment } => multus(attachment),
            Profile::KubeOvn { subnet, attachment } => {
                let addresses = [&self.addresses.ipv4, &self.addresses.ipv6];
                let addresses: Vec<_> = addresses.into_iter().flatten().map(String::as_str).collect();
                let addresses = addresses.join(",");
                kube_ovn_port(annotations, attachment.as_ref(), subnet, &addresses, mac(public));
                if let Some(attachment) = attachment {
                    multus(attachment)
                } else {
                    annotations["kubevirt.io/allow-pod-bridge-network-live-migration"] = "true".into();
                    pod
                }
            }
        };
        let mut interfaces = vec![interface];
        let mut networks = vec![network];
        if let Some(private) = attachment {
            interfaces.push(json!({
                "name": PRIVATE, "bridge": {}, "model": "virtio", "macAddress": mac(PRIVATE),
            }));
            let name = format!("{}/{}", private.name.namespace, private.name.name);
            networks.push(json!({ "name": PRIVATE, "multus": { "networkName": name } }));
            if let (Some(subnet), Some(address)) = (&private.subnet, self.private_address) {
                let address = address.addr().to_string();
                kube_ovn_port(annotations, Some(&private.name), subnet, &address, mac(PRIVATE));
            }
        }
        (interfaces, networks)
    }

    /// What runs are made from.
    fn template(&self, booted: &Boot<'_>) -> Value {
        let region = self.region;
        let size = booted.operation.plan.size();
        let grace = region.deadlines.soft_stop_grace.as_secs();
        let mut annotations = json!({ BOOT: boot(booted.operation) });
        let (interfaces, networks) = self.interfaces(booted.attachment, &mut annotations);
        let mut cpu = json!({ "sockets": size.vcpu, "cores": 1, "threads": 1, "maxSockets": size.vcpu });
        if let Some(model) = &region.cpu_model {
            cpu["model"] = model.as_str().into();
        }
        let memory = gibibytes(size.memory_gb);
        let cloud_init = if booted.config_drive {
            "cloudInitConfigDrive"
        } else {
            "cloudInitNoCloud"
        };
        let secret = json!({ "name": booted.disk });
        let mut spec = json!({
            "hostname": booted.hostname,
            "evictionStrategy": region.eviction_strategy.as_str(),
            // KubeVirt's own end of its patience comes after ours. Without a guest agent, its first minute passes unheard.
            "terminationGracePeriodSeconds": grace.max(120) + 60,
            "nodeSelector": region.node_selector,
            "tolerations": region.tolerations,
            "domain": {
                "cpu": cpu,
                "memory": { "guest": memory, "maxGuest": memory },
                "firmware": { "uuid": self.server.uid, "serial": self.server.name },
                "devices": {
                    "rng": {},
                    "logSerialConsole": false,
                    "networkInterfaceMultiqueue": size.vcpu > 1,
                    "disks": [
                        { "name": "root", "bootOrder": 1, "disk": { "bus": "virtio" } },
                        { "name": "cloudinit", "disk": { "bus": "virtio" } },
                    ],
                    "interfaces": interfaces,
                },
            },
            "networks": networks,
            "volumes": [
                { "name": "root", "dataVolume": { "name": booted.disk } },
                {
                    "name": "cloudinit",
                    cloud_init: { "secretRef": secret, "networkDataSecretRef": secret },
                },
            ],
        });
        if !region.network.nameservers.is_empty() {
            // The guest must not need the cluster's DNS, which DHCP would name otherwise.
            spec["dnsPolicy"] = "None".into();
            spec["dnsConfig"] = json!({ "nameservers": region.network.nameservers });
        }
        json!({
            "metadata": { "labels": run_labels(region, self.server), "annotations": annotations },
            "spec": spec,
        })
    }
}

/// Has kube-ovn give a Pod a port in a Subnet, through this attachment or as its first interface, with these addresses and no others.
/// Without the name of the Subnet, it would take that of the cluster's Pods should this one be missing.
fn kube_ovn_port(
    annotations: &mut Value,
    attachment: Option<&ObjectName>,
    subnet: &str,
    addresses: &str,
    mac: String,
) {
    let prefix = match attachment {
        Some(of) => format!("{}.{}.ovn.kubernetes.io", of.name, of.namespace),
        None => "ovn.kubernetes.io".to_owned(),
    };
    for (key, value) in [
        ("logical_switch", subnet.to_owned()),
        ("ip_address", addresses.to_owned()),
        ("mac_address", mac),
        ("port_security", "true".to_owned()),
    ] {
        annotations[format!("{prefix}/{key}")] = value.into();
    }
}

/// The Vpc of a private network: a router that nothing else is connected to.
pub fn vpc(region: &KubeVirt, account_uid: &str, network: &NetworkNames) -> Value {
    json!({
        "apiVersion": "kubeovn.io/v1", "kind": "Vpc",
        "metadata": { "name": network.vpc, "labels": network_labels(region, account_uid, network) },
        "spec": {},
    })
}

/// The Subnet of a private network.
pub fn subnet(region: &KubeVirt, account_uid: &str, network: &NetworkNames, prefix: Ipv4Net) -> Value {
    let gateway = domain::network::addresses(prefix).gateway;
    json!({
        "apiVersion": "kubeovn.io/v1", "kind": "Subnet",
        "metadata": { "name": network.subnet, "labels": network_labels(region, account_uid, network) },
        "spec": {
            "vpc": network.vpc,
            "provider": network.provider(),
            "protocol": "IPv4",
            "cidrBlock": prefix.to_string(),
            "gateway": gateway,
            "excludeIps": [gateway],
            "private": true,
            "natOutgoing": false,
            // cloud-init sets the addresses.
            "enableDHCP": false,
            // The cluster's Services are none of its business.
            "enableLb": false,
        },
    })
}

/// What CNI is told of a private network. The admission policy of the region's chart permits Stellage this and nothing else.
pub fn attachment_config(network: &NetworkNames) -> String {
    let (provider, socket) = (network.provider(), "/run/openvswitch/kube-ovn-daemon.sock");
    format!(
        r#"{{"cniVersion":"0.3.1","type":"kube-ovn","server_socket":"{socket}","provider":"{provider}"}}"#
    )
}

/// The NetworkAttachmentDefinition of a private network.
pub fn network_attachment(region: &KubeVirt, account_uid: &str, network: &NetworkNames) -> Value {
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {
            "name": network.attachment, "namespace": network.namespace,
            "labels": network_labels(region, account_uid, network),
        },
        "spec": { "config": attachment_config(network) },
    })
}

/// The merge patch that gives an attachment of the platform team to a private network, unless somebody was faster.
pub fn take_patch(
    attachment: &NetworkAttachment,
    region: &KubeVirt,
    account_uid: &str,
    network: &NetworkNames,
) -> Value {
    fenced_labels(
        attachment,
        json!(mark(network_labels(region, account_uid, network))),
    )
}

/// The merge patch that takes an attachment back.
pub fn give_back_patch(attachment: &NetworkAttachment, region: &KubeVirt, network: &NetworkNames) -> Value {
    let labels = mark(network_labels(region, "", network)).into_keys();
    let none: BTreeMap<_, _> = labels.map(|key| (key, Value::Null)).collect();
    fenced_labels(attachment, json!(none))
}

/// Those of the labels that are Stellage's own: who manages an attachment of the platform team is for that to say.
fn mark(mut labels: BTreeMap<&'static str, String>) -> BTreeMap<&'static str, String> {
    labels.remove(MANAGED_BY);
    labels
}

fn fenced_labels(attachment: &NetworkAttachment, labels: Value) -> Value {
    let of = &attachment.metadata;
    json!({ "metadata": { "uid": of.uid, "resourceVersion": of.resource_version, "labels": labels } })
}

/// Name of the interface in a private network.
const PRIVATE: &str = "private";

/// Name of the interface with the public addresses.
fn public_interface(region: &KubeVirt) -> &'static str {
    match region.network.profile {
        Profile::Pod => "default",
        Profile::Bridge { .. } | Profile::KubeOvn { .. } => "public",
    }
}

/// The host name of a server that is installed now: the Instance's name if it can be one.
pub fn hostname(instance: &Instance, server: &Server) -> String {
    let name = instance.display_name().to_ascii_lowercase();
    let is_label = name.len() <= MAX_HOSTNAME && !name.contains('.');
    if is_label { name } else { server.name.clone() }
}

/// The merge patch that changes only when a virtual machine is to run.
pub fn run_patch(vm: &VirtualMachine, run: RunStrategy) -> Value {
    let mut patch = fenced(vm, json!({ RUN: run.as_str() }));
    patch["spec"] = json!({ "runStrategy": run.as_str() });
    patch
}

/// Like [`run_patch`] with [`RunStrategy::Halted`], and forgets which operation has powered the virtual machine on, so that it is
/// done again.
pub fn undo_boot_patch(vm: &VirtualMachine) -> Value {
    let mut patch = run_patch(vm, RunStrategy::Halted);
    patch["metadata"]["annotations"][BOOT] = "".into();
    patch
}

/// The merge patch that gives the processors and the memory of a plan to a virtual machine that is off.
pub fn plan_patch(vm: &VirtualMachine, plan: Plan) -> Value {
    let size = plan.size();
    let memory = gibibytes(size.memory_gb);
    let mut patch = fenced(vm, json!({}));
    patch["spec"]["template"]["spec"]["domain"] = json!({
        "cpu": { "sockets": size.vcpu, "maxSockets": size.vcpu },
        "memory": { "guest": memory, "maxGuest": memory },
        "devices": { "networkInterfaceMultiqueue": size.vcpu > 1 },
    });
    patch
}

/// The JSON patch of the status that takes away the requests to start a virtual machine.
pub fn clear_requests_patch(vm: &VirtualMachine) -> Value {
    json!([
        { "op": "test", "path": "/metadata/uid", "value": vm.metadata.uid },
        { "op": "test", "path": "/status/stateChangeRequests/0/action", "value": "Start" },
        { "op": "remove", "path": "/status/stateChangeRequests" },
    ])
}

/// The merge patch that makes a claim this large.
pub fn grow_patch(size_gb: i32) -> Value {
    json!({ "spec": { "resources": { "requests": { "storage": gibibytes(size_gb) } } } })
}

/// The merge patch that keeps CDI from filling the disk anew should its claim get lost.
pub fn seal_patch(disk: &DataVolume) -> Value {
    json!({ "metadata": { "uid": disk.metadata.uid, "annotations": { PREPOPULATED: disk.name() } } })
}

/// Memory of a plan, or the size of its disk.
pub fn gibibytes(size: i32) -> String {
    format!("{size}Gi")
}

/// Whether this is the disk that the operation makes.
fn makes_disk(disk: &str, server: &Server, operation: &Operation) -> bool {
    disk == server.disk(operation)
}

/// A merge patch with annotations that is refused if the virtual machine has changed or is another one.
fn fenced(vm: &VirtualMachine, annotations: Value) -> Value {
    let mut metadata = json!({
        "uid": vm.metadata.uid, "resourceVersion": vm.metadata.resource_version,
    });
    metadata["annotations"] = annotations;
    json!({ "metadata": metadata })
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// The part with what the account holder wants.
fn their_part(data: &UserData) -> String {
    match data.format() {
        // cloud-init recognizes an archive, and reads one inside another.
        UserDataFormat::Multipart => data.text().to_owned(),
        // It finds out by the first line what it is.
        _ => part("text/plain", None, data.text()),
    }
}

/// A part of an archive. In base64, it cannot contain the boundary, and keeps letters outside of ASCII.
fn part(content_type: &str, merge: Option<&str>, data: &str) -> String {
    let mut text = format!("Content-Type: {content_type}\nContent-Transfer-Encoding: base64\n");
    if let Some(merge) = merge {
        let _ = writeln!(text, "Merge-Type: {merge}");
    }
    let encoded = BASE64_STANDARD.encode(data);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(76));
        let _ = write!(text, "\n{line}");
        rest = more;
    }
    text.push('\n');
    text
}

/// A MIME archive.
fn archive(parts: &[String]) -> String {
    let parts_of_hash: Vec<_> = parts.iter().map(String::as_str).collect();
    let boundary = format!("{STELLAGE}-{}", hex(&parts_of_hash, 16));
    let mut text = format!("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"{boundary}\"\n");
    for part in parts {
        let _ = write!(text, "\n--{boundary}\n{part}");
    }
    let _ = write!(text, "\n--{boundary}--\n");
    text
}
