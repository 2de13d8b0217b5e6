//! Real transitions: repeatedly stops and starts instances, from a separate process, with patches of their spec like those that
//! `kubectl` sends. An instance's next transition begins when a watch has shown the end of the last one.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use control_plane::Identity;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ListParams, Patch, PatchParams, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use resources::{Instance, InstanceState};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{timeout, timeout_at},
};

use crate::{
    Result, client,
    cluster::Cluster,
    latencies::{Latencies, as_f64},
    load::{Extent, Load, numbered},
    objects,
    product::Product,
    say,
    sizes::Sizes,
    wire::{Server, Target},
    writes::{Writes, until_events_are_written},
};

/// The kind of this client's job.
pub const KIND: &str = "churn";
/// Timeout of a transition, and of every other wait.
const PATIENCE: Duration = Duration::from_mins(5);
/// Longer than any measurement.
const WATCH_SECONDS: u32 = 290;
const PACE: Duration = Duration::from_millis(5);
/// Kubernetes Events that the operator writes for an object before it limits their rate.
const EVENTS_OF_EACH: u64 = 25;
/// How long instances are stopped and started before the Events are counted again, and how many Events per transition
/// count as none.
const SLICE: Duration = Duration::from_secs(2);
const HARDLY_ANY: f64 = 0.02;
/// Number of slices after which Events must have become few.
const SLICES: usize = 20;

/// The rate of transitions.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Pace {
    /// As fast as possible, with this many at a time.
    AtATime(usize),
    /// This many per second, if possible.
    Rate(f64),
}

/// The job of the client's process.
#[derive(Serialize, Deserialize)]
#[expect(
    clippy::unsafe_derive_deserialize,
    reason = "the only unsafe code is that of std::pin::pin"
)]
pub struct Job {
    kubeconfig: PathBuf,
    namespace: String,
    prefix: String,
    pace: Pace,
    extent: Duration,
}

/// The result of a run.
#[derive(Serialize, Deserialize)]
pub struct Churned {
    /// Completed transitions.
    pub events: u64,
    /// From the first patch until the end of the last transition.
    pub took: Duration,
    /// From the patch until the watch shows the end: the cluster's part, without receivers.
    pub latencies: Latencies,
}

/// The instances to stop and start.
#[derive(Clone)]
pub struct Churn {
    kubeconfig: PathBuf,
    namespace: String,
    /// The prefix of their names.
    prefix: String,
    /// Their number.
    count: u64,
}

impl Churn {
    /// Creates `count` instances and waits until they run.
    pub async fn prepare(
        cluster: &Cluster,
        product: &Product,
        namespace: &str,
        prefix: &str,
        count: u64,
    ) -> Result<Self> {
        let apply = Load {
            target: cluster.admin.clone(),
            connections: 4,
            requests: numbered(objects::create(&cluster.admin, namespace, prefix), 0),
            status: 201,
            extent: Extent::Count(count),
        };
        apply.run().await?;
        let path = format!(
            "{}?fieldSelector=status.state%3Drunning",
            objects::collection(namespace)
        );
        product
            .until(PATIENCE, "all instances running", async || {
                let list: serde_json::Value = cluster.admin.call("GET", &path, None).await?.json()?;
                let items = list["items"].as_array().into_iter().flatten();
                let names = items.filter_map(|item| item["metadata"]["name"].as_str());
                let running = names.filter(|name| name.starts_with(prefix)).count();
                Ok((u64::try_from(running)? == count).then_some(()))
            })
            .await?;
        say(&format!("{count} instances to stop and start"));
        Ok(Self {
            kubeconfig: cluster.plane.kubeconfig(Identity::Admin),
            namespace: namespace.to_owned(),
            prefix: prefix.to_owned(),
            count,
        })
    }

