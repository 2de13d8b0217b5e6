//! Carries out what the dispatcher commands.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    hub::Hub,
    send, store,
    write_queue::{Pool, Slot, WriteQueue},
};
use crate::delivery::dispatch::{Command, JobKey, Written};

/// The driver looks around this often although nobody has woken it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Lookups of Deliveries at the same time, as a multiple of the writes.
const CHECKS_PER_WRITE: usize = 2;

/// Runs until shutdown; what is under way then gets `grace`, and nothing new begins.
pub(super) async fn run(hub: Arc<Hub>, shutdown: CancellationToken, grace: Duration) {
    let tasks = TaskTracker::new();
    let room = usize::from(hub.deps.write_concurrency);
    let mut writes = WriteQueue::new(room);
    let mut checks = Pool::default();
    loop {
        let (commands, timer) = collect(&hub);
        for command in commands {
            match command {
                Command::Attempt { job, lane, event } => {
                    let hub = hub.clone();
                    tasks.spawn(async move {
                        let report = send::attempt(&hub, &lane, &event).await;
                        let now = hub.now();
                        let mut state = hub.state.lock();
                        state.dispatcher.attempted(&job, report, now);
                        state.dirty.insert(lane);
                        drop(state);
                        hub.wake.notify_one();
                    });
                }
                Command::Write { job, class } => writes.push(job, class),
                Command::Check(job) => checks.push(job),
                Command::Disable(disablement) => hub.disable(disablement),
                Command::Settled(uid) => hub.nudge(&uid),
            }
        }
        while let Some((job, slot)) = writes.next() {
            spawn_write(&hub, &tasks, job, slot);
        }
        while checks.running() < room * CHECKS_PER_WRITE
            && let Some((job, slot)) = checks.take()
        {
            let hub = hub.clone();
            tasks.spawn(async move {
                let (namespace, name) = job.split_once('/').unwrap_or_default();
                let found = store::get(&hub, namespace, name).await;
                drop(slot);
                let now = hub.now();
                hub.state.lock().dispatcher.checked(&job, found, now);
                hub.wake.notify_one();
            });
        }
        let sleep = timer
            .map_or(LOOK_EVERY, |at| at.saturating_duration_since(Instant::now()))
            .min(LOOK_EVERY);
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = hub.wake.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
    tasks.close();
    hub.state.lock().dispatcher.stop();
    // Outcomes that are not written down by the end are owed still: their events go out again, with the same ids.
    if tokio::time::timeout(grace, drain(&hub, &tasks, writes))
        .await
        .is_err()
    {
        tracing::warn!(
            ?grace,
            "deliveries are still under way; the next leader repeats them"
        );
    }
}

/// What is to be done now, and when to look again.
fn collect(hub: &Hub) -> (Vec<Command>, Option<Instant>) {
    let now = hub.now();
    let mut state = hub.state.lock();
    let unclaimed = hub.claim(&mut state, now);
    state.dispatcher.tick(now);
    let commands = std::iter::from_fn(|| state.dispatcher.next_command()).collect();
    let timers = [unclaimed, state.dispatcher.next_timer()];
    (commands, timers.into_iter().flatten().min())
}

fn spawn_write(hub: &Arc<Hub>, tasks: &TaskTracker, job: JobKey, slot: Slot) {
    let now = hub.now();
    let Some(order) = hub.state.lock().dispatcher.begin_write(&job, now) else {
        return;
    };
    let hub = hub.clone();
    tasks.spawn(async move {
        let written = store::write(&hub, order).await;
        drop(slot);
        let outcome = match &written {
            Written::Stored(_) => "stored",
            Written::Found(_) => "found",
            Written::Gone => "gone",
            Written::Failed => "failed",
        };
        let metrics = &hub.deps.metrics;
        let labels = crate::runtime::metrics::OutcomeLabels { outcome };
        metrics.delivery_writes.get_or_create(&labels).inc();
        let now = hub.now();
        let mut state = hub.state.lock();
        // The numbers of what is pending, held and dropped change with this.
        let lane = state.dispatcher.lane_of(&job).cloned();
        state.dirty.extend(lane);
        state.dispatcher.written(&job, written, now);
        drop(state);
        hub.wake.notify_one();
    });
}

/// Waits for the attempts under way, and writes down what came of them.
async fn drain(hub: &Arc<Hub>, tasks: &TaskTracker, mut writes: WriteQueue) {
    loop {
        let commands: Vec<Command> = {
            let mut state = hub.state.lock();
            std::iter::from_fn(|| state.dispatcher.next_command()).collect()
        };
        for command in commands {
            match command {
                Command::Write { job, class } => writes.push(job, class),
                Command::Disable(disablement) => hub.disable(disablement),
                Command::Attempt { .. } | Command::Check(_) | Command::Settled(_) => {}
            }
        }
        while let Some((job, slot)) = writes.next() {
            spawn_write(hub, tasks, job, slot);
        }
        if tasks.is_empty() && writes.is_empty() {
            return;
        }
        tokio::select! {
            () = hub.wake.notified() => {}
            () = tasks.wait() => {}
        }
    }
}

impl Hub {
    /// Has the instance looked at again whose last event is settled.
    fn nudge(&self, uid: &str) {
        let instance = self.state.lock().take_ending(uid);
        self.instances.again(instance);
    }
}
