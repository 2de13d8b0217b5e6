//! `stellage import`.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::BufRead,
    path::PathBuf,
};

use clap::Args;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::admissionregistration::v1::ValidatingAdmissionPolicy,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
    core::DynamicObject,
};
use serde_json::{Value, json};

use super::{
    file::{self, Counts, Header},
    kinds::{self, Kind, Which},
    lease::Leadership,
    packing::{self, KeyArgs, Keys},
};
use crate::{CliError, connect::Cluster, crd_differences, objects, output::note, program};
use resources::{
    ACCOUNT_LABEL, Account,
    account::{ADOPTED_FOR_ANNOTATION, MADE_FOR_ANNOTATION},
    invoice::ACCOUNT_ORIGIN_LABEL,
    origin::{self, ORIGIN_ANNOTATION},
    webhook::SECRET_CHANGED_ANNOTATION,
};
use runtime::kubeconfig::ClusterArgs;

const EXAMPLES: &str = "\
Examples:
  stellage import stellage.export --dry-run
  stellage import stellage.export
  stellage import --account ada stellage.export";

/// Objects of a kind that are created before the next lines are read.
const AT_ONCE: usize = 200;
/// Objects that are created at the same time.
const PARALLEL: usize = 8;
/// After so many objects of a kind, the progress is told.
const TOLD_EACH: u64 = 2000;
/// How often the status of an object is written, if the operator writes one meanwhile.
const STATUS_TRIES: u32 = 5;
/// The admission policy that names the operator's users.
const STATUS_POLICY: &str = "operator-status.stellage.dev";

/// Create all that is in a file of `export` in an empty installation, or one account of it in any.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ImportArgs {
    /// A file of `export`
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    keys: KeyArgs,

    #[command(flatten)]
    into: IntoArgs,
}

/// What of a file goes where.
#[derive(Args, Debug)]
pub(super) struct IntoArgs {
    /// Only this account; the installation may have others, and its operator may run
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    account: Option<String>,

    /// Only what the operator's namespace had, if that is lost and the accounts are not: invoices, prices, and the key of console sessions
    #[arg(long, conflicts_with = "account")]
    only_operator_namespace: bool,

    /// Only check the file and the installation
    #[arg(long)]
    dry_run: bool,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,
}

/// A file of an export, which is read several times.
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// What it is called in messages.
    pub(super) shown: String,
    pub(super) keys: Option<Keys>,
}

impl Source {
    fn open(&self) -> Result<Box<dyn BufRead>, CliError> {
        let file = File::open(&self.path).map_err(|error| self.refused(error.to_string()))?;
        packing::unpacked(file, self.keys.as_ref()).map_err(|reason| self.refused(reason))
    }

    /// The next object; `None` at its end.
    fn next_object(&self, lines: &mut impl BufRead) -> Result<Option<DynamicObject>, CliError> {
        let mut line = Vec::new();
        let read = lines.read_until(b'\n', &mut line);
        read.map_err(|error| self.refused(error.to_string()))?;
        file::object(&line).map_err(|reason| self.refused(reason))
    }

    fn refused(&self, reason: String) -> CliError {
        CliError::Plain(format!("cannot import {}: {reason}", self.shown))
    }
}

pub(crate) async fn run(args: ImportArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let source = Source {
        shown: args.file.display().to_string(),
        path: args.file,
        keys: args.keys.read()?,
    };
    from(&source, &args.into, which).await
}

