//! `stellage orphans`: servers and disks in the cluster of a region that belong to no Instance.

use std::collections::BTreeSet;

use clap::Args;
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Preconditions},
};
use serde::Serialize;

use super::{
    CliError,
    connect::Cluster,
    output::{self, Output},
    region::{CatalogueArgs, Region, foreign, servers},
};
use providers::kubevirt::names::{self, INSTALLATION, INSTANCE, INSTANCE_UID};
use resources::{Account, Instance, conditions::whole_seconds, origin};
use runtime::{client::Pages, kubeconfig::ClusterArgs};

/// Namespaces whose disks are listed at once.
const LISTS: usize = 8;

/// A younger server may be that of an Instance that is being imported, as for the metric.
const YOUNG: SignedDuration = SignedDuration::from_mins(10);

const EXAMPLES: &str = "\
Examples:
  kubectl -n stellage-system exec deploy/stellage-controller -- /stellage orphans --region de-fra-1
  stellage orphans --region de-fra-1 --catalogue catalogue.yaml --region-kubeconfig de-fra-1/kubeconfig --delete";

/// List servers and disks that belong to no instance.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct OrphansArgs {
    /// Code of the region
    #[arg(long, value_name = "CODE")]
    region: String,

    #[command(flatten)]
    catalogue: CatalogueArgs,

    /// Delete these servers, with their disks, and these disks
    #[arg(long)]
    delete: bool,

    /// Delete them even if they are many, and those that are younger than ten minutes
    #[arg(long, requires = "delete")]
    force: bool,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// What is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
enum Kind {
    /// A server, with what it consists of.
    Server,
    /// A disk alone: a call that was given up has made it after its server was deleted.
    Disk,
}

/// A server or disk without an Instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Orphan {
    kind: Kind,
    namespace: String,
    name: String,
    /// The Instance that it was made for, as `namespace/name`; of a disk, this is not known.
    instance: String,
    /// The UID that this Instance was first created with.
    instance_uid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<Timestamp>,
    /// Its own UID.
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
    let disks = disks(&region, namespaces(&cluster, &region, &found).await?).await?;
    let uids = instance_uids(&cluster).await?;
    let orphans = of(&found, &disks, &uids);
    match args.output {
        Output::Json => output::json(&orphans)?,
        Output::Text if orphans.is_empty() => {
            let (servers, disks, code) = (found.len(), disks.len(), &args.region);
            output::note(&format!(
                "each of the {servers} servers and {disks} disks in {code} belongs to an instance"
            ));
        }
        Output::Text => output::line(&table(&orphans)),
    }
    if !args.delete || orphans.is_empty() {
        return Ok(());
    }
    if uids.is_empty() {
        return Err(CliError::Plain(format!(
            "this cluster has no Instances, so all {} servers of the region would be deleted\nIs it the one where Stellage runs? --kubeconfig and --context choose another. If all instances are really gone, delete the namespaces of the servers with kubectl.",
            found.len()
        )));
    }
    let uid = |server: &PartialObjectMeta<DynamicObject>| server.labels().get(INSTANCE_UID).cloned();
    let kept = found
        .iter()
        .filter_map(uid)
        .filter(|uid| uids.contains(uid))
        .count();
    let lost = orphans
        .iter()
        .filter(|orphan| matches!(orphan.kind, Kind::Server))
        .count();
    let servers = lost + kept;
    if !args.force && are_many(lost, servers) {
        return Err(CliError::Plain(format!(
            "servers in the region: {servers}, of which {lost} have no Instance in this cluster; nothing is deleted\nIs it the one where Stellage runs? --kubeconfig and --context choose another. If instances were lost, restore them: they find their servers again. If all these servers are really left over, add --force."
        )));
    }
    let now = Timestamp::now();
    let (due, young): (Vec<_>, Vec<_>) = orphans
        .iter()
        .partition(|orphan| args.force || !orphan.is_young(now));
    if !young.is_empty() {
        output::note(&format!(
            "younger than ten minutes, and left alone: {}; perhaps instances are about to be restored. --force deletes these, too",
            young.len(),
        ));
    }
    for orphan in due {
        let what = match orphan.kind {
            Kind::Server => format!("deleting {}/{} and its disks", orphan.namespace, orphan.name),
            Kind::Disk => format!("deleting the disk {}/{}", orphan.namespace, orphan.name),
        };
        region.cluster.announce(&what);
        delete(&region.cluster, orphan).await?;
    }
    Ok(())
}

/// Whether so many of a region's servers are orphans that the Instances are rather those of another cluster, or lost.
const fn are_many(orphans: usize, servers: usize) -> bool {
    orphans > 0 && orphans == servers || orphans > 1 && orphans > servers / 10
}

impl Orphan {
    /// Whether its Instance may not have been created yet, in an import.
    fn is_young(&self, now: Timestamp) -> bool {
        self.created_at
            .is_none_or(|created| now.duration_since(created) < YOUNG)
    }
}

/// The namespaces of servers: those of the accounts, and those that have any.
async fn namespaces(
    cluster: &Cluster,
    region: &Region,
    servers: &[PartialObjectMeta<DynamicObject>],
) -> Result<BTreeSet<String>, CliError> {
    let api = Api::<Account>::all(cluster.client.clone());
    let pages = Pages::of(api, ListParams::default());
    let accounts = cluster.list("list the Accounts", pages, Pages::next).await?;
    let prefix = &region.settings.namespace_prefix;
    let of_accounts = accounts
        .iter()
        .filter_map(|account| Some(names::namespace(prefix, account.owned_namespace()?)));
    let of_servers = servers.iter().filter_map(ResourceExt::namespace);
    Ok(of_accounts.chain(of_servers).collect())
}

