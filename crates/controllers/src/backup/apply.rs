//! Writes what has been decided about a Backup.

use std::sync::Arc;

use kube::{Api, ResourceExt as _};

use super::{
    create, is_final_refusal,
    reconcile::{Reconciler, namespace},
    scheduled,
};
use crate::finalizers;
use domain::{
    backup::{Decision, Note, of_the_customer, retention::is_left_over},
    event::OutboxVersion,
};
use providers::Provider;
use resources::{Backup, BackupPhase, BackupStatus, backup::FINALIZER, tracking::CONTROLLER_MANAGER};
use runtime::{
    client::{self, CallError, bounded, only},
    metrics::OutcomeLabels,
};

impl<P: Provider> Reconciler<P> {
    /// Queues the oldest failed backup of a deleted instance, if it is to be deleted.
    pub(super) fn look_at_surplus(&self, backup: &Backup) {
        self.queue.again(self.controller.index.surplus(namespace(backup)));
    }

    pub(super) fn publish(&self, backup: &Backup, note: &Note) {
        let events = &self.controller.events;
        events.publish(backup, note.warning, note.reason, "Backup", &note.message);
    }

    /// Stores the status if it differs, notifies the outbox and publishes Events. If the backup has ended, queues the instance's
    /// other backups.
    pub(super) async fn store(
        &self,
        backup: &Backup,
        decision: &Decision,
    ) -> Result<Option<Arc<Backup>>, CallError> {
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
            self.count(&written);
            let others = self.controller.index.of(namespace(backup), &backup.spec.instance);
            let mine = &written.metadata.uid;
            // Those that wait for this backup, and those that it may replace.
            let may_be_replaced = |other: &Backup| {
                other.is_scheduled() == written.is_scheduled() && other.phase() == written.phase()
            };
            let is_concerned = |other: &Arc<Backup>| {
                other.metadata.uid != *mine && (other.is_unfinished() || may_be_replaced(other))
            };
            self.queue.again(others.into_iter().filter(is_concerned));
            // This backup again, for its own retention and its second attempt.
            self.queue.again([written.clone()]);
        }
        if is_left_over(&written) && !is_left_over(backup) {
            self.look_at_surplus(&written);
        }
        Ok(Some(written))
    }

    fn count(&self, backup: &Backup) {
        let outcome = match backup.phase() {
            BackupPhase::Failed => of_the_customer(backup).unwrap_or("failed"),
            _ => "completed",
        };
        let metrics = &self.controller.metrics;
        metrics
            .backups
            .get_or_create_owned(&OutcomeLabels { outcome })
            .inc();
        if let Some(status) = &backup.status {
            self.controller.show_completed(status);
        }
    }

    /// Creates the second attempt of a failed scheduled backup.
    pub(super) async fn try_again(&self, backup: &Backup) -> Result<(), CallError> {
        let (Some(instance), Some(scheduled_for)) = (self.instance_of(backup), backup.spec.scheduled_for)
        else {
            return Ok(());
        };
        let (client, now) = (&self.controller.client, self.controller.clock.now());
        let _permit = self.writes.acquire().await;
        let second = scheduled(&instance, scheduled_for, true, now);
        match create(client, &second).await {
            Err(error) if error.status().is_some_and(is_final_refusal) => {
                let note = format!("the backup is not tried once more: {error}");
                let events = &self.controller.events;
                events.publish(backup, true, "BackupMissed", "Backup", &note);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Deletes a backup that newer ones have replaced.
    pub(super) async fn delete(&self, backup: &Backup) -> Result<(), CallError> {
        let params = only(backup.metadata.uid.clone(), None);
        let _permit = self.writes.acquire().await;
        let api: Api<Backup> = Api::namespaced(self.controller.client.clone(), namespace(backup));
        match bounded(api.delete(&backup.name_any(), &params)).await {
            Err(error) if error.is_not_found() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Adds the finalizer and the origin.
    pub(super) async fn mark(&self, backup: &Backup) -> Result<Arc<Backup>, CallError> {
        let _permit = self.writes.acquire().await;
        let written = finalizers::add(&self.controller.client, backup, FINALIZER).await?;
        Ok(self.queue.wrote(written))
    }

    /// Removes our finalizer. Other controllers' finalizers are left alone.
    pub(super) async fn remove_finalizer(&self, backup: &Backup) -> Result<(), CallError> {
        let _permit = self.writes.acquire().await;
        finalizers::remove(&self.controller.client, backup, FINALIZER).await
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
}
