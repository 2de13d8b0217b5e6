//! Everything that is read from the cluster of a region, in one pass. What cannot be read is recorded as well.

use std::collections::{BTreeMap, BTreeSet};

use domain::catalogue::region::{
    ImageSource, KubeVirt, Namespaces, ObjectName, PrivateNetworks, Profile, UsageFrom,
};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{Namespace, PersistentVolumeClaim},
        storage::v1::StorageClass,
    },
    apimachinery::pkg::{api::resource::Quantity, version::Info},
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, PostParams},
};
use providers::kubevirt::{Known, known, names::NETWORK_UID, slim::VolumeSnapshotClass};
use runtime::client::{CallError, bounded};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    super::{
        rights::Right,
        snapshot::{REVIEWS, Read, words},
    },
    needed,
};
use crate::{
    CliError,
    connect::Cluster,
    region::{foreign, servers},
};

/// The API of KubeVirt.
pub(super) const KUBEVIRT: &str = "kubevirt.io/v1";

/// What an image of the region is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is there, and its claim has this many bytes if that is known.
    Ready(Option<u64>),
    /// It is there and not ready, and why.
    NotReady(String),
    Missing,
    /// It is not in the cluster, or cannot be looked at.
    Elsewhere,
}

/// An attachment of the platform team for a private network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pooled {
    /// Namespace and name.
    pub(super) name: String,
    /// Its `spec.config`; `None` if it is not there.
    pub(super) config: Option<String>,
    /// Whether it was given to a network.
    pub(super) is_taken: bool,
}

/// What was read from a region's cluster.
#[derive(Debug)]
pub(in super::super) struct RegionSnapshot {
    /// The times of this machine and of the API server at the same moment.
    pub(super) clocks: (Timestamp, Option<Timestamp>),
    pub(super) version: Info,
    /// API groups with versions, such as `kubevirt.io/v1`.
    pub(super) apis: Read<BTreeSet<String>>,
    /// The rights that are missing; and whether those in the namespaces of servers were looked at, which needs one.
    pub(super) rights: Read<(Vec<Right>, bool)>,
    /// What the cluster says against a new namespace of servers, if it is for Stellage to make them.
    pub(super) refused_namespace: Read<Option<String>>,
    pub(super) kubevirt: Read<Option<Value>>,
    pub(super) storage_class: Read<Option<StorageClass>>,
    /// How CDI makes claims of the StorageClass.
    pub(super) storage_profile: Read<Option<Value>>,
    /// The outer `None` if the region offers no backups.
    pub(super) snapshot_class: Option<Read<Option<VolumeSnapshotClass>>>,
    /// By image identifier.
    pub(super) images: BTreeMap<String, Read<Found>>,
    /// The NetworkAttachmentDefinition's `spec.config`; the outer `None` if the network needs none.
    pub(super) attachment: Option<Read<Option<String>>>,
    /// The attachments for private networks that the catalogue names, in its order; the outer `None` if it names none.
    pub(super) pool: Option<Read<Vec<Pooled>>>,
    /// What the region's Prometheus knows; the outer `None` if it has none.
    pub(super) usage: Option<Read<Known>>,
}

impl RegionSnapshot {
    /// Reads the cluster. Fails only if the API server does not answer at all.
    pub(in super::super) async fn take(cluster: &Cluster, region: &KubeVirt) -> Result<Self, CliError> {
        let client = &cluster.client;
        let version = cluster
            .call("read the version of the API server", client.apiserver_version())
            .await?;
        let clocks = (Timestamp::now(), cluster.time.now());
        let groups = cluster
            .call("list the API groups", client.list_api_groups())
            .await;
        let apis: Read<BTreeSet<String>> = groups.map_err(words).map(|groups| {
            let versions = groups.groups.into_iter().flat_map(|group| group.versions);
            versions.map(|version| version.group_version).collect()
        });
        let kubevirt = match &apis {
            Ok(apis) if !apis.contains(KUBEVIRT) => Ok(None),
            _ => installed(cluster).await,
        };
        let classes = Api::<StorageClass>::all(client.clone());
        let class = classes.get_opt(&region.storage_class);
        let profiles = foreign(
            cluster,
            "cdi.kubevirt.io",
            "v1beta1",
            ("StorageProfile", "storageprofiles"),
            None,
        );
        let mut images = BTreeMap::new();
        for (name, image) in &region.images {
            images.insert(name.clone(), source(cluster, &image.source).await);
        }
        let attachment = match &region.network.profile {
            Profile::Bridge { attachment }
            | Profile::KubeOvn {
                attachment: Some(attachment),
                ..
            } => Some(network(cluster, attachment).await),
            Profile::Pod | Profile::KubeOvn { .. } => None,
        };
        Ok(Self {
            clocks,
            version,
            apis,
            rights: missing_rights(cluster, region).await,
            refused_namespace: refused_namespace(cluster, region).await,
            kubevirt,
            storage_class: cluster.call("read the StorageClass", class).await.map_err(words),
            storage_profile: get(
                cluster,
                "read the StorageProfile",
                &profiles,
                &region.storage_class,
            )
            .await,
            snapshot_class: snapshot_class(cluster, region).await,
            images,
            attachment,
            pool: match &region.network.private_networks {
                PrivateNetworks::Pool(pool) => Some(pooled(cluster, pool).await),
                _ => None,
            },
            usage: match &region.usage {
                Some(UsageFrom::Prometheus(prometheus)) => {
                    Some(known(prometheus, &region.installation).await)
                }
                Some(UsageFrom::PodMetrics) | None => None,
            },
        })
    }
}

