//! The client with the minimum of writes, with which (d) is compared.
//!
//! It creates the same manifests, over as many connections as (d), and replaces the status of each instance once, over as many
//! connections as the operator's maximum of concurrent writes. It sends whole objects and is answered with them. It decides
//! nothing, reads nothing but the answers to its creates, has the machine to itself, runs in its own process, and uses the
//! operator's identity.
//!
//! What it stores is either the same as the operator stores, or as little as possible. Like an account's, its namespaces have a
//! native quota.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stellage::resources::ACCOUNT_LABEL;
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::{
    Result, client,
    cluster::Cluster,
    load::{Extent, Load, NUMBER, Requests, numbered},
    objects,
    processes::processor_time_of,
    say,
    wire::{Server, Target},
    writes::Writes,
};

/// The kind of the bare client's job.
pub const KIND: &str = "bare";
/// Connections that create instances, here and in (d).
pub const CREATORS: usize = 32;
/// Number of connections that write their status: the default of `--write-concurrency`.
const WRITERS: usize = 16;
/// What its quota counts.
const COUNTED: &str = "count/instances.stellage.dev";
/// Timeout until Kubernetes counts a new kind.
const PATIENCE: Duration = Duration::from_mins(2);

/// The client with a namespace of its own, which belongs to no account.
pub struct BareClient {
    namespace: &'static str,
    /// Whether its instances have the finalizer and an origin.
    has_finalizers: bool,
    /// The status of each instance.
    status: Value,
}

/// What the writes of one turn took.
pub struct Minimum {
    pub took: Duration,
    /// CPU time of the API server and etcd, in seconds.
    pub servers: f64,
}

impl BareClient {
    /// Its instances get the finalizer and this status, which the operator has written for another instance.
    pub async fn of_same_contents(cluster: &Cluster, status: Value) -> Result<Self> {
        Self::prepare(cluster, "nobodys", true, status).await
    }

    /// Its instances have no finalizer, and one number as their status.
    pub async fn of_least_contents(cluster: &Cluster) -> Result<Self> {
        let status = json!({ "observedGeneration": 1 });
        Self::prepare(cluster, "nobodys-least", false, status).await
    }

    async fn prepare(
        cluster: &Cluster,
        namespace: &'static str,
        has_finalizers: bool,
        status: Value,
    ) -> Result<Self> {
        create_namespace(cluster, namespace, has_finalizers).await?;
        Ok(Self {
            namespace,
            has_finalizers,
            status,
        })
    }

    /// Like [`Self::write`], but deletes the instances afterwards.
    pub async fn turn(&self, cluster: &Cluster, prefix: &str, count: u64) -> Result<Minimum> {
        let took = self.write(cluster, prefix, count).await?;
        self.delete(cluster, prefix, count).await?;
        Ok(took)
    }

    /// Does the writes for this many instances, with this prefix of their names. Returns what they took.
    pub async fn write(&self, cluster: &Cluster, prefix: &str, count: u64) -> Result<Minimum> {
        say(&format!(
            "a bare client's turn in {}: {count} creates and as many statuses",
            self.namespace
        ));
        let before = Writes::count(&cluster.admin).await?;
        let job = Job {
            server: cluster.operator.server(),
            namespace: self.namespace.to_owned(),
            prefix: prefix.to_owned(),
            count,
            has_finalizers: self.has_finalizers,
            status: self.status.clone(),
        };
        let servers = cluster.api_server_pids();
        let used = processor_time_of(&servers)?;
        let took = client::run(KIND, &job).await?;
        let servers = processor_time_of(&servers)? - used;
        let writes = (Writes::count(&cluster.admin).await? - before).instances;
        say(&format!(
            "  {took:.1?}: {writes} writes; CPU time: API server and etcd {servers:.1} s"
        ));
        self.confirm(cluster, prefix).await?;
        Ok(Minimum { took, servers })
    }

    /// Fails unless the first instance is stored as intended.
    async fn confirm(&self, cluster: &Cluster, prefix: &str) -> Result<()> {
        let path = objects::path(self.namespace, prefix, 0);
        let stored: Value = cluster.admin.call("GET", &path, None).await?.json()?;
        let has_finalizers = stored["metadata"]["finalizers"].is_array();
        if has_finalizers == self.has_finalizers && stored["status"] == self.status {
            return Ok(());
        }
        Err(format!("not what the bare client was to store: {stored}").into())
    }

    async fn delete(&self, cluster: &Cluster, prefix: &str, count: u64) -> Result<()> {
        let admin = &cluster.admin;
        let mut steps = Vec::new();
        if self.has_finalizers {
            // No operator acts in this namespace, so nobody else removes them.
            let path = format!("{}/{prefix}-{NUMBER}", objects::collection(self.namespace));
            let none = json!({ "metadata": { "finalizers": null } }).to_string();
            let body = Some(("application/merge-patch+json", none.as_str()));
            steps.push(numbered(admin.request("PATCH", &path, body), 0));
        }
        steps.push(objects::delete(admin, self.namespace, prefix));
        for requests in steps {
            let load = Load {
                target: admin.clone(),
                connections: CREATORS,
                requests,
                status: 200,
                extent: Extent::Count(count),
                pace: None,
            };
            load.run().await?;
        }
        Ok(())
    }
}