/// Imports a file.
pub(super) async fn from(source: &Source, args: &IntoArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let (header, counts) = file::check(&mut source.open()?).map_err(|reason| source.refused(reason))?;
    if !args.only_operator_namespace && !file::has_accounts(&counts) {
        return Err(source.refused(
            "it has no accounts: it was made of an installation without any. What the operator's namespace had, such as invoices, is imported with --only-operator-namespace".to_owned(),
        ));
    }
    let cluster = Cluster::of(which).await?;
    let namespace = &args.operator_namespace;
    check_crds(&cluster, namespace).await?;
    let only = match &args.account {
        Some(name) => Some(Only::find(name, source)?),
        None => None,
    };
    let mut lease = None;
    if let Some(only) = &only {
        only.check(&cluster).await?;
    } else {
        let is_wanted = |which: Which| !args.only_operator_namespace || which.is_operators();
        lease = Some(free_lease(&cluster, namespace, &header, is_wanted).await?);
    }
    if args.dry_run {
        let from = (&header.version, header.exported_at);
        note(&format!(
            "nothing stands in the way of importing what version {} has exported at {}",
            from.0, from.1
        ));
        return Ok(());
    }
    let operator = match operator_user(&cluster).await? {
        Some(user) => Cluster::of_as(which, &user).await?,
        None => Cluster::of(which).await?,
    };
    cluster.announce(&format!("importing {}", source.shown));
    if let Some(lease) = &mut lease {
        lease.take(&header.id).await?;
    }
    let import = Import {
        cluster: &cluster,
        operator: &operator,
        kinds: kinds::all(),
        header,
        operator_namespace: namespace,
        only,
        only_operator_namespace: args.only_operator_namespace,
        uids: HashMap::new(),
        deleted: Vec::new(),
        ended: HashSet::new(),
        left_out: Counts::new(),
        created: 0,
        counts,
    };
    let (created, left_out) = import.all(source).await?;
    if !left_out.is_empty() {
        let left_out: Vec<String> = left_out
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        note(&format!(
            "left out, because what they belong to is deleted: {}",
            left_out.join(", ")
        ));
    }
    let Some(mut lease) = lease else {
        note(&format!("imported {created} objects"));
        return Ok(());
    };
    lease.release().await?;
    note(&format!(
        "imported {created} objects; now start the operator, with Helm: helm upgrade stellage CHART -n {namespace} --reset-values --values values.yaml --force-conflicts"
    ));
    Ok(())
}

/// The Lease, which nobody holds but perhaps an import of the same file that was interrupted.
async fn free_lease<'a>(
    cluster: &'a Cluster,
    namespace: &'a str,
    header: &Header,
    is_wanted: impl Fn(Which) -> bool,
) -> Result<Leadership<'a>, CliError> {
    let mut lease = Leadership::read(cluster, namespace).await?;
    match lease.import() {
        Some(id) if id == header.id => note("going on with the interrupted import"),
        Some(other) => {
            return Err(CliError::Plain(format!(
                "the import of another export, {other}, is not finished here: run stellage import with that file"
            )));
        }
        None => {
            if !lease.is_free().await? {
                return Err(CliError::Plain(format!(
                    "the operator runs: {} holds the Lease\nStop it: kubectl scale deployment --all --replicas=0 -n {namespace}",
                    lease.holder().unwrap_or("somebody")
                )));
            }
            check_empty(cluster, is_wanted).await?;
        }
    }
    Ok(lease)
}

/// The account to import, if not all are.
struct Only {
    account: DynamicObject,
    namespace: String,
}

impl Only {
    /// Looks for an account in a file.
    fn find(name: &str, source: &Source) -> Result<Self, CliError> {
        let mut lines = source.open()?;
        file::header(&mut lines).map_err(|reason| source.refused(reason))?;
        while let Some(object) = source.next_object(&mut lines)? {
            if kind_of(&object) == Account::kind(&()) && object.name_any() == name {
                let namespace = object.data["spec"]["namespace"].as_str().unwrap_or(name);
                return Ok(Self {
                    namespace: namespace.to_owned(),
                    account: object,
                });
            }
        }
        Err(source.refused(format!("it has no account {name}")))
    }