async fn snapshot_class(cluster: &Cluster, region: &KubeVirt) -> Option<Read<Option<VolumeSnapshotClass>>> {
    let name = region.snapshot_class.as_ref()?;
    let kind = ("VolumeSnapshotClass", "volumesnapshotclasses");
    let classes = foreign(cluster, "snapshot.storage.k8s.io", "v1", kind, None);
    Some(get(cluster, "read the VolumeSnapshotClass", &classes, name).await)
}

async fn get<T: DeserializeOwned>(
    cluster: &Cluster,
    doing: &str,
    api: &Api<DynamicObject>,
    name: &str,
) -> Read<Option<T>> {
    let found = cluster.call(doing, api.get_opt(name)).await;
    match found.map_err(CliError::from) {
        Ok(Some(found)) => serde_json::from_value(found.data)
            .map(Some)
            .map_err(|error| error.to_string()),
        // There is none, or the cluster does not even know the kind.
        Ok(None) | Err(CliError::CrdsMissing) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The `KubeVirt` object. There is one in a cluster.
async fn installed(cluster: &Cluster) -> Read<Option<Value>> {
    let kubevirts = foreign(cluster, "kubevirt.io", "v1", ("KubeVirt", "kubevirts"), None);
    let all = ListParams::default();
    let all = kubevirts.list(&all);
    let found = cluster
        .call("list the KubeVirt objects", all)
        .await
        .map_err(words)?;
    Ok(found.items.into_iter().next().map(|found| found.data))
}

async fn source(cluster: &Cluster, source: &ImageSource) -> Read<Found> {
    match source {
        ImageSource::DataSource(name) => data_source(cluster, name).await,
        ImageSource::Pvc(name) => claim(cluster, name).await,
        ImageSource::Snapshot(_) | ImageSource::Registry { .. } | ImageSource::Http { .. } => {
            Ok(Found::Elsewhere)
        }
    }
}

async fn data_source(cluster: &Cluster, name: &ObjectName) -> Read<Found> {
    let sources = foreign(
        cluster,
        "cdi.kubevirt.io",
        "v1beta1",
        ("DataSource", "datasources"),
        Some(&name.namespace),
    );
    let found: Option<Value> = get(cluster, "read a DataSource", &sources, &name.name).await?;
    let Some(found) = found else {
        return Ok(Found::Missing);
    };
    let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    if let Some(ready) = ready.filter(|ready| ready["status"] != "True") {
        let message = ready["message"].as_str().unwrap_or_default();
        return Ok(Found::NotReady(message.to_owned()));
    }
    let claim_of = |part: &str| {
        let pvc = &found[part]["source"]["pvc"];
        Some(ObjectName {
            namespace: pvc["namespace"].as_str()?.to_owned(),
            name: pvc["name"].as_str()?.to_owned(),
        })
    };
    match claim_of("status").or_else(|| claim_of("spec")) {
        Some(name) => claim(cluster, &name).await,
        // A snapshot.
        None => Ok(Found::Ready(None)),
    }
}

async fn claim(cluster: &Cluster, name: &ObjectName) -> Read<Found> {
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client.clone(), &name.namespace);
    let found = cluster
        .call("read the claim of an image", claims.get_opt(&name.name))
        .await
        .map_err(words)?;
    let Some(found) = found else {
        return Ok(Found::Missing);
    };
    let capacity = found.status.and_then(|status| status.capacity);
    let size = capacity.and_then(|capacity| bytes(capacity.get("storage")?));
    Ok(Found::Ready(size))
}

fn attachments(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    foreign(
        cluster,
        "k8s.cni.cncf.io",
        "v1",
        ("NetworkAttachmentDefinition", "network-attachment-definitions"),
        Some(namespace),
    )
}

fn config(attachment: &Value) -> String {
    attachment["spec"]["config"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn network(cluster: &Cluster, name: &ObjectName) -> Read<Option<String>> {
    let doing = "read the NetworkAttachmentDefinition";
    let attachments = attachments(cluster, &name.namespace);
    let found: Option<Value> = get(cluster, doing, &attachments, &name.name).await?;
    Ok(found.map(|found| config(&found)))
}

async fn pooled(cluster: &Cluster, pool: &[ObjectName]) -> Read<Vec<Pooled>> {
    let namespaces: BTreeSet<&str> = pool.iter().map(|of| of.namespace.as_str()).collect();
    let mut found = BTreeMap::new();
    for namespace in namespaces {
        let attachments = attachments(cluster, namespace);
        let all = ListParams::default();
        let list = cluster.call("list the NetworkAttachmentDefinitions", attachments.list(&all));
        match list.await.map_err(CliError::from) {
            Ok(list) => found.extend(list.items.into_iter().map(|it| ((namespace, it.name_any()), it))),
            Err(CliError::CrdsMissing) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let of = |name: &ObjectName| {
        let there = found.get(&(name.namespace.as_str(), name.name.clone()));
        Pooled {
            name: format!("{}/{}", name.namespace, name.name),
            config: there.map(|it| config(&it.data)),
            is_taken: there.is_some_and(|it| it.labels().contains_key(NETWORK_UID)),
        }
    };
    Ok(pool.iter().map(of).collect())
}

/// The rights that are missing. Those for servers hold in their namespaces alone, so they need a namespace that has one.
async fn missing_rights(cluster: &Cluster, region: &KubeVirt) -> Read<(Vec<Right>, bool)> {
    let ours = format!("stellage.dev/installation={}", region.installation);
    let one = ListParams::default().labels(&ours).limit(1);
    let servers = servers(cluster, None);
    let server = cluster.call("list servers", servers.list_metadata(&one)).await;
    let server = server.ok().and_then(|list| list.items.into_iter().next());
    let namespace = server.and_then(|server| server.namespace());
    let needed = needed(region, namespace.as_deref())?;
    let reviews = stream::iter(needed).map(async |right| {
        is_allowed(cluster, &right)
            .await
            .map(|is_allowed| (!is_allowed).then_some(right))
    });
    let missing: Vec<Read<Option<Right>>> = reviews.buffered(REVIEWS).collect().await;
    let missing: Read<Vec<Option<Right>>> = missing.into_iter().collect();
    Ok((missing?.into_iter().flatten().collect(), namespace.is_some()))
}

/// Asks whether a namespace of servers could be made; none is.
async fn refused_namespace(cluster: &Cluster, region: &KubeVirt) -> Read<Option<String>> {
    if region.namespaces == Namespaces::Existing {
        return Ok(None);
    }
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(format!("{}doctor", region.namespace_prefix));
    let label = (
        "stellage.dev/installation".to_owned(),
        region.installation.clone(),
    );
    namespace.metadata.labels = Some(BTreeMap::from([label]));
    let only_asking = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let namespaces = Api::<Namespace>::all(cluster.client.clone());
    match bounded(namespaces.create(&only_asking, &namespace)).await {
        Ok(_) => Ok(None),
        // That it is there is found last.
        Err(CallError::Api(kube::Error::Api(status))) if status.code == 409 => Ok(None),
        Err(CallError::Api(kube::Error::Api(status))) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.to_string()),
    }
}

async fn is_allowed(cluster: &Cluster, right: &Right) -> Read<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes::from(right)),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let reviews = Api::<SelfSubjectAccessReview>::all(cluster.client.clone());
    let as_usual = PostParams::default();
    let answer = cluster.call("review the rights", reviews.create(&as_usual, &review));
    let answer = answer.await.map_err(words)?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// A size such as `10Gi`.
fn bytes(size: &Quantity) -> Option<u64> {
    let at = size.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.0.len());
    let (number, unit) = size.0.split_at(at);
    let factor: u64 = match unit {
        "" => 1,
        "k" => 1000,
        "M" => 1000 * 1000,
        "G" => 1000 * 1000 * 1000,
        "T" => 1000 * 1000 * 1000 * 1000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_all_units_that_claims_have() {
        for (text, size) in [
            ("0", Some(0)),
            ("10737418240", Some(10 << 30)),
            ("10Gi", Some(10 << 30)),
            ("2Ti", Some(2 << 40)),
            ("5G", Some(5_000_000_000)),
            ("1.5Gi", None),
            ("Gi", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(bytes(&Quantity(text.to_owned())), size, "{text}");
        }
    }
}
