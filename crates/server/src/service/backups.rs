//! Backups: list, find, create, delete, and which can be restored.

use std::sync::Arc;

use super::{
    Service,
    credentials::Tenant,
    error::{Error, ErrorCode, no_backups, wrong_backup},
    id::{BackupId, InstanceId, PublicId as _},
    idempotency::IdempotentRequest,
    index::{Index as _, Indexed, Object as _, Paging},
    instances::{IndexedInstance, RestorableBackup},
    precondition::Precondition,
    store::{Created, KeyedCreate, annotations},
};
use api::BackupStatus;
use domain::backup::retention::counts;
use resources::{Backup, BackupPhase, BackupSource, BackupSpec, Instance, InstanceState, backup::FINALIZER};

/// A backup with values derived from it.
#[derive(Debug)]
pub struct IndexedBackup {
    /// The object, shared with the watch's store.
    pub backup: Arc<Backup>,
    /// Its public id.
    pub id: BackupId,
}

impl Indexed for IndexedBackup {
    type Object = Backup;
    type Id = BackupId;
    type Spec = BackupSpec;

    const WORD: &'static str = "backup";

    fn of(backup: Arc<Backup>) -> Self {
        Self {
            id: BackupId::of(&backup),
            backup,
        }
    }

    fn id(&self) -> BackupId {
        self.id
    }

    fn object(&self) -> &Backup {
        &self.backup
    }

    fn spec(&self) -> &BackupSpec {
        &self.backup.spec
    }
}

/// A backup, and what is known about its instance.
#[derive(Debug)]
pub struct ShownBackup {
    pub item: Arc<IndexedBackup>,
    /// The instance as it was when the backup began, or as it is if the backup has not begun.
    pub source: Option<BackupSource>,
    /// Identifier of the instance; `None` if there never was such an instance.
    pub instance_id: Option<String>,
    /// Whether the instance has been deleted.
    pub is_instance_deleted: bool,
}

impl ShownBackup {
    /// The status as REST spells it: a backup that is waiting is `running`, too.
    pub fn status(&self) -> BackupStatus {
        match self.item.backup.phase() {
            BackupPhase::Waiting | BackupPhase::Running => BackupStatus::Running,
            BackupPhase::Completed => BackupStatus::Completed,
            BackupPhase::Failed => BackupStatus::Failed,
        }
    }
}

/// The filters of a list. Values that match nothing give an empty list.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackupFilter<'a> {
    /// Identifier of the instance.
    pub instance_id: Option<&'a str>,
    /// The status as REST spells it.
    pub status: Option<&'a str>,
}

impl Service {
    /// One page of an account's backups, newest first, and their total number.
    pub fn list_backups(
        &self,
        namespace: &str,
        filter: BackupFilter<'_>,
        paging: Paging,
    ) -> (Vec<ShownBackup>, usize) {
        let matches = |item: &IndexedBackup| {
            let has_status = |wanted: &str| match item.backup.phase() {
                BackupPhase::Waiting | BackupPhase::Running => wanted == "running",
                BackupPhase::Completed => wanted == "completed",
                BackupPhase::Failed => wanted == "failed",
            };
            filter.status.is_none_or(has_status)
                && filter
                    .instance_id
                    .is_none_or(|wanted| item.backup.instance_id().as_deref() == Some(wanted))
        };
        let (page, total) = self.backups.index().page_of(namespace, paging, matches);
        (page.into_iter().map(|item| self.shown(item)).collect(), total)
    }

    /// Like [`list_backups`](Self::list_backups), for one instance; `not_found` if the instance is not in the namespace.
    pub async fn list_backups_of(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        paging: Paging,
    ) -> Result<(Vec<ShownBackup>, usize), Error> {
        let instance = self.instances.find(namespace, id).await?;
        let is_of = |item: &IndexedBackup| item.backup.is_of(&instance.instance);
        let (page, total) = self.backups.index().page_of(namespace, paging, is_of);
        Ok((page.into_iter().map(|item| self.shown(item)).collect(), total))
    }

    /// The backup with this id; `not_found` if it is not in the namespace.
    pub async fn backup(&self, namespace: &str, id: Option<BackupId>) -> Result<ShownBackup, Error> {
        Ok(self.shown(self.backups.find(namespace, id).await?))
    }

