//! Evaluates what was read from the cluster of a region. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use domain::catalogue::region::{
    EvictionStrategy, KubeVirt, Namespaces, Network, PrivateNetworks, Profile, UsageFrom,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::storage::v1::StorageClass, apimachinery::pkg::version::Info};
use providers::kubevirt::slim::VolumeSnapshotClass;
use resources::Plan;
use semver::Version;
use serde_json::Value;

use super::{
    super::{
        Check, Outcome, Problem, Verdict,
        checks::{at_least, failed, some, unknown, warning},
        rights::Right,
        snapshot::Read,
    },
    snapshot::{Found, KUBEVIRT, Pooled, RegionSnapshot},
};

/// The oldest minor version of Kubernetes 1 that has the admission policies of the chart, as in its `kubeVersion`.
const OLDEST_KUBERNETES: u32 = 30;
/// The oldest minor version of KubeVirt 1 whose rules for stopping and starting are known.
const OLDEST_KUBEVIRT: u64 = 6;
/// What KubeVirt does without `cpuAllocationRatio`.
const DEFAULT_RATIO: u32 = 10;
/// Clock skew beyond which times of operations are misleading.
const SKEW: SignedDuration = SignedDuration::from_secs(30);
const GIB: u64 = 1 << 30;
/// What to do if objects could not be read.
const UNREAD: &str = "Upgrade the release of the chart stellage-region; or use an administrator's kubeconfig: --region-kubeconfig FILE.";

/// All checks.
pub(in super::super) fn all(snapshot: &RegionSnapshot, region: &KubeVirt) -> Vec<Check> {
    let class = &region.storage_class;
    let backups = backups(region, snapshot.snapshot_class.as_ref(), &snapshot.storage_class);
    let mut verdicts = vec![
        ("Kubernetes", kubernetes(&snapshot.version)),
        ("clock", clock(snapshot.clocks)),
        ("KubeVirt", kubevirt(&snapshot.apis, &snapshot.kubevirt)),
        ("CDI", cdi(&snapshot.apis)),
        ("rights", rights(&snapshot.rights)),
        (
            "namespaces",
            namespaces(region.namespaces, &snapshot.refused_namespace),
        ),
        ("processors", processors(&snapshot.kubevirt)),
        ("emulation", emulation(&snapshot.kubevirt)),
        ("drains", drains(&snapshot.kubevirt, region.eviction_strategy)),
        ("storage", storage(class, &snapshot.storage_class)),
        ("migration", migration(class, &snapshot.storage_profile)),
        ("backups", backups),
        ("images", images(&snapshot.images)),
        ("network", network(&region.network, snapshot)),
        ("name servers", name_servers(&region.network)),
        ("usage", usage(region.usage.as_ref(), snapshot)),
    ];
    if let Profile::Bridge { .. } = region.network.profile {
        verdicts.push((
            "spoofing",
            spoofing(&region.network, snapshot.attachment.as_ref()),
        ));
    }
    if region.network.private_networks != PrivateNetworks::None {
        let verdict = private_networks(&region.network.private_networks, snapshot);
        verdicts.push(("private networks", verdict));
    }
    let checks = verdicts.into_iter();
    checks
        .map(|(name, verdict)| Check::of(name, verdict, UNREAD))
        .collect()
}

fn kubernetes(version: &Info) -> Verdict {
    let fix = "Upgrade the cluster: the admission policies that limit Stellage to its namespaces need a newer version.";
    at_least(OLDEST_KUBERNETES, version, fix)
}

fn clock((here, server): (Timestamp, Option<Timestamp>)) -> Verdict {
    let server = server.ok_or("the API server's answers have no time")?;
    let skew = here.duration_since(server).abs();
    let message = format!("this machine and the API server differ by {} s", skew.as_secs());
    if skew > SKEW {
        let fix = "Synchronise the clocks (chrony, systemd-timesyncd): Stellage compares the cluster's times with its own.";
        return Err(warning(message, fix));
    }
    Ok(message)
}

fn kubevirt(apis: &Read<BTreeSet<String>>, installed: &Read<Option<Value>>) -> Verdict {
    let install = "Install KubeVirt: https://kubevirt.io/user-guide/cluster_admin/installation";
    let apis = apis.as_ref()?;
    if !apis.contains(KUBEVIRT) {
        return Err(failed("the cluster has no API kubevirt.io/v1", install));
    }
    // Served by virt-api itself.
    if !apis.contains("subresources.kubevirt.io/v1") {
        let fix = "See the Pods of virt-api, and: kubectl get apiservice v1.subresources.kubevirt.io";
        return Err(failed("virt-api does not serve subresources.kubevirt.io/v1", fix));
    }
    let Some(installed) = installed.as_ref()? else {
        return Err(failed("there is no KubeVirt object", install));
    };
    let status = &installed["status"];
    let version = status["observedKubeVirtVersion"].as_str().unwrap_or_default();
    let phase = status["phase"].as_str().unwrap_or_default();
    if phase != "Deployed" {
        let message = format!("{version} has the phase {phase}");
        return Err(failed(message, "kubectl describe kubevirt -A says why."));
    }
    let rollout = installed["spec"]["configuration"]["vmRolloutStrategy"].as_str();
    let rollout = rollout.unwrap_or("LiveUpdate");
    match Version::parse(version.trim_start_matches('v')) {
        Ok(parsed) if (parsed.major, parsed.minor) < (1, OLDEST_KUBEVIRT) => Err(failed(
            format!("{version} is older than 1.{OLDEST_KUBEVIRT}"),
            "Upgrade KubeVirt: older versions stop and start servers by other rules.",
        )),
        Ok(_) => Ok(format!("{version}, vmRolloutStrategy {rollout}")),
        Err(_) => Err(unknown(
            format!("cannot tell the version {version:?}"),
            format!("Stellage needs 1.{OLDEST_KUBEVIRT} or newer."),
        )),
    }
}

fn cdi(apis: &Read<BTreeSet<String>>) -> Verdict {
    let api = "cdi.kubevirt.io/v1beta1";
    if apis.as_ref()?.contains(api) {
        return Ok(api.to_owned());
    }
    Err(failed(
        format!("the cluster has no API {api}"),
        "Install the Containerized Data Importer, which makes disks of images.",
    ))
}

