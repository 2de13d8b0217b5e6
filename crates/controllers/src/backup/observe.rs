//! Gathers what the decision about a Backup depends on: the objects around it, and what the provider says.

use std::{future::Future, sync::Arc};

use jiff::SignedDuration;
use kube::ResourceExt as _;

use super::{
    reconcile::{Reconciler, namespace},
    targets,
};
use crate::provider_call;
use domain::{
    backup::{
        Question, Seen, Situation, Source, question,
        restore::fits,
        retention::{gives_way, has_room},
    },
    instance::wants_restore,
    provider::{BackupObservation, ProviderError},
};
use providers::Provider;
use resources::{Backup, BackupPhase, Instance, origin};
use runtime::{
    traces::{self, SpanKind},
    watch::key,
};

/// How long a deleted backup is kept for a restore that has not begun (decisions, section 7).
const LONGEST_WAIT: SignedDuration = SignedDuration::from_hours(1);

/// The provider's answer.
pub(super) enum Asked {
    Nothing,
    Observed(BackupObservation),
    Deleted,
    Failed(ProviderError),
}

impl Asked {
    pub(super) const fn seen(&self) -> Seen<'_> {
        match self {
            Self::Nothing => Seen::NotAsked,
            Self::Observed(observation) => Seen::Observed(observation),
            Self::Deleted => Seen::Deleted,
            Self::Failed(error) => Seen::Failed(error),
        }
    }
}

impl<P: Provider> Reconciler<P> {
    /// The Instance with the name in the Backup's spec.
    pub(super) fn instance_of(&self, backup: &Backup) -> Option<Arc<Instance>> {
        let instances = &self.controller.instances;
        let shown = instances.named(namespace(backup), &backup.spec.instance)?;
        Some(self.controller.instance_queue.freshest(shown))
    }

    pub(super) fn with_situation<T>(
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
        let is_taken_up = backup.phase() == BackupPhase::Waiting && origin::is_restored(&backup.metadata);
        // What is deleted may have been given the origin of another, whose data it would take along.
        let older_twin = if is_taken_up || backup.is_deleting() {
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
                index.counted(namespace(backup), |all| has_room(backup, all, limits.per_account))
            },
            gives_way: &|| {
                let index = &self.controller.index;
                index.left_over(namespace(backup), |all| gives_way(backup, all))
            },
            restored_to: restored_to.as_deref(),
        })
    }

    /// Name of an Instance that is being restored from this backup, or will be.
    fn restored_to(&self, backup: &Backup) -> Option<String> {
        let name = backup.name_any();
        let shown = targets(&self.controller.instances_of, backup).into_iter();
        let mut instances = shown.map(|shown| self.controller.instance_queue.freshest(shown));
        // Data that has been deleted does not wait for ever for a restore that does not begin.
        let deleted_at = backup.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let waited = deleted_at.map(|at| self.controller.clock.now().duration_since(at));
        let may_wait = waited.is_none_or(|waited| waited < LONGEST_WAIT);
        let is_target = |instance: &Arc<Instance>| {
            let operation = instance
                .status
                .as_ref()
                .and_then(|status| status.operation.as_ref());
            let under_way = operation.and_then(|operation| operation.restore_from.as_deref());
            let is_wanted =
                may_wait && instance.spec.restore_from.as_deref() == Some(&name) && wants_restore(instance);
            under_way == Some(&name) || is_wanted && fits(backup, instance)
        };
        instances.find(is_target).map(|instance| instance.name_any())
    }

    /// Asks the provider for whatever the backup needs next.
    pub(super) async fn ask(&self, backup: &Backup, has_account: bool) -> Asked {
        let what = self.with_situation(backup, has_account, |situation| question(backup, situation));
        let provider = &self.controller.provider;
        let now = self.controller.clock.now();
        match (what, self.instance_of(backup)) {
            (Question::Delete, _) => self
                .timed(backup, provider.delete_backup(backup))
                .await
                .map_or_else(Asked::Failed, |()| Asked::Deleted),
            (Question::Progress, Some(instance)) => self
                .timed(backup, provider.create_backup(backup, &instance, now))
                .await
                .map_or_else(Asked::Failed, Asked::Observed),
            _ => Asked::Nothing,
        }
    }

    /// Calls the provider with the timeout, and counts the call.
    async fn timed<T>(
        &self,
        backup: &Backup,
        call: impl Future<Output = Result<T, ProviderError>> + Send,
    ) -> Result<T, ProviderError> {
        let controller = &self.controller;
        let span = traces::child("provider backup", SpanKind::Client);
        let (provider, limit) = (&*controller.provider, controller.provider_timeout);
        let region = backup.status.as_ref().and_then(|status| status.source.as_ref());
        let region = region.map_or("", |source| &source.region);
        let answer = provider_call::within(provider, region, &controller.metrics, limit, span, call).await;
        if let Err(error) = &answer {
            tracing::warn!(backup = key(backup), %error, "provider call failed");
        }
        answer
    }
}
