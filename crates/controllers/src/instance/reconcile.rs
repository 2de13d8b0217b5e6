//! One reconcile of one instance: asks the provider, decides, and writes the status.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::FutureExt as _;
use jiff::Timestamp;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;
use thiserror::Error;
use tokio::{sync::Semaphore, time::Instant};

use super::{InstanceController, trace};
use crate::backup;
use domain::{
    backup::restore,
    event::{OutboxVersion, payload::User},
    instance::{Audience, Decision, Gate, Next, Notes, Question, Seen, decide, project_behind, question},
    provider::{Addresses, Observation, ProviderError},
};
use providers::Provider;
use resources::{
    Instance, InstanceStatus, Refusal,
    conditions::{self, whole_seconds},
    instance::FINALIZER,
    origin::{self, ORIGIN_ANNOTATION},
    refusal::Cause,
    tracking::CONTROLLER_MANAGER,
    validation,
};
use runtime::{
    ObjectRef, ReconcileQueue,
    backoff::Backoffs,
    client::{self, CallError, bounded},
    traces::{self, SpanKind},
    watch::key,
    work_queue::{Class, Reconcile},
};

/// Maximum number of status writes in one pass. A server needs fewer, even if its operations take no time; any that are
/// left follow in the next pass.
const MAX_STEPS: usize = 6;

/// How long to wait for the provider before storing what it has been asked to do, if that write may be deferred.
const AT_ONCE: Duration = Duration::from_millis(100);

/// When to retry after a write conflict. Usually the watch delivers the new version sooner.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// Number of unsettled events at which an instance must wait. Each takes about 500 bytes, and an object in etcd may
/// have at most 1.5 MiB.
const MAX_OUTBOX: usize = 32;
/// When to check again whether a backup can be restored, in case a change was not reported.
const RESTORE_AGAIN: Duration = Duration::from_mins(10);
/// When to check again whether the end of an instance has been recorded: the first and the longest interval.
const UNTIL_RECORDED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// When to retry an instance whose outbox is full.
const CONGESTED: Duration = Duration::from_secs(1);

/// Why a pass failed.
#[derive(Debug, Error)]
pub(super) enum ReconcileError {
    /// A write failed.
    #[error("the API server refused a write: {0}")]
    Call(#[from] CallError),
}

impl ReconcileError {
    fn label(&self) -> &'static str {
        match self {
            Self::Call(error) => error.label(),
        }
    }
}

pub(super) struct Reconciler<P> {
    pub(super) controller: InstanceController<P>,
    pub(super) queue: ReconcileQueue<Instance>,
    /// Limits concurrent writes.
    pub(super) writes: Semaphore,
    pub(super) backoffs: Backoffs,
}

impl<P: Provider> Reconcile for Reconciler<P> {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        let Some(instance) = self.queue.current(object_ref) else {
            return Class::Normal;
        };
        let gate = self.gate(&instance, self.holder_of(&instance).as_ref());
        let asks = question(&instance, &gate, self.controller.clock.now()) == Question::Step;
        if asks && self.is_suspect(&instance) {
            Class::Suspect
        } else {
            Class::Normal
        }
    }

    async fn reconcile(&self, object_ref: &ObjectRef, class: Class) -> Option<Duration> {
        let Some(instance) = self.queue.current(object_ref) else {
            // It was deleted while queued.
            self.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let span = trace::span(&instance);
        let work = async {
            let result = Box::pin(self.pass(instance.clone(), class)).await;
            let outcome = result.as_ref().map_or_else(ReconcileError::label, |_| "ok");
            let metrics = &self.controller.metrics;
            metrics.reconciled("Instance", begun.elapsed(), outcome);
            result.unwrap_or_else(|error| {
                if let Some(span) = &span {
                    span.fail(error.label());
                }
                self.after(&instance, &error)
            })
        };
        traces::within_logged(span.as_ref(), work).await
    }
}

fn is_accepted(instance: &Instance) -> bool {
    instance
        .status
        .as_ref()
        .is_some_and(|status| status.state.is_some())
}

