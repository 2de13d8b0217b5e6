//! Carries out the dispatcher's commands: attempts, writes and lookups of Deliveries.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    resend, send, store,
    write_queue::{CallQueue, NextWrite, Permit, WriteQueue},
};
use crate::{event_log, webhook::shared::Shared};
use domain::delivery::{Command, JobKey, PageWritten, Receipt, WebhookKey, Written, namespace_of};
use runtime::{
    Metrics,
    metrics::{OutcomeLabels, ReceiverLabels},
};

/// How often to poll the dispatcher even without a wake-up.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of commands taken in one go, while others wait for the dispatcher.
const AT_ONCE: usize = 256;
/// An event that comes later is late (docs/runbooks.md, StellageEventsBurnFast).
const IN_TIME: Duration = Duration::from_secs(30);
/// Maximum number of concurrent lookups of Deliveries, as a multiple of the concurrent writes.
const CHECKS_PER_WRITE: usize = 2;
/// Maximum number of resend requests completed at the same time. Each reads a page of the event log.
const RESENDS: usize = 4;
/// Pause after a resend request that could not be completed.
const AFTER_FAILED_RESEND: Duration = Duration::from_secs(10);
/// Maximum number of accounts whose event logs are read at the same time, to find out what was logged before
/// a restart.
const LOG_CHECKS: usize = 8;

/// Attempts, writes and lookups in flight. They are cancelled when this is dropped.
#[derive(Default)]
struct Tasks {
    running: TaskTracker,
    dropped: CancellationToken,
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let task = self.dropped.clone().run_until_cancelled_owned(task);
        self.running.spawn(task);
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.dropped.cancel();
    }
}

/// Runs until shutdown, then starts nothing new and waits up to `grace` for attempts and writes in flight.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken, grace: Duration) {
    let tasks = Tasks::default();
    let permits = usize::from(shared.deps.write_concurrency);
    let mut writes = WriteQueue::new(permits);
    let mut checks = CallQueue::default();
    let mut log_checks = CallQueue::default();
    let mut resends = CallQueue::default();
    loop {
        let (commands, timer) = collect(&shared);
        let requests = shared.requests.lock().take_new();
        for request in requests {
            resends.push(request);
        }
        while resends.running() < RESENDS
            && let Some((request, permit)) = resends.pop()
        {
            spawn_resend(&shared, &tasks, request, permit);
        }
        for command in commands {
            match command {
                Command::Attempt {
                    job,
                    webhook,
                    event,
                    number,
                } => {
                    let shared = shared.clone();
                    tasks.spawn(async move {
                        let report = send::attempt(&shared, &webhook, &event, number).await;
                        let now = shared.now();
                        let receipt = shared.state.lock().dispatcher.attempted(&job, report, now);
                        if let Some(receipt) = receipt {
                            count(&shared.deps.metrics, &webhook, receipt);
                        }
                        shared.statuses.lock().touch(webhook);
                        shared.wake.worker.notify_one();
                    });
                }
                Command::Write { job, class } => writes.push(job, class),
                Command::Log(namespace) => writes.push_page(namespace),
                Command::Check(job) => checks.push(job),
                Command::CheckLog(namespace) => log_checks.push(namespace),
                Command::Disable(disablement) => shared.disable(disablement),
                Command::Settled(uid) => shared.requeue(&uid),
            }
        }
        while let Some((next, permit)) = writes.pop() {
            spawn_write(&shared, &tasks, next, permit);
        }
        while log_checks.running() < LOG_CHECKS
            && let Some((namespace, permit)) = log_checks.pop()
        {
            spawn_log_check(&shared, &tasks, namespace, permit);
        }
        while checks.running() < permits * CHECKS_PER_WRITE
            && let Some((job, permit)) = checks.pop()
        {
            let shared = shared.clone();
            tasks.spawn(async move {
                let (namespace, name) = job.split_once('/').unwrap_or_default();
                let found = store::get(&shared, namespace, name).await;
                drop(permit);
                let now = shared.now();
                shared.state.lock().dispatcher.checked(&job, found, now);
                shared.wake.worker.notify_one();
            });
        }
        let sleep = timer
            .map_or(POLL_EVERY, |at| at.saturating_duration_since(Instant::now()))
            .min(POLL_EVERY);
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = shared.wake.worker.notified() => {}
            () = tokio::time::sleep(sleep) => {}
        }
    }
    tasks.running.close();
    shared.state.lock().dispatcher.stop();
    // Events whose outcomes have not been recorded by then remain undelivered: the next leader sends them again, with the
    // same ids.
    if tokio::time::timeout(grace, drain(&shared, &tasks, writes))
        .await
        .is_err()
    {
        tracing::warn!(
            ?grace,
            "deliveries were still running when the grace period ended; the next leader repeats them"
        );
    }
}