fn rights(missing: &Read<(Vec<Right>, bool)>) -> Verdict {
    let (missing, with_servers) = missing.as_ref()?;
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
        return Err(failed(
            format!("Stellage may not: {}", some(&missing)),
            "Upgrade the release of the chart stellage-region with the region's namespacePrefix, imageNamespaces and networkNamespaces.",
        ));
    }
    let unseen = if *with_servers {
        ""
    } else {
        "; those for servers were not looked at, for there are none yet"
    };
    Ok(format!("Stellage may do what it does in this cluster{unseen}"))
}

fn usage(from: Option<&UsageFrom>, snapshot: &RegionSnapshot) -> Verdict {
    let prometheus = match from {
        None => {
            return Err(warning(
                "nothing knows it: it is shown as null, and no alert fires",
                "Set prometheus of the region in the catalogue, or podMetrics for CPU usage alone.",
            ));
        }
        Some(UsageFrom::PodMetrics) => {
            if snapshot.apis.as_ref()?.contains("metrics.k8s.io/v1beta1") {
                return Ok(
                    "that of CPUs comes from metrics.k8s.io; all else is unknown (podMetrics)".to_owned(),
                );
            }
            return Err(failed(
                "the cluster has no API metrics.k8s.io/v1beta1",
                "Install metrics-server; or set prometheus of the region in the catalogue, which knows more.",
            ));
        }
        Some(UsageFrom::Prometheus(prometheus)) => prometheus,
    };
    let known = match &snapshot.usage {
        None => return Err("nobody has asked Prometheus".into()),
        Some(Err(why)) => {
            return Err(failed(
                format!("Prometheus at {}: {why}", prometheus.url),
                "Correct url, bearerTokenFile, headers or ca in prometheus of the region. Its files are in the Pods of Stellage: run this there.",
            ));
        }
        Some(Ok(known)) => known,
    };
    if known.is_renamed {
        return Err(failed(
            "Prometheus has renamed the labels of virt-handler (exported_namespace), so that no server is found",
            "Set honorLabels: true where it scrapes virt-handler, as in KubeVirt's own ServiceMonitor.",
        ));
    }
    if known.all == 0 {
        return Err(warning(
            "Prometheus answers, and has no kubevirt_vmi_cpu_usage_seconds_total",
            "Normal if no virtual machine runs in the cluster. Else let it scrape virt-handler: monitorNamespace and monitorAccount of the KubeVirt object.",
        ));
    }
    let all = format!("Prometheus knows {} virtual machines", known.all);
    if known.ours == 0 && has_servers(snapshot) {
        return Err(warning(
            format!("{all}, none of them of this installation"),
            "Normal if none of its servers is on. Else let Prometheus keep the label kubernetes_vmi_label_stellage_dev_installation of virt-handler.",
        ));
    }
    Ok(format!("{all}, {} of this installation", known.ours))
}

/// Whether the cluster has a server of this installation, on or off.
const fn has_servers(snapshot: &RegionSnapshot) -> bool {
    matches!(snapshot.rights, Ok((_, true)))
}

fn namespaces(made_by: Namespaces, refused: &Read<Option<String>>) -> Verdict {
    if made_by == Namespaces::Existing {
        return Ok("you make those of servers (namespaces: existing)".to_owned());
    }
    match refused.as_ref()? {
        None => Ok("Stellage may make those of servers".to_owned()),
        Some(why) => Err(failed(
            format!("the cluster refuses those of servers: {why}"),
            "Set installation and namespacePrefix of the chart stellage-region to the values that the region has in the catalogue.",
        )),
    }
}

/// What the KubeVirt object asks for, if it could be read; that it is missing [`kubevirt`] says.
fn spec(installed: &Read<Option<Value>>) -> Result<&Value, Problem> {
    let installed = installed.as_ref()?.as_ref();
    Ok(&installed.ok_or("there is no KubeVirt object")?["spec"])
}

fn processors(installed: &Read<Option<Value>>) -> Verdict {
    let developer = &spec(installed)?["configuration"]["developerConfiguration"];
    match developer["cpuAllocationRatio"]
        .as_u64()
        .filter(|ratio| *ratio > 0)
    {
        Some(ratio) => Ok(format!(
            "each is given to {ratio} servers at most (cpuAllocationRatio)"
        )),
        None => Err(warning(
            format!("each is given to {DEFAULT_RATIO} servers, for cpuAllocationRatio is not set"),
            "Set spec.configuration.developerConfiguration.cpuAllocationRatio of the KubeVirt object to what you sell.",
        )),
    }
}

fn emulation(installed: &Read<Option<Value>>) -> Verdict {
    if spec(installed)?["configuration"]["developerConfiguration"]["useEmulation"] == true {
        return Err(warning(
            "servers may run without help of the hardware, which is slow (useEmulation)",
            "For customers, use nodes with /dev/kvm, and take useEmulation out of the KubeVirt object.",
        ));
    }
    Ok("servers run with KVM".to_owned())
}

fn drains(installed: &Read<Option<Value>>, strategy: EvictionStrategy) -> Verdict {
    if strategy == EvictionStrategy::LiveMigrate {
        return Err(warning(
            "a server that cannot be migrated holds up drains and upgrades of its node forever (evictionStrategy LiveMigrate)",
            "Set evictionStrategy of the region to LiveMigrateIfPossible, unless every server can be migrated.",
        ));
    }
    let methods = spec(installed)?["workloadUpdateStrategy"]["workloadUpdateMethods"].as_array();
    let has = |method: &str| methods.is_some_and(|methods| methods.iter().any(|it| it == method));
    let upgrades = if has("Evict") {
        "an upgrade of KubeVirt migrates servers or starts them again"
    } else if has("LiveMigrate") {
        "an upgrade of KubeVirt migrates servers; others keep their launcher until they are started again"
    } else {
        "an upgrade of KubeVirt leaves servers alone until they are started again (no workloadUpdateMethods)"
    };
    Ok(format!("{}; {upgrades}", strategy.as_str()))
}

