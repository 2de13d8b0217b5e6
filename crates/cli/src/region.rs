//! The region that a command works on: its settings in the catalogue, and its cluster.

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use kube::{
    Api,
    api::{ApiResource, DynamicObject},
    core::GroupVersionKind,
};

use super::{CliError, connect::Cluster};
use domain::catalogue::{Catalogue, region::KubeVirt};
use runtime::kubeconfig::ClusterArgs;

/// Where the settings of regions are.
#[derive(Args, Clone, Debug)]
pub struct CatalogueArgs {
    /// The catalogue, which has the settings of the region; the controllers' pods have it already
    #[arg(long, env = "STELLAGE_CATALOGUE", value_name = "FILE")]
    catalogue: Option<PathBuf>,

    /// Kubeconfig of the region's cluster, in place of the one in the catalogue
    #[arg(long, value_name = "FILE")]
    region_kubeconfig: Option<PathBuf>,
}

/// A region with KubeVirt.
pub(super) struct Region {
    pub(super) settings: Arc<KubeVirt>,
    pub(super) cluster: Cluster,
}

impl CatalogueArgs {
    /// Connects to the cluster of the region with this code.
    pub(super) async fn connect(&self, code: &str) -> Result<Region, CliError> {
        let wrong = |flag, why: String| CliError::Value { flag, why };
        let Some(file) = &self.catalogue else {
            let why = "give the file that has the settings of the region".to_owned();
            return Err(wrong("--catalogue", why));
        };
        let catalogue = Catalogue::load(file).map_err(|error| wrong("--catalogue", error.to_string()))?;
        let mut settings = settings(&catalogue, code).map_err(|why| wrong("--region", why))?;
        if let Some(file) = &self.region_kubeconfig {
            Arc::make_mut(&mut settings).kubeconfig.clone_from(file);
        }
        let file = &settings.kubeconfig;
        if !file.exists() {
            let why = format!(
                "there is no file {}; run this in a pod of the controllers, or give the region's kubeconfig",
                file.display()
            );
            return Err(wrong("--region-kubeconfig", why));
        }
        let which = ClusterArgs {
            context: None,
            kubeconfig: Some(file.clone()),
        };
        Ok(Region {
            settings,
            cluster: Cluster::of(&which).await?,
        })
    }
}

/// The settings of the region with this code.
fn settings(catalogue: &Catalogue, code: &str) -> Result<Arc<KubeVirt>, String> {
    let Some(region) = catalogue.regions.iter().find(|region| region.code == code) else {
        let codes: Vec<&str> = catalogue.regions.iter().map(|region| &*region.code).collect();
        return Err(format!(
            "the catalogue has no region {code}; it has {}",
            codes.join(", ")
        ));
    };
    region
        .kubevirt
        .clone()
        .ok_or_else(|| format!("the servers of {code} are simulated; there is no cluster to look at"))
}

/// Objects of a kind of another project, which is given with its plural, in all namespaces unless one is given.
pub(super) fn foreign(
    cluster: &Cluster,
    group: &str,
    version: &str,
    (kind, plural): (&str, &str),
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, version, kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(cluster.client.clone(), namespace, &resource),
        None => Api::all_with(cluster.client.clone(), &resource),
    }
}

/// The servers of a region, in all namespaces unless one is given.
pub(super) fn servers(cluster: &Cluster, namespace: Option<&str>) -> Api<DynamicObject> {
    let kind = ("VirtualMachine", "virtualmachines");
    foreign(cluster, "kubevirt.io", "v1", kind, namespace)
}
