//! What happens in the region, and when: virtual machines that are made, and runs that begin.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use control_plane::Identity;
use futures::{Stream, StreamExt as _};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    runtime::{WatchStreamExt as _, watcher},
};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::{
    Result,
    convergence::PATIENCE,
    support::kubevirt::{KubeVirt, kinds},
};

const POLL_EVERY: Duration = Duration::from_millis(1);

/// What is seen of the virtual machines, until it is dropped.
pub struct Seen {
    times: Arc<Mutex<Times>>,
    _tasks: JoinSet<()>,
}

/// By name of the virtual machine.
#[derive(Default)]
pub struct Times {
    /// When it was first seen.
    pub made: HashMap<String, Instant>,
    /// The newest run, and when it was first seen running.
    pub runs: HashMap<String, (String, Instant)>,
}

impl Seen {
    /// Begins to watch.
    pub async fn watch(region: &KubeVirt) -> Result<Self> {
        let times = Arc::<Mutex<Times>>::default();
        let mut tasks = JoinSet::new();
        let (machines, runs) = (
            changes(region, &kinds::VM).await?,
            changes(region, &kinds::RUN).await?,
        );
        let noted = times.clone();
        tasks.spawn(machines.for_each(move |machine| {
            let mut times = noted.lock();
            times.made.entry(machine.name_any()).or_insert_with(Instant::now);
            async {}
        }));
        let noted = times.clone();
        tasks.spawn(runs.for_each(move |run| {
            if run.data["status"]["phase"] == "Running" {
                let (name, uid) = (run.name_any(), run.uid().unwrap_or_default());
                let mut times = noted.lock();
                let is_known = times.runs.get(&name).is_some_and(|(known, _)| *known == uid);
                if !is_known {
                    times.runs.insert(name, (uid, Instant::now()));
                }
            }
            async {}
        }));
        Ok(Self { times, _tasks: tasks })
    }

    /// Looks at it.
    pub fn look<T>(&self, look: impl FnOnce(&Times) -> T) -> T {
        look(&self.times.lock())
    }

    /// Waits until there is something.
    pub async fn until<T>(&self, what: &str, mut found: impl FnMut(&Times) -> Option<T>) -> Result<T> {
        let begun = Instant::now();
        loop {
            if let Some(found) = found(&self.times.lock()) {
                return Ok(found);
            }
            if begun.elapsed() > PATIENCE {
                return Err(format!("was waited for in vain: {what}").into());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    }
}

/// The objects of a kind, each time that they change.
async fn changes(
    region: &KubeVirt,
    kind: &ApiResource,
) -> Result<impl Stream<Item = DynamicObject> + Send + use<>> {
    let client = region.plane.client(Identity::Admin).await?;
    let api: Api<DynamicObject> = Api::all_with(client, kind);
    let events = watcher(api, watcher::Config::default()).default_backoff();
    Ok(events
        .applied_objects()
        .filter_map(async |object| object.ok())
        .boxed())
}