fn storage(wanted: &str, found: &Read<Option<StorageClass>>) -> Verdict {
    let Some(found) = found.as_ref()? else {
        let fix = "Make it, or correct storageClass of the region; kubectl get storageclass lists those that there are.";
        return Err(failed(format!("there is no StorageClass {wanted}"), fix));
    };
    // Kubernetes sets what is not given.
    let policy = found.reclaim_policy.as_deref().unwrap_or("Delete");
    if policy != "Delete" {
        return Err(failed(
            format!("{wanted} has the reclaimPolicy {policy}: disks of deleted servers are kept forever"),
            "Use a StorageClass with reclaimPolicy: Delete.",
        ));
    }
    if found.allow_volume_expansion != Some(true) {
        return Err(warning(
            format!("disks of {wanted} cannot grow, so plans with a larger disk are refused"),
            "Set allowVolumeExpansion: true, if its driver can do it.",
        ));
    }
    let binding = found.volume_binding_mode.as_deref().unwrap_or("Immediate");
    let rebuilds = if binding == "WaitForFirstConsumer" {
        ": a rebuild stops the server before its new disk is known to be good"
    } else {
        ""
    };
    Ok(format!("{wanted}, volumeBindingMode {binding}{rebuilds}"))
}

fn migration(class: &str, profile: &Read<Option<Value>>) -> Verdict {
    let profile = profile.as_ref()?.as_ref();
    // CDI takes the first one.
    let Some(first) = profile.and_then(|profile| profile["status"]["claimPropertySets"].get(0)) else {
        return Err(failed(
            format!("CDI does not know which claims {class} can have, and makes no disks"),
            format!("Set spec.claimPropertySets of the StorageProfile {class}: accessModes and volumeMode."),
        ));
    };
    let modes = first["accessModes"].as_array().into_iter().flatten();
    let modes: Vec<&str> = modes.filter_map(Value::as_str).collect();
    let volume = first["volumeMode"].as_str().unwrap_or_default();
    let claims = format!("{} {volume}", modes.join("+"));
    if modes.first() == Some(&"ReadWriteMany") {
        return Ok(format!("disks of {class} can be migrated ({claims})"));
    }
    Err(warning(
        format!("disks of {class} cannot be migrated ({claims}): a drain starts servers again elsewhere"),
        "Use a StorageClass with ReadWriteMany block volumes, if servers are to be migrated.",
    ))
}

fn backups(
    region: &KubeVirt,
    found: Option<&Read<Option<VolumeSnapshotClass>>>,
    storage: &Read<Option<StorageClass>>,
) -> Verdict {
    let (Some(class), Some(found)) = (&region.snapshot_class, found) else {
        return Ok("the region offers none (no snapshotClass)".to_owned());
    };
    let Some(found) = found.as_ref()? else {
        let fix = "Install external-snapshotter and make the class, or correct snapshotClass of the region; without it, leave snapshotClass out.";
        return Err(failed(format!("there is no VolumeSnapshotClass {class}"), fix));
    };
    if found.deletion_policy != "Delete" {
        return Err(failed(
            format!(
                "{class} has the deletionPolicy {}, so backups that are deleted would leave their data; none is begun",
                found.deletion_policy
            ),
            "Use a VolumeSnapshotClass with deletionPolicy: Delete.",
        ));
    }
    let driver = storage.as_ref().ok().and_then(Option::as_ref);
    if let Some(other) = driver
        .map(|class| &class.provisioner)
        .filter(|other| **other != found.driver)
    {
        return Err(failed(
            format!(
                "{class} is of the driver {}, and the disks are of {other}",
                found.driver
            ),
            "Use a VolumeSnapshotClass of the driver of the StorageClass.",
        ));
    }
    Ok(format!(
        "{class}, of the driver {}; --test-storage tries it",
        found.driver
    ))
}

fn images(found: &BTreeMap<String, Read<Found>>) -> Verdict {
    let room = u64::try_from(Plan::Starter.size().disk_gb).unwrap_or(0);
    let (mut bad, mut unseen) = (Vec::new(), Vec::new());
    for (image, found) in found {
        match found {
            Err(why) => unseen.push(format!("{image}: {why}")),
            Ok(Found::Missing) => bad.push(format!("{image} is not there")),
            Ok(Found::NotReady(why)) => bad.push(format!("{image} is not ready: {why}")),
            Ok(Found::Ready(Some(size))) if *size > room * GIB => {
                let size = size.div_ceil(GIB);
                bad.push(format!(
                    "{image} has {size} GiB, and the smallest plan has {room} GiB"
                ));
            }
            Ok(Found::Ready(_) | Found::Elsewhere) => {}
        }
    }
    if !bad.is_empty() {
        let fix = "kubectl get datasource,dataimportcron,dv -n NAMESPACE says more; or correct images of the region.";
        return Err(failed(some(&bad), fix));
    }
    if !unseen.is_empty() {
        return Err(some(&unseen).as_str().into());
    }
    let elsewhere = found.values().filter(|found| **found == Ok(Found::Elsewhere));
    match elsewhere.count() {
        0 => Ok(format!("{} are ready", found.len())),
        elsewhere => Ok(format!(
            "{} are ready; {elsewhere} are snapshots or come from elsewhere, and were not looked at",
            found.len() - elsewhere
        )),
    }
}

/// The JSON of a NetworkAttachmentDefinition.
fn attached(attachment: Option<&Read<Option<String>>>) -> Result<Value, Problem> {
    let Some(attachment) = attachment else {
        return Ok(Value::Null);
    };
    let Some(config) = attachment.as_ref()? else {
        let fix = "Make it, or correct network.attachment of the region; docs/kubevirt.md has an example.";
        return Err(failed("the NetworkAttachmentDefinition is not there", fix));
    };
    serde_json::from_str(config).map_err(|error| {
        let message = format!("spec.config of the NetworkAttachmentDefinition is not JSON: {error}");
        failed(message, "Correct it; docs/kubevirt.md has an example.")
    })
}

/// The plugin of a network: it alone, or the first of a list.
fn plugin(config: &Value) -> &Value {
    config.get("plugins").map_or(config, |plugins| &plugins[0])
}