fn count(metrics: &Metrics, webhook: &WebhookKey, receipt: Receipt) {
    let receiver = if receipt.was_expected {
        "healthy"
    } else {
        "failing"
    };
    if receipt.was_expected && receipt.after > IN_TIME {
        metrics.accounts_with_late_events.note(namespace_of(webhook));
    }
    metrics
        .event_receipt_seconds
        .get_or_create_owned(&ReceiverLabels { receiver })
        .observe(receipt.after.as_secs_f64());
}

/// The commands to carry out now, and when to poll again.
fn collect(shared: &Shared) -> (Vec<Command>, Option<Instant>) {
    let now = shared.now();
    let mut state = shared.state.lock();
    let unclaimed = shared.claim(&mut state, now);
    state.dispatcher.tick(now);
    let commands: Vec<Command> = std::iter::from_fn(|| state.dispatcher.next_command(now))
        .take(AT_ONCE)
        .collect();
    if commands.len() == AT_ONCE {
        // There may be more.
        return (commands, Some(now.mono));
    }
    let timers = [unclaimed, state.dispatcher.next_timer()];
    (commands, timers.into_iter().flatten().min())
}

fn spawn_write(shared: &Arc<Shared>, tasks: &Tasks, next: NextWrite, permit: Permit) {
    match next {
        NextWrite::Record(job) => spawn_record(shared, tasks, job, permit),
        NextWrite::Page(namespace) => spawn_page(shared, tasks, namespace, permit),
    }
}

fn spawn_page(shared: &Arc<Shared>, tasks: &Tasks, namespace: Arc<str>, permit: Permit) {
    let Some(page) = shared.state.lock().dispatcher.page(&namespace) else {
        return;
    };
    let shared = shared.clone();
    tasks.spawn(async move {
        let written = event_log::write(&shared, &namespace, page).await;
        drop(permit);
        let outcome = match written {
            PageWritten::Stored => "stored",
            PageWritten::Impossible => "impossible",
            PageWritten::Failed => "failed",
        };
        let labels = OutcomeLabels { outcome };
        shared.deps.metrics.event_log_writes.get_or_create(&labels).inc();
        let now = shared.now();
        let dispatcher = &mut shared.state.lock().dispatcher;
        dispatcher.page_written(&namespace, written, now);
        shared.wake.worker.notify_one();
    });
}

fn spawn_log_check(shared: &Arc<Shared>, tasks: &Tasks, namespace: Arc<str>, permit: Permit) {
    let Some(question) = shared.state.lock().dispatcher.unknown_to_log(&namespace) else {
        return;
    };
    let shared = shared.clone();
    tasks.spawn(async move {
        let found = event_log::mentions(&shared, &namespace, &question).await;
        drop(permit);
        if let Err(error) = &found {
            tracing::warn!(
                %namespace, %error,
                "cannot read the event log; will retry; if it stays forbidden for half a minute, events may be sent again"
            );
        }
        let found = found.map_err(|error| event_log::unreadable(&error));
        let now = shared.now();
        let dispatcher = &mut shared.state.lock().dispatcher;
        dispatcher.log_checked(&namespace, &question.events, found, now);
        shared.wake.worker.notify_one();
    });
}