    /// Refuses an installation that has another Account of this name.
    async fn check(&self, cluster: &Cluster) -> Result<(), CliError> {
        let accounts: Api<Account> = Api::all(cluster.client.clone());
        let name = self.account.name_any();
        let found = cluster.call("read the Account", accounts.get_opt(&name)).await?;
        match found {
            Some(found) if origin::uid(&found.metadata) != origin::uid(&self.account.metadata) => {
                Err(CliError::Plain(format!("there is another account {name} here")))
            }
            _ => Ok(()),
        }
    }

    /// Whether an object belongs to the account.
    fn has(&self, object: &DynamicObject) -> bool {
        if let Some(origin) = object.labels().get(ACCOUNT_ORIGIN_LABEL) {
            return origin == origin::uid(&self.account.metadata);
        }
        match object.namespace() {
            Some(namespace) => namespace == self.namespace,
            None if kind_of(object) == "Namespace" => object.name_any() == self.namespace,
            None => kind_of(object) == Account::kind(&()) && object.name_any() == self.account.name_any(),
        }
    }
}

/// Refuses CRDs without a field of this program: the API server would drop it from each object, and tell nobody. The file has no others,
/// since its writer is not newer than this program.
async fn check_crds(cluster: &Cluster, operator_namespace: &str) -> Result<(), CliError> {
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
    Err(CliError::Plain(format!(
        "the CRDs of this cluster are older than this program, and would drop what they lack: {}\nInstall the operator of this version first; without Helm, `{} doctor --operator-namespace {operator_namespace}` prints the command.",
        lacks.join(", "),
        program()
    )))
}

