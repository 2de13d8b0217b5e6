//! One reconcile of one Backup: asks the provider, decides, and writes the status.

use std::{collections::HashSet, future::Future, sync::Arc, time::Duration};

use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{sync::Semaphore, time::Instant};

use super::{BackupController, create_scheduled, is_final_refusal};
use domain::{
    backup::{
        Decision, Effect, Note, Question, Seen, Situation, Source, decide, question,
        restore::fits,
        retention::{gives_way, has_room, is_left_over},
    },
    event::{OutboxVersion, outbox},
    instance::wants_restore,
    provider::{BackupObservation, BackupProgress, ProviderError},
};
use providers::Provider;
use resources::{
    Backup, BackupPhase, BackupStatus, Instance, backup::FINALIZER, origin, traceparent::annotated,
    tracking::CONTROLLER_MANAGER,
};
use runtime::{
    ObjectRef, ReconcileQueue,
    backoff::Backoffs,
    client::{self, CallError, bounded},
    traces::{self, Span, SpanKind},
    watch::key,
    work_queue::{Class, Reconcile},
};

/// Maximum number of status writes in one pass. A backup needs fewer, even if it takes no time.
const MAX_STEPS: usize = 4;
/// When to retry after a write conflict. Usually the watch delivers the new version sooner.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);
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

/// The provider's answer.
enum Asked {
    Nothing,
    Observed(BackupObservation),
    Deleted,
    Failed(ProviderError),
}

impl Asked {
    const fn seen(&self) -> Seen<'_> {
        match self {
            Self::Nothing => Seen::NotAsked,
            Self::Observed(observation) => Seen::Observed(observation),
            Self::Deleted => Seen::Deleted,
            Self::Failed(error) => Seen::Failed(error),
        }
    }
}

fn namespace(backup: &Backup) -> &str {
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
                    && (backup.is_deleting() || backup.phase() == BackupPhase::Running) =>
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
                self.after(&backup, &error)
            })
        };
        traces::within_logged(span.as_ref(), work).await
    }
}

impl<P: Provider> Reconciler<P> {
    /// When to retry after an error.
    fn after(&self, backup: &Backup, error: &CallError) -> Option<Duration> {
        if error.is_not_found() {
            self.backoffs.reset(&ObjectRef::of(backup));
            return None;
        }
        if error.is_conflict() {
            return Some(AFTER_CONFLICT);
        }
        let delay = self.backoffs.next(&ObjectRef::of(backup));
        tracing::warn!(backup = key(backup), %error, retry_in = ?delay, "reconcile failed");
        Some(delay)
    }

