//! `stellage uninstall`: removes what Stellage has put into the cluster, or what it has there of one account, and leaves the servers alone.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    time::Duration,
};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::Deployment,
        batch::v1::CronJob,
        coordination::v1::Lease,
        core::v1::{ConfigMap, Namespace, Pod, ResourceQuota, Secret},
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{ApiResource, DynamicObject},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    CliError, account,
    connect::{Cluster, Failure},
    objects,
    output::note,
    program,
    transfer::{Leadership, is_part_of_account},
};
use resources::{
    ACCOUNT_LABEL, Backup, GROUP, Instance, Invoice, PrivateNetwork,
    account::{ADOPTED_FOR_ANNOTATION, MADE_FOR_ANNOTATION},
};
use runtime::{
    client::{Pages, only},
    installation_backup,
    kubeconfig::ClusterArgs,
    lease::LEASE_NAME,
};

const EXAMPLES: &str = "\
Examples:
  stellage uninstall
  stellage uninstall --force --yes
  stellage uninstall --account ada";

/// Label of what the chart, or deploy/rbac.yaml, installs.
const OURS: &str = "app.kubernetes.io/part-of=stellage";
/// The same without what Helm manages, and removes itself.
const NOT_OF_HELM: &str = "app.kubernetes.io/part-of=stellage,app.kubernetes.io/managed-by!=Helm";
/// How the names of the CRDs, policies and bindings end.
const ENDING: &str = ".stellage.dev";
/// What the operator makes in the namespace of an account.
const ROLE_BINDINGS: [&str; 2] = ["stellage-operator", "stellage-operator-api"];
const QUOTAS: [&str; 2] = ["stellage", "stellage-probe"];
/// What the operator makes in its own namespace.
const CONFIG_MAPS: [&str; 2] = ["stellage-prices", installation_backup::CONFIG_MAP];
/// Kinds without whose objects nothing else is acted on, so they go first.
const FIRST: &str = "accounts";
/// Objects that are removed at the same time.
const PARALLEL: usize = 16;
/// How long to wait until pods have ended, policies are out of force, and what was deleted is gone.
const PATIENCE: Duration = Duration::from_secs(120);

/// Remove all that Stellage has in the cluster.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct UninstallArgs {
    /// Remove it although there are instances, backups or private networks, which stay in their regions, or invoices
    #[arg(long)]
    force: bool,

    /// Only what there is of this account, except for its invoices; the operator must not run
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    account: Option<String>,

    /// Do not ask
    #[arg(long, short)]
    yes: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,
}

pub(super) async fn run(args: UninstallArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    let uninstall = Uninstall {
        cluster: &cluster,
        args: &args,
    };
    match &args.account {
        Some(name) => uninstall.account(name).await,
        None => uninstall.all().await,
    }
}

struct Uninstall<'a> {
    cluster: &'a Cluster,
    args: &'a UninstallArgs,
}

/// A kind of ours that the cluster knows.
struct Kind {
    resource: ApiResource,
    is_namespaced: bool,
    /// Its objects.
    count: u64,
}

/// Why these objects are not just removed, if they are not.
fn left_behind(kinds: &[Kind]) -> Option<String> {
    let count = |plural: &str| {
        let kind = kinds.iter().find(|kind| kind.resource.plural == plural);
        kind.map_or(0, |kind| kind.count)
    };
    let instances = count(&Instance::plural(&()));
    let backups = count(&Backup::plural(&()));
    let networks = count(&PrivateNetwork::plural(&()));
    let invoices = count(&Invoice::plural(&()));
    if [instances, backups, networks, invoices] == [0; 4] {
        return None;
    }
    Some(format!(
        "nothing is removed: there are {instances} instances, {backups} backups and {networks} private networks, whose servers, data and networks would stay in their regions with nobody to delete them, and {invoices} invoices, which the law may want to be kept\nWhile the operator runs, delete the backups and then the accounts, and wait until they are gone: kubectl delete backups --all --all-namespaces; kubectl delete accounts --all. Keep the invoices with `{} export`. Or add --force.",
        program()
    ))
}