/// The disks in these namespaces. The rights to see them hold in each namespace of servers, and nowhere else.
async fn disks(
    region: &Region,
    namespaces: BTreeSet<String>,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, CliError> {
    let ours = ListParams::default().labels(&format!("{INSTALLATION}={}", region.settings.installation));
    let lists = stream::iter(namespaces).map(async |namespace: String| {
        let pages = Pages::of(volumes(&region.cluster, &namespace), ours.clone());
        let listed = region.cluster.list("list disks", pages, Pages::next_metadata);
        match listed.await {
            Ok(found) => Ok(found),
            Err(failure) if failure.is(403) || failure.is(404) => Ok(Vec::new()),
            Err(failure) => match failure.into() {
                // There is no CDI.
                CliError::CrdsMissing => Ok(Vec::new()),
                error => Err(error),
            },
        }
    });
    let lists: Vec<Result<Vec<_>, CliError>> = lists.buffered(LISTS).collect().await;
    let lists: Vec<Vec<_>> = lists.into_iter().collect::<Result<_, _>>()?;
    Ok(lists.concat())
}

/// The `DataVolumes` in a namespace.
fn volumes(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    let kind = ("DataVolume", "datavolumes");
    foreign(cluster, "cdi.kubevirt.io", "v1beta1", kind, Some(namespace))
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

/// Those whose Instance is not there; a disk goes with its server. What has no UID of an Instance is not ours, and what is being deleted
/// needs nothing.
fn of(
    servers: &[PartialObjectMeta<DynamicObject>],
    disks: &[PartialObjectMeta<DynamicObject>],
    instances: &BTreeSet<String>,
) -> Vec<Orphan> {
    let left = |kind, object: &PartialObjectMeta<DynamicObject>| {
        let instance_uid = object.labels().get(INSTANCE_UID)?;
        if instances.contains(instance_uid) || object.metadata.deletion_timestamp.is_some() {
            return None;
        }
        Some(Orphan {
            kind,
            namespace: object.namespace()?,
            name: object.name_any(),
            instance: object.annotations().get(INSTANCE).cloned().unwrap_or_default(),
            instance_uid: instance_uid.clone(),
            created_at: object.creation_timestamp().map(|time| time.0),
            uid: object.uid(),
        })
    };
    let with_server: BTreeSet<&String> = servers
        .iter()
        .filter_map(|server| server.labels().get(INSTANCE_UID))
        .collect();
    let alone = |disk: &&PartialObjectMeta<DynamicObject>| {
        let uid = disk.labels().get(INSTANCE_UID);
        uid.is_some_and(|uid| !with_server.contains(uid))
    };
    let servers = servers.iter().filter_map(|server| left(Kind::Server, server));
    let disks = disks
        .iter()
        .filter(alone)
        .filter_map(|disk| left(Kind::Disk, disk));
    servers.chain(disks).collect()
}

fn table(orphans: &[Orphan]) -> String {
    let rows: Vec<[String; 5]> = orphans
        .iter()
        .map(|orphan| {
            [
                <&str>::from(orphan.kind).to_owned(),
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
    output::table(&["KIND", "NAMESPACE", "NAME", "INSTANCE", "CREATED"], &rows)
}

/// Deletes a server, and what it consists of; or a disk, and the Secrets made with it.
async fn delete(cluster: &Cluster, orphan: &Orphan) -> Result<(), CliError> {
    let namespace = &orphan.namespace;
    if orphan.kind == Kind::Server {
        delete_server(cluster, orphan).await?;
    }
    let its = ListParams::default().labels(&format!("{INSTANCE_UID}={}", orphan.instance_uid));
    let background = DeleteParams::background();
    let disks = volumes(cluster, namespace);
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

async fn delete_server(cluster: &Cluster, orphan: &Orphan) -> Result<(), CliError> {
    let alone = DeleteParams::background().preconditions(Preconditions {
        uid: orphan.uid.clone(),
        resource_version: None,
    });
    let server = servers(cluster, Some(&orphan.namespace));
    let deleted = cluster
        .call("delete the server", server.delete(&orphan.name, &alone))
        .await;
    match deleted {
        Err(failure) if !failure.is(404) => Err(failure.into()),
        Ok(_) | Err(_) => Ok(()),
    }
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
        let disk = |of: &str, name: &str| {
            server(of, |it| {
                it["name"] = json!(name);
                it["annotations"] = json!({});
            })
        };
        let disks = [
            disk("kept", "kept-1"),
            disk("left", "left-1"),
            disk("late", "late-1"),
            disk("going", "going-1"),
        ];
        let found = of(&servers, &disks, &["uid-kept".to_owned()].into());
        let names: Vec<&str> = found.iter().map(|orphan| &*orphan.name).collect();
        assert_eq!(names, ["left", "late-1"], "the disks of a server go with it");
        assert_eq!(
            table(&found),
            "KIND     NAMESPACE      NAME     INSTANCE   CREATED\n\
             server   stellage-ada   left     ada/left   2026-11-23T12:00:00Z\n\
             disk     stellage-ada   late-1              2026-11-23T12:00:00Z"
        );
        let is_young = |now: &str| found[0].is_young(now.parse().unwrap());
        assert!(is_young("2026-11-23T12:09:59Z") && !is_young("2026-11-23T12:10:00Z"));
    }

    #[test]
    fn if_all_or_many_servers_are_orphans_it_is_probably_the_wrong_cluster() {
        for (orphans, servers, many) in [
            (0, 0, false),
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