    async fn pass(&self, mut backup: Arc<Backup>) -> Result<Option<Duration>, CallError> {
        let mut has_begun_now = false;
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
            let asked = self.ask(&backup, has_account, has_begun_now).await;
            let now = self.controller.clock.now();
            let mut decision = self.with_situation(&backup, has_account, |situation| {
                decide(&backup, situation, asked.seen(), now)
            });
            let told = backup.status.as_ref().map_or(0, |status| status.event_sequence);
            outbox::carry_trace(&mut decision.status.outbox, told, traces::current().as_deref());
            if decision.effect == Effect::Finish {
                self.remove_finalizer(&backup).await?;
                self.backoffs.reset(&ObjectRef::of(&*backup));
                self.look_at_oldest(&backup);
                return Ok(None);
            }
            if decision.effect == Effect::TryAgain {
                self.try_again(&backup).await?;
            }
            let written = self.store(&backup, &decision).await?;
            drop(permit);
            has_begun_now = backup.phase() == BackupPhase::Waiting;
            let has_changed = written.is_some();
            backup = written.unwrap_or(backup);
            if decision.effect == Effect::Delete {
                self.delete(&backup).await?;
                if let Some(note) = decision.note.as_ref().filter(|_| !has_changed) {
                    self.publish(&backup, note);
                }
                return Ok(decision.recheck_after);
            }
            if decision.retry {
                return Ok(Some(self.backoffs.next(&ObjectRef::of(&*backup))));
            }
            self.backoffs.reset(&ObjectRef::of(&*backup));
            let goes_on = backup.phase() == BackupPhase::Running && has_begun_now || backup.is_deleting();
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

    /// The Instance with the name in the Backup's spec.
    fn instance_of(&self, backup: &Backup) -> Option<Arc<Instance>> {
        let instances = &self.controller.instances;
        let shown = instances.named(namespace(backup), &backup.spec.instance)?;
        Some(self.controller.instance_queue.freshest(shown))
    }

    fn with_situation<T>(
        &self,
        backup: &Backup,
        has_account: bool,
        with: impl FnOnce(&Situation<'_>) -> T,
    ) -> T {
        let instance = self.instance_of(backup);
        let others = self.controller.index.of(namespace(backup), &backup.spec.instance);
        let source = Source::of(backup, instance.as_deref());
        // Backups of the same instance, or of one that does not exist yet: all except those of other
        // instances.
        let others: Vec<&Backup> = others
            .iter()
            .map(|other| &**other)
            .filter(|other| {
                let uids = (other.source_uid(), backup.source_uid());
                !other.is_abandoned() && !matches!(uids, (Some(one), Some(other)) if one != other)
            })
            .collect();
        let older_twin = if backup.phase() == BackupPhase::Waiting && origin::is_restored(&backup.metadata) {
            let all = self.controller.index.within(namespace(backup));
            origin::older_twin(&backup.metadata, all.iter().map(|other| &other.metadata))
        } else {
            None
        };
        let limits = self.controller.limits;
        let restored_to = if backup.is_deleting() {
            self.restored_to(backup)
        } else {
            None
        };
        with(&Situation {
            source,
            others: &others,
            older_twin,
            has_account,
            is_settled: &|event_id| self.controller.outbox.is_settled(event_id),
            limits,
            has_room_in_account: &|| {
                let index = &self.controller.index;
                index.sharing(namespace(backup), |all| has_room(backup, all, limits.per_account))
            },
            gives_way: &|| {
                let index = &self.controller.index;
                index.sharing(namespace(backup), |all| {
                    gives_way(backup, all, limits.per_account)
                })
            },
            restored_to: restored_to.as_deref(),
        })
    }

    /// Name of an Instance that is being restored from this backup, or will be.
    fn restored_to(&self, backup: &Backup) -> Option<String> {
        let name = backup.name_any();
        let shown = self.controller.restores.targets(backup).into_iter();
        let mut instances = shown.map(|shown| self.controller.instance_queue.freshest(shown));
        let is_target = |instance: &Arc<Instance>| {
            let operation = instance
                .status
                .as_ref()
                .and_then(|status| status.operation.as_ref());
            let under_way = operation.and_then(|operation| operation.restore_from.as_deref());
            let is_wanted = instance.spec.restore_from.as_deref() == Some(&name) && wants_restore(instance);
            under_way == Some(&name) || is_wanted && fits(backup, instance)
        };
        instances.find(is_target).map(|instance| instance.name_any())
    }

    /// Queues the oldest scheduled backup of a deleted instance, which may have to be deleted to make room.
    fn look_at_oldest(&self, backup: &Backup) {
        let index = &self.controller.index;
        if index.count(namespace(backup)) > self.controller.limits.per_account {
            self.queue.again(index.oldest_left_over(namespace(backup)));
        }
    }

    fn publish(&self, backup: &Backup, note: &Note) {
        let events = &self.controller.events;
        events.publish(backup, note.warning, note.reason, "Backup", &note.message);
    }

    /// Asks the provider for whatever the backup needs next.
    async fn ask(&self, backup: &Backup, has_account: bool, has_begun_now: bool) -> Asked {
        let what = self.with_situation(backup, has_account, |situation| question(backup, situation));
        let provider = &self.controller.provider;
        let now = self.controller.clock.now();
        match (what, self.instance_of(backup)) {
            (Question::Delete, _) => self
                .timed(backup, provider.delete_backup(backup))
                .await
                .map_or_else(Asked::Failed, |()| Asked::Deleted),
            (Question::Progress, Some(instance)) => {
                let state = async {
                    if !has_begun_now {
                        let seen = provider.backup_state(backup, &instance, now).await?;
                        if seen.progress != BackupProgress::Unknown {
                            return Ok(seen);
                        }
                    }
                    provider.create_backup(backup, &instance, now).await
                };
                self.timed(backup, state)
                    .await
                    .map_or_else(Asked::Failed, Asked::Observed)
            }
            _ => Asked::Nothing,
        }
    }

    /// Calls the provider with the timeout, and counts the call.
    async fn timed<T>(
        &self,
        backup: &Backup,
        call: impl Future<Output = Result<T, ProviderError>> + Send,
    ) -> Result<T, ProviderError> {
        let limit = self.controller.provider_timeout;
        let begun = Instant::now();
        let span = traces::child("provider backup", SpanKind::Client);
        let answer = traces::within(span.as_ref(), tokio::time::timeout(limit, call))
            .await
            .unwrap_or(Err(ProviderError::Timeout(limit)));
        let outcome = answer.as_ref().map_or_else(ProviderError::reason, |_| "ok");
        let provider = self.controller.provider.name();
        if let Some(span) = span {
            span.set("stellage.provider", provider);
            if answer.is_err() {
                span.fail(outcome);
            }
        }
        let metrics = &self.controller.metrics;
        metrics.provider_called(provider, begun.elapsed(), outcome);
        if let Err(error) = &answer {
            tracing::warn!(backup = key(backup), %error, "provider call failed");
        }
        answer
    }

    /// Stores the status if it differs, notifies the outbox and publishes Events. If the backup has ended, queues the instance's
    /// other backups.
    async fn store(&self, backup: &Backup, decision: &Decision) -> Result<Option<Arc<Backup>>, CallError> {
        if backup.status.as_ref() == Some(&decision.status) {
            return Ok(None);
        }
        let written = self.write_status(backup, &decision.status).await?;
        let before = backup.status.as_ref().map_or(0, |status| status.event_sequence);
        let outbox = OutboxVersion::of(&*written);
        self.controller.outbox.recorded(&outbox, before);
        if let Some(note) = &decision.note {
            self.publish(&written, note);
        }
        if backup.is_unfinished() && !written.is_unfinished() {
            let others = self.controller.index.of(namespace(backup), &backup.spec.instance);
            let mine = &written.metadata.uid;
            // Those that wait for this backup, and those that a newer scheduled one may replace.
            let is_concerned = |other: &Arc<Backup>| {
                other.metadata.uid != *mine
                    && (other.is_unfinished() || written.is_scheduled() && other.is_scheduled())
            };
            self.queue.again(others.into_iter().filter(is_concerned));
            // This backup again, for its own retention and its second attempt.
            self.queue.again([written.clone()]);
            self.look_at_oldest(&written);
        } else if is_left_over(&written) && !is_left_over(backup) {
            self.look_at_oldest(&written);
        }
        Ok(Some(written))
    }

    /// Creates the second attempt of a failed scheduled backup.
    async fn try_again(&self, backup: &Backup) -> Result<(), CallError> {
        let (Some(instance), Some(scheduled_for)) = (self.instance_of(backup), backup.spec.scheduled_for)
        else {
            return Ok(());
        };
        let (client, now) = (&self.controller.client, self.controller.clock.now());
        let _permit = self.writes.acquire().await;
        match create_scheduled(client, &instance, scheduled_for, true, now).await {
            Err(error) if error.status().is_some_and(is_final_refusal) => {
                let note = format!("the backup is not tried once more: {error}");
                let events = &self.controller.events;
                events.publish(backup, true, "BackupMissed", "Backup", &note);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Deletes a scheduled backup that newer ones have replaced.
    async fn delete(&self, backup: &Backup) -> Result<(), CallError> {
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: backup.metadata.uid.clone(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let _permit = self.writes.acquire().await;
        match bounded(self.api(backup).delete(&backup.name_any(), &params)).await {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Adds the finalizer and the origin.
    async fn mark(&self, backup: &Backup) -> Result<Arc<Backup>, CallError> {
        let mut list = backup.finalizers().to_vec();
        if !backup.has_finalizer() {
            list.push(FINALIZER.to_owned());
        }
        let written = self.patch_finalizers(backup, list).await?;
        Ok(self.queue.wrote(written))
    }

    /// Removes our finalizer. Other controllers' finalizers are left alone.
    async fn remove_finalizer(&self, backup: &Backup) -> Result<(), CallError> {
        let mut list = backup.finalizers().to_vec();
        list.retain(|finalizer| finalizer != FINALIZER);
        match self.patch_finalizers(backup, list).await {
            Err(error) if !error.is_not_found() => Err(error),
            // Do not remember the written object: the watch may already have reported its deletion.
            _ => Ok(()),
        }
    }

    async fn patch_finalizers(&self, backup: &Backup, list: Vec<String>) -> Result<Backup, CallError> {
        let metadata = &backup.metadata;
        let mut patch = json!({
            "metadata": { "finalizers": list, "resourceVersion": metadata.resource_version, "uid": metadata.uid },
        });
        origin::add_to(&mut patch, metadata);
        let params = PatchParams {
            field_manager: Some(CONTROLLER_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let _permit = self.writes.acquire().await;
        let name = backup.name_any();
        bounded(self.api(backup).patch(&name, &params, &Patch::Merge(&patch))).await
    }

    async fn write_status(&self, backup: &Backup, status: &BackupStatus) -> Result<Arc<Backup>, CallError> {
        let client = &self.controller.client;
        let _permit = self.writes.acquire().await;
        let write = client::replace_status(client, backup, status, CONTROLLER_MANAGER);
        let metadata = bounded(write).await?;
        Ok(self.queue.wrote(Backup {
            metadata,
            spec: backup.spec.clone(),
            status: Some(status.clone()),
        }))
    }

    fn api(&self, backup: &Backup) -> Api<Backup> {
        Api::namespaced(self.controller.client.clone(), namespace(backup))
    }
}