/// When to check again whether the end of an instance that is being deleted has been recorded. The interval grows with the
/// time it has taken.
fn until_recorded(instance: &Instance, now: Timestamp) -> Duration {
    let deleted = instance.metadata.deletion_timestamp.as_ref();
    let since = deleted.map_or(Duration::ZERO, |deleted| {
        Duration::try_from(now.duration_since(deleted.0)).unwrap_or_default()
    });
    let (soonest, latest) = UNTIL_RECORDED;
    (since / 8).clamp(soonest, latest)
}

fn uid(instance: &Instance) -> &str {
    origin::uid(&instance.metadata)
}

impl<P: Provider> Reconciler<P> {
    /// When to retry after an error.
    fn after(&self, instance: &Instance, error: &ReconcileError) -> Option<Duration> {
        let ReconcileError::Call(call) = error;
        if call.is_not_found() {
            self.backoffs.reset(&ObjectRef::of(instance));
            return None;
        }
        if call.is_conflict() {
            return Some(AFTER_CONFLICT);
        }
        let delay = self.backoffs.next(&ObjectRef::of(instance));
        tracing::warn!(instance = key(instance), %error, retry_in = ?delay, "reconcile failed");
        Some(delay)
    }

    async fn pass(&self, instance: Arc<Instance>, class: Class) -> Result<Option<Duration>, ReconcileError> {
        let mut draft = Draft::new(instance);
        for _ in 0..MAX_STEPS {
            if draft.instance.is_deleting() && !draft.instance.has_finalizer() {
                return Ok(None);
            }
            if self.is_congested(&draft.stored) {
                return Ok(Some(CONGESTED));
            }
            let holder = self.holder_of(&draft.instance);
            let gate = self.gate(&draft.instance, holder.as_ref());
            // An accepted instance needs the finalizer even if the gate is closed: it may have a server, and without the
            // finalizer its deletion is refused.
            let is_marked = draft.instance.has_finalizer()
                && (draft.instance.is_deleting() || !origin::is_missing(&draft.instance.metadata));
            if (gate == Gate::Open || is_accepted(&draft.instance)) && !is_marked {
                draft = Draft::new(self.mark(&draft.instance).await?);
            }
            let Some(asked) = self.ask(&mut draft, &gate, class).await? else {
                return Ok(Some(Duration::ZERO));
            };
            // The provider call may have taken a while. If the spec has changed since, decide on the new one; the provider's
            // answer still matches the status, which only this controller writes.
            draft.refresh(self.queue.freshest(draft.stored.clone()));
            let now = self.controller.clock.now();
            let findings = self.controller.monitor.findings(&draft.instance);
            let audience = Audience {
                user: holder.as_ref(),
                is_settled: &|event_id| self.controller.outbox.is_settled(event_id),
                may_wait: self.controller.write_pressure.is_busy() && self.controller.outbox.is_logged(),
                // Without an Account, nothing ends its backups.
                is_backed_up_now: holder.is_some()
                    && draft.instance.is_deleting()
                    && self.controller.backups.has_unfinished(&draft.instance),
                findings: findings.as_ref(),
            };
            let timings = &self.controller.timings;
            let mut decision = decide(&draft.instance, &gate, asked.seen(), audience, now, timings);
            trace::carry(&draft.instance, &mut decision.status);
            if decision.finished {
                if holder.is_some() && !self.controller.ledger.has_end_of(&draft.instance) {
                    return Ok(Some(until_recorded(&draft.instance, now)));
                }
                self.finish(&draft.instance).await?;
                return Ok(None);
            }
            let changed = draft.instance.status.as_ref() != Some(&decision.status);
            let next = decision.next(changed);
            if let Some(due) = decision.backup_due
                && let Err(error) = self.make_backup(&draft.instance, due).await
            {
                // The backup is created later; nothing else waits for it.
                let before = draft.instance.status.as_ref();
                decision.status.next_backup_at = before.and_then(|status| status.next_backup_at);
                draft.take(decision);
                self.store(&mut draft).await?;
                return Err(error);
            }
            let may_be_stored_later = decision.may_be_stored_later && !self.is_suspect(&draft.instance);
            draft.take(decision);
            if may_be_stored_later {
                continue;
            }
            self.store(&mut draft).await?;
            if next == Next::AfterBackoff {
                return Ok(Some(self.backoffs.next(&ObjectRef::of(&*draft.instance))));
            }
            self.backoffs.reset(&ObjectRef::of(&*draft.instance));
            let is_refused = matches!(gate, Gate::InvalidSpec(_) | Gate::CannotInstall(_));
            let may_restore_soon = is_refused
                && (draft.instance.spec.restore_from.is_some()
                    || origin::is_restored(&draft.instance.metadata));
            match next {
                Next::Now => {}
                Next::After(delay) if may_restore_soon => return Ok(Some(delay.min(RESTORE_AGAIN))),
                Next::After(delay) => return Ok(Some(delay)),
                Next::OnChange | Next::AfterBackoff => {
                    return Ok(may_restore_soon.then_some(RESTORE_AGAIN));
                }
            }
        }
        self.store(&mut draft).await?;
        Ok(Some(Duration::ZERO))
    }

