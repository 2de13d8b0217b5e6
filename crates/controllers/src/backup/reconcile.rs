//! One reconcile of one Backup: `observe`, decide ([`domain::backup`]), `apply`.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::ResourceExt as _;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::BackupController;
use domain::{
    backup::{Effect, decide},
    event::outbox,
};
use providers::Provider;
use resources::{Backup, BackupPhase, origin, traceparent::annotated};
use runtime::{
    ObjectRef, ReconcileQueue,
    backoff::Backoffs,
    client::CallError,
    traces::{self, Span, SpanKind},
    work_queue::{Class, Reconcile},
};

/// Maximum number of status writes in one pass. A backup needs fewer, even if it takes no time.
const MAX_STEPS: usize = 4;
/// When to check again whether a backup may begin, if another backup of the same instance is being reconciled
/// at the moment.
const AFTER_ANOTHER: Duration = Duration::from_millis(100);

pub(super) struct Reconciler<P> {
    pub(super) controller: BackupController<P>,
    pub(super) queue: ReconcileQueue<Backup>,
    /// Limits concurrent writes.
    pub(super) writes: Semaphore,
    pub(super) backoffs: Backoffs,
    /// Namespaces and names of instances for which a backup may be about to begin. Only one backup per
    /// instance begins at a time.
    pub(super) beginning: Mutex<HashSet<(String, String)>>,
}

/// Permits one backup of an instance to begin. At most one such permit exists per instance.
struct BeginPermit<'a> {
    all: &'a Mutex<HashSet<(String, String)>>,
    key: (String, String),
}

impl Drop for BeginPermit<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.key);
    }
}

pub(super) fn namespace(backup: &Backup) -> &str {
    backup.metadata.namespace.as_deref().unwrap_or_default()
}

/// The span for reconciling a backup that a traced request created, until the backup has ended. A backup's spec never changes, so
/// the annotation can only refer to its creation.
fn span(backup: &Backup) -> Option<Span> {
    if !backup.is_unfinished() || backup.is_deleting() {
        return None;
    }
    let parent = annotated(&backup.metadata)?;
    let span = traces::continued(parent, "reconcile Backup", SpanKind::Internal)?;
    span.set("k8s.namespace.name", namespace(backup).to_owned());
    span.set("stellage.backup", backup.name_any());
    Some(span)
}

impl<P: Provider> Reconcile for Reconciler<P> {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        match self.queue.current(object_ref) {
            Some(backup)
                if self.backoffs.has_failed(&ObjectRef::of(&*backup))
                    && (backup.is_deleting()
                        || backup.has_data_left()
                        || backup.phase() == BackupPhase::Running) =>
            {
                Class::Suspect
            }
            _ => Class::Normal,
        }
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let Some(backup) = self.queue.current(object_ref) else {
            // It was deleted while queued.
            self.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let span = span(&backup);
        let work = async {
            let result = Box::pin(self.pass(backup.clone())).await;
            let outcome = result.as_ref().map_or_else(CallError::label, |_| "ok");
            let metrics = &self.controller.metrics;
            metrics.reconciled("Backup", begun.elapsed(), outcome);
            result.unwrap_or_else(|error| {
                if let Some(span) = &span {
                    span.fail(error.label());
                }
                self.backoffs.after(&*backup, &error)
            })
        };
        traces::within_logged(span.as_ref(), work).await
    }
}

impl<P: Provider> Reconciler<P> {
    async fn pass(&self, mut backup: Arc<Backup>) -> Result<Option<Duration>, CallError> {
        for _ in 0..MAX_STEPS {
            if backup.is_deleting() && !backup.has_finalizer() {
                return Ok(None);
            }
            let has_account = self.controller.directory.account_of(namespace(&backup)).is_some();
            // A backup that has begun needs the finalizer even if its Account is gone: it may have data, and its deletion is
            // refused without the finalizer.
            let is_needed = has_account || backup.phase() != BackupPhase::Waiting;
            let is_marked = backup.has_finalizer() && !origin::is_missing(&backup.metadata);
            if is_needed && !backup.is_deleting() && !is_marked {
                backup = self.mark(&backup).await?;
            }
            // Otherwise two backups of an instance could each see the other waiting, and both begin.
            let permit = if backup.phase() == BackupPhase::Waiting {
                let Some(permit) = self.begin_permit(&backup) else {
                    return Ok(Some(AFTER_ANOTHER));
                };
                Some(permit)
            } else {
                None
            };
            let asked = self.ask(&backup, has_account).await;
            let now = self.controller.clock.now();
            let mut decision = self.with_situation(&backup, has_account, |situation| {
                decide(&backup, situation, asked.seen(), now)
            });
            let told = backup.status.as_ref().map_or(0, |status| status.event_sequence);
            outbox::carry_trace(&mut decision.status.outbox, told, traces::current().as_deref());
            if decision.effect == Effect::Finish {
                self.remove_finalizer(&backup).await?;
                self.backoffs.reset(&ObjectRef::of(&*backup));
                self.look_at_surplus(&backup);
                return Ok(None);
            }
            if decision.effect == Effect::TryAgain {
                self.try_again(&backup).await?;
            }
            let written = self.store(&backup, &decision).await?;
            drop(permit);
            let was_waiting = backup.phase() == BackupPhase::Waiting;
            let has_changed = written.is_some();
            backup = written.unwrap_or(backup);
            if decision.effect == Effect::Delete {
                self.delete(&backup).await?;
                return Ok(decision.recheck_after);
            }
            if decision.retry {
                return Ok(Some(self.backoffs.next(&ObjectRef::of(&*backup))));
            }
            self.backoffs.reset(&ObjectRef::of(&*backup));
            let goes_on = backup.phase() == BackupPhase::Running && was_waiting
                || backup.is_deleting()
                || backup.has_data_left();
            if !(has_changed && goes_on) {
                return Ok(decision.recheck_after);
            }
        }
        Ok(Some(Duration::ZERO))
    }

    fn begin_permit(&self, backup: &Backup) -> Option<BeginPermit<'_>> {
        let key = (namespace(backup).to_owned(), backup.spec.instance.clone());
        let is_free = self.beginning.lock().insert(key.clone());
        is_free.then(|| BeginPermit {
            all: &self.beginning,
            key,
        })
    }
}
