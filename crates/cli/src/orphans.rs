//! `stellage orphans`: servers in the cluster of a region that belong to no Instance.

use std::collections::BTreeSet;

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Preconditions},
};
use serde::Serialize;

use super::{
    CliError,
    connect::Cluster,
    output::{self, Output},
    region::{CatalogueArgs, foreign, servers},
};
use resources::{Instance, conditions::whole_seconds, origin};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

/// Label of everything in a region that belongs to an installation.
const INSTALLATION: &str = "stellage.dev/installation";
/// Label with the UID that the Instance of a server was first created with.
const INSTANCE_UID: &str = "stellage.dev/instance-uid";
/// Annotation with the namespace and name of that Instance.
const INSTANCE: &str = "stellage.dev/instance";

/// A younger server may be that of an Instance that is being imported, as for the metric.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);

const EXAMPLES: &str = "\
Examples:
  kubectl -n stellage-system exec deploy/stellage-controller -- /stellage orphans --region de-fra-1
  stellage orphans --region de-fra-1 --catalogue catalogue.yaml --region-kubeconfig de-fra-1/kubeconfig --delete";

/// List servers that belong to no instance.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct OrphansArgs {
    /// Code of the region
    #[arg(long, value_name = "CODE")]
    region: String,

    #[command(flatten)]
    catalogue: CatalogueArgs,

    /// Delete these servers, with their disks
    #[arg(long)]
    delete: bool,

    /// Delete them even if they are many, and those that are younger than ten minutes
    #[arg(long, requires = "delete")]
    force: bool,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// A server without an Instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Orphan {
    namespace: String,
    name: String,
    /// The Instance that it was made for, as `namespace/name`.
    instance: String,
    /// The UID that this Instance was first created with.
    instance_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// The server's own UID.
    #[serde(skip)]
    uid: Option<String>,
}

pub(super) async fn run(args: OrphansArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let region = args.catalogue.connect(&args.region).await?;
    let cluster = Cluster::of(which).await?;
    // First the servers: each was made after its Instance, which stays until its server is gone.
    let ours = ListParams::default().labels(&format!("{INSTALLATION}={}", region.settings.installation));
    let pages = Pages::of(servers(&region.cluster, None), ours);
    let found = region
        .cluster
        .list("list servers", pages, Pages::next_metadata)
        .await;
    let found = found.map_err(|failure| match failure.into() {
        CliError::CrdsMissing => CliError::Value {
            flag: "--region",
            why: format!("the cluster of {} has no KubeVirt", args.region),
        },
        error => error,
    })?;
    let uids = instance_uids(&cluster).await?;
    let orphans = of(&found, &uids);
    match args.output {
        Output::Json => output::json(&orphans)?,
        Output::Text if orphans.is_empty() => {
            let (all, code) = (found.len(), &args.region);
            output::note(&format!(
                "each of the {all} servers in {code} belongs to an instance"
            ));
        }
        Output::Text => output::line(&table(&orphans)),
    }
    if !args.delete || orphans.is_empty() {
        return Ok(());
    }
    if uids.is_empty() {
        let servers = found.len();
        return Err(CliError::NoInstances { servers });
    }
    let uid = |server: &PartialObjectMeta<DynamicObject>| server.labels().get(INSTANCE_UID).cloned();
    let kept = found
        .iter()
        .filter_map(uid)
        .filter(|uid| uids.contains(uid))
        .count();
    let servers = orphans.len() + kept;
    if !args.force && are_many(orphans.len(), servers) {
        let orphans = orphans.len();
        return Err(CliError::ManyOrphans { orphans, servers });
    }
    let now = Timestamp::now();
    let (due, young): (Vec<_>, Vec<_>) = orphans
        .iter()
        .partition(|orphan| args.force || !orphan.is_young(now));
    if !young.is_empty() {
        output::note(&format!(
            "{} younger than ten minutes, and left alone: perhaps instances are about to be restored; --force deletes these, too",
            match young.len() {
                1 => "1 server is".to_owned(),
                many => format!("{many} servers are"),
            }
        ));
    }
    for orphan in due {
        let what = format!("deleting {}/{} and its disks", orphan.namespace, orphan.name);
        region.cluster.announce(&what);
        delete(&region.cluster, orphan).await?;
    }
    Ok(())
}

/// Whether so many of a region's servers are orphans that the Instances are rather those of another cluster, or lost.
const fn are_many(orphans: usize, servers: usize) -> bool {
    orphans == servers || orphans > 1 && orphans > servers / 10
}

impl Orphan {
    /// Whether its Instance may not have been created yet, in an import.
    fn is_young(&self, now: Timestamp) -> bool {
        self.created_at
            .is_none_or(|created| now.duration_since(created) < YOUNG)
    }
}

