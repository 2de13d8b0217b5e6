//! Copies of a running server, as Stellage, KubeVirt and the importer of disks have made and filled in all of its objects: written by an
//! administrator, without virt-controller, and without KubeVirt's admission, which lets nobody but KubeVirt write a run.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Stage, Tenant, Tenants, collection, kinds, machines};
use crate::{
    Result,
    convergence::PATIENCE,
    load::{CONNECTIONS, NUMBER},
    objects, say,
    support::kubectl,
    wire::{Connection, Target},
};

const WEBHOOKS: &str = "mutatingwebhookconfigurations,validatingwebhookconfigurations";
/// Label of the objects of a server.
const INSTANCE_UID: &str = "stellage.dev/instance-uid";
/// Label with the UID of a server's account.
const ACCOUNT_ID: &str = "stellage.dev/account-id";
/// Annotation: CDI does not fill the disk again.
const SEAL: &str = "cdi.kubevirt.io/storage.prePopulated";

/// The objects of a server.
pub struct Original {
    /// Of its Instance, and the beginning of all names.
    pub id: String,
    uid: String,
    /// UID of its account.
    account: String,
    /// In an order in which each names only earlier ones by UID. The disk is sealed, so the puppet does not make its claim.
    objects: Vec<Object>,
}

/// An object as it is stored.
#[derive(Clone)]
struct Object {
    collection: String,
    stored: Value,
    has_status: bool,
    is_applied: bool,
}

impl Original {
    /// Reads the objects of a server that runs.
    pub async fn read(stage: &Stage, tenant: &Tenant, id: &str) -> Result<Self> {
        let namespace = &tenant.namespace;
        let get = async |path: &str| -> Result<Value> { stage.admin.call("GET", path, None).await?.json() };
        let path = machines(namespace);
        let machine = get(&format!("{path}/{id}")).await?;
        let uid = machine["metadata"]["labels"][INSTANCE_UID].as_str();
        let uid = uid.ok_or("a virtual machine without the UID of its instance")?;
        let run = get(&format!("{}/{id}", collection(&kinds::RUN, namespace))).await?;
        let made_by = run["metadata"]["uid"].as_str().unwrap_or_default();
        let launchers = format!("labelSelector=kubevirt.io/created-by%3D{made_by}");
        let core = format!("/api/v1/namespaces/{namespace}");
        let ours = format!("labelSelector={INSTANCE_UID}%3D{uid}");
        let mut original = Self {
            id: id.to_owned(),
            uid: uid.to_owned(),
            account: account_of(&machine)?,
            objects: Vec::new(),
        };
        let first = async |collection: &str, selector: &str| -> Result<Value> {
            let list = get(&format!("{collection}?{selector}")).await?;
            let mut first = list["items"][0].clone();
            if first.is_null() {
                return Err(format!("no {collection} with {selector}").into());
            }
            let kind = list["kind"].as_str().unwrap_or_default();
            first["kind"] = kind.trim_end_matches("List").into();
            first["apiVersion"] = list["apiVersion"].clone();
            Ok(first)
        };
        for (collection, selector, has_status, is_applied) in [
            (format!("{core}/secrets"), &ours, false, true),
            (collection(&kinds::DISK, namespace), &ours, true, true),
            (format!("{core}/persistentvolumeclaims"), &ours, true, false),
        ] {
            let stored = first(&collection, selector).await?;
            original.add(collection, stored, has_status, is_applied);
        }
        original.add(path, machine, true, true);
        original.add(collection(&kinds::RUN, namespace), run, false, false);
        let pods = format!("{core}/pods");
        let pod = first(&pods, &launchers).await?;
        original.add(pods, pod, true, false);
        original.add_revisions(stage, namespace).await?;
        Ok(original)
    }

    fn add(&mut self, collection: String, stored: Value, has_status: bool, is_applied: bool) {
        self.objects.push(Object {
            collection,
            stored,
            has_status,
            is_applied,
        });
    }

    /// The revisions of the virtual machine's spec that virt-controller keeps.
    async fn add_revisions(&mut self, stage: &Stage, namespace: &str) -> Result<()> {
        let collection = format!("/apis/apps/v1/namespaces/{namespace}/controllerrevisions");
        let list: Value = stage.admin.call("GET", &collection, None).await?.json()?;
        for mut revision in list["items"].as_array().cloned().unwrap_or_default() {
            if revision["metadata"]["ownerReferences"][0]["name"] == self.id {
                revision["kind"] = "ControllerRevision".into();
                revision["apiVersion"] = "apps/v1".into();
                self.add(collection.clone(), revision, false, false);
            }
        }
        Ok(())
    }