impl Uninstall<'_> {
    async fn all(&self) -> Result<(), CliError> {
        let (cluster, namespace) = (self.cluster, &self.args.operator_namespace);
        let kinds = self.kinds().await?;
        let namespaces: Vec<Namespace> = self.labelled(ACCOUNT_LABEL).await?;
        let (made, adopted): (Vec<_>, Vec<_>) = namespaces
            .into_iter()
            .partition(|it| it.annotations().contains_key(MADE_FOR_ANNOTATION));
        cluster.announce("removing Stellage");
        let counts = counted(&kinds);
        note(&format!("objects: {}", or_none(&counts)));
        note(&format!(
            "namespaces of accounts, with all that is in them: {}",
            or_none(&names(&made))
        ));
        note(&format!(
            "namespaces that accounts have, but were there before, which stay: {}",
            or_none(&names(&adopted))
        ));
        note("the operator's Deployments are scaled to 0; its policies and CRDs are removed");
        self.check(&kinds)?;
        self.confirm(namespace)?;
        self.stop().await?;
        self.remove_policies().await?;
        let (first, others): (Vec<_>, Vec<_>) = kinds.iter().partition(|kind| kind.resource.plural == FIRST);
        for kind in first.into_iter().chain(others) {
            self.remove_objects(kind, None).await?;
        }
        for namespace in &adopted {
            self.clear(&namespace.name_any()).await?;
            let labels = json!({ ACCOUNT_LABEL: null });
            let annotations = json!({ ADOPTED_FOR_ANNOTATION: null });
            let change = json!({ "metadata": { "labels": labels, "annotations": annotations } });
            self.patch(
                &Api::<Namespace>::all(cluster.client.clone()),
                &namespace.name_any(),
                &change,
            )
            .await?;
        }
        self.remove_namespaces(&names(&made)).await?;
        self.remove_crds().await?;
        self.remove_own().await
    }

    /// Removes an account, so that it can be restored.
    async fn account(&self, name: &str) -> Result<(), CliError> {
        let (cluster, operator) = (self.cluster, &self.args.operator_namespace);
        let found = account::get(cluster, name).await?;
        let namespace = found.wanted_namespace().to_owned();
        let mut lease = Leadership::read(cluster, operator).await?;
        if !lease.is_free().await? {
            return Err(self.runs(&lease));
        }
        let api: Api<Namespace> = Api::all(cluster.client.clone());
        let place = cluster
            .call(&format!("read namespace {namespace}"), api.get_opt(&namespace))
            .await?;
        let is_of = |place: &&Namespace| {
            place
                .labels()
                .get(ACCOUNT_LABEL)
                .is_some_and(|label| label == name)
        };
        let place = place.as_ref().filter(is_of);
        cluster.announce(&format!(
            "removing the account {name} and what is in the namespace {namespace}; its servers and invoices stay"
        ));
        self.confirm(name)?;
        let kinds = self.kinds().await?;
        let (accounts, in_namespace): (Vec<_>, Vec<_>) =
            kinds.iter().partition(|kind| kind.resource.plural == FIRST);
        for kind in accounts {
            let api = Api::all_with(cluster.client.clone(), &kind.resource);
            self.remove(&api, kind, name).await?;
        }
        if place.is_none() {
            return Ok(());
        }
        for kind in in_namespace.into_iter().filter(|kind| kind.is_namespaced) {
            self.remove_objects(kind, Some(&namespace)).await?;
        }
        self.clear(&namespace).await?;
        if place.is_some_and(|place| place.annotations().contains_key(MADE_FOR_ANNOTATION)) {
            self.remove_namespaces(&[namespace]).await?;
        }
        note(&format!(
            "removed the account {name}; to restore it: {} installation restore BACKUP --account {name}",
            program()
        ));
        Ok(())
    }

    fn runs(&self, lease: &Leadership<'_>) -> CliError {
        CliError::Plain(format!(
            "the operator runs: {} holds the Lease, and would act on what is removed\nStop it: kubectl scale deployment --all --replicas=0 -n {}",
            lease.holder().unwrap_or("somebody"),
            self.args.operator_namespace
        ))
    }

    /// Our kinds, as far as the cluster knows them, with the number of their objects.
    async fn kinds(&self) -> Result<Vec<Kind>, CliError> {
        let crds: Vec<CustomResourceDefinition> = self.all_of(Api::all(self.cluster.client.clone())).await?;
        let mut kinds = Vec::new();
        for crd in crds.into_iter().filter(|crd| crd.spec.group == GROUP) {
            let version = crd.spec.versions.first().map(|version| version.name.clone());
            let version = version.unwrap_or_default();
            let resource = ApiResource {
                group: crd.spec.group.clone(),
                api_version: format!("{}/{version}", crd.spec.group),
                version,
                kind: crd.spec.names.kind.clone(),
                plural: crd.spec.names.plural.clone(),
            };
            let api: Api<DynamicObject> = Api::all_with(self.cluster.client.clone(), &resource);
            let doing = format!("list {}", resource.plural);
            let one = ListParams::default().limit(1);
            let page = self.cluster.call(&doing, api.list_metadata(&one)).await?;
            let more = page.metadata.remaining_item_count.unwrap_or_default();
            kinds.push(Kind {
                resource,
                is_namespaced: crd.spec.scope == "Namespaced",
                count: page.items.len() as u64 + u64::try_from(more).unwrap_or_default(),
            });
        }
        Ok(kinds)
    }

    /// Refuses to leave servers behind, or to lose invoices, unless that is wanted.
    fn check(&self, kinds: &[Kind]) -> Result<(), CliError> {
        match left_behind(kinds) {
            Some(problem) if !self.args.force => Err(CliError::Plain(problem)),
            _ => Ok(()),
        }
    }

    /// Asks on a terminal; elsewhere, --yes must say so.
    fn confirm(&self, word: &str) -> Result<(), CliError> {
        if self.args.yes {
            return Ok(());
        }
        if !io::stdin().is_terminal() {
            return Err(CliError::Plain(
                "nothing is removed: this is no terminal to ask on; add --yes".to_owned(),
            ));
        }
        let _ = write!(io::stderr(), "Type {word} to go on: ");
        let mut typed = String::new();
        let read = io::stdin().lock().read_line(&mut typed);
        if read.is_ok() && typed.trim() == word {
            return Ok(());
        }
        Err(CliError::Plain("nothing is removed".to_owned()))
    }

    /// Stops the operator and the backups, and waits until no pod is left that could act.
    async fn stop(&self) -> Result<(), CliError> {
        let (client, namespace) = (&self.cluster.client, &self.args.operator_namespace);
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        for deployment in self.labelled_in(&deployments, OURS).await? {
            let scaled = json!({ "spec": { "replicas": 0 } });
            self.patch(&deployments, &deployment.name_any(), &scaled).await?;
        }
        let jobs: Api<CronJob> = Api::namespaced(client.clone(), namespace);
        for job in self.labelled_in(&jobs, OURS).await? {
            let suspended = json!({ "spec": { "suspend": true } });
            self.patch(&jobs, &job.name_any(), &suspended).await?;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let is_running = |pod: &Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            !matches!(phase, Some("Succeeded" | "Failed"))
        };
        self.until("the operator's pods to end", async || {
            Ok(!self.labelled_in(&pods, OURS).await?.iter().any(is_running))
        })
        .await?;
        let mut lease = Leadership::read(self.cluster, namespace).await?;
        if lease.is_free().await? {
            Ok(())
        } else {
            Err(self.runs(&lease))
        }
    }

    /// Removes the policies: they keep even administrators from removing some of what follows.
    async fn remove_policies(&self) -> Result<(), CliError> {
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(self.cluster.client.clone());
        self.delete_all(&bindings, |name| name.ends_with(ENDING)).await?;
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(self.cluster.client.clone());
        self.delete_all(&policies, |name| name.ends_with(ENDING)).await
    }

    /// Removes all objects of a kind, without their finalizers being acted on.
    async fn remove_objects(&self, kind: &Kind, namespace: Option<&str>) -> Result<(), CliError> {
        let client = &self.cluster.client;
        let all: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind.resource),
            None => Api::all_with(client.clone(), &kind.resource),
        };
        let mut pages = Pages::of(all, ListParams::default()).outliving_its_state();
        let (mut done, doing) = (0_u64, format!("list {}", kind.resource.plural));
        let failed = |error| self.cluster.failure(&doing, &error);
        while let Some(page) = pages.next_metadata().await.map_err(failed)? {
            done += page.items.len() as u64;
            let removals = page.items.iter().map(|object| async {
                let api = match object.namespace() {
                    Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind.resource),
                    None => Api::all_with(client.clone(), &kind.resource),
                };
                self.remove(&api, kind, &object.name_any()).await
            });
            stream::iter(removals)
                .buffer_unordered(PARALLEL)
                .try_collect::<Vec<()>>()
                .await?;
            if pages.has_next() {
                note(&format!("{}: {done} of {}", kind.resource.kind, kind.count));
            }
        }
        Ok(())
    }

    /// Removes an object. First its finalizers, and then only as it was left, so that at no time an operator finds one that is being
    /// deleted, and deletes its server.
    async fn remove(&self, api: &Api<DynamicObject>, kind: &Kind, name: &str) -> Result<(), CliError> {
        let mut change = json!({ "metadata": { "finalizers": null } });
        if kind.resource.plural == Instance::plural(&()) {
            change["spec"] = json!({ "deletionProtection": false });
        }
        let doing = format!("remove {} {name}", kind.resource.kind);
        self.while_denied(async || {
            let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
            let left = match self
                .cluster
                .call(&doing, api.patch_metadata(name, &params, &patch))
                .await
            {
                Err(failure) if failure.is(404) => return Ok(()),
                left => left?,
            };
            let params = only(left.metadata.uid, left.metadata.resource_version);
            match self.cluster.call(&doing, api.delete(name, &params)).await {
                Err(failure) if failure.is(404) => Ok(()),
                deleted => deleted.map(drop),
            }
        })
        .await
    }

    /// Repeats a call that is denied, because a policy that was deleted is still in force, or whose object somebody has changed.
    async fn while_denied(&self, mut call: impl AsyncFnMut() -> Result<(), Failure>) -> Result<(), CliError> {
        let end = Instant::now() + PATIENCE;
        loop {
            match call().await {
                Err(failure) if may_pass(&failure) && Instant::now() < end => {
                    sleep(Duration::from_millis(500)).await;
                }
                done => return done.map_err(Into::into),
            }
        }
    }

    /// Removes what the operator has made in the namespace of an account, and the Secrets that are worth nothing without it.
    async fn clear(&self, namespace: &str) -> Result<(), CliError> {
        let client = &self.cluster.client;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        for secret in self.all_of::<Secret>(secrets.clone()).await? {
            if is_part_of_account(&secret.metadata) {
                self.delete(&secrets, &secret.name_any()).await?;
            }
        }
        let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
        for name in ROLE_BINDINGS {
            self.delete(&bindings, name).await?;
        }
        let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), namespace);
        for name in QUOTAS {
            self.delete(&quotas, name).await?;
        }
        Ok(())
    }

    async fn remove_namespaces(&self, names: &[String]) -> Result<(), CliError> {
        let api: Api<Namespace> = Api::all(self.cluster.client.clone());
        for name in names {
            self.delete(&api, name).await?;
        }
        for name in names {
            self.until(&format!("the namespace {name} to be gone"), async || {
                let found = api.get_opt(name);
                Ok(self.cluster.call("read the namespace", found).await?.is_none())
            })
            .await?;
        }
        Ok(())
    }

    async fn remove_crds(&self) -> Result<(), CliError> {
        let crds: Api<CustomResourceDefinition> = Api::all(self.cluster.client.clone());
        self.delete_all(&crds, |name| name.ends_with(ENDING)).await?;
        self.until("the CRDs to be gone", async || {
            let left = self.all_of::<CustomResourceDefinition>(crds.clone()).await?;
            Ok(!left.iter().any(|crd| crd.spec.group == GROUP))
        })
        .await
    }

    /// Removes what the operator has made in its own namespace, and what was installed without Helm outside of it. Says what is left.
    async fn remove_own(&self) -> Result<(), CliError> {
        let (client, namespace) = (&self.cluster.client, &self.args.operator_namespace);
        self.delete(&Api::<Lease>::namespaced(client.clone(), namespace), LEASE_NAME)
            .await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let installed = self.labelled_in(&deployments, OURS).await?;
        let release = installed.iter().find_map(|deployment| {
            let label = |name: &str| deployment.labels().get(name).cloned();
            let is_of_helm = label("app.kubernetes.io/managed-by").is_some_and(|by| by == "Helm");
            is_of_helm.then(|| label("app.kubernetes.io/instance")).flatten()
        });
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        for name in CONFIG_MAPS {
            self.delete(&maps, name).await?;
        }
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        for binding in self.labelled_in(&bindings, NOT_OF_HELM).await? {
            self.delete(&bindings, &binding.name_any()).await?;
        }
        let roles: Api<ClusterRole> = Api::all(client.clone());
        for role in self.labelled_in(&roles, NOT_OF_HELM).await? {
            self.delete(&roles, &role.name_any()).await?;
        }
        note(&match release {
            Some(release) => {
                format!("removed; the rest is Helm's: helm uninstall {release} --namespace {namespace}")
            }
            None => {
                format!("removed; the operator's namespace is left: kubectl delete namespace {namespace}")
            }
        });
        Ok(())
    }

    /// Deletes the objects with such names.
    async fn delete_all<K>(&self, api: &Api<K>, is_wanted: impl Fn(&str) -> bool) -> Result<(), CliError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        for found in self.all_of(api.clone()).await? {
            let name = found.name_any();
            if is_wanted(&name) {
                self.delete(api, &name).await?;
            }
        }
        Ok(())
    }

    /// Deletes an object, if it is there.
    async fn delete<K>(&self, api: &Api<K>, name: &str) -> Result<(), CliError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let doing = format!("delete {} {name}", K::kind(&()));
        let params = DeleteParams::background();
        self.while_denied(
            async || match self.cluster.call(&doing, api.delete(name, &params)).await {
                Err(failure) if failure.is(404) => Ok(()),
                deleted => deleted.map(drop),
            },
        )
        .await
    }

    async fn patch<K>(&self, api: &Api<K>, name: &str, change: &Value) -> Result<(), CliError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let doing = format!("change {} {name}", K::kind(&()));
        let (params, patch) = (PatchParams::default(), Patch::Merge(change));
        self.while_denied(async || {
            let patched = self
                .cluster
                .call(&doing, api.patch_metadata(name, &params, &patch))
                .await;
            patched.map(drop)
        })
        .await
    }

    async fn labelled(&self, label: &str) -> Result<Vec<Namespace>, CliError> {
        self.labelled_in(&Api::all(self.cluster.client.clone()), label)
            .await
    }

    async fn labelled_in<K>(&self, api: &Api<K>, labels: &str) -> Result<Vec<K>, CliError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let pages = Pages::of(api.clone(), ListParams::default().labels(labels));
        let doing = format!("list {}", K::plural(&()));
        Ok(self.cluster.list(&doing, pages, Pages::next).await?)
    }

    async fn all_of<K>(&self, api: Api<K>) -> Result<Vec<K>, CliError>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let pages = Pages::of(api, ListParams::default());
        let doing = format!("list {}", K::plural(&()));
        Ok(self.cluster.list(&doing, pages, Pages::next).await?)
    }

    async fn until(
        &self,
        what: &str,
        mut is_so: impl AsyncFnMut() -> Result<bool, CliError>,
    ) -> Result<(), CliError> {
        let end = Instant::now() + PATIENCE;
        while !is_so().await? {
            if Instant::now() > end {
                return Err(CliError::Plain(format!(
                    "waited in vain for {what}; what is done is done: run it again to go on"
                )));
            }
            sleep(Duration::from_millis(500)).await;
        }
        Ok(())
    }
}

