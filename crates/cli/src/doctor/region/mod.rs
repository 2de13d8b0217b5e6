//! `stellage doctor --region`: checks the cluster of a region, with the identity that Stellage has there.
//!
//! `snapshot` reads the cluster, `checks` evaluates what was read (pure), `trial` makes a server for a test, and `storage` a
//! disk and its backup.

mod checks;
mod snapshot;
mod storage;
mod trial;

use domain::catalogue::region::{ImageSource, KubeVirt, Namespaces, PrivateNetworks, Profile, UsageFrom};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;

pub(super) use self::{
    checks::all as checks,
    snapshot::RegionSnapshot,
    storage::run as test_storage,
    trial::{TrialArgs, run as test},
};
use super::rights::{Right, of_rule};

/// What Stellage may do in a region; the chart makes its roles of it.
const RIGHTS: &str = include_str!("../../../../../charts/stellage-region/files/rights.yaml");
/// The ClusterRole for namespaces of servers, as it is named there.
const SERVERS_ROLE: &str = "stellage-servers";

/// The file, by where the rights hold.
#[derive(Deserialize)]
struct Rights {
    cluster: Vec<PolicyRule>,
    #[serde(rename = "podMetrics")]
    pod_metrics: Vec<PolicyRule>,
    managed: Vec<PolicyRule>,
    servers: Vec<PolicyRule>,
    images: Vec<PolicyRule>,
    networks: Vec<PolicyRule>,
    #[serde(rename = "privateNad")]
    private_nad: Vec<PolicyRule>,
    #[serde(rename = "privatePool")]
    private_pool: Vec<PolicyRule>,
    #[serde(rename = "privateKubeOvn")]
    private_kube_ovn: Vec<PolicyRule>,
    #[serde(rename = "privateKubeOvnServers")]
    private_kube_ovn_servers: Vec<PolicyRule>,
}

/// The rights that Stellage needs in a region, those for servers in one of their namespaces if there is one.
fn needed(region: &KubeVirt, of_servers: Option<&str>) -> Result<Vec<Right>, String> {
    let role = format!("{}servers", region.namespace_prefix);
    let text = RIGHTS.replace(SERVERS_ROLE, &role);
    let rights: Rights = serde_saphyr::from_str(&text).map_err(|error| error.to_string())?;
    let mut places: Vec<(&[PolicyRule], Option<&str>)> = vec![(&rights.cluster, None)];
    if region.namespaces == Namespaces::Managed {
        places.push((&rights.managed, None));
    }
    if region.usage == Some(UsageFrom::PodMetrics) {
        places.push((&rights.pod_metrics, None));
    }
    if of_servers.is_some() {
        places.push((&rights.servers, of_servers));
    }
    for image in region.images.values() {
        let (ImageSource::DataSource(of) | ImageSource::Snapshot(of) | ImageSource::Pvc(of)) = &image.source
        else {
            continue;
        };
        places.push((&rights.images, Some(&of.namespace)));
    }
    if let Profile::Bridge { attachment }
    | Profile::KubeOvn {
        attachment: Some(attachment),
        ..
    } = &region.network.profile
    {
        places.push((&rights.networks, Some(&attachment.namespace)));
    }
    match &region.network.private_networks {
        PrivateNetworks::Nad if of_servers.is_some() => places.push((&rights.private_nad, of_servers)),
        PrivateNetworks::None | PrivateNetworks::Nad => {}
        PrivateNetworks::Pool(pool) => {
            let namespaces = pool.iter().map(|of| Some(of.namespace.as_str()));
            places.extend(namespaces.map(|namespace| (rights.private_pool.as_slice(), namespace)));
        }
        PrivateNetworks::KubeOvn => {
            places.push((&rights.private_kube_ovn, None));
            if of_servers.is_some() {
                places.push((&rights.private_kube_ovn_servers, of_servers));
            }
        }
    }
    let mut needed = Vec::new();
    for (rules, namespace) in places {
        for right in rules.iter().flat_map(|rule| of_rule(rule, namespace)) {
            if !needed.contains(&right) {
                needed.push(right);
            }
        }
    }
    Ok(needed)
}