    /// A backup with what the index of instances knows about its instance.
    pub fn shown(&self, item: Arc<IndexedBackup>) -> ShownBackup {
        let backup = &*item.backup;
        let instance_id = backup.instance_id();
        let instance = self.instance_of(backup);
        let status = backup.status.as_ref();
        let source = status.and_then(|status| status.source.clone());
        let is_deleted = status.is_some_and(|status| status.instance_deleted)
            || backup.source_uid().is_some() && instance.is_none();
        ShownBackup {
            source: source.or_else(|| Some(BackupSource::of(&instance.as_ref()?.instance))),
            instance_id,
            is_instance_deleted: is_deleted,
            item,
        }
    }

    /// The instance of a backup, if it is known and still exists.
    fn instance_of(&self, backup: &Backup) -> Option<Arc<IndexedInstance>> {
        let id = InstanceId::parse(&backup.instance_id()?)?;
        let found = self.instances.index().get(backup.namespace(), id)?;
        let is_source = |uid| uid == found.instance.origin_uid();
        backup.source_uid().is_none_or(is_source).then_some(found)
    }

    /// Whether the instance of a backup exists, or has existed.
    fn has_had_instance(&self, backup: &Backup) -> bool {
        let status = backup.status.as_ref();
        status.is_some_and(|status| status.source.is_some()) || self.instance_of(backup).is_some()
    }

