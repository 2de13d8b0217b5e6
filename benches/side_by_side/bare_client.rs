//! The client with the minimum of writes, with which (d) is compared.
//!
//! It creates the same manifests, over as many connections as (d), and replaces the status of each instance once, over as many
//! connections as the operator's maximum of concurrent writes. It sends whole objects and is answered with them. It decides
//! nothing, reads nothing but the answers to its creates, has the machine to itself, runs in its own process, and uses the
//! operator's identity.
//!
//! It stores the same as the operator. Like an account's, its namespace has a native quota, and the label that makes the API server
//! add the finalizer.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use resources::ACCOUNT_LABEL;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
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

/// Its namespace, which belongs to no account.
const NAMESPACE: &str = "nobodys";

/// The client, with the status that the operator has written for another instance.
pub struct BareClient {
    status: Value,
}

/// What the writes of one turn took.
pub struct Minimum {
    pub took: Duration,
    /// CPU time of the API server and etcd, in seconds.
    pub servers: f64,
}

impl BareClient {
    /// Creates its namespace.
    pub async fn prepare(cluster: &Cluster, status: Value) -> Result<Self> {
        create_namespace(cluster).await?;
        Ok(Self { status })
    }

    /// Does the writes for this many instances, with this prefix of their names, and deletes them again. Returns what the writes took.
    pub async fn turn(&self, cluster: &Cluster, prefix: &str, count: u64) -> Result<Minimum> {
        say(&format!(
            "a bare client's turn: {count} creates and as many statuses"
        ));
        let before = Writes::count(&cluster.admin).await?;
        let job = Job {
            server: cluster.operator.server(),
            prefix: prefix.to_owned(),
            count,
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
        delete(cluster, prefix, count).await?;
        Ok(Minimum { took, servers })
    }

    /// Fails unless the first instance is stored as intended.
    async fn confirm(&self, cluster: &Cluster, prefix: &str) -> Result<()> {
        let path = objects::path(NAMESPACE, prefix, 0);
        let stored: Value = cluster.admin.call("GET", &path, None).await?.json()?;
        if stored["metadata"]["finalizers"].is_array() && stored["status"] == self.status {
            return Ok(());
        }
        Err(format!("not what the bare client was to store: {stored}").into())
    }
}

async fn delete(cluster: &Cluster, prefix: &str, count: u64) -> Result<()> {
    let admin = &cluster.admin;
    // No operator acts in this namespace, so nobody else removes the finalizers.
    let path = format!("{}/{prefix}-{NUMBER}", objects::collection(NAMESPACE));
    let none = json!({ "metadata": { "finalizers": null } }).to_string();
    let body = Some(("application/merge-patch+json", none.as_str()));
    for request in [
        admin.request("PATCH", &path, body),
        admin.request("DELETE", &path, None),
    ] {
        let load = Load {
            target: admin.clone(),
            connections: CREATORS,
            requests: numbered(request, 0),
            status: 200,
            extent: Extent::Count(count),
        };
        load.run().await?;
    }
    Ok(())
}

/// Creates the namespace with its quota, and waits until instances can be created in it.
async fn create_namespace(cluster: &Cluster) -> Result<()> {
    let labels = json!({ ACCOUNT_LABEL: NAMESPACE });
    let quotas = format!("/api/v1/namespaces/{NAMESPACE}/resourcequotas");
    for (path, object) in [
        (
            "/api/v1/namespaces",
            json!({ "metadata": { "name": NAMESPACE, "labels": labels } }),
        ),
        (
            &quotas,
            json!({ "metadata": { "name": "instances" }, "spec": { "hard": { COUNTED: "1000000" } } }),
        ),
    ] {
        let body = object.to_string();
        cluster
            .admin
            .call("POST", path, Some(("application/json", &body)))
            .await?;
    }
    let begun = Instant::now();
    loop {
        let path = format!("{quotas}/instances");
        let quota: Value = cluster.admin.call("GET", &path, None).await?.json()?;
        if quota["status"]["used"].get(COUNTED).is_some() {
            return cluster.until_created(NAMESPACE).await;
        }
        if begun.elapsed() > PATIENCE {
            return Err("Kubernetes does not count the instances of the bare client".into());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The job of the client's process.
#[derive(Serialize, Deserialize)]
pub struct Job {
    server: Server,
    prefix: String,
    count: u64,
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
        let creations = numbered(objects::create_marked(target, NAMESPACE, &self.prefix), 0);
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
            let (collection, status) = (objects::collection(NAMESPACE), self.status.clone());
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