    /// Its Instance, without events that wait to be sent.
    pub async fn instance(&self, stage: &Stage, tenant: &Tenant) -> Result<Value> {
        let path = format!("{}/{}", objects::collection(&tenant.account.namespace), self.id);
        let mut instance: Value = stage.cluster.admin.call("GET", &path, None).await?.json()?;
        if let Some(status) = instance["status"].as_object_mut() {
            status.remove("outbox");
        }
        Ok(instance)
    }

    /// What Stellage applies for a server, as it would for one with another name; `label` is the installation. With the paths to post it
    /// to.
    pub fn applied(&self, name: &str, label: &str) -> Result<Vec<(String, Value)>> {
        let applied = self.objects.iter().filter(|object| object.is_applied);
        applied
            .map(|object| {
                let text = new(&object.stored).to_string().replace(&self.id, name);
                let mut made: Value = serde_json::from_str(&text)?;
                let installation = "stellage.dev/installation";
                made["metadata"]["labels"][installation] = label.into();
                // Stellage has sealed the disk once it was filled.
                let annotations = made.pointer_mut("/metadata/annotations");
                if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
                    annotations.remove(SEAL);
                }
                if let Some(labels) = made.pointer_mut("/spec/template/metadata/labels") {
                    labels[installation] = label.into();
                }
                Ok((object.collection.clone(), made))
            })
            .collect()
    }
}

/// An object as it would be created.
fn new(stored: &Value) -> Value {
    let mut object = stored.clone();
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in [
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "managedFields",
            "generation",
        ] {
            metadata.remove(field);
        }
    }
    object
}

/// A part of each copy: texts in which what is the original's is replaced.
struct Part {
    target: Target,
    collection: String,
    name: String,
    object: String,
    status: Option<String>,
    uid: String,
}