    /// Starts a backup of an instance, once per idempotency key. `invalid_state` unless the instance is running or stopped and has no
    /// other backup under way.
    pub async fn create_backup(
        &self,
        tenant: &Tenant,
        id: Option<InstanceId>,
        name: Option<&str>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<Created<IndexedBackup>, Error> {
        let namespace = &tenant.namespace;
        let keyed = KeyedCreate::of(request, &tenant.uid)?;
        // Serialised, so that concurrent creates cannot exceed the limits.
        let _lock = self.backup_locks.lock(namespace).await?;
        let item = match (self.check_backup(namespace, id, precondition).await, &keyed) {
            (Ok(item), _) => item,
            (Err(refusal), None) => return Err(refusal),
            // A backup outlives its instance.
            (Err(refusal), Some(keyed)) => {
                let created = self.backups.created_by(namespace, keyed).await?;
                return created.ok_or(refusal);
            }
        };
        let instance = &item.instance;
        let has_room = || {
            tenant.check_not_terminating()?;
            self.check_room(instance)
        };
        let build = |object_name: &str, hash: Option<String>| {
            let spec = BackupSpec {
                instance: instance.name().to_owned(),
                instance_uid: Some(instance.origin_uid().to_owned()),
                name: name.map(str::to_owned),
                scheduled_for: None,
                retry: false,
            };
            let mut backup = Backup::new(object_name, spec);
            backup.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
            backup.metadata.annotations = Some(annotations(hash, self.clock.now()));
            backup
        };
        self.backups
            .create_once(namespace, keyed.as_ref(), has_room, build)
            .await
    }

    /// The instance with this id, if it can be backed up.
    async fn check_backup(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        precondition: &Precondition,
    ) -> Result<Arc<IndexedInstance>, Error> {
        let item = self.instances.find(namespace, id).await?;
        if self.check_shown(&item, precondition).is_ok() {
            return Ok(item);
        }
        // The watches may lag behind: check the current objects before refusing.
        let item = self.instances.find_now(namespace, &item).await?;
        self.check_now(&item, precondition).await?;
        Ok(item)
    }

    fn check_shown(&self, item: &IndexedInstance, precondition: &Precondition) -> Result<(), Error> {
        precondition.check(&*item.instance)?;
        let region = &item.instance.spec.region;
        if !self.has_backups(region) {
            return Err(no_backups(region));
        }
        check_backup_state(item)?;
        let unfinished = |other: &IndexedBackup| is_under_way(&other.backup, &item.instance);
        let index = self.backups.index();
        if index.count_of(item.instance.namespace(), unfinished) > 0 {
            return Err(under_way());
        }
        Ok(())
    }

    /// Like [`check_shown`](Self::check_shown), but reads the unfinished backups from the API server.
    async fn check_now(&self, item: &IndexedInstance, precondition: &Precondition) -> Result<(), Error> {
        precondition.check(&*item.instance)?;
        let region = &item.instance.spec.region;
        if !self.has_backups(region) {
            return Err(no_backups(region));
        }
        check_backup_state(item)?;
        let namespace = item.instance.namespace();
        let unfinished = |other: &IndexedBackup| is_under_way(&other.backup, &item.instance);
        let index = self.backups.index();
        let (some, _) = index.page_of(namespace, Paging::first(100), unfinished);
        for shown in some {
            let current = self.backups.get(namespace, shown.backup.name()).await?;
            if current.is_some_and(|current| is_under_way(&current, &item.instance)) {
                return Err(under_way());
            }
        }
        Ok(())
    }

    /// Number of an account's backups that count when a manual one is made.
    pub(super) fn counted_backups(&self, namespace: &str) -> usize {
        let is_counted = |item: &IndexedBackup| counts(&item.backup);
        self.backups.index().count_of(namespace, is_counted)
    }

    fn check_room(&self, instance: &Instance) -> Result<(), Error> {
        let (namespace, limits) = (instance.namespace(), self.settings.backup_limits);
        let of_instance = |item: &IndexedBackup| counts(&item.backup) && item.backup.is_of(instance);
        if self.backups.index().count_of(namespace, of_instance) >= limits.per_instance {
            let what = format!("the instance has {} manual backups", limits.per_instance);
            return Err(too_many(&what));
        }
        if self.counted_backups(namespace) >= limits.per_account {
            let limit = limits.per_account;
            let what =
                format!("the account has {limit} manual backups and scheduled ones of deleted instances");
            return Err(too_many(&what));
        }
        Ok(())
    }

    /// Deletes a backup; `invalid_state` while it is under way.
    pub async fn delete_backup(
        &self,
        namespace: &str,
        id: Option<BackupId>,
        precondition: &Precondition,
    ) -> Result<(), Error> {
        let check = |item: &IndexedBackup| {
            precondition.check(&*item.backup)?;
            // A backup that waits for an instance that does not exist would never end by itself.
            if item.backup.is_unfinished() && self.has_had_instance(&item.backup) {
                return Err(still_running());
            }
            Ok(())
        };
        self.backups
            .remove(namespace, id, precondition.is_some(), check)
            .await
    }

    /// The backup with this id, to be restored: `invalid_input` if it is not in the namespace, `invalid_state` if it is not
    /// completed.
    pub async fn backup_to_restore(
        &self,
        namespace: &str,
        id: Option<BackupId>,
    ) -> Result<RestorableBackup, Error> {
        let found = self.backups.find(namespace, id).await;
        let mut item = found.map_err(|error| match error.code {
            ErrorCode::NotFound => wrong_backup("is not the id of a backup of this account"),
            _ => error,
        })?;
        if item.backup.phase() != BackupPhase::Completed {
            // The watch may lag behind.
            item = self.backups.find_now(namespace, &item).await?;
        }
        RestorableBackup::of(&item.backup).ok_or_else(|| {
            let status = match item.backup.phase() {
                BackupPhase::Failed => "failed",
                _ => "running",
            };
            let message = format!("is {status}; only a completed backup can be restored");
            Error::invalid_state("the backup", "backup", &message)
        })
    }
}

fn is_under_way(backup: &Backup, instance: &Instance) -> bool {
    backup.is_unfinished() && !backup.is_deleting() && backup.is_of(instance)
}

/// `invalid_state` unless the instance is running or stopped, without an operation.
pub fn check_backup_state(item: &IndexedInstance) -> Result<(), Error> {
    let allowed = [InstanceState::Running, InstanceState::Stopped];
    let has_operation = item
        .instance
        .status
        .as_ref()
        .is_none_or(|status| status.operation.is_some());
    if allowed.contains(&item.state) && !has_operation {
        return Ok(());
    }
    let message = format!(
        "is {}; a backup is allowed from running, stopped, and while no operation is under way",
        item.state.as_str()
    );
    Err(Error::invalid_state("the instance", "status", &message))
}

fn under_way() -> Error {
    let message = "is being backed up already; wait until that backup is completed";
    Error::invalid_state("the instance", "status", message)
}

/// The error for deleting a backup that is under way.
pub fn still_running() -> Error {
    let message = "is running; it can be deleted once it is completed or failed";
    Error::invalid_state("the backup", "status", message)
}

/// The error for a backup beyond the limit.
pub fn too_many(what: &str) -> Error {
    Error::new(
        ErrorCode::ResourceLimitExceeded,
        format!("{what}, as many as it may have; delete one first"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use resources::ids;

    fn backup(status: Value) -> IndexedBackup {
        let object = json!({
            "metadata": { "name": "bkp-abcdefgh01234567", "namespace": "demo", "uid": "b" },
            "spec": { "instance": "web", "instanceUID": "u" }, "status": status,
        });
        IndexedBackup::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    #[test]
    fn the_instance_is_known_before_the_controller_has_seen_the_backup() {
        let item = backup(json!({}));
        let id = ids::instance_id("web", "u");
        assert_eq!(item.backup.instance_id(), Some(id));
    }
}
