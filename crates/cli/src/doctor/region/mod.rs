//! `stellage doctor --region`: checks the cluster of a region, with the identity that Stellage has there.
//!
//! `snapshot` reads the cluster, `checks` evaluates what was read (pure), and `trial` makes a server for a test.

mod checks;
mod snapshot;
mod trial;

use domain::catalogue::region::{ImageSource, KubeVirt, Namespaces, Profile, UsageFrom};
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;

pub(super) use self::{
    checks::all as checks,
    snapshot::RegionSnapshot,
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