fn network(network: &Network, snapshot: &RegionSnapshot) -> Verdict {
    let config = attached(snapshot.attachment.as_ref())?;
    let plugin = plugin(&config);
    let kind = plugin["type"].as_str().unwrap_or_default();
    match &network.profile {
        _ if is_on_pod_network(network) && network.internal_cidrs.is_empty() => Err(failed(
            "servers reach the Pods, Services and nodes of the cluster, for internalCidrs is empty",
            "Set network.internalCidrs of the region to the prefixes of Pods, Services, nodes and management.",
        )),
        Profile::Pod => Ok(format!(
            "pod: behind the nodes' addresses; a NetworkPolicy keeps them out of {} prefixes, if the cluster's network enforces it",
            network.internal_cidrs.len()
        )),
        Profile::Bridge { .. } if !plugin["ipam"]["type"].is_null() => Err(warning(
            format!(
                "the attachment gives addresses of its own (ipam {})",
                plugin["ipam"]["type"]
            ),
            "Take ipam out of the NetworkAttachmentDefinition: Stellage gives the addresses, and a server would have to keep another one.",
        )),
        Profile::Bridge { .. } => Ok(format!("bridge: by the plugin {kind}")),
        Profile::KubeOvn {
            attachment: Some(_), ..
        } if kind != "kube-ovn" => Err(failed(
            format!("the attachment is of the type {kind:?}, not kube-ovn"),
            "Name an attachment of the type kube-ovn, or leave network.attachment out for the Pod network.",
        )),
        Profile::KubeOvn { attachment: None, .. } => {
            let settings = &spec(&snapshot.kubevirt)?["configuration"]["network"];
            if settings["permitBridgeInterfaceOnPodNetwork"] == false {
                let fix = "Set spec.configuration.network.permitBridgeInterfaceOnPodNetwork of the KubeVirt object to true, or use an attachment.";
                return Err(failed("KubeVirt permits no bridge on the Pod network", fix));
            }
            Ok("kubeOvn: on the Pod network".to_owned())
        }
        Profile::KubeOvn { .. } => Ok("kubeOvn: by an attachment".to_owned()),
    }
}

/// Whether the NetworkPolicy applies to servers.
const fn is_on_pod_network(network: &Network) -> bool {
    matches!(
        network.profile,
        Profile::Pod | Profile::KubeOvn { attachment: None, .. }
    )
}

/// Whether guests can resolve names.
fn name_servers(network: &Network) -> Verdict {
    let all = &network.nameservers;
    if all.is_empty() {
        return Err(warning(
            "guests have no DNS, for nameservers is empty",
            "Set network.nameservers of the region to name servers that guests can reach.",
        ));
    }
    let is_hidden = |server: &&IpAddr| network.internal_cidrs.iter().any(|cidr| cidr.contains(*server));
    if let Some(hidden) = all.iter().find(is_hidden).filter(|_| is_on_pod_network(network)) {
        return Err(failed(
            format!("guests cannot reach {hidden}: it is within internalCidrs"),
            "Set network.nameservers of the region to name servers outside of the cluster.",
        ));
    }
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    Ok(all.join(", "))
}

/// Whether servers on a bridge can use the addresses of others.
fn spoofing(network: &Network, attachment: Option<&Read<Option<String>>>) -> Verdict {
    let config = match attached(attachment) {
        Ok(config) => config,
        Err(problem) if problem.outcome == Outcome::Unknown => return Err(problem),
        // `network` says so.
        Err(_) => Value::Null,
    };
    let plugin = plugin(&config);
    if plugin["type"] == "bridge" && plugin["macspoofchk"] != true {
        return Err(warning(
            "servers can use the MAC addresses of others: macspoofchk of the attachment is not on",
            "Set \"macspoofchk\": true in spec.config of the NetworkAttachmentDefinition.",
        ));
    }
    if !network.anti_spoofing_external {
        return Err(warning(
            "KubeVirt lets servers on a bridge use the IP addresses of others",
            "Filter at the switch or the uplink, and then say so: network.antiSpoofing: external.",
        ));
    }
    Ok("something outside of KubeVirt checks IP addresses, says the catalogue".to_owned())
}

/// Whether there is what private networks are made with.
fn private_networks(driver: &PrivateNetworks, snapshot: &RegionSnapshot) -> Verdict {
    let apis = snapshot.apis.as_ref()?;
    if !apis.contains("k8s.cni.cncf.io/v1") {
        let fix = "Install Multus, which gives servers a second interface: https://github.com/k8snetworkplumbingwg/multus-cni";
        return Err(failed("the cluster has no API k8s.cni.cncf.io/v1", fix));
    }
    match driver {
        PrivateNetworks::KubeOvn if !apis.contains("kubeovn.io/v1") => {
            let fix = "Install kube-ovn (https://kubeovn.github.io/docs), or set network.privateNetworks of the region to nad or none.";
            Err(failed("the cluster has no API kubeovn.io/v1", fix))
        }
        PrivateNetworks::None | PrivateNetworks::KubeOvn => {
            Ok("kubeOvn: each has a Vpc and a Subnet of its own".to_owned())
        }
        PrivateNetworks::Nad => Ok(
            "nad: the platform team makes each, with its name in the namespace of the account's servers"
                .to_owned(),
        ),
        PrivateNetworks::Pool(_) => {
            let pool = snapshot.pool.as_ref().ok_or("the attachments were not read")?;
            pooled(pool.as_ref()?)
        }
    }
}