/// Whether a call may succeed when it is repeated: a policy denied it, or the object has changed meanwhile.
fn may_pass(failure: &Failure) -> bool {
    failure.is_denial() || failure.is(409)
}

fn names(namespaces: &[Namespace]) -> Vec<String> {
    namespaces.iter().map(ResourceExt::name_any).collect()
}

fn counted(kinds: &[Kind]) -> Vec<String> {
    let counts: BTreeMap<&str, u64> = kinds
        .iter()
        .map(|kind| (kind.resource.kind.as_str(), kind.count))
        .collect();
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    some.map(|(kind, count)| format!("{count} {kind}")).collect()
}

/// The first ten, and how many more there are.
fn or_none(all: &[String]) -> String {
    const SHOWN: usize = 10;
    match all.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{} and {} more", all[..SHOWN].join(", "), count - SHOWN),
        _ => all.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_cut_short() {
        let all = |count: usize| (0..count).map(|i| i.to_string()).collect::<Vec<_>>();
        assert_eq!(or_none(&[]), "none");
        assert_eq!(or_none(&all(2)), "0, 1");
        assert_eq!(or_none(&all(12)), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more");
    }

    #[test]
    fn nothing_is_removed_while_there_is_something_in_a_region_or_an_invoice() {
        let kinds = |plural: &str| {
            let of = |count| Kind {
                resource: ApiResource {
                    plural: plural.to_owned(),
                    ..ApiResource::erase::<Instance>(&())
                },
                is_namespaced: true,
                count,
            };
            [0, 3].map(of)
        };
        for (plural, says) in [
            ("instances", "3 instances"),
            ("backups", "3 backups"),
            ("privatenetworks", "3 private networks"),
            ("invoices", "3 invoices"),
        ] {
            let [none, three] = kinds(plural);
            assert_eq!(left_behind(&[none]), None);
            assert!(left_behind(&[three]).unwrap().contains(says), "{plural}");
        }
        let [_, accounts] = kinds("accounts");
        assert_eq!(left_behind(&[accounts]), None);
    }
}