impl Part {
    fn of(object: &Object, target: &Target) -> Self {
        let metadata = &object.stored["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let mut made = new(&object.stored);
        if let Some(status) = object.stored.get("status").filter(|_| !object.has_status) {
            made["status"] = status.clone();
        }
        Self {
            target: target.clone(),
            collection: object.collection.clone(),
            name: text("name"),
            object: made.to_string(),
            status: object
                .has_status
                .then(|| json!({ "status": object.stored["status"] }).to_string()),
            uid: text("uid"),
        }
    }
}

/// The UID of a server's account.
fn account_of(machine: &Value) -> Result<String> {
    let account = machine["metadata"]["labels"][ACCOUNT_ID].as_str();
    Ok(account.ok_or("a virtual machine without its account")?.to_owned())
}

/// What is replaced in the objects of the original to make them another tenant's.
async fn theirs(
    stage: &Stage,
    first: &Tenant,
    tenant: &Tenant,
    original: &Original,
) -> Result<Vec<(String, String)>> {
    let path = machines(&tenant.namespace);
    let list: Value = stage.admin.call("GET", &path, None).await?.json()?;
    Ok(vec![
        // Its namespace in the region contains this one's name.
        (first.account.namespace.clone(), tenant.account.namespace.clone()),
        (original.account.clone(), account_of(&list["items"][0])?),
    ])
}

/// Makes copies until there are so many servers, with their Instances. Each tenant has one already.
pub async fn make(
    stage: &Stage,
    tenants: &Tenants,
    original: &Original,
    instance: &Value,
    count: u64,
) -> Result<()> {
    say(&format!(
        "(g) writing copies of a running server until there are {count}"
    ));
    let first = &tenants.0[0];
    let mut parts: Vec<_> = original
        .objects
        .iter()
        .map(|object| Part::of(object, &stage.admin))
        .collect();
    let instance = Object {
        collection: objects::collection(&first.account.namespace),
        stored: instance.clone(),
        has_status: true,
        is_applied: false,
    };
    parts.push(Part::of(&instance, &stage.cluster.operator));
    let whose = tenants
        .0
        .iter()
        .map(|tenant| theirs(stage, first, tenant, original));
    let whose = Arc::new(try_join_all(whose).await?);
    let webhooks = take_admission_away(stage, first, original).await?;
    let (parts, next) = (Arc::new(parts), Arc::new(AtomicU64::new(tenants.first_copy())));
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (parts, next, whose) = (parts.clone(), next.clone(), whose.clone());
        let (id, uid) = (original.id.clone(), original.uid.clone());
        tasks.spawn(async move {
            let mut connections = Vec::new();
            for part in parts.iter() {
                connections.push(part.target.connect().await?);
            }
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return Result::Ok(());
                }
                if n.is_multiple_of(1_000) {
                    say(&format!("  {n}"));
                }
                let mut replaced = whose[usize::try_from(n)? % whose.len()].clone();
                replaced.extend([(id.clone(), name(n)), (uid.clone(), uid_of(n))]);
                copy(&parts, &mut connections, replaced).await?;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    give_admission_back(stage, first, original, &webhooks).await
}

/// Name of the n-th copy.
pub fn name(n: u64) -> String {
    let width = NUMBER.len();
    format!("i-{n:0width$}")
}

fn uid_of(n: u64) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

/// Makes one copy. `replaced` grows by the UIDs that its objects get.
async fn copy(
    parts: &[Part],
    connections: &mut [Connection],
    mut replaced: Vec<(String, String)>,
) -> Result<()> {
    for (part, connection) in parts.iter().zip(connections) {
        let fill = |text: &str| {
            let filled = |text: String, (from, to): &(String, String)| text.replace(from, to);
            replaced.iter().fold(text.to_owned(), filled)
        };
        let object = fill(&part.object);
        let body = Some(("application/json", object.as_str()));
        let collection = fill(&part.collection);
        let created = exchange(connection, &part.target, "POST", &collection, body).await?;
        if let Some(status) = &part.status {
            let path = format!("{collection}/{}/status", fill(&part.name));
            let status = fill(status);
            let body = Some(("application/merge-patch+json", status.as_str()));
            exchange(connection, &part.target, "PATCH", &path, body).await?;
        }
        let uid = created["metadata"]["uid"].as_str().unwrap_or_default();
        replaced.push((part.uid.clone(), uid.to_owned()));
    }
    Ok(())
}

/// Sends a request over a connection that is kept. Fails unless it succeeds.
pub async fn exchange(
    connection: &mut Connection,
    target: &Target,
    method: &str,
    path: &str,
    body: Option<(&str, &str)>,
) -> Result<Value> {
    let status = connection
        .exchange(target.request(method, path, body).as_bytes())
        .await?;
    let answer = connection.body();
    if (200..300).contains(&status) {
        return Ok(serde_json::from_slice(&answer)?);
    }
    let answer = String::from_utf8_lossy(&answer);
    Err(format!("{method} {path} was answered with {status}: {answer}").into())
}

/// Removes KubeVirt's webhooks, and returns them.
async fn take_admission_away(stage: &Stage, tenant: &Tenant, original: &Original) -> Result<String> {
    let plane = &stage.region.plane;
    let list = kubectl(plane, &format!("get {WEBHOOKS} -o json"), None)?;
    let mut list: Value = serde_json::from_str(&list)?;
    for item in list["items"].as_array_mut().into_iter().flatten() {
        *item = new(item);
    }
    kubectl(plane, &format!("delete {WEBHOOKS} --all"), None)?;
    until_admission(stage, tenant, original, false).await?;
    Ok(list.to_string())
}

async fn give_admission_back(
    stage: &Stage,
    tenant: &Tenant,
    original: &Original,
    webhooks: &str,
) -> Result<()> {
    kubectl(&stage.region.plane, "create -f -", Some(webhooks))?;
    until_admission(stage, tenant, original, true).await
}

/// Waits until KubeVirt's admission acts, or does not: it refuses a run from an administrator that says that it runs already.
async fn until_admission(stage: &Stage, tenant: &Tenant, original: &Original, acts: bool) -> Result<()> {
    let runs = collection(&kinds::RUN, &tenant.namespace);
    let run = original.objects.iter().find(|object| object.collection == runs);
    let run = run.ok_or("no run")?;
    let mut probe = new(&run.stored);
    probe["metadata"]["name"] = "probe".into();
    probe["status"] = run.stored["status"].clone();
    let body = probe.to_string();
    let path = format!("{runs}?dryRun=All");
    let request = stage
        .admin
        .request("POST", &path, Some(("application/json", &body)));
    let mut connection = stage.admin.connect().await?;
    let begun = std::time::Instant::now();
    loop {
        let status = connection.exchange(request.as_bytes()).await?;
        let answer: Value = serde_json::from_slice(&connection.body())?;
        let is_stored_as_it_is = status == 201 && answer["status"]["phase"] == "Running";
        if is_stored_as_it_is != acts {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("KubeVirt's admission did not change: {status} {answer}").into());
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}
