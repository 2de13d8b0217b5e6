//! Creates scheduled backups.

use jiff::Timestamp;
use kube::{Api, Client, ResourceExt as _, core::Status};

use domain::backup::schedule::scheduled_name;
use resources::{
    Backup, BackupSpec, Instance,
    backup::FINALIZER,
    origin::{self, ORIGIN_ANNOTATION},
    quota,
    tracking::CONTROLLER_MANAGER,
};
use runtime::client::{CallError, bounded, written_by};

/// The scheduled Backup of an instance for a time of its schedule, or its second attempt.
pub fn scheduled(instance: &Instance, scheduled_for: Timestamp, is_retry: bool, now: Timestamp) -> Backup {
    let uid = origin::uid(&instance.metadata).to_owned();
    let spec = BackupSpec {
        instance: instance.name_any(),
        instance_uid: Some(uid.clone()),
        name: None,
        scheduled_for: Some(scheduled_for),
        retry: is_retry,
    };
    let mut backup = Backup::new(&scheduled_name(&uid, scheduled_for, is_retry), spec);
    backup.finalizers_mut().push(FINALIZER.to_owned());
    backup
        .annotations_mut()
        .insert(ORIGIN_ANNOTATION.to_owned(), origin::of_new(now));
    backup.metadata.namespace.clone_from(&instance.metadata.namespace);
    backup
}

/// Creates a [`scheduled`] Backup. Succeeds if it already exists.
pub async fn create(client: &Client, backup: &Backup) -> Result<(), CallError> {
    let namespace = backup.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Backup> = Api::namespaced(client.clone(), namespace);
    match bounded(api.create(&written_by(CONTROLLER_MANAGER), backup)).await {
        Err(error) if error.status().is_some_and(Status::is_already_exists) => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Whether the API server would refuse the same create again, because of a quota that Kubernetes has already counted or
/// because of a policy.
pub fn is_final_refusal(status: &Status) -> bool {
    let may_pass = [404, 408, 409, 429].contains(&status.code);
    (400..500).contains(&status.code) && !may_pass && !quota::is_pending(status)
}