/// Refuses a cluster that has objects of any kind that is to be imported.
async fn check_empty(cluster: &Cluster, is_wanted: impl Fn(Which) -> bool) -> Result<(), CliError> {
    let mut found = Vec::new();
    let ours = |kind: &Kind| kind.which.is_ours() && is_wanted(kind.which);
    for kind in kinds::all().into_iter().filter(ours) {
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
    Err(CliError::Plain(format!(
        "this installation is not empty, it has {}: import into one without accounts, or one account at a time with --account",
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
    kinds: [Kind; 15],
    header: Header,
    operator_namespace: &'a str,
    /// The account to import, if not all are.
    only: Option<Only>,
    /// Whether only what the operator's namespace had is imported.
    only_operator_namespace: bool,
    /// The UIDs that objects have here, by their former ones.
    uids: HashMap<String, String>,
    /// Objects that were being deleted.
    deleted: Vec<DynamicObject>,
    /// Namespaces that were being deleted already when this import went on: all that is in the file of them has been created before.
    ended: HashSet<String>,
    /// What was not created, because its webhook or instance is gone.
    left_out: Counts,
    /// How many objects were created, or were there from an import that was interrupted.
    created: u64,
    /// All that is in the file.
    counts: Counts,
}

/// An object of the file, and its metadata here.
struct Made {
    object: DynamicObject,
    here: ObjectMeta,
}

impl Import<'_> {
    /// Returns how much was created and left out.
    async fn all(mut self, source: &Source) -> Result<(u64, Counts), CliError> {
        let mut lines = source.open()?;
        file::header(&mut lines).map_err(|reason| source.refused(reason))?;
        let (mut batch, mut kind): (Vec<DynamicObject>, String) = (Vec::new(), String::new());
        let mut done: u64 = 0;
        loop {
            let object = source.next_object(&mut lines)?;
            if let (Some(object), Some(only)) = (&object, &self.only)
                && !only.has(object)
            {
                continue;
            }
            if let Some(object) = &object
                && self.only_operator_namespace
                && object.namespace().as_ref() != Some(&self.header.operator_namespace)
            {
                continue;
            }
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
        Ok((self.created, self.left_out))
    }

    async fn batch(&mut self, objects: Vec<DynamicObject>) -> Result<(), CliError> {
        let mut wanted = Vec::new();
        for mut object in objects {
            if self.namespace(&object).is_some_and(|it| self.ended.contains(&it)) {
                self.created += 1;
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
        self.created += made.len() as u64;
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
    /// that it refers to exists. Returns whether the object is wanted; a Delivery or a Secret of a webhook or instance that is gone is not.
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
        let is_part = matches!(kind_of(object), "Delivery" | "Secret");
        if is_part && kept.is_empty() && !lost.is_empty() && lost.iter().all(kinds::owns_all) {
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

    fn kind(&self, object: &DynamicObject) -> Result<&Kind, CliError> {
        let name = kind_of(object);
        let known = self.kinds.iter().find(|kind| kind.resource.kind == name);
        known.ok_or_else(|| CliError::Plain(format!("the file has objects of the unknown kind {name}")))
    }

    /// Who writes objects of a kind: ours are written as the operator, since nobody else may write statuses and records.
    fn writer(&self, kind: &Kind) -> &Cluster {
        if kind.which.is_ours() {
            self.operator
        } else {
            self.cluster
        }
    }

    /// Creates an object and writes its status, or goes on with one that an interrupted import has created.
    async fn make(&self, object: DynamicObject) -> Result<Made, CliError> {
        let kind = self.kind(&object)?;
        let mut new = DynamicObject {
            types: object.types.clone(),
            metadata: self.metadata(&object),
            data: object.data.clone(),
        };
        match kind.which {
            Which::Ours | Which::Invoices | Which::Numbers => {
                let annotations = new.metadata.annotations.get_or_insert_default();
                annotations.insert(ORIGIN_ANNOTATION.to_owned(), origin_of(&object));
                // It refers to a version of a Secret in the other cluster.
                annotations.remove(SECRET_CHANGED_ANNOTATION);
            }
            Which::Namespaces => new.data = json!({}),
            Which::Secrets | Which::Shared(_) => {}
        }
        let status = kind.has_status.then(|| take_status(&mut new.data)).flatten();
        let (name, namespace) = (new.name_any(), new.namespace());
        let writer = self.writer(kind);
        let api = kinds::api(&writer.client, &kind.resource, namespace.as_deref());
        let doing = format!("create {} {}", kind.resource.kind, place(&new));
        let created = writer
            .call(&doing, api.create(&PostParams::default(), &new))
            .await;
        let here = match created {
            Ok(created) => created,
            Err(failure) if failure.is(409) => {
                let here = writer.call(&doing, api.get(&name)).await?;
                self.check_same(&api, &object, &new, &here).await?;
                here
            }
            Err(failure) => return Err(failure.into()),
        };
        let metadata = here.metadata.clone();
        if let Some(status) = status {
            self.write_status(&api, &object, here, status).await?;
        }
        if kind.is_tracked {
            let tracked = object.metadata.managed_fields.as_ref();
            let tracked = tracked.filter(|fields| !fields.is_empty());
            // A list with one empty entry tells the API server not to track fields.
            let fields = tracked.map_or_else(|| json!([{}]), |fields| json!(fields));
            let patch = Patch::Merge(json!({ "metadata": { "managedFields": fields } }));
            let doing = format!("write who has written {} {}", kind.resource.kind, place(&new));
            let params = PatchParams::default();
            let write = api.patch_metadata(&name, &params, &patch);
            writer.call(&doing, write).await?;
        }
        Ok(Made {
            object,
            here: metadata,
        })
    }

    /// Writes the status that an object had. An operator that runs may have written one since, which says that there is no Account.
    async fn write_status(
        &self,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
        mut here: DynamicObject,
        mut status: Value,
    ) -> Result<(), CliError> {
        if let (Some(before), Some(now)) = (object.metadata.generation, here.metadata.generation) {
            renumber(&mut status, before, now);
        }
        let name = here.name_any();
        let doing = format!("write the status of {} {}", kind_of(object), place(&here));
        for tries_left in (0..STATUS_TRIES).rev() {
            here.types.clone_from(&object.types);
            here.data["status"] = status.clone();
            let params = PostParams::default();
            let write = api.replace_status(&name, &params, &here);
            match self.operator.call(&doing, write).await {
                Ok(_) => break,
                Err(failure) if failure.is(409) && tries_left > 0 => {
                    here = self.operator.call(&doing, api.get(&name)).await?;
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// Refuses what has the name of a new object, but is not what an interrupted import has created.
    async fn check_same(
        &self,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
        new: &DynamicObject,
        here: &DynamicObject,
    ) -> Result<(), CliError> {
        let is_another = || {
            let message = format!(
                "there is another {} {} already; delete it, and run it again",
                kind_of(object),
                place(new)
            );
            Err(CliError::Plain(message))
        };
        match self.kind(object)?.which {
            Which::Ours | Which::Invoices | Which::Numbers => {
                // By its own UID, if it was never anywhere else.
                if origin_of(here) == origin_of(object) {
                    Ok(())
                } else {
                    is_another()
                }
            }
            Which::Namespaces => self.check_namespace(api, object, new, here).await,
            _ if here.data["data"] == new.data["data"] => Ok(()),
            Which::Secrets => is_another(),
            Which::Shared(_) if new.namespace().as_deref() != Some(self.operator_namespace) => is_another(),
            // The operator's own ones are created empty, together with its rights.
            Which::Shared(_) => {
                let patch = Patch::Merge(json!({ "data": new.data["data"] }));
                let (name, params) = (new.name_any(), PatchParams::default());
                let doing = format!("write {} {}", kind_of(object), place(new));
                let write = api.patch(&name, &params, &patch);
                self.cluster.call(&doing, write).await?;
                Ok(())
            }
        }
    }

    async fn check_namespace(
        &self,
        api: &Api<DynamicObject>,
        object: &DynamicObject,
        new: &DynamicObject,
        here: &DynamicObject,
    ) -> Result<(), CliError> {
        let name = new.name_any();
        // An import that was interrupted after it deleted the namespace goes on.
        let has_deleted_it = object.metadata.deletion_timestamp.is_some();
        if here.metadata.deletion_timestamp.is_some() && !has_deleted_it {
            return Err(CliError::Plain(format!(
                "the namespace {name} is being deleted here: wait until it is gone, and run it again"
            )));
        }
        let account = |namespace: &DynamicObject| namespace.labels().get(ACCOUNT_LABEL).cloned();
        if account(here) != account(new) {
            return Err(CliError::Plain(format!(
                "there is a namespace {name} without the label that it has in the file, {ACCOUNT_LABEL}: {}\nSet the label if the account may have this namespace, and run it again.",
                account(new).unwrap_or_else(|| "(none)".to_owned())
            )));
        }
        let marks = [MADE_FOR_ANNOTATION, ADOPTED_FOR_ANNOTATION];
        let owner = |namespace: &DynamicObject| {
            let mut marks = marks.iter();
            marks.find_map(|mark| namespace.annotations().get(*mark).cloned())
        };
        if let (None, Some(owner)) = (owner(here), owner(new)) {
            // The operator has not created this one.
            let mark = json!({ "metadata": { "annotations": { ADOPTED_FOR_ANNOTATION: owner } } });
            let (params, patch) = (PatchParams::default(), Patch::Merge(mark));
            let write = api.patch_metadata(&name, &params, &patch);
            self.cluster
                .call(&format!("write namespace {name}"), write)
                .await?;
        }
        Ok(())
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
            // The operator may not delete namespaces that it has not created, and nobody else one of an Account.
            let kind = self.kind(object)?;
            let who = if object.annotations().contains_key(MADE_FOR_ANNOTATION) {
                self.operator
            } else {
                self.writer(kind)
            };
            let resource = &kind.resource;
            let namespace = self.namespace(object);
            let api = kinds::api(&who.client, resource, namespace.as_deref());
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

/// The annotation by which an object is known: its own, or what makes it the same object.
fn origin_of(object: &DynamicObject) -> String {
    let metadata = &object.metadata;
    let created = origin::created_at(metadata).unwrap_or_default();
    origin::annotation(origin::uid(metadata), created)
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