    /// Stores the status if it differs from the stored one, notifies the outbox and publishes Events.
    async fn store(&self, draft: &mut Draft) -> Result<(), ReconcileError> {
        let Some(status) = draft.unstored() else {
            return Ok(());
        };
        let before = draft
            .stored
            .status
            .as_ref()
            .map_or(0, |status| status.event_sequence);
        let written = self.write_status(&draft.instance, status).await?;
        let outbox = OutboxVersion::of(&*written);
        self.controller.outbox.recorded(&outbox, before);
        if status.event_sequence > before {
            self.controller.write_pressure.wrote();
        }
        let action = status
            .operation
            .as_ref()
            .map_or("Reconcile", |op| op.kind.as_str());
        for note in std::mem::take(&mut draft.notes) {
            let events = &self.controller.events;
            events.publish(&*written, note.warning, note.reason, action, &note.message);
        }
        *draft = Draft::new(written);
        Ok(())
    }

    /// Creates the scheduled backup of an instance for a time of its schedule, unless the previous one is still in progress.
    /// The backup is created before the status records it: creating it twice is harmless, but if the status moved on first, a
    /// crash would lose it.
    async fn make_backup(&self, instance: &Instance, due: Timestamp) -> Result<(), ReconcileError> {
        let missed = |why: &str| {
            let note = format!("the backup for {} was not made: {why}", whole_seconds(due));
            let events = &self.controller.events;
            events.publish(instance, true, "BackupMissed", "Backup", &note);
        };
        if self
            .controller
            .backups
            .has_other_unfinished_scheduled(instance, due)
        {
            missed("the scheduled one before it is still under way");
            return Ok(());
        }
        let (client, now) = (&self.controller.client, self.controller.clock.now());
        let _permit = self.writes.acquire().await;
        match backup::create_scheduled(client, instance, due, false, now).await {
            Ok(()) => Ok(()),
            Err(error) if error.status().is_some_and(backup::is_final_refusal) => {
                missed(&error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn holder_of(&self, instance: &Instance) -> Option<User> {
        (self.controller.holder_of)(instance.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Whether the outbox is so full that the instance must wait for deliveries to be recorded.
    fn is_congested(&self, instance: &Instance) -> bool {
        let outbox = instance.status.iter().flat_map(|status| &status.outbox);
        let unsettled = outbox.filter(|entry| !self.controller.outbox.is_settled(&entry.id));
        !instance.is_deleting() && unsettled.count() >= MAX_OUTBOX
    }

    /// Decides whether the instance may be reconciled.
    fn gate(&self, instance: &Instance, holder: Option<&User>) -> Gate {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        if holder.is_none() {
            return Gate::NoAccount(format!(
                "namespace {namespace} belongs to no Account, so the instance is ignored; create an Account with spec.namespace {namespace}"
            ));
        }
        let accepted = is_accepted(instance);
        if !accepted && let Some(refusal) = self.copy(instance) {
            return Gate::InvalidSpec(refusal);
        }
        match self.complaint(instance, accepted) {
            // Once it is accepted, the only possible complaint is about the image to install.
            Some(refusal) if accepted => Gate::CannotInstall(refusal),
            Some(refusal) => Gate::InvalidSpec(refusal),
            None => Gate::Open,
        }
    }

    /// Why nothing is done about an instance that is a copy of an older one; `None` if it is not.
    fn copy(&self, instance: &Instance) -> Option<Refusal> {
        if !origin::is_restored(&instance.metadata) {
            return None;
        }
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let all = self.controller.instances.of(namespace);
        let older = origin::older_twin(&instance.metadata, all.iter().map(|other| &other.metadata))?;
        Some(Refusal {
            cause: Cause::OriginTaken,
            message: format!(
                "this is a copy of instance {older}, which is older: both have the same annotation {ORIGIN_ANNOTATION}; delete this one, or create it without the annotation"
            ),
        })
    }

    /// Checks what admission cannot. Keys and region are immutable, so they are checked only until the instance is accepted.
    fn complaint(&self, instance: &Instance, accepted: bool) -> Option<Refusal> {
        let spec = &instance.spec;
        let catalogue = self.controller.catalogue.current();
        if !accepted {
            for (index, ssh_key) in spec.ssh_keys.iter().enumerate() {
                if let Err(complaint) = validation::ssh_key(ssh_key) {
                    return Some(Refusal::invalid(format!(
                        "spec.sshKeys[{index}] {complaint}; keys are immutable, so delete this instance and create another"
                    )));
                }
            }
            if !catalogue.serves_region(&spec.region) {
                let offer = catalogue.regions.join(", ");
                return Some(Refusal::invalid(format!(
                    "spec.region {} is not available; choose one of {offer}",
                    spec.region
                )));
            }
        }
        if let Some(name) = &spec.restore_from
            && self.will_install(instance)
            && let Some(refusal) = self.cannot_restore(instance, name)
        {
            return Some(refusal);
        }
        // An image that is already installed, or that comes with a backup, need not be on offer any more.
        let installed = instance.status.as_ref().and_then(|status| status.image.as_ref());
        let is_installed = accepted && installed == Some(&spec.image);
        if !is_installed && spec.restore_from.is_none() && !catalogue.serves_image(&spec.image) {
            return Some(Refusal::invalid(format!(
                "spec.image {} is not available; choose one of {}",
                spec.image,
                catalogue.images.join(", ")
            )));
        }
        None
    }

    /// Whether the spec asks for an installation that has not begun.
    fn will_install(&self, instance: &Instance) -> bool {
        let operation = |status: Option<&InstanceStatus>| status.and_then(|status| status.operation.clone());
        // Regardless of what was refused before.
        let now = self.controller.clock.now();
        let next = operation(Some(&project_behind(&Gate::Open, instance, now)));
        let installs = next.as_ref().is_some_and(|next| next.restore_from.is_some());
        installs && next != operation(instance.status.as_ref())
    }

    /// Why the backup in `spec.restoreFrom` cannot be restored to an instance; `None` if it can.
    fn cannot_restore(&self, instance: &Instance, name: &str) -> Option<Refusal> {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let backup = self.controller.backups.get(namespace, name);
        restore::complaint(name, backup.as_deref(), instance)
    }

    /// Asks the provider for whatever the instance needs next. Returns `None` if that takes a slot for suspects, which this
    /// reconcile does not have. If the provider does not answer right away, a status that has not been stored yet is stored in
    /// the meantime.
    async fn ask(
        &self,
        draft: &mut Draft,
        gate: &Gate,
        class: Class,
    ) -> Result<Option<Asked>, ReconcileError> {
        let instance = draft.instance.clone();
        match question(&instance, gate, self.controller.clock.now()) {
            Question::Nothing => return Ok(Some(Asked::Nothing(Addresses::default()))),
            Question::Addresses => {
                return Ok(Some(Asked::Nothing(self.controller.provider.reserve(&instance))));
            }
            Question::Step if self.is_suspect(&instance) && class == Class::Normal => return Ok(None),
            Question::Step => {}
        }
        let mut step = pin!(self.step(&instance));
        if draft.unstored().is_none() {
            return Ok(Some(step.await));
        }
        if let Ok(asked) = tokio::time::timeout(AT_ONCE, &mut step).await {
            return Ok(Some(asked));
        }
        // If it cannot be stored, the step is cancelled and its slot freed.
        let (asked, ()) = tokio::try_join!(step.map(Ok), self.store(draft))?;
        Ok(Some(asked))
    }

    /// Has the provider perform one step.
    async fn step(&self, instance: &Instance) -> Asked {
        let limit = self.controller.provider_timeout;
        let begun = Instant::now();
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let operation = instance
            .status
            .as_ref()
            .and_then(|status| status.operation.as_ref());
        let backup = operation
            .and_then(|operation| operation.restore_from.as_deref())
            .and_then(|name| self.controller.backups.get(namespace, name));
        let step = self
            .controller
            .provider
            .step(instance, backup.as_deref(), self.controller.clock.now());
        let span = traces::child("provider step", SpanKind::Client);
        let answer = traces::within(span.as_ref(), tokio::time::timeout(limit, step))
            .await
            .unwrap_or(Err(ProviderError::Timeout(limit)));
        let outcome = answer.as_ref().map_or_else(ProviderError::reason, |_| "ok");
        let provider = self.controller.provider.name();
        if let Some(span) = span {
            span.set("stellage.provider", provider);
            if let Some(operation) = operation {
                span.set("stellage.operation", operation.kind.as_str());
            }
            if answer.is_err() {
                span.fail(outcome);
            }
        }
        let metrics = &self.controller.metrics;
        metrics.provider_called(provider, begun.elapsed(), outcome);
        match answer {
            Ok(observation) => Asked::Answer(observation),
            Err(error) => {
                tracing::warn!(instance = key(instance), %error, "provider call failed");
                Asked::Failure(error)
            }
        }
    }

    /// Whether the last provider call for this instance failed, according to this process or to the status.
    fn is_suspect(&self, instance: &Instance) -> bool {
        let conditions = instance
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let ready = conditions::find(conditions, conditions::READY);
        self.backoffs.has_failed(&ObjectRef::of(instance))
            || ready.is_some_and(|ready| ready.reason.starts_with("Provider"))
    }

    /// Adds the finalizer and the origin.
    async fn mark(&self, instance: &Instance) -> Result<Arc<Instance>, ReconcileError> {
        let finalizers = instance.metadata.finalizers.iter().flatten().map(String::as_str);
        let others = finalizers.filter(|name| *name != FINALIZER);
        let written = self.patch_finalizers(instance, others.chain([FINALIZER]).collect());
        Ok(self.queue.wrote(written.await?))
    }

    /// Removes our finalizer once the server is gone. Other controllers' finalizers are left alone.
    async fn finish(&self, instance: &Instance) -> Result<(), ReconcileError> {
        let foreign: Vec<&str> = instance
            .metadata
            .finalizers
            .iter()
            .flatten()
            .map(String::as_str)
            .filter(|finalizer| *finalizer != FINALIZER)
            .collect();
        if !foreign.is_empty() {
            let note = format!(
                "the server was removed; the object waits for other controllers' finalizers: {}",
                foreign.join(", ")
            );
            tracing::info!(
                instance = key(instance),
                ?foreign,
                "waiting for other controllers' finalizers"
            );
            self.controller
                .events
                .publish(instance, false, "WaitingForFinalizers", "Delete", &note);
        }
        match self.patch_finalizers(instance, foreign).await {
            // Do not remember the written object: the watch may already have reported its deletion.
            Ok(_) => {}
            Err(ReconcileError::Call(error)) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        self.controller.provider.release(uid(instance));
        self.backoffs.reset(&ObjectRef::of(instance));
        Ok(())
    }

    async fn patch_finalizers(
        &self,
        instance: &Instance,
        list: Vec<&str>,
    ) -> Result<Instance, ReconcileError> {
        let mut patch = json!({
            "metadata": { "finalizers": list, "resourceVersion": instance.metadata.resource_version, "uid": instance.metadata.uid },
        });
        origin::add_to(&mut patch, &instance.metadata);
        let params = PatchParams {
            field_manager: Some(CONTROLLER_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let _permit = self.writes.acquire().await;
        let api = self.api(instance);
        Ok(bounded(api.patch(name(instance), &params, &Patch::Merge(&patch))).await?)
    }

    async fn write_status(
        &self,
        instance: &Instance,
        status: &InstanceStatus,
    ) -> Result<Arc<Instance>, ReconcileError> {
        let client = &self.controller.client;
        let _permit = self.writes.acquire().await;
        let write = client::replace_status(client, instance, status, CONTROLLER_MANAGER);
        let metadata = bounded(write).await?;
        Ok(self.queue.wrote(Instance {
            metadata,
            spec: instance.spec.clone(),
            status: Some(status.clone()),
        }))
    }

    fn api(&self, instance: &Instance) -> Api<Instance> {
        Api::namespaced(
            self.controller.client.clone(),
            instance.metadata.namespace.as_deref().unwrap_or_default(),
        )
    }
}

fn name(instance: &Instance) -> &str {
    instance.metadata.name.as_deref().unwrap_or_default()
}

/// An instance with the decided status, which may not have been stored yet.
struct Draft {
    instance: Arc<Instance>,
    stored: Arc<Instance>,
    /// Events and messages to publish once it is stored.
    notes: Notes,
}

impl Draft {
    fn new(stored: Arc<Instance>) -> Self {
        Self {
            instance: stored.clone(),
            stored,
            notes: Notes::default(),
        }
    }

    /// The status, if it differs from the stored one.
    fn unstored(&self) -> Option<&InstanceStatus> {
        let status = self.instance.status.as_ref();
        status.filter(|_| status != self.stored.status.as_ref())
    }

    /// Applies the status of a decision.
    fn take(&mut self, mut decision: Decision) {
        let operation = self.instance.status.as_ref().and_then(|s| s.operation.as_ref());
        self.notes.add(operation, &decision);
        let stored = self.stored.status.as_ref();
        let stored = stored.map_or(&[][..], |status| &status.conditions);
        conditions::forget_drafts(&mut decision.status.conditions, stored);
        if self.instance.status.as_ref() != Some(&decision.status) {
            Arc::make_mut(&mut self.instance).status = Some(decision.status);
        }
    }

    /// Switches to a fresher version if only its spec is new.
    fn refresh(&mut self, fresh: Arc<Instance>) {
        if fresh.status != self.stored.status {
            return;
        }
        let unstored = self.unstored().cloned();
        self.instance = fresh.clone();
        self.stored = fresh;
        if let Some(status) = unstored {
            Arc::make_mut(&mut self.instance).status = Some(status);
        }
    }
}

enum Asked {
    Nothing(Addresses),
    Answer(Observation),
    Failure(ProviderError),
}

impl Asked {
    fn seen(&self) -> Seen<'_> {
        match self {
            Self::Nothing(addresses) => Seen::NotAsked(addresses),
            Self::Answer(observation) => Seen::Observed(observation),
            Self::Failure(error) => Seen::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_end_of_an_instance_is_not_recorded_the_more_rarely_it_is_looked_for() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "deletionTimestamp": "2026-11-21T10:00:00Z" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        for (now, milliseconds) in [
            ("2026-11-21T09:59:59Z", 100),
            ("2026-11-21T10:00:00.7Z", 100),
            ("2026-11-21T10:00:08Z", 1000),
            ("2026-11-21T11:00:00Z", 5000),
        ] {
            let pause = until_recorded(&instance, now.parse().unwrap());
            assert_eq!(pause, Duration::from_millis(milliseconds), "{now}");
        }
    }
}