fn spawn_resend(shared: &Arc<Shared>, tasks: &Tasks, request: JobKey, permit: Permit) {
    let shared = shared.clone();
    tasks.spawn(async move {
        let (namespace, name) = request.split_once('/').unwrap_or_default();
        let completed = resend::complete(&shared, namespace, name).await;
        drop(permit);
        if let Err(error) = &completed {
            tracing::warn!(namespace, name, %error, "cannot complete a request to send a delivery again; will retry");
            tokio::time::sleep(AFTER_FAILED_RESEND).await;
        }
        shared.requests.lock().ended(request, completed.is_err());
        shared.wake.worker.notify_one();
    });
}

fn spawn_record(shared: &Arc<Shared>, tasks: &Tasks, job: JobKey, permit: Permit) {
    let now = shared.now();
    let Some(request) = shared.state.lock().dispatcher.begin_write(&job, now) else {
        return;
    };
    let shared = shared.clone();
    tasks.spawn(async move {
        let written = store::write(&shared, request).await;
        drop(permit);
        let outcome = match &written {
            Written::Stored(_) => "stored",
            Written::Found(_) => "found",
            Written::Gone => "gone",
            Written::Refused => "over_quota",
            Written::Failed => "failed",
        };
        let metrics = &shared.deps.metrics;
        let labels = OutcomeLabels { outcome };
        metrics.delivery_writes.get_or_create(&labels).inc();
        let now = shared.now();
        let mut state = shared.state.lock();
        // The write may change the numbers of pending, held and dropped deliveries.
        let webhook = state.dispatcher.webhook_of(&job).cloned();
        state.dispatcher.written(&job, written, now);
        drop(state);
        if let Some(webhook) = webhook {
            shared.statuses.lock().touch(webhook);
        }
        shared.wake.worker.notify_one();
    });
}

/// Waits for the attempts in flight, and records their outcomes.
async fn drain(shared: &Arc<Shared>, tasks: &Tasks, mut writes: WriteQueue) {
    loop {
        let is_idle = tasks.running.is_empty() && writes.is_empty();
        let commands: Vec<Command> = {
            let now = shared.now();
            let mut state = shared.state.lock();
            state.dispatcher.schedule_pages(now);
            let commands = std::iter::from_fn(|| state.dispatcher.next_command(now));
            commands.take(AT_ONCE).collect()
        };
        if is_idle && commands.is_empty() {
            return;
        }
        let may_be_more = commands.len() == AT_ONCE;
        for command in commands {
            match command {
                Command::Write { job, class } => writes.push(job, class),
                Command::Log(namespace) => writes.push_page(namespace),
                Command::Disable(disablement) => shared.disable(disablement),
                Command::Attempt { .. } | Command::Check(_) | Command::CheckLog(_) | Command::Settled(_) => {}
            }
        }
        while let Some((next, permit)) = writes.pop() {
            spawn_write(shared, tasks, next, permit);
        }
        if may_be_more || tasks.running.is_empty() {
            continue;
        }
        tokio::select! {
            () = shared.wake.worker.notified() => {}
            () = tasks.running.wait() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use runtime::metrics::Format;

    use super::*;

    #[test]
    fn accounts_whose_events_are_late_count_unless_their_receivers_delayed_them() {
        let metrics = Metrics::new();
        for (webhook, seconds, was_expected) in [
            ("ada/ci", 31, true),
            ("ada/chat", 40, true),
            ("bob/ci", 30, true),
            ("eve/ci", 99, false),
        ] {
            let after = Duration::from_secs(seconds);
            count(&metrics, &webhook.into(), Receipt { after, was_expected });
        }
        let page = metrics.render(Format::Prometheus).unwrap();
        assert!(
            page.contains("\nstellage_accounts_with_late_events{within=\"6h\"} 1\n"),
            "{page}"
        );
    }
}
