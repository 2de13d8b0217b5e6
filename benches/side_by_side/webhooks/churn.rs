//! Real transitions: repeatedly stops and starts instances, by patches of their spec as `kubectl` sends them. The next
//! transition of an instance begins when a watch has shown the end of the last one. Runs on its own thread.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use control_plane::Identity;
use futures::{StreamExt as _, TryStreamExt as _};
use hdrhistogram::Histogram;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, WatchEvent, WatchParams},
};
use stellage::resources::{Instance, InstanceState};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{timeout, timeout_at},
};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    load::{Extent, Load, as_f64},
    objects,
    product::Product,
    say,
    wire::Target,
};

/// Timeout of a transition, and of everything else waited for.
const PATIENCE: Duration = Duration::from_mins(5);
/// Longer than any measurement.
const WATCH_SECONDS: u32 = 290;
const PACE: Duration = Duration::from_millis(5);

/// The rate of transitions.
#[derive(Clone, Copy)]
pub enum Pace {
    /// As fast as possible.
    Full,
    /// This many per second, if possible.
    Rate(f64),
}

/// The result of a run.
pub struct Churned {
    /// Completed transitions.
    pub events: u64,
    /// Microseconds from the patch until the watch shows the end: the cluster's part, without receivers.
    pub latencies: Histogram<u64>,
}

impl Churned {
    /// A quantile of the latencies, in milliseconds.
    pub fn millis(&self, quantile: f64) -> f64 {
        as_f64(self.latencies.value_at_quantile(quantile)) / 1000.0
    }
}

/// The instances to stop and start.
#[derive(Clone)]
pub struct Churn {
    admin: Target,
    kubeconfig: kube::Config,
    namespace: String,
}

impl Churn {
    /// Creates `count` instances and waits until they run.
    pub async fn prepare(
        cluster: &Cluster,
        product: &Product,
        account: &Account,
        count: u64,
    ) -> Result<Self> {
        let apply = Load {
            target: cluster.admin.clone(),
            connections: 4,
            requests: objects::create(&cluster.admin, &account.namespace, "churn"),
            status: 201,
            extent: Extent::Count(count),
        };
        apply.run().await?;
        let path = format!(
            "{}?fieldSelector=status.state%3Drunning",
            objects::collection(&account.namespace)
        );
        product
            .until(PATIENCE, "all instances running", async || {
                let list: serde_json::Value = cluster.admin.call("GET", &path, None).await?.json()?;
                let running = list["items"].as_array().map_or(0, Vec::len);
                Ok((u64::try_from(running)? == count).then_some(()))
            })
            .await?;
        say(&format!("{count} instances to stop and start"));
        Ok(Self {
            admin: cluster.admin.clone(),
            kubeconfig: cluster.plane.config(Identity::Admin).await?,
            namespace: account.namespace.clone(),
        })
    }

    /// Stops and starts the instances for a time.
    pub async fn run(&self, pace: Pace, extent: Duration) -> Result<Churned> {
        let churn = self.clone();
        let thread = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(churn.on_this_thread(pace, extent))
        });
        thread.await?
    }

    async fn on_this_thread(self, pace: Pace, extent: Duration) -> Result<Churned> {
        let client = Client::try_from(self.kubeconfig.clone())?;
        let api: Api<Instance> = Api::namespaced(client, &self.namespace);
        let list = api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let states: HashMap<String, watch::Sender<bool>> = list
            .items
            .iter()
            .map(|instance| {
                (
                    instance.name_any(),
                    watch::Sender::new(runs(instance) == Some(true)),
                )
            })
            .collect();
        let permits = Arc::new(Semaphore::new(match pace {
            Pace::Full => Semaphore::MAX_PERMITS,
            Pace::Rate(_) => 0,
        }));
        let end = Instant::now() + extent;
        let mut tasks = JoinSet::new();
        for (name, state) in &states {
            let path = format!(
                "{}/{name}?fieldManager=bench",
                objects::collection(&self.namespace)
            );
            let (target, state) = (self.admin.clone(), state.subscribe());
            tasks.spawn(turn_over(target, path, state, Arc::clone(&permits), end));
        }
        let work = async {
            let mut latencies = Histogram::new(3)?;
            while let Some(ended) = tasks.join_next().await {
                latencies.add(ended??)?;
            }
            Ok(Churned {
                events: latencies.len(),
                latencies,
            })
        };
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        tokio::select! {
            result = work => result,
            result = show(&api, &params, &version, &states) => Err(result.err().unwrap_or("the watch has ended".into())),
            () = give(&permits, pace) => Err("the pace is not kept".into()),
        }
    }
}

fn runs(instance: &Instance) -> Option<bool> {
    match instance.status.as_ref()?.state? {
        InstanceState::Running => Some(true),
        InstanceState::Stopped => Some(false),
        _ => None,
    }
}

/// Sends on the changes that a watch shows.
async fn show(
    api: &Api<Instance>,
    params: &WatchParams,
    version: &str,
    states: &HashMap<String, watch::Sender<bool>>,
) -> Result<()> {
    let mut changes = api.watch(params, version).await?.boxed();
    while let Some(change) = changes.try_next().await? {
        if let WatchEvent::Modified(instance) = change
            && let Some(state) = states.get(&instance.name_any())
            && let Some(running) = runs(&instance)
        {
            state.send_if_modified(|known| std::mem::replace(known, running) != running);
        }
    }
    Ok(())
}

/// Issues permits for transitions. Never ends.
async fn give(permits: &Semaphore, pace: Pace) {
    let Pace::Rate(rate) = pace else {
        return std::future::pending().await;
    };
    let begun = Instant::now();
    let mut given = 0;
    loop {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let due = (begun.elapsed().as_secs_f64() * rate) as usize;
        permits.add_permits(due - given);
        given = due;
        tokio::time::sleep(PACE).await;
    }
}

/// Stops and starts one instance until the end.
async fn turn_over(
    target: Target,
    path: String,
    mut state: watch::Receiver<bool>,
    permits: Arc<Semaphore>,
    end: Instant,
) -> Result<Histogram<u64>> {
    let mut connection = target.connect().await?;
    let mut latencies = Histogram::new(3)?;
    loop {
        match timeout_at(end.into(), permits.acquire()).await {
            Ok(permit) if Instant::now() < end => permit?.forget(),
            _ => return Ok(latencies),
        }
        let wanted = !*state.borrow_and_update();
        let body = objects::power(wanted);
        let request = target.request("PATCH", &path, Some(("application/merge-patch+json", &body)));
        let begun = Instant::now();
        let status = connection.exchange(&request).await?;
        if status != 200 {
            return Err(format!("a patch was answered with {status}").into());
        }
        timeout(PATIENCE, state.wait_for(|running| *running == wanted)).await??;
        latencies.record(u64::try_from(begun.elapsed().as_micros())?)?;
    }
}