/// The UIDs that the Instances were first created with.
async fn instance_uids(cluster: &Cluster) -> Result<BTreeSet<String>, CliError> {
    let api = Api::<Instance>::all(cluster.client.clone());
    let pages = Pages::of(api, ListParams::default());
    let all = cluster
        .list("list the Instances", pages, Pages::next_metadata)
        .await?;
    let uids = all.iter().map(|instance| origin::uid(&instance.metadata));
    Ok(uids.map(ToOwned::to_owned).collect())
}

/// Those servers whose Instance is not there. One without the UID of an Instance is not ours, and one that is being deleted needs
/// nothing.
fn of(servers: &[PartialObjectMeta<DynamicObject>], instances: &BTreeSet<String>) -> Vec<Orphan> {
    let orphans = servers.iter().filter_map(|server| {
        let instance_uid = server.labels().get(INSTANCE_UID)?;
        if instances.contains(instance_uid) || server.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Orphan {
            namespace: server.namespace()?,
            name: server.name_any(),
            instance: server.annotations().get(INSTANCE).cloned().unwrap_or_default(),
            instance_uid: instance_uid.clone(),
            created_at: server.creation_timestamp().map(|time| time.0),
            uid: server.uid(),
        })
    });
    orphans.collect()
}

fn table(orphans: &[Orphan]) -> String {
    let rows: Vec<[String; 4]> = orphans
        .iter()
        .map(|orphan| {
            [
                orphan.namespace.clone(),
                orphan.name.clone(),
                orphan.instance.clone(),
                orphan
                    .created_at
                    .map(|time| whole_seconds(time).to_string())
                    .unwrap_or_default(),
            ]
        })
        .collect();
    output::table(&["NAMESPACE", "NAME", "INSTANCE", "CREATED"], &rows)
}

/// Deletes a server, and what it consists of.
async fn delete(cluster: &Cluster, orphan: &Orphan) -> Result<(), CliError> {
    let namespace = &orphan.namespace;
    let alone = DeleteParams {
        preconditions: Some(Preconditions {
            uid: orphan.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let server = servers(cluster, Some(namespace));
    let deleted = cluster
        .call("delete the server", server.delete(&orphan.name, &alone))
        .await;
    match deleted {
        Err(failure) if !failure.is(404) => return Err(failure.into()),
        Ok(_) | Err(_) => {}
    }
    let its = ListParams::default().labels(&format!("{INSTANCE_UID}={}", orphan.instance_uid));
    let background = DeleteParams::background();
    let disks = foreign(
        cluster,
        "cdi.kubevirt.io",
        "v1beta1",
        ("DataVolume", "datavolumes"),
        Some(namespace),
    );
    cluster
        .call("delete the disks", disks.delete_collection(&background, &its))
        .await?;
    let secrets = Api::<Secret>::namespaced(cluster.client.clone(), namespace);
    cluster
        .call(
            "delete the user data",
            secrets.delete_collection(&background, &its),
        )
        .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn server(name: &str, change: impl FnOnce(&mut Value)) -> PartialObjectMeta<DynamicObject> {
        let mut metadata = json!({
            "name": name, "namespace": "stellage-ada", "uid": format!("vm-{name}"),
            "creationTimestamp": "2026-11-23T12:00:00Z",
            "labels": { INSTALLATION: "prod-1", INSTANCE_UID: format!("uid-{name}") },
            "annotations": { INSTANCE: format!("ada/{name}") },
        });
        change(&mut metadata);
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn an_orphan_has_the_uid_of_an_instance_that_is_not_there() {
        let servers = [
            server("kept", |_| {}),
            server("left", |_| {}),
            server("going", |it| {
                it["deletionTimestamp"] = json!("2026-11-23T12:00:00Z");
            }),
            server("foreign", |it| it["labels"] = json!({ INSTALLATION: "prod-1" })),
        ];
        let found = of(&servers, &["uid-kept".to_owned()].into());
        let names: Vec<&str> = found.iter().map(|orphan| &*orphan.name).collect();
        assert_eq!(names, ["left"]);
        assert_eq!(
            table(&found),
            "NAMESPACE      NAME   INSTANCE   CREATED\n\
             stellage-ada   left   ada/left   2026-11-23T12:00:00Z"
        );
        let is_young = |now: &str| found[0].is_young(now.parse().unwrap());
        assert!(is_young("2026-11-23T12:09:59Z") && !is_young("2026-11-23T12:10:00Z"));
    }

    #[test]
    fn if_all_or_many_servers_are_orphans_it_is_probably_the_wrong_cluster() {
        for (orphans, servers, many) in [
            (1, 1, true),
            (1, 2, false),
            (2, 3, true),
            (2, 20, false),
            (3, 20, true),
            (3000, 3000, true),
        ] {
            assert_eq!(are_many(orphans, servers), many, "{orphans} of {servers}");
        }
    }
}