/// The attachments of the platform team.
fn pooled(pool: &[Pooled]) -> Verdict {
    let missing: Vec<String> = pool
        .iter()
        .filter(|it| it.config.is_none())
        .map(|it| format!("{} is not there", it.name))
        .collect();
    if !missing.is_empty() {
        let fix = "Make the NetworkAttachmentDefinition, or correct network.privateAttachments of the region; docs/kubevirt.md has an example.";
        return Err(failed(some(&missing), fix));
    }
    let has_addresses = |it: &&Pooled| {
        let config = it.config.as_deref().unwrap_or_default();
        let config: Value = serde_json::from_str(config).unwrap_or_default();
        !plugin(&config)["ipam"]["type"].is_null()
    };
    let with_addresses: Vec<String> = pool
        .iter()
        .filter(has_addresses)
        .map(|it| format!("{} gives addresses of its own", it.name))
        .collect();
    if !with_addresses.is_empty() {
        let fix = "Take ipam out of the NetworkAttachmentDefinition: Stellage gives the addresses.";
        return Err(warning(some(&with_addresses), fix));
    }
    let free = pool.iter().filter(|it| !it.is_taken).count();
    let message = format!("nad: {free} of {} are free", pool.len());
    if free == 0 {
        let fix = "Make more NetworkAttachmentDefinitions, and add them to network.privateAttachments of the region: new private networks wait for one.";
        return Err(warning(message, fix));
    }
    Ok(message)
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use domain::{
        catalogue::region::{Image, ImageSource, Namespaces, ObjectName, PrivateNetworks, Prometheus},
        provider::Deadlines,
    };
    use providers::kubevirt::Known;
    use serde_json::json;

    use super::{
        super::needed,
        Outcome::{Failed, Unknown, Warning},
        *,
    };

    fn name(namespace: &str, name: &str) -> ObjectName {
        ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    fn prometheus() -> UsageFrom {
        UsageFrom::Prometheus(Prometheus {
            url: "https://prometheus.example".to_owned(),
            bearer_token_file: None,
            headers: BTreeMap::new(),
            ca: None,
        })
    }

    fn region(profile: Profile) -> KubeVirt {
        let image = Image {
            source: ImageSource::DataSource(name("stellage-images", "debian-13")),
            user: "debian".to_owned(),
            user_data: None,
            config_drive: false,
        };
        KubeVirt {
            kubeconfig: PathBuf::from("/etc/stellage/regions/de-fra-1/kubeconfig"),
            installation: "prod-1".to_owned(),
            namespace_prefix: "stellage-".to_owned(),
            namespaces: Namespaces::Managed,
            storage_class: "ceph-block".to_owned(),
            snapshot_class: Some("ceph-block-stellage".to_owned()),
            images: BTreeMap::from([("debian-13".to_owned(), image)]),
            network: Network {
                profile,
                ipv4: Vec::new(),
                ipv6: None,
                nameservers: vec!["9.9.9.9".parse().unwrap()],
                internal_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
                private_networks: PrivateNetworks::None,
                anti_spoofing_external: true,
            },
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
            eviction_strategy: EvictionStrategy::default(),
            cpu_model: None,
            deadlines: Deadlines {
                soft_stop_grace: Duration::from_mins(2),
                create: Duration::from_mins(30),
                rebuild: Duration::from_mins(30),
                other: Duration::from_mins(15),
            },
            calls_at_once: 32,
            usage: Some(prometheus()),
        }
    }

    fn bridge() -> Profile {
        Profile::Bridge {
            attachment: name("stellage-networks", "public"),
        }
    }

    fn kube_ovn(attachment: Option<ObjectName>) -> Profile {
        Profile::KubeOvn {
            subnet: "public-fra1".to_owned(),
            attachment,
        }
    }

    fn kubevirt_object(snapshot: &mut RegionSnapshot) -> &mut Value {
        snapshot.kubevirt.as_mut().unwrap().as_mut().unwrap()
    }

    fn class(change: impl FnOnce(&mut Value)) -> Read<Option<StorageClass>> {
        let mut object = json!({
            "metadata": { "name": "ceph-block" }, "provisioner": "rbd", "reclaimPolicy": "Delete",
            "allowVolumeExpansion": true, "volumeBindingMode": "Immediate",
        });
        change(&mut object);
        serde_json::from_value(object).map_err(|error| error.to_string())
    }

    fn profile(sets: Value) -> Value {
        json!({ "status": { "claimPropertySets": sets } })
    }

    fn snapshot_class(driver: &str, policy: &str) -> VolumeSnapshotClass {
        VolumeSnapshotClass {
            driver: driver.to_owned(),
            deletion_policy: policy.to_owned(),
        }
    }

    #[test]
    fn backups_need_a_class_of_the_disks_driver_that_leaves_no_data() {
        let region = region(Profile::Pod);
        for (found, outcome, says) in [
            (
                Ok(None),
                Failed,
                "there is no VolumeSnapshotClass ceph-block-stellage",
            ),
            (
                Ok(Some(snapshot_class("rbd", "Retain"))),
                Failed,
                "would leave their data",
            ),
            (
                Ok(Some(snapshot_class("zfs", "Delete"))),
                Failed,
                "of the driver zfs, and the disks are of rbd",
            ),
            (Err("forbidden".to_owned()), Unknown, "not checked: forbidden"),
        ] {
            let snapshot = RegionSnapshot {
                snapshot_class: Some(found),
                ..healthy()
            };
            let [(name, was, text)] = &complaints(&snapshot, &region)[..] else {
                panic!("{says}")
            };
            assert_eq!((*name, *was), ("backups", outcome), "{text}");
            assert!(text.contains(says), "{text}");
        }
        let snapshot = RegionSnapshot {
            snapshot_class: None,
            ..healthy()
        };
        assert_eq!(complaints(&snapshot, &region), []);
    }

    const ATTACHMENT: &str =
        r#"{"cniVersion":"0.3.1","type":"bridge","bridge":"br-public","macspoofchk":true,"ipam":{}}"#;

    /// A cluster with which nothing is wrong.
    fn healthy() -> RegionSnapshot {
        let noon: Timestamp = "2026-11-23T12:00:00Z".parse().unwrap();
        let apis = [
            "kubevirt.io/v1",
            "subresources.kubevirt.io/v1",
            "cdi.kubevirt.io/v1beta1",
        ];
        RegionSnapshot {
            clocks: (noon, Some(noon)),
            version: Info {
                major: "1".to_owned(),
                minor: "33+".to_owned(),
                git_version: "v1.33.1".to_owned(),
                ..Info::default()
            },
            apis: Ok(apis.map(ToOwned::to_owned).into()),
            rights: Ok((Vec::new(), true)),
            refused_namespace: Ok(None),
            kubevirt: Ok(Some(json!({
                "spec": {
                    "configuration": { "developerConfiguration": { "cpuAllocationRatio": 4 } },
                    "workloadUpdateStrategy": { "workloadUpdateMethods": ["LiveMigrate"] },
                },
                "status": { "phase": "Deployed", "observedKubeVirtVersion": "v1.8.2" },
            }))),
            storage_class: class(|_| {}),
            storage_profile: Ok(Some(profile(
                json!([{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }]),
            ))),
            snapshot_class: Some(Ok(Some(snapshot_class("rbd", "Delete")))),
            images: BTreeMap::from([("debian-13".to_owned(), Ok(Found::Ready(Some(10 * GIB))))]),
            attachment: None,
            pool: None,
            usage: Some(Ok(Known {
                all: 7,
                ours: 5,
                is_renamed: false,
            })),
        }
    }

    /// What is not well: name, outcome, and the message with what to do.
    fn complaints(snapshot: &RegionSnapshot, region: &KubeVirt) -> Vec<(&'static str, Outcome, String)> {
        let bad = all(snapshot, region)
            .into_iter()
            .filter(|check| check.outcome != Outcome::Ok);
        bad.map(|check| {
            let fix = check
                .fix
                .unwrap_or_else(|| panic!("{}: nothing to do", check.name));
            (check.name, check.outcome, format!("{}\n{fix}", check.message))
        })
        .collect()
    }

    #[test]
    fn nothing_is_wrong_with_a_healthy_region_whatever_its_network() {
        let own = Some(name("stellage-networks", "public"));
        for (profile, attachment) in [
            (Profile::Pod, None),
            (bridge(), Some(Ok(Some(ATTACHMENT.to_owned())))),
            (kube_ovn(None), None),
            (kube_ovn(own), Some(Ok(Some(r#"{"type":"kube-ovn"}"#.to_owned())))),
        ] {
            let region = region(profile);
            let snapshot = RegionSnapshot {
                attachment,
                ..healthy()
            };
            assert_eq!(complaints(&snapshot, &region), []);
        }
    }

    #[test]
    fn virtual_machines_of_others_say_nothing_about_the_usage_of_a_region_without_servers() {
        let snapshot = RegionSnapshot {
            rights: Ok((Vec::new(), false)),
            usage: Some(Ok(Known {
                all: 7,
                ours: 0,
                is_renamed: false,
            })),
            ..healthy()
        };
        assert_eq!(complaints(&snapshot, &region(Profile::Pod)), []);
    }

    #[test]
    fn name_servers_within_internal_cidrs_are_in_reach_of_servers_that_are_not_on_the_pod_network() {
        let mut region = region(bridge());
        region.network.nameservers = vec!["10.244.0.10".parse().unwrap()];
        let snapshot = RegionSnapshot {
            attachment: Some(Ok(Some(ATTACHMENT.to_owned()))),
            ..healthy()
        };
        assert_eq!(complaints(&snapshot, &region), []);
    }

    type Break = fn(&mut RegionSnapshot, &mut KubeVirt);

    /// What is broken, and by whom and how it is told.
    const PROBLEMS: &[(&str, Outcome, &str, Break)] = &[
        ("Kubernetes", Failed, "v1.29.0 is older than 1.30", |it, _| {
            it.version.minor = "29".to_owned();
            it.version.git_version = "v1.29.0".to_owned();
        }),
        ("clock", Warning, "differ by 31 s", |it, _| {
            it.clocks.1 = Some(it.clocks.0 + SignedDuration::from_secs(31));
        }),
        (
            "KubeVirt",
            Failed,
            "no API kubevirt.io/v1\nInstall KubeVirt",
            |it, _| {
                it.apis = Ok(["cdi.kubevirt.io/v1beta1".to_owned()].into());
            },
        ),
        ("KubeVirt", Failed, "virt-api does not serve", |it, _| {
            it.apis.as_mut().unwrap().remove("subresources.kubevirt.io/v1");
        }),
        ("KubeVirt", Failed, "v1.5.3 is older than 1.6", |it, _| {
            kubevirt_object(it)["status"]["observedKubeVirtVersion"] = json!("v1.5.3");
        }),
        ("KubeVirt", Failed, "has the phase Deploying", |it, _| {
            kubevirt_object(it)["status"]["phase"] = json!("Deploying");
        }),
        (
            "KubeVirt",
            Unknown,
            "cannot tell the version \"devel\"",
            |it, _| {
                kubevirt_object(it)["status"]["observedKubeVirtVersion"] = json!("devel");
            },
        ),
        ("CDI", Failed, "no API cdi.kubevirt.io/v1beta1", |it, _| {
            it.apis.as_mut().unwrap().remove("cdi.kubevirt.io/v1beta1");
        }),
        (
            "rights",
            Failed,
            "may not: get namespaces, create namespaces\nUpgrade",
            |it, region| {
                let all = needed(region, None).unwrap();
                let some = all.into_iter().filter(|right| right.resource == "namespaces");
                let two: Vec<Right> = some.take(2).collect();
                assert_eq!(two.len(), 2);
                it.rights = Ok((two, true));
            },
        ),
        ("rights", Unknown, "not checked: timeout", |it, _| {
            it.rights = Err("timeout".to_owned());
        }),
        (
            "namespaces",
            Failed,
            "refuses those of servers: only namespaces with the label\nSet installation",
            |it, _| it.refused_namespace = Ok(Some("only namespaces with the label".to_owned())),
        ),
        ("processors", Warning, "each is given to 10 servers", |it, _| {
            kubevirt_object(it)["spec"]["configuration"] = json!({});
        }),
        ("emulation", Warning, "(useEmulation)", |it, _| {
            let configuration = &mut kubevirt_object(it)["spec"]["configuration"];
            configuration["developerConfiguration"]["useEmulation"] = json!(true);
        }),
        ("drains", Warning, "holds up drains", |_, region| {
            region.eviction_strategy = EvictionStrategy::LiveMigrate;
        }),
        (
            "storage",
            Failed,
            "there is no StorageClass ceph-block",
            |it, _| {
                it.storage_class = Ok(None);
            },
        ),
        ("storage", Failed, "reclaimPolicy Retain", |it, _| {
            it.storage_class = class(|it| it["reclaimPolicy"] = json!("Retain"));
        }),
        ("storage", Warning, "cannot grow", |it, _| {
            it.storage_class = class(|it| it["allowVolumeExpansion"] = json!(false));
        }),
        ("migration", Failed, "CDI does not know which claims", |it, _| {
            it.storage_profile = Ok(Some(profile(json!([]))));
        }),
        (
            "migration",
            Warning,
            "cannot be migrated (ReadWriteOnce Filesystem)",
            |it, _| {
                let sets = json!([{ "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem" }]);
                it.storage_profile = Ok(Some(profile(sets)));
            },
        ),
        ("images", Failed, "debian-13 is not there", |it, _| {
            it.images.insert("debian-13".to_owned(), Ok(Found::Missing));
        }),
        ("images", Failed, "debian-13 is not ready: importing", |it, _| {
            let found = Found::NotReady("importing".to_owned());
            it.images.insert("debian-13".to_owned(), Ok(found));
        }),
        (
            "images",
            Failed,
            "debian-13 has 41 GiB, and the smallest plan has 40 GiB",
            |it, _| {
                let found = Found::Ready(Some(40 * GIB + 1));
                it.images.insert("debian-13".to_owned(), Ok(found));
            },
        ),
        (
            "usage",
            Warning,
            "shown as null, and no alert fires\nSet prometheus",
            |it, region| {
                (it.usage, region.usage) = (None, None);
            },
        ),
        (
            "usage",
            Failed,
            "no API metrics.k8s.io/v1beta1\nInstall metrics-server",
            |it, region| {
                (it.usage, region.usage) = (None, Some(UsageFrom::PodMetrics));
            },
        ),
        (
            "usage",
            Failed,
            "at https://prometheus.example: it answers 401\nCorrect url, bearerTokenFile",
            |it, _| {
                it.usage = Some(Err("it answers 401".to_owned()));
            },
        ),
        ("usage", Failed, "exported_namespace", |it, _| {
            it.usage = Some(Ok(Known {
                all: 7,
                ours: 5,
                is_renamed: true,
            }));
        }),
        (
            "usage",
            Warning,
            "no kubevirt_vmi_cpu_usage_seconds_total\nNormal if no virtual machine runs",
            |it, _| {
                it.usage = Some(Ok(Known::default()));
            },
        ),
        (
            "usage",
            Warning,
            "none of them of this installation\nNormal if none of its servers is on",
            |it, _| {
                it.usage = Some(Ok(Known {
                    all: 7,
                    ours: 0,
                    is_renamed: false,
                }));
            },
        ),
        ("network", Failed, "internalCidrs is empty", |_, region| {
            region.network.internal_cidrs.clear();
        }),
        ("network", Failed, "internalCidrs is empty", |_, region| {
            region.network.profile = kube_ovn(None);
            region.network.internal_cidrs.clear();
        }),
        ("name servers", Failed, "within internalCidrs", |_, region| {
            region.network.nameservers = vec!["10.244.0.10".parse().unwrap()];
        }),
        ("name servers", Failed, "within internalCidrs", |_, region| {
            region.network.profile = kube_ovn(None);
            region.network.nameservers = vec!["10.244.0.10".parse().unwrap()];
        }),
        ("name servers", Warning, "guests have no DNS", |_, region| {
            region.network.nameservers.clear();
        }),
        (
            "network",
            Failed,
            "NetworkAttachmentDefinition is not there",
            |it, region| {
                region.network.profile = bridge();
                it.attachment = Some(Ok(None));
            },
        ),
        ("network", Failed, "is not JSON", |it, region| {
            region.network.profile = bridge();
            it.attachment = Some(Ok(Some("type: bridge".to_owned())));
        }),
        (
            "network",
            Warning,
            "addresses of its own (ipam \"whereabouts\")",
            |it, region| {
                region.network.profile = bridge();
                let config = ATTACHMENT.replace("\"ipam\":{}", "\"ipam\":{\"type\":\"whereabouts\"}");
                it.attachment = Some(Ok(Some(config)));
            },
        ),
        ("network", Failed, "not kube-ovn", |it, region| {
            region.network.profile = kube_ovn(Some(name("stellage-networks", "public")));
            it.attachment = Some(Ok(Some(ATTACHMENT.to_owned())));
        }),
        (
            "network",
            Failed,
            "permits no bridge on the Pod network",
            |it, region| {
                region.network.profile = kube_ovn(None);
                let forbidden = json!({ "permitBridgeInterfaceOnPodNetwork": false });
                kubevirt_object(it)["spec"]["configuration"]["network"] = forbidden;
            },
        ),
        (
            "private networks",
            Failed,
            "no API k8s.cni.cncf.io/v1",
            |_, region| region.network.private_networks = PrivateNetworks::Nad,
        ),
        (
            "private networks",
            Failed,
            "no API kubeovn.io/v1",
            |it, region| {
                with_multus(it);
                region.network.private_networks = PrivateNetworks::KubeOvn;
            },
        ),
        (
            "private networks",
            Failed,
            "vlans/vlan-102 is not there",
            |it, region| {
                pool(it, region);
                in_pool(it)[1].config = None;
            },
        ),
        (
            "private networks",
            Warning,
            "vlans/vlan-101 gives addresses of its own",
            |it, region| {
                pool(it, region);
                let config = ATTACHMENT.replace("\"ipam\":{}", "\"ipam\":{\"type\":\"whereabouts\"}");
                in_pool(it)[0].config = Some(config);
            },
        ),
        ("private networks", Warning, "0 of 2 are free", |it, region| {
            pool(it, region);
            for attachment in in_pool(it) {
                attachment.is_taken = true;
            }
        }),
        ("spoofing", Warning, "MAC addresses of others", |it, region| {
            region.network.profile = bridge();
            it.attachment = Some(Ok(Some(ATTACHMENT.replace("true", "false"))));
        }),
        ("spoofing", Warning, "IP addresses of others", |it, region| {
            region.network.profile = bridge();
            region.network.anti_spoofing_external = false;
            let list = format!(r#"{{"cniVersion":"0.3.1","plugins":[{ATTACHMENT}]}}"#);
            it.attachment = Some(Ok(Some(list)));
        }),
    ];

    fn with_multus(snapshot: &mut RegionSnapshot) {
        if let Ok(apis) = &mut snapshot.apis {
            apis.insert("k8s.cni.cncf.io/v1".to_owned());
        }
    }

    /// Two attachments of the platform team, one of which is taken.
    fn pool(snapshot: &mut RegionSnapshot, region: &mut KubeVirt) {
        with_multus(snapshot);
        let attachment = |(id, is_taken): (&str, bool)| Pooled {
            name: format!("vlans/{id}"),
            config: Some(ATTACHMENT.to_owned()),
            is_taken,
        };
        snapshot.pool = Some(Ok([("vlan-101", false), ("vlan-102", true)]
            .map(attachment)
            .into()));
        let names = ["vlan-101", "vlan-102"].map(|id| name("vlans", id));
        region.network.private_networks = PrivateNetworks::Pool(names.into());
    }

    fn in_pool(snapshot: &mut RegionSnapshot) -> &mut [Pooled] {
        snapshot.pool.as_mut().unwrap().as_mut().unwrap()
    }

    #[test]
    fn a_region_says_how_its_private_networks_are_made() {
        let (mut snapshot, mut region) = (healthy(), region(Profile::Pod));
        pool(&mut snapshot, &mut region);
        if let Ok(apis) = &mut snapshot.apis {
            apis.insert("kubeovn.io/v1".to_owned());
        }
        let of_pool = region.network.private_networks.clone();
        for (driver, says) in [
            (of_pool, "1 of 2 are free"),
            (PrivateNetworks::Nad, "the platform team makes each"),
            (PrivateNetworks::KubeOvn, "a Vpc and a Subnet of its own"),
        ] {
            region.network.private_networks = driver;
            let checks = all(&snapshot, &region);
            let check = checks.iter().find(|it| it.name == "private networks").unwrap();
            assert_eq!(check.outcome, Outcome::Ok);
            assert!(check.message.contains(says), "{}", check.message);
        }
    }

    #[test]
    fn each_problem_of_a_region_is_told_with_its_outcome_and_what_to_do() {
        for (check, outcome, message, spoil) in PROBLEMS {
            let (mut snapshot, mut region) = (healthy(), region(Profile::Pod));
            spoil(&mut snapshot, &mut region);
            let found = complaints(&snapshot, &region);
            let is_it = |(name, is, said): &(&str, Outcome, String)| {
                name == check && is == outcome && said.contains(message)
            };
            assert!(found.iter().any(is_it), "{check} {message}: {found:#?}");
            // Whatever hangs on KubeVirt's settings goes with them.
            assert_eq!(found.len(), 1, "{check} {message}: {found:#?}");
        }
    }

    #[test]
    fn what_could_not_be_read_is_unknown_and_not_wrong() {
        let refused = || "not allowed to look".to_owned();
        let snapshot = RegionSnapshot {
            apis: Err(refused()),
            rights: Err(refused()),
            refused_namespace: Err(refused()),
            kubevirt: Err(refused()),
            storage_class: Err(refused()),
            storage_profile: Err(refused()),
            images: BTreeMap::from([("debian-13".to_owned(), Err(refused()))]),
            attachment: Some(Err(refused())),
            usage: None,
            ..healthy()
        };
        let found = complaints(&snapshot, &region(bridge()));
        assert!(found.len() > 8, "{found:#?}");
        for (name, outcome, said) in found {
            assert_eq!(outcome, Outcome::Unknown, "{name}: {said}");
        }
    }

    #[test]
    fn the_rights_of_a_region_are_those_of_its_chart_where_they_hold() {
        let shown = |region: &KubeVirt, of_servers: Option<&str>| -> Vec<String> {
            let needed = needed(region, of_servers).unwrap();
            needed.iter().map(ToString::to_string).collect()
        };
        let mut region = region(bridge());
        let all = shown(&region, Some("stellage-ada"));
        for right in [
            "watch virtualmachines.kubevirt.io",
            "create namespaces",
            "bind clusterroles.rbac.authorization.k8s.io stellage-servers",
            "patch virtualmachines/status.kubevirt.io in stellage-ada",
            "update virtualmachines/stop.subresources.kubevirt.io in stellage-ada",
            "create secrets in stellage-ada",
            "create datavolumes/source.cdi.kubevirt.io in stellage-images",
            "get network-attachment-definitions.k8s.cni.cncf.io in stellage-networks",
        ] {
            assert!(all.iter().any(|it| it == right), "{right} in {all:#?}");
        }
        let without = shown(&region, None);
        assert!(
            !without.iter().any(|right| right.contains("secrets")),
            "{without:#?}"
        );
        region.namespaces = Namespaces::Existing;
        region.namespace_prefix = "vm-".to_owned();
        region.network.profile = Profile::Pod;
        let fewer = shown(&region, None);
        assert!(
            !fewer
                .iter()
                .any(|right| right.contains("bind") || right.contains("networks"))
        );
        let kube_ovn = [
            "create vpcs.kubeovn.io",
            "delete subnets.kubeovn.io",
            "create network-attachment-definitions.k8s.cni.cncf.io in stellage-ada",
        ];
        let of_pool = ["patch network-attachment-definitions.k8s.cni.cncf.io in vlans"];
        let nad = ["get network-attachment-definitions.k8s.cni.cncf.io in stellage-ada"];
        for (driver, rights) in [
            (PrivateNetworks::KubeOvn, &kube_ovn[..]),
            (PrivateNetworks::Pool(vec![name("vlans", "vlan-101")]), &of_pool),
            (PrivateNetworks::Nad, &nad),
        ] {
            region.network.private_networks = driver;
            let all = shown(&region, Some("stellage-ada"));
            for right in rights {
                assert!(all.iter().any(|it| it == right), "{right} in {all:#?}");
            }
            region.network.private_networks = PrivateNetworks::None;
            let none = shown(&region, Some("stellage-ada"));
            assert!(!none.iter().any(|it| rights.contains(&it.as_str())));
        }
        region.namespaces = Namespaces::Managed;
        let metrics = "list pods.metrics.k8s.io".to_owned();
        assert!(!shown(&region, None).contains(&metrics));
        region.usage = Some(UsageFrom::PodMetrics);
        assert!(shown(&region, None).contains(&metrics));
        let role = "bind clusterroles.rbac.authorization.k8s.io vm-servers";
        assert!(shown(&region, None).iter().any(|right| right == role));
    }
}