    /// Makes the API server stop tracking which client wrote which field of the instances, as REST does with its first change
    /// of an instance that it has created.
    pub async fn untrack(&self) -> Result<()> {
        let api = instances(&self.kubeconfig, &self.namespace).await?;
        let patch = Patch::Merge(json!({ "metadata": { "managedFields": [{}] } }));
        let is_own = |instance: &Instance| instance.name_any().starts_with(&self.prefix);
        let all = api.list(&ListParams::default()).await?;
        for instance in all.into_iter().filter(is_own) {
            api.patch(&instance.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        Ok(())
    }

    /// Stops and starts the instances until the operator writes hardly any Kubernetes Events for them, and has written those that it
    /// held back meanwhile. It writes only a limited number for each instance in five minutes, and a turn without Events cannot be
    /// compared with one with them. Call this for each new process.
    pub async fn drain(&self, cluster: &Cluster, at_a_time: usize, sizes: &Sizes) -> Result<()> {
        if !sizes.drained {
            return Ok(());
        }
        let slice = async || Ok::<_, crate::Error>(self.run(Pace::AtATime(at_a_time), SLICE).await?.events);
        let mut transitions = 0;
        while transitions <= self.count * EVENTS_OF_EACH {
            transitions += slice().await?;
        }
        until_events_are_written(&cluster.admin).await?;
        for _ in 0..SLICES {
            let before = Writes::count(&cluster.admin).await?;
            let transitions = slice().await?;
            until_events_are_written(&cluster.admin).await?;
            let events = (Writes::count(&cluster.admin).await? - before).events;
            if as_f64(events) <= as_f64(transitions) * HARDLY_ANY {
                return Ok(());
            }
        }
        Err("the operator does not cease to write Kubernetes Events".into())
    }

    /// Stops and starts the instances for this long.
    pub async fn run(&self, pace: Pace, extent: Duration) -> Result<Churned> {
        let job = Job {
            kubeconfig: self.kubeconfig.clone(),
            namespace: self.namespace.clone(),
            prefix: self.prefix.clone(),
            pace,
            extent,
        };
        client::run(KIND, &job).await
    }
}

impl Job {
    /// Runs in this process, which was started for it.
    pub async fn run_here(self) -> Result<Churned> {
        let api = instances(&self.kubeconfig, &self.namespace).await?;
        let target = Target::of(Server::Cluster {
            kubeconfig: self.kubeconfig,
        })
        .await?;
        let list = api.list(&ListParams::default()).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        let states: HashMap<String, watch::Sender<bool>> = list
            .items
            .iter()
            .filter(|instance| instance.name_any().starts_with(&self.prefix))
            .map(|instance| {
                (
                    instance.name_any(),
                    watch::Sender::new(runs(instance) == Some(true)),
                )
            })
            .collect();
        let pace = self.pace;
        let permits = Arc::new(Semaphore::new(match pace {
            Pace::AtATime(permits) => permits,
            Pace::Rate(_) => 0,
        }));
        let begun = Instant::now();
        let end = begun + self.extent;
        let mut tasks = JoinSet::new();
        for (name, state) in &states {
            let path = format!(
                "{}/{name}?fieldManager=bench",
                objects::collection(&self.namespace)
            );
            let (target, state) = (target.clone(), state.subscribe());
            tasks.spawn(turn_over(target, path, state, Arc::clone(&permits), pace, end));
        }
        let work = async {
            let mut latencies = Latencies::new()?;
            while let Some(ended) = tasks.join_next().await {
                latencies.add(&ended??)?;
            }
            Ok(Churned {
                events: latencies.len(),
                took: begun.elapsed(),
                latencies,
            })
        };
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        tokio::select! {
            result = work => result,
            error = show(&api, &params, version, &states) => Err(error),
            () = give(&permits, pace) => Err("the pace is not kept".into()),
        }
    }
}

async fn instances(kubeconfig: &Path, namespace: &str) -> Result<Api<Instance>> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Api::namespaced(Client::try_from(config)?, namespace))
}

fn runs(instance: &Instance) -> Option<bool> {
    match instance.status.as_ref()?.state? {
        InstanceState::Running => Some(true),
        InstanceState::Stopped => Some(false),
        _ => None,
    }
}

/// Passes on the changes that a watch shows. Ends only with an error.
async fn show(
    api: &Api<Instance>,
    params: &WatchParams,
    mut version: String,
    states: &HashMap<String, watch::Sender<bool>>,
) -> crate::Error {
    loop {
        // The API server ends all watches of a kind when it reloads the kind's definition.
        if let Err(error) = show_one(api, params, &mut version, states).await {
            return error;
        }
    }
}

/// Passes on the changes since `version`, until the watch ends.
async fn show_one(
    api: &Api<Instance>,
    params: &WatchParams,
    version: &mut String,
    states: &HashMap<String, watch::Sender<bool>>,
) -> Result<()> {
    let mut changes = api.watch(params, version).await?.boxed();
    while let Some(change) = changes.try_next().await? {
        match change {
            WatchEvent::Modified(instance) => {
                if let Some(state) = states.get(&instance.name_any())
                    && let Some(running) = runs(&instance)
                {
                    state.send_if_modified(|known| std::mem::replace(known, running) != running);
                }
                *version = instance.resource_version().unwrap_or_default();
            }
            WatchEvent::Error(error) => return Err(error.message.clone().into()),
            _ => {}
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

/// Repeatedly stops and starts one instance.
async fn turn_over(
    target: Target,
    path: String,
    mut state: watch::Receiver<bool>,
    permits: Arc<Semaphore>,
    pace: Pace,
    end: Instant,
) -> Result<Latencies> {
    let mut connection = target.connect().await?;
    let mut latencies = Latencies::new()?;
    loop {
        let permit = match timeout_at(end.into(), permits.acquire()).await {
            Ok(permit) if Instant::now() < end => permit?,
            _ => return Ok(latencies),
        };
        // A permit of a fixed rate is used up; otherwise it is held until the transition has ended.
        let held = match pace {
            Pace::Rate(_) => {
                permit.forget();
                None
            }
            Pace::AtATime(_) => Some(permit),
        };
        let wanted = !*state.borrow_and_update();
        let body = objects::power(wanted);
        let request = target.request("PATCH", &path, Some(("application/merge-patch+json", &body)));
        let begun = Instant::now();
        let status = connection.exchange(request.as_bytes()).await?;
        if status != 200 {
            return Err(format!("a patch was answered with {status}").into());
        }
        timeout(PATIENCE, state.wait_for(|running| *running == wanted)).await??;
        latencies.record(begun.elapsed())?;
        drop(held);
    }
}
