//! `stellage import`.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::admissionregistration::v1::ValidatingAdmissionPolicy,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use super::{
    file::{self, Counts, Header},
    kinds::{self, Kind},
    lease::Leadership,
};
use crate::{
    cli::{CliError, connect::Cluster, crd_differences, output::note, program},
    resources::{
        self, ACCOUNT_LABEL,
        origin::{self, ORIGIN_ANNOTATION},
        webhook::SECRET_CHANGED_ANNOTATION,
    },
};

const EXAMPLES: &str = "\
Examples:
  stellage import stellage.export --dry-run
  stellage import stellage.export";

/// Objects of a kind that are created before the next lines are read.
const AT_ONCE: usize = 200;
/// Objects that are created at the same time.
const PARALLEL: usize = 8;
/// After so many objects of a kind, the progress is told.
const TOLD_EACH: u64 = 2000;
/// The admission policy that names the operator's users.
const STATUS_POLICY: &str = "operator-status.stellage.dev";

/// Create all that is in a file of `export` in an empty installation.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// A file of `export`
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Only check the file and the installation
    #[arg(long)]
    dry_run: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system")]
    operator_namespace: String,
}

pub(in crate::cli) async fn run(args: ImportArgs) -> Result<(), CliError> {
    let refused = |reason| refused(&args.file, reason);
    let (header, counts) = file::check(&mut open(&args.file)?).map_err(refused)?;
    let cluster = Cluster::current().await?;
    let namespace = &args.operator_namespace;
    let mut leadership = Leadership::read(&cluster, namespace).await?;
    check_crds(&cluster).await?;
    let is_begun = leadership.import().map(|id| id == header.id);
    match is_begun {
        Some(true) => note("going on with the interrupted import"),
        Some(false) => {
            return Err(CliError::Transfer(format!(
                "the import of another export, {}, is not finished here: run stellage import with that file",
                leadership.import().unwrap_or_default()
            )));
        }
        None => {
            if !leadership.is_free().await? {
                return Err(CliError::Transfer(format!(
                    "the operator runs: {} holds the Lease\nStop it: kubectl scale deployment --all --replicas=0 -n {namespace}",
                    leadership.holder().unwrap_or("somebody")
                )));
            }
            check_empty(&cluster).await?;
        }
    }
    let total: u64 = counts.values().sum();
    if args.dry_run {
        let from = (&header.version, header.exported_at);
        note(&format!(
            "nothing stands in the way of importing {total} objects, exported by version {} at {}",
            from.0, from.1
        ));
        return Ok(());
    }
    let operator = match operator_user(&cluster).await? {
        Some(user) => Cluster::current_as(&user).await?,
        None => Cluster::current().await?,
    };
    leadership.take(&header.id).await?;
    let import = Import {
        cluster: &cluster,
        operator: &operator,
        kinds: kinds::own(),
        header,
        operator_namespace: namespace,
        is_resumed: is_begun == Some(true),
        uids: HashMap::new(),
        deleted: Vec::new(),
        ended: HashSet::new(),
        left_out: Counts::new(),
        counts,
    };
    let left_out = import.all(&args.file).await?;
    leadership.release().await?;
    if !left_out.is_empty() {
        let left_out: Vec<String> = left_out
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        note(&format!(
            "left out, because their webhooks are deleted: {}",
            left_out.join(", ")
        ));
    }
    note(&format!(
        "imported {} objects; start the operator: kubectl scale deployment --all --replicas=2 -n {namespace}",
        total - left_out.values().sum::<u64>()
    ));
    Ok(())
}

fn open(path: &Path) -> Result<BufReader<File>, CliError> {
    let file = File::open(path).map_err(|error| refused(path, error.to_string()))?;
    Ok(BufReader::new(file))
}

fn refused(path: &Path, reason: String) -> CliError {
    CliError::Transfer(format!("cannot import {}: {reason}", path.display()))
}

/// Refuses CRDs without a field of this program: the API server would drop it from each object, and tell nobody. The file has no others,
/// since its writer is not newer than this program.
async fn check_crds(cluster: &Cluster) -> Result<(), CliError> {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut lacks = Vec::new();
    for ours in resources::crds() {
        let plural = &ours.spec.names.plural;
        let doing = format!("read the CRD of {plural}");
        let theirs = cluster.call(&doing, crds.get_opt(&ours.name_any())).await?;
        match theirs {
            None => lacks.push(plural.clone()),
            Some(theirs) => {
                let differences = crd_differences::of(&ours, &theirs);
                lacks.extend(differences.lacks.iter().map(|field| format!("{plural}: {field}")));
            }
        }
    }
    if lacks.is_empty() {
        return Ok(());
    }
    Err(CliError::Transfer(format!(
        "the CRDs of this cluster are older than this program, and would drop what they lack: {}\nInstall the operator of this version first, or: {} crds --with-policies | kubectl apply --server-side -f -",
        lacks.join(", "),
        program()
    )))
}

