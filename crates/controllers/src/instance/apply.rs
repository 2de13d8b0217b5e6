//! Writes what has been decided about an instance.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::reconcile::Reconciler;
use crate::{backup, census, finalizers};
use domain::{
    event::OutboxVersion,
    instance::{Decision, Note, Notes, creation_began, tell_missed_backup},
};
use providers::Provider;
use resources::{
    Instance, InstanceState, InstanceStatus,
    conditions::{self, whole_seconds},
    instance::FINALIZER,
    quota,
    tracking::CONTROLLER_MANAGER,
};
use runtime::{
    ObjectRef,
    client::{self, CallError, bounded},
    watch::key,
};

/// An instance with the decided status, which may not have been stored yet.
pub(super) struct Draft {
    pub(super) instance: Arc<Instance>,
    pub(super) stored: Arc<Instance>,
    /// Events and messages to publish once it is stored.
    notes: Notes,
}

impl Draft {
    pub(super) fn new(stored: Arc<Instance>) -> Self {
        Self {
            instance: stored.clone(),
            stored,
            notes: Notes::default(),
        }
    }

    /// The status, if it differs from the stored one.
    pub(super) fn unstored(&self) -> Option<&InstanceStatus> {
        let status = self.instance.status.as_ref();
        status.filter(|_| status != self.stored.status.as_ref())
    }

    /// Applies the status of a decision.
    pub(super) fn take(&mut self, mut decision: Decision) {
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
    pub(super) fn refresh(&mut self, fresh: Arc<Instance>) {
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

impl<P: Provider> Reconciler<P> {
    /// Stores the status if it differs from the stored one, notifies the outbox and publishes Events.
    pub(super) async fn store(&self, draft: &mut Draft) -> Result<(), CallError> {
        let Some(status) = draft.unstored() else {
            return Ok(());
        };
        let before = draft
            .stored
            .status
            .as_ref()
            .map_or(0, |status| status.event_sequence);
        let written = self.write_status(&draft.instance, status).await?;
        self.count_creation(&draft.stored, status);
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

    /// Measures how long a creation has taken, if it has ended with a server that runs.
    fn count_creation(&self, before: &Instance, status: &InstanceStatus) {
        let stored = before.status.as_ref();
        let is_new = stored.is_none_or(|stored| stored.provisioned_at.is_none());
        if is_new && status.provisioned_at.is_some() && status.state == Some(InstanceState::Running) {
            let controller = &self.controller;
            let took = controller.clock.now().duration_since(creation_began(before));
            let region = census::region_label(&controller.catalogue.current(), &before.spec.region);
            let took = Duration::try_from(took).unwrap_or_default();
            controller.metrics.created(region, took);
        }
    }

    /// Creates the scheduled backup of an instance for a time of its schedule. It is created before the status records it: creating it
    /// twice is harmless, but if the status moved on first, a crash would lose it. One that the API server refuses is told of with the
    /// status, to `has_holder` in an event: if that is not stored, it is tried again.
    pub(super) async fn make_backup(
        &self,
        instance: &Instance,
        due: Timestamp,
        decision: &mut Decision,
        has_holder: bool,
        now: Timestamp,
    ) -> Result<(), CallError> {
        let backup = backup::scheduled(instance, due, false, now);
        let _permit = self.writes.acquire().await;
        let error = match backup::create(&self.controller.client, &backup).await {
            Err(error) if error.status().is_some_and(backup::is_final_refusal) => error,
            outcome => return outcome,
        };
        decision.notes.push(Note {
            warning: true,
            reason: "BackupMissed",
            message: format!("the backup for {} was not made: {error}", whole_seconds(due)),
            begins: false,
        });
        if has_holder {
            let is_quota = error.status().is_some_and(quota::is_exceeded);
            let why = if is_quota {
                "the account's quota has no room for this backup; delete some"
            } else {
                "a policy of the cluster does not admit this backup; ask its administrator"
            };
            tell_missed_backup(instance, &mut decision.status, &backup, why.to_owned(), now);
        }
        Ok(())
    }

    /// Adds the finalizer and the origin.
    pub(super) async fn mark(&self, instance: &Instance) -> Result<Arc<Instance>, CallError> {
        let _permit = self.writes.acquire().await;
        let written = finalizers::add(&self.controller.client, instance, FINALIZER).await?;
        Ok(self.queue.wrote(written))
    }

    /// Removes our finalizer once the server is gone. Other controllers' finalizers are left alone.
    pub(super) async fn finish(&self, instance: &Instance) -> Result<(), CallError> {
        let foreign = finalizers::others(instance, FINALIZER);
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
        // Before the write: if its answer is lost, no reconcile comes after it.
        self.controller.provider.release(instance);
        let permit = self.writes.acquire().await;
        finalizers::remove(&self.controller.client, instance, FINALIZER).await?;
        drop(permit);
        self.backoffs.reset(&ObjectRef::of(instance));
        Ok(())
    }

    async fn write_status(
        &self,
        instance: &Instance,
        status: &InstanceStatus,
    ) -> Result<Arc<Instance>, CallError> {
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
}
