//! The cheapest possible client, with which (d) is compared.
//!
//! It creates the same manifests, over as many connections as (d). Its other writes are merge patches of one number in the
//! status, over as many connections as the operator's maximum of concurrent writes. Like an account's, its namespace has a
//! native quota. It reads nothing and decides nothing, has the machine to itself, runs in its own process, and uses the
//! operator's identity.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::{
    Result, client,
    cluster::Cluster,
    load::{Extent, Load, Requests, numbered},
    objects, say,
    sizes::Sizes,
    wire::{Server, Target},
    writes::Writes,
};

/// The kind of the bare client's job.
pub const KIND: &str = "bare";
/// Connections that create instances, here and in (d).
pub const CREATORS: usize = 32;
/// Number of connections that patch them: the default of `--write-concurrency`.
const WRITERS: usize = 16;
/// What its quota counts.
const COUNTED: &str = "count/instances.stellage.dev";
/// Timeout until Kubernetes counts a new kind.
const PATIENCE: Duration = Duration::from_mins(2);
/// The namespace of its instances, which belongs to no account.
const NOBODYS: &str = "nobodys";

/// Does the writes, then deletes the created objects. Returns how long the writes took.
pub async fn turn(cluster: &Cluster, patches: u64, sizes: &Sizes) -> Result<Duration> {
    static TURNS: AtomicU64 = AtomicU64::new(0);
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    let count = sizes.converging;
    say(&format!(
        "a bare client's turn: {count} creates and {patches} patches each"
    ));
    if turn == 0 {
        let namespace = json!({ "metadata": { "name": NOBODYS } }).to_string();
        let body = Some(("application/json", namespace.as_str()));
        cluster.admin.call("POST", "/api/v1/namespaces", body).await?;
        // An account has a quota, too.
        let quota = json!({
            "metadata": { "name": "instances" }, "spec": { "hard": { COUNTED: "1000000" } },
        });
        let path = format!("/api/v1/namespaces/{NOBODYS}/resourcequotas");
        let body = quota.to_string();
        cluster
            .admin
            .call("POST", &path, Some(("application/json", &body)))
            .await?;
        tokio::time::timeout(PATIENCE, counted(cluster, &format!("{path}/instances")))
            .await
            .map_err(|_| "Kubernetes does not count the bare client's instances")??;
    }
    let prefix = format!("bare{turn}");
    let before = Writes::count(&cluster.admin).await?;
    let job = Job {
        server: cluster.operator.server(),
        prefix: prefix.clone(),
        count,
        patches,
    };
    let took = client::run(KIND, &job).await?;
    let writes = (Writes::count(&cluster.admin).await? - before).instances;
    say(&format!("  {took:.1?}: {writes} writes"));
    let delete = Load {
        target: cluster.admin.clone(),
        connections: CREATORS,
        requests: objects::delete(&cluster.admin, NOBODYS, &prefix),
        status: 200,
        extent: Extent::Count(count),
        pace: None,
    };
    delete.run().await?;
    Ok(took)
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
    prefix: String,
    count: u64,
    patches: u64,
}

impl Job {
    /// Runs in this process, which was started for it. Returns how long the writes took.
    pub async fn run_here(self) -> Result<Duration> {
        let target = Target::of(self.server).await?;
        let begun = Instant::now();
        write(&target, &self.prefix, self.count, self.patches).await?;
        Ok(begun.elapsed())
    }
}

async fn write(target: &Target, prefix: &str, count: u64, patches: u64) -> Result<()> {
    let (created, waiting) = mpsc::unbounded_channel();
    let waiting = Arc::new(Mutex::new(waiting));
    let next = Arc::new(AtomicU64::new(0));
    let creations = numbered(objects::create(target, NOBODYS, prefix), 0);
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
        let (waiting, prefix) = (Arc::clone(&waiting), prefix.to_owned());
        tasks.spawn(patch(target.clone(), waiting, prefix, patches));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Creates instances until the numbers are used up, and passes each number on.
async fn create(
    target: Target,
    numbers: impl Iterator<Item = u64>,
    creations: Arc<Requests>,
    created: mpsc::UnboundedSender<u64>,
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
        created.send(n)?;
    }
    Ok(())
}

/// Patches the created instances until the channel closes.
async fn patch(
    target: Target,
    created: Arc<Mutex<mpsc::UnboundedReceiver<u64>>>,
    prefix: String,
    patches: u64,
) -> Result<()> {
    let mut connection = target.connect().await?;
    loop {
        let next = created.lock().await.recv().await;
        let Some(n) = next else { return Ok(()) };
        let path = format!("{}/status?fieldManager=bench", objects::path(NOBODYS, &prefix, n));
        for step in 1..=patches {
            // A different number each time, because a patch that changes nothing is not a write.
            let body = json!({ "status": { "observedGeneration": step } }).to_string();
            let body = Some(("application/merge-patch+json", body.as_str()));
            let status = connection
                .exchange(target.request("PATCH", &path, body).as_bytes())
                .await?;
            if status != 200 {
                return Err(format!("a patch was answered with {status}").into());
            }
        }
    }
}