/// Refuses a cluster that has objects of any kind.
async fn check_empty(cluster: &Cluster) -> Result<(), CliError> {
    let mut found = Vec::new();
    for kind in kinds::own() {
        let api = kinds::api(&cluster.client, &kind.resource, None);
        let doing = format!("list {}", kind.resource.plural);
        let one = ListParams::default().limit(1);
        let list = cluster.call(&doing, api.list_metadata(&one)).await?;
        if !list.items.is_empty() {
            found.push(kind.resource.plural);
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(CliError::Transfer(format!(
        "this installation is not empty, it has {}: import into one without accounts",
        found.join(", ")
    )))
}

/// The user as whom the operator writes statuses and records, by the admission policy that lets nobody else write them; `None`
/// without that policy.
async fn operator_user(cluster: &Cluster) -> Result<Option<String>, CliError> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let read = policies.get_opt(STATUS_POLICY);
    let policy = cluster.call("read the admission policies", read).await?;
    let rules = policy
        .and_then(|policy| policy.spec)
        .and_then(|spec| spec.validations);
    let quoted = rules.iter().flatten().find_map(|rule| {
        let users = rule.expression.split('\'');
        users
            .into_iter()
            .find(|text| text.starts_with("system:serviceaccount:"))
    });
    Ok(quoted.map(str::to_owned))
}

struct Import<'a> {
    cluster: &'a Cluster,
    /// The same cluster, as the operator's user.
    operator: &'a Cluster,
    kinds: [Kind; 9],
    header: Header,
    operator_namespace: &'a str,
    /// Whether it goes on with one that was interrupted.
    is_resumed: bool,
    /// The UIDs that objects have here, by their former ones.
    uids: HashMap<String, String>,
    /// Objects that were being deleted.
    deleted: Vec<DynamicObject>,
    /// Namespaces that were being deleted already when this import went on: all that is in the file of them has been created before.
    ended: HashSet<String>,
    /// What was not created, because its webhook is gone.
    left_out: Counts,
    /// All that is in the file.
    counts: Counts,
}

/// An object of the file, and its metadata here.
struct Made {
    object: DynamicObject,
    here: ObjectMeta,
}

