//! The conversations about backups.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::Cluster;
use crate::kubevirt::{
    backup::{Seen, plan, plan_deletion},
    names::{Server, Snapshot},
    plan::{Action, Answer, Refusal},
};
use domain::provider::{BackupObservation, PROVIDER, ProviderError};
use resources::{Backup, Instance};
use runtime::{ObjectRef, watch::key};

/// How long an agent may take to have its guest hold still.
const FREEZE_WITHIN: Duration = Duration::from_secs(5);
/// How long letting the guest go on may take. Nobody waits for it.
const THAW_WITHIN: Duration = Duration::from_secs(30);

impl Cluster {
    /// How far a backup is; it is begun if it is not there.
    pub(crate) async fn backup(
        self: &Arc<Self>,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<BackupObservation, ProviderError> {
        let server = Server::of(instance, &self.settings);
        let name = ObjectRef::new(&server.namespace, &server.name);
        let vm = self.written.lock().freshest(&name, self.machines.get(&name));
        let mut seen = Seen::new(self.reach(now), vm);
        let next = |seen: &Seen| plan(backup, instance, seen, &self.settings, now);
        let object = format!("Backup {}", key(backup));
        let namespace = Snapshot::of(backup, &self.settings).namespace;
        let mut observation = self.carry_out(&object, &namespace, &mut seen, next).await?;
        observation
            .state
            .insert(PROVIDER.to_owned(), "kubevirt".to_owned());
        Ok(observation)
    }

    /// Deletes the data of a backup.
    pub(crate) async fn delete_backup(
        self: &Arc<Self>,
        backup: &Backup,
        now: Timestamp,
    ) -> Result<(), ProviderError> {
        let mut seen = Seen::new(self.reach(now), None);
        let next = |seen: &Seen| plan_deletion(backup, &self.code, seen, &self.settings, now);
        let object = format!("Backup {}", key(backup));
        let namespace = Snapshot::of(backup, &self.settings).namespace;
        self.carry_out(&object, &namespace, &mut seen, next).await
    }

    /// Has a guest hold still. If its agent does not answer, the backup is made all the same.
    pub(super) async fn freeze(&self, namespace: &str, action: &Action) -> kube::Result<Answer> {
        // However long its turn takes, that is not the agent's time.
        let _permit = self.calls.acquire().await;
        let call = self.call_now(namespace, action);
        let answer = tokio::time::timeout(FREEZE_WITHIN, call).await;
        let answer = answer.unwrap_or_else(|_| {
            Ok(Answer::Refused(Refusal {
                status: 504,
                reason: "Timeout".to_owned(),
                message: "the agent in the guest does not answer".to_owned(),
            }))
        });
        if let Ok(Answer::Refused(refusal)) = &answer {
            let says = &refusal.message;
            tracing::info!(
                region = self.code,
                namespace,
                says,
                "a guest does not hold still for its backup"
            );
        }
        answer
    }

    /// Lets a guest go on, beside everything else.
    pub(super) fn thaw(self: &Arc<Self>, namespace: &str, action: &Action) {
        let (cluster, namespace, action) = (self.clone(), namespace.to_owned(), action.clone());
        tokio::spawn(async move {
            let call = cluster.call(&namespace, &action);
            let says = match tokio::time::timeout(THAW_WITHIN, call).await {
                Ok(Ok(Answer::Refused(refusal))) => refusal.message,
                Ok(Ok(_)) => return,
                Ok(Err(error)) => error.to_string(),
                Err(timeout) => timeout.to_string(),
            };
            // KubeVirt does it by itself.
            tracing::info!(
                region = cluster.code,
                namespace,
                says,
                "a guest was not told to go on after its backup"
            );
        });
    }
}
