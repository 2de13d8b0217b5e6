//! Carries out what the dispatcher commands.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{hub::Hub, send, store};
use crate::delivery::dispatch::{Command, JobKey, Written};

/// The driver looks around this often although nobody has woken it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Lookups of Deliveries at the same time, as a multiple of the writes.
const CHECKS_PER_WRITE: usize = 2;

/// Work for the API server that waits for room.
#[derive(Default)]
struct Waiting {
    owed: VecDeque<JobKey>,
    log: VecDeque<JobKey>,
    checks: VecDeque<JobKey>,
}

/// Runs until shutdown; what is under way then gets `grace`, and nothing new begins.
pub(super) async fn run(hub: Arc<Hub>, shutdown: CancellationToken, grace: Duration) {
    let tasks = TaskTracker::new();
    let (writes, checks) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let room = usize::from(hub.deps.write_concurrency);
    let mut waiting = Waiting::default();
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
                Command::Write { job, owed: true } => waiting.owed.push_back(job),
                Command::Write { job, owed: false } => waiting.log.push_back(job),
                Command::Check(job) => waiting.checks.push_back(job),
                Command::Disable(disablement) => hub.disable(disablement),
                Command::Settled(uid) => hub.nudge(&uid),
            }
        }
        while writes.load(Ordering::Relaxed) < room {
            // What is merely a log never takes the last slots.
            let log_room = writes.load(Ordering::Relaxed) < room.div_ceil(2);
            let next = waiting.owed.pop_front();
            let Some(job) = next.or_else(|| waiting.log.pop_front_if(|_| log_room)) else {
                break;
            };
            spawn_write(&hub, &tasks, &writes, job);
        }
        while checks.load(Ordering::Relaxed) < room * CHECKS_PER_WRITE
            && let Some(job) = waiting.checks.pop_front()
        {
            let (hub, running) = (hub.clone(), checks.clone());
            running.fetch_add(1, Ordering::Relaxed);
            tasks.spawn(async move {
                let (namespace, name) = job.split_once('/').unwrap_or_default();
                let found = store::get(&hub, namespace, name).await;
                running.fetch_sub(1, Ordering::Relaxed);
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
    if tokio::time::timeout(grace, drain(&hub, &tasks, &writes, waiting))
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

fn spawn_write(hub: &Arc<Hub>, tasks: &TaskTracker, writes: &Arc<AtomicUsize>, job: JobKey) {
    let now = hub.now();
    let Some(order) = hub.state.lock().dispatcher.begin_write(&job, now) else {
        return;
    };
    let (hub, running) = (hub.clone(), writes.clone());
    running.fetch_add(1, Ordering::Relaxed);
    tasks.spawn(async move {
        let written = store::write(&hub, order).await;
        running.fetch_sub(1, Ordering::Relaxed);
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
        state.dispatcher.written(&job, written, now);
        drop(state);
        hub.wake.notify_one();
    });
}

/// Waits for the attempts under way, and writes down what came of them.
async fn drain(hub: &Arc<Hub>, tasks: &TaskTracker, writes: &Arc<AtomicUsize>, mut waiting: Waiting) {
    loop {
        let commands: Vec<Command> = {
            let mut state = hub.state.lock();
            std::iter::from_fn(|| state.dispatcher.next_command()).collect()
        };
        for command in commands {
            match command {
                Command::Write { job, .. } => waiting.owed.push_back(job),
                Command::Disable(disablement) => hub.disable(disablement),
                Command::Attempt { .. } | Command::Check(_) | Command::Settled(_) => {}
            }
        }
        waiting.owed.append(&mut waiting.log);
        while let Some(job) = waiting.owed.pop_front() {
            spawn_write(hub, tasks, writes, job);
        }
        if tasks.is_empty() {
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
        self.queue.again(instance);
    }
}