impl Import<'_> {
    /// Returns how much was left out.
    async fn all(mut self, path: &Path) -> Result<Counts, CliError> {
        let mut lines = open(path)?;
        file::header(&mut lines).map_err(|reason| refused(path, reason))?;
        let (mut batch, mut kind): (Vec<DynamicObject>, String) = (Vec::new(), String::new());
        let mut done: u64 = 0;
        loop {
            let mut line = Vec::new();
            let read = lines.read_until(b'\n', &mut line);
            read.map_err(|error| refused(path, error.to_string()))?;
            let object = file::object(&line).map_err(|reason| refused(path, reason))?;
            let next = object.as_ref().map(kind_of).unwrap_or_default().to_owned();
            // Owners are created before the objects that they own.
            if next != kind || batch.len() == AT_ONCE {
                done += batch.len() as u64;
                self.batch(std::mem::take(&mut batch)).await?;
                if next == kind && done.is_multiple_of(TOLD_EACH) {
                    let of = self.counts.get(&kind).copied().unwrap_or_default();
                    note(&format!("{kind}: {done} of {of}"));
                }
            }
            if next != kind {
                (kind, done) = (next, 0);
            }
            match object {
                Some(object) => batch.push(object),
                None => break,
            }
        }
        self.delete().await?;
        Ok(self.left_out)
    }

    async fn batch(&mut self, objects: Vec<DynamicObject>) -> Result<(), CliError> {
        let mut wanted = Vec::new();
        for mut object in objects {
            if self.namespace(&object).is_some_and(|it| self.ended.contains(&it)) {
                continue;
            }
            if self.keeps_owners(&mut object) {
                wanted.push(object);
            } else {
                *self.left_out.entry(kind_of(&object).to_owned()).or_default() += 1;
            }
        }
        let this = &*self;
        let makes = wanted.into_iter().map(|object| this.make(object));
        let made: Vec<Made> = stream::iter(makes)
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await?;
        for Made { object, here } in made {
            if let Some((former, uid)) = object.uid().zip(here.uid) {
                self.uids.insert(former, uid);
            }
            if kind_of(&object) == "Namespace" && here.deletion_timestamp.is_some() {
                self.ended.insert(object.name_any());
            } else if object.metadata.deletion_timestamp.is_some() {
                self.deleted.push(DynamicObject {
                    data: Value::Null,
                    ..object
                });
            }
        }
        Ok(())
    }

    /// Gives an object the owners that it has here, and names those that it loses: Kubernetes deletes an object if none of the owners
    /// that it refers to exists. Returns whether the object is wanted; a Delivery or a Secret of a webhook that is gone is not.
    fn keeps_owners(&self, object: &mut DynamicObject) -> bool {
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        for mut owner in object.metadata.owner_references.take().unwrap_or_default() {
            match self.uids.get(&owner.uid) {
                Some(uid) => {
                    owner.uid.clone_from(uid);
                    kept.push(owner);
                }
                None => lost.push(owner),
            }
        }
        let is_webhooks = matches!(kind_of(object), "Delivery" | "Secret");
        if is_webhooks && kept.is_empty() && !lost.is_empty() && lost.iter().all(kinds::is_webhook) {
            return false;
        }
        for owner in lost {
            note(&format!(
                "{} {}: without its owner {} {}, which was not imported before it",
                kind_of(object),
                place(object),
                owner.kind,
                owner.name
            ));
        }
        object.metadata.owner_references = Some(kept);
        true
    }

    async fn make(&self, object: DynamicObject) -> Result<Made, CliError> {
        let kind = self
            .kinds
            .iter()
            .find(|kind| kind.resource.kind == kind_of(&object));
        let here = match kind {
            Some(kind) => self.own(kind, &object).await?,
            None => self.foreign(&object).await?,
        };
        Ok(Made { object, here })
    }

    /// The namespace that an object has here.
    fn namespace(&self, object: &DynamicObject) -> Option<String> {
        let namespace = object.namespace()?;
        let is_operators = namespace == self.header.operator_namespace;
        Some(if is_operators {
            self.operator_namespace.to_owned()
        } else {
            namespace
        })
    }

    /// Creates an object of this program's group, or goes on with one that an interrupted import has created.
    async fn own(&self, kind: &Kind, object: &DynamicObject) -> Result<ObjectMeta, CliError> {
        let mut new = DynamicObject {
            types: object.types.clone(),
            metadata: self.metadata(object),
            data: object.data.clone(),
        };
        let origin = origin::annotation(
            origin::uid(&object.metadata),
            origin::created_at(&object.metadata).unwrap_or_default(),
        );
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.insert(ORIGIN_ANNOTATION.to_owned(), origin.clone());
        // It refers to a version of a Secret in the other cluster.
        annotations.remove(SECRET_CHANGED_ANNOTATION);
        let status = if kind.has_status {
            take_status(&mut new.data)
        } else {
            None
        };
        let namespace = new.namespace();
        let name = new.name_any();
        let api = kinds::api(&self.operator.client, &kind.resource, namespace.as_deref());
        let doing = format!("create {} {}", kind.resource.kind, place(&new));
        let created = self
            .operator
            .call(&doing, api.create(&PostParams::default(), &new))
            .await;
        let mut here = match created {
            Ok(created) => created,
            Err(failure) if failure.is(409) => {
                let here = self.operator.call(&doing, api.get(&name)).await?;
                if here.annotations().get(ORIGIN_ANNOTATION) != Some(&origin) {
                    return Err(failure.into());
                }
                here
            }
            Err(failure) => return Err(failure.into()),
        };
        let metadata = here.metadata.clone();
        if let Some(mut status) = status {
            let generations = (object.metadata.generation, here.metadata.generation);
            if let (Some(before), Some(now)) = generations {
                renumber(&mut status, before, now);
            }
            here.types.clone_from(&object.types);
            here.data["status"] = status;
            let doing = format!("write the status of {} {}", kind.resource.kind, place(&new));
            let params = PostParams::default();
            let write = api.replace_status(&name, &params, &here);
            self.operator.call(&doing, write).await?;
        }
        if kind.is_tracked {
            let tracked = object
                .metadata
                .managed_fields
                .as_ref()
                .filter(|fields| !fields.is_empty());
            // A list with one empty entry tells the API server not to track fields.
            let fields = tracked.map_or_else(|| json!([{}]), |fields| json!(fields));
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": fields } }));
            let params = PatchParams::default();
            let doing = format!("write who has written {} {}", kind.resource.kind, place(&new));
            let write = api.patch_metadata(&name, &params, &patch);
            self.operator.call(&doing, write).await?;
        }
        Ok(metadata)
    }

    /// Creates a Namespace, a Secret or a ConfigMap.
    async fn foreign(&self, object: &DynamicObject) -> Result<ObjectMeta, CliError> {
        let kind = kind_of(object);
        let Some(resource) = kinds::foreign(kind) else {
            return Err(CliError::Transfer(format!(
                "the file has objects of the unknown kind {kind}"
            )));
        };
        let mut new = DynamicObject {
            types: object.types.clone(),
            metadata: self.metadata(object),
            data: object.data.clone(),
        };
        if kind == "Namespace" {
            new.data = json!({});
        }
        let (name, namespace) = (new.name_any(), new.namespace());
        let api = kinds::api(&self.cluster.client, &resource, namespace.as_deref());
        let doing = format!("create {kind} {}", place(&new));
        let found = self.cluster.call(&doing, api.get_opt(&name)).await?;
        let Some(found) = found else {
            let params = PostParams::default();
            let created = self.cluster.call(&doing, api.create(&params, &new)).await?;
            return Ok(created.metadata);
        };
        if kind == "Namespace" {
            let has_deleted_it = self.is_resumed && object.metadata.deletion_timestamp.is_some();
            if found.metadata.deletion_timestamp.is_some() && !has_deleted_it {
                return Err(CliError::Transfer(format!(
                    "the namespace {name} is being deleted here: wait until it is gone, and run it again"
                )));
            }
            let account = |namespace: &DynamicObject| namespace.labels().get(ACCOUNT_LABEL).cloned();
            if account(&found) != account(&new) {
                return Err(CliError::Transfer(format!(
                    "there is a namespace {name} without the label that it has in the file, {ACCOUNT_LABEL}: {}\nSet the label if the account may have this namespace, and run it again.",
                    account(&new).unwrap_or_else(|| "(none)".to_owned())
                )));
            }
        } else if found.data["data"] != new.data["data"] {
            if namespace.as_deref() != Some(self.operator_namespace) {
                return Err(CliError::Transfer(format!(
                    "there is another {kind} {} already; delete it, and run it again",
                    place(&new)
                )));
            }
            // The operator's own ones are created empty, together with its rights.
            let patch = Patch::Merge(json!({ "data": new.data["data"] }));
            let params = PatchParams::default();
            let write = api.patch(&name, &params, &patch);
            self.cluster.call(&doing, write).await?;
        }
        Ok(found.metadata)
    }

    /// The metadata that a new object has from the one in the file.
    fn metadata(&self, object: &DynamicObject) -> ObjectMeta {
        let former = &object.metadata;
        ObjectMeta {
            name: former.name.clone(),
            namespace: self.namespace(object),
            labels: former.labels.clone(),
            annotations: former.annotations.clone(),
            finalizers: former.finalizers.clone(),
            owner_references: former.owner_references.clone(),
            ..ObjectMeta::default()
        }
    }

    /// Deletes what was being deleted: the operator goes on with that. A namespace comes after what is in it, since an import that is
    /// interrupted here and run again can create nothing in a namespace that is being deleted.
    async fn delete(&self) -> Result<(), CliError> {
        for object in self.deleted.iter().rev() {
            let own = self
                .kinds
                .iter()
                .find(|kind| kind.resource.kind == kind_of(object));
            // The operator itself may not delete namespaces that it has not created.
            let (who, resource) = match own {
                Some(kind) => (self.operator, Some(kind.resource.clone())),
                None => (self.cluster, kinds::foreign(kind_of(object))),
            };
            let Some(resource) = resource else { continue };
            let namespace = self.namespace(object);
            let api = kinds::api(&who.client, &resource, namespace.as_deref());
            let doing = format!("delete {} {}", resource.kind, place(object));
            let (name, params) = (object.name_any(), DeleteParams::default());
            let delete = api.delete(&name, &params);
            match who.call(&doing, delete).await {
                Err(failure) if !failure.is(404) => return Err(failure.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

fn kind_of(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| &types.kind)
}

/// Where an object is, for messages.
fn place(object: &DynamicObject) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}

fn take_status(data: &mut Value) -> Option<Value> {
    data.as_object_mut()?.remove("status")
}

/// The generation of a new object begins at 1 again. What was decided for the generation that the object had is for the new one
/// now, and what was decided for an earlier one is for none.
fn renumber(status: &mut Value, before: i64, now: i64) {
    match status {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_i64() {
                    Some(of) if name == "observedGeneration" || name == "generation" => {
                        *value = if of == before { now } else { 0 }.into();
                    }
                    _ => renumber(value, before, now),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| renumber(value, before, now)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_for_the_last_generation_is_decided_for_the_new_one_and_nothing_else_is() {
        let mut status = json!({
            "observedGeneration": 7, "disabled": { "generation": 6, "attempts": 7 },
            "conditions": [{ "observedGeneration": 7 }, { "observedGeneration": 5 }],
        });
        renumber(&mut status, 7, 1);
        assert_eq!(
            status,
            json!({
                "observedGeneration": 1, "disabled": { "generation": 0, "attempts": 7 },
                "conditions": [{ "observedGeneration": 1 }, { "observedGeneration": 0 }],
            })
        );
    }
}