/// Creates a namespace that belongs to no account, but has a native quota like an account's. `has_finalizers` says whether it has
/// the label of an account's. Waits until instances can be created in it.
pub async fn create_namespace(cluster: &Cluster, namespace: &str, has_finalizers: bool) -> Result<()> {
    let labels = if has_finalizers {
        json!({ ACCOUNT_LABEL: namespace })
    } else {
        json!({})
    };
    let object = json!({ "metadata": { "name": namespace, "labels": labels } }).to_string();
    let body = Some(("application/json", object.as_str()));
    cluster.admin.call("POST", "/api/v1/namespaces", body).await?;
    let quota = json!({
        "metadata": { "name": "instances" }, "spec": { "hard": { COUNTED: "1000000" } },
    });
    let path = format!("/api/v1/namespaces/{namespace}/resourcequotas");
    let body = quota.to_string();
    cluster
        .admin
        .call("POST", &path, Some(("application/json", &body)))
        .await?;
    tokio::time::timeout(PATIENCE, counted(cluster, &format!("{path}/instances")))
        .await
        .map_err(|_| format!("Kubernetes does not count the instances of {namespace}"))??;
    cluster.until_created(namespace).await
}

/// Waits until the quota counts, since creates are refused before. If Kubernetes could not count a quota, it checks that quota
/// again only once the quota is changed.
async fn counted(cluster: &Cluster, quota: &str) -> Result<()> {
    for limit in 1_000_001_u32.. {
        for _ in 0..20 {
            let quota: Value = cluster.admin.call("GET", quota, None).await?.json()?;
            if quota["status"]["used"].get(COUNTED).is_some() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let hard = json!({ "spec": { "hard": { COUNTED: limit.to_string() } } }).to_string();
        let body = Some(("application/merge-patch+json", hard.as_str()));
        cluster.admin.call("PATCH", quota, body).await?;
    }
    Ok(())
}

/// The job of the client's process.
#[derive(Serialize, Deserialize)]
pub struct Job {
    server: Server,
    namespace: String,
    prefix: String,
    count: u64,
    has_finalizers: bool,
    status: Value,
}

impl Job {
    /// Runs in this process, which was started for it. Returns how long the writes took.
    pub async fn run_here(self) -> Result<Duration> {
        let target = Target::of(self.server.clone()).await?;
        let begun = Instant::now();
        self.write(&target).await?;
        Ok(begun.elapsed())
    }

    async fn write(&self, target: &Target) -> Result<()> {
        let (created, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let next = Arc::new(AtomicU64::new(0));
        let create_one = if self.has_finalizers {
            objects::create_marked
        } else {
            objects::create
        };
        let creations = numbered(create_one(target, &self.namespace, &self.prefix), 0);
        let count = self.count;
        let mut tasks = JoinSet::new();
        for _ in 0..CREATORS {
            let numbers = std::iter::repeat_with({
                let next = Arc::clone(&next);
                move || next.fetch_add(1, Ordering::Relaxed)
            });
            let numbers = numbers.take_while(move |n| *n < count);
            let creations = Arc::clone(&creations);
            tasks.spawn(create(target.clone(), numbers, creations, created.clone()));
        }
        drop(created);
        for _ in 0..WRITERS {
            let (collection, status) = (objects::collection(&self.namespace), self.status.clone());
            tasks.spawn(put(target.clone(), Arc::clone(&waiting), collection, status));
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Creates instances until the numbers are used up, and passes each one on.
async fn create(
    target: Target,
    numbers: impl Iterator<Item = u64>,
    creations: Arc<Requests>,
    created: mpsc::UnboundedSender<Value>,
) -> Result<()> {
    let mut connection = target.connect().await?;
    let mut request = Vec::new();
    for n in numbers {
        request.clear();
        creations(n, &mut request);
        let status = connection.exchange(&request).await?;
        if status != 201 {
            return Err(format!("a create was answered with {status}").into());
        }
        created.send(serde_json::from_slice(&connection.body())?)?;
    }
    Ok(())
}

/// Replaces the status of the created instances until the channel closes.
async fn put(
    target: Target,
    created: Arc<Mutex<mpsc::UnboundedReceiver<Value>>>,
    collection: String,
    status: Value,
) -> Result<()> {
    let mut connection = target.connect().await?;
    loop {
        let next = created.lock().await.recv().await;
        let Some(instance) = next else { return Ok(()) };
        let metadata = &instance["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let path = format!("{collection}/{name}/status?fieldManager=bench");
        let body = json!({
            "apiVersion": instance["apiVersion"], "kind": instance["kind"],
            "metadata": {
                "name": name, "namespace": metadata["namespace"], "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "spec": instance["spec"], "status": status,
        });
        let body = body.to_string();
        let request = target.request("PUT", &path, Some(("application/json", &body)));
        let answered = connection.exchange(request.as_bytes()).await?;
        if answered != 200 {
            return Err(format!("the write of a status was answered with {answered}").into());
        }
    }
}
