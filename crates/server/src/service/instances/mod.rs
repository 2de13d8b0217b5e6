//! Instances: list, find, create, change, operate, delete.
//!
//! - `index`: the instances in memory, and the filters of their list;
//! - `create`: builds the object for a create; `user_data`: the Secret with its user data.

mod create;
mod index;
mod user_data;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

pub use self::{
    create::duration_in_words,
    index::{Filter, IndexedInstance, InstanceIndex},
};
pub use domain::instance::{Installation, RestorableBackup};

use super::{
    Service,
    credentials::{Requester, Tenant},
    error::{Error, check_quota, no_daily_backups, protected, wrong_backup},
    id::InstanceId,
    idempotency::IdempotentRequest,
    index::Paging,
    nonce::instance_nonce,
    precondition::Precondition,
    store::{Created, KeyedCreate, Verdict, WRITE_ANNOTATION},
};
use api::ChangeInstance;
use domain::instance::{Action, changed_spec, disk_of, user_data::reference};
use resources::{
    InstanceSpec, ids,
    instance::{IDEMPOTENCY_ANNOTATION, REQUESTED_BY_ANNOTATION},
    times::milliseconds,
    traceparent::TRACEPARENT_ANNOTATION,
    tracking::{self, SPEC_CHANGED_AT_ANNOTATION},
};
use runtime::traces;

/// `invalid_state` unless the action is allowed in the instance's status.
pub fn check_state(action: Action, item: &IndexedInstance) -> Result<(), Error> {
    Ok(action.check(item.state)?)
}

/// The result of an action.
pub struct ActionOutcome {
    /// The instance after the request, already in the status that the action leads to.
    pub item: Arc<IndexedInstance>,
    /// Whether an earlier request with the same key was carried out instead.
    pub replayed: bool,
}

impl Service {
    /// One page of an account's instances, newest first, and their total number.
    pub fn list_instances(
        &self,
        namespace: &str,
        filter: Filter<'_>,
        paging: Paging,
    ) -> (Vec<Arc<IndexedInstance>>, usize) {
        self.instances.index().list(namespace, filter, paging)
    }

    /// The instance with this id; `not_found` if it is not in the namespace.
    pub async fn instance(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
    ) -> Result<Arc<IndexedInstance>, Error> {
        self.instances.find(namespace, id).await
    }

    /// Creates an instance, once per idempotency key. Its image is that of the `installation`. Its user data goes into a Secret.
    pub async fn create_instance(
        &self,
        requester: Requester<'_>,
        mut spec: InstanceSpec,
        user_data: Option<&str>,
        installation: &Installation,
        request: Option<&IdempotentRequest>,
    ) -> Result<Created<IndexedInstance>, Error> {
        let Requester { tenant, key } = requester;
        let disk = spec.plan.size().disk_gb;
        self.check_region(installation, &spec.region)?;
        installation.request(&mut spec, disk)?;
        let keyed = KeyedCreate::of(request, &tenant.uid)?;
        // As for webhooks, the ResourceQuota decides. While Kubernetes still counts instances whose deletion is in progress,
        // this lets the create wait.
        let has_room = || {
            tenant.check_not_terminating()?;
            let count = self.instances.index().count(&tenant.namespace);
            check_quota(count, tenant.instance_quota, "instances")?;
            self.check_sizes(tenant, None, spec.plan)
        };
        let random = ids::random_suffix();
        let build = |name: &str, hash: Option<String>| {
            let mut spec = spec.clone();
            spec.user_data_ref = user_data.map(|_| reference(name, &random));
            create::instance(name, spec, hash, key, self.clock.now())
        };
        let _lock = self.size_lock(tenant).await?;
        let created = self
            .instances
            .create_once(&tenant.namespace, keyed.as_ref(), has_room, build)
            .await?;
        self.with_user_data(created, user_data, request).await
    }

    /// The instance that an earlier request with the same idempotency key has created. `user_data` is that of the request.
    pub async fn instance_created_by(
        &self,
        tenant: &Tenant,
        user_data: Option<&str>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Option<Created<IndexedInstance>>, Error> {
        let Some(keyed) = KeyedCreate::of(request, &tenant.uid)? else {
            return Ok(None);
        };
        match self.instances.created_by(&tenant.namespace, &keyed).await? {
            Some(created) => self.with_user_data(created, user_data, request).await.map(Some),
            None => Ok(None),
        }
    }

    /// The instance with this id, if an earlier request with the same idempotency key has acted on it.
    pub async fn instance_changed_by(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Option<Arc<IndexedInstance>>, Error> {
        let Some(request) = request else { return Ok(None) };
        let shown = self.instances.find(namespace, id).await?;
        if request.was_done(&*shown.instance)? {
            return Ok(Some(shown));
        }
        // The watch may lag behind.
        let current = self.instances.find_now(namespace, &shown).await?;
        Ok(request.was_done(&*current.instance)?.then_some(current))
    }

    pub async fn change_instance(
        &self,
        requester: Requester<'_>,
        id: Option<InstanceId>,
        change: &ChangeInstance,
        precondition: &Precondition,
    ) -> Result<Arc<IndexedInstance>, Error> {
        let Requester { tenant, key } = requester;
        let decide = |item: &IndexedInstance| {
            precondition.check(&*item.instance)?;
            if change.backup_enabled == Some(true) && !item.instance.spec.backup_enabled {
                let region = &item.instance.spec.region;
                if !self.has_backups(region) {
                    return Err(Error::invalid(vec![no_daily_backups(region)]));
                }
            }
            let spec = changed_spec(change, &item.instance)?;
            let refused = item
                .instance
                .status
                .as_ref()
                .and_then(|status| status.refused_plan);
            let is_refused = change.plan.is_some() && refused == Some(spec.plan);
            if is_refused || spec.plan != item.instance.spec.plan {
                self.check_sizes(tenant, Some(&item.instance), spec.plan)?;
            }
            Ok(self.write(item, spec, None, key))
        };
        let _lock = match change.plan {
            Some(_) => self.size_lock(tenant).await?,
            None => None,
        };
        self.instances.modify(&tenant.namespace, id, decide).await
    }

    /// `invalid_input` if a backup cannot be restored in a region.
    fn check_region(&self, installation: &Installation, region: &str) -> Result<(), Error> {
        match installation {
            Installation::Backup(backup) if !self.catalogue().moves_backups(&backup.region, region) => {
                Err(wrong_backup(format!(
                    "is in region {}, and cannot be restored in region {region}",
                    backup.region
                )))
            }
            _ => Ok(()),
        }
    }

    /// Whether instances in this region can be backed up.
    pub(super) fn has_backups(&self, region: &str) -> bool {
        self.catalogue().offer(region).is_some_and(|offer| offer.backups)
    }

    /// Requests an action, once per idempotency key; `invalid_state` if the instance's status does not allow it, `protected` for a
    /// rebuild while its deletion protection is on. `installation` is
    /// for a rebuild: what to install.
    pub async fn act_on_instance(
        &self,
        requester: Requester<'_>,
        id: Option<InstanceId>,
        action: Action,
        installation: Option<&Installation>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
    ) -> Result<ActionOutcome, Error> {
        let replayed = AtomicBool::new(false);
        let decide = |item: &IndexedInstance| {
            if let Some(request) = request {
                let was_done = request.was_done(&*item.instance)?;
                replayed.store(was_done, Ordering::Relaxed);
                if was_done {
                    return Ok(Verdict::Leave);
                }
            }
            precondition.check(&*item.instance)?;
            if action == Action::Rebuild && item.instance.spec.deletion_protection {
                return Err(protected());
            }
            check_state(action, item)?;
            let mut spec = item.instance.spec.clone();
            let nonce = instance_nonce(self.clock.now(), &spec);
            if let Some(installation) = installation {
                self.check_region(installation, &spec.region)?;
                installation.request(&mut spec, disk_of(&item.instance))?;
            }
            action.request(&mut spec, &nonce);
            let done = request.map(|request| request.remember(&*item.instance, &nonce));
            Ok(self.write(item, spec, done, requester.key))
        };
        let namespace = &requester.tenant.namespace;
        let item = self.instances.modify(namespace, id, decide).await?;
        Ok(ActionOutcome {
            item,
            replayed: replayed.into_inner(),
        })
    }

    /// Builds the write of a spec, and of the completed requests if they are in `done`. Annotations say who asked for it, with which `key`,
    /// when the spec changed, if the API server does not track that, and in which trace it changed.
    fn write(
        &self,
        item: &IndexedInstance,
        spec: InstanceSpec,
        done: Option<String>,
        key: &str,
    ) -> Verdict<InstanceSpec> {
        let metadata = &item.instance.metadata;
        let is_tracked = tracking::is_tracked(metadata) && !tracking::is_ours_alone(metadata);
        let changed_at = || {
            (
                SPEC_CHANGED_AT_ANNOTATION,
                milliseconds(self.clock.now()).to_string(),
            )
        };
        let is_change = spec != item.instance.spec;
        let changed = (is_change && !is_tracked).then(changed_at);
        let trace = is_change.then(traces::current).flatten();
        let trace = trace.map(|parent| (TRACEPARENT_ANNOTATION, parent));
        let done = done.map(|done| (IDEMPOTENCY_ANNOTATION, done));
        let mark = is_change.then(|| (WRITE_ANNOTATION, ids::random_suffix()));
        // The generation that the API server gives to the changed spec.
        let next = metadata.generation.unwrap_or(0) + 1;
        let by = is_change.then(|| (REQUESTED_BY_ANNOTATION, create::requested_by(next, key)));
        Verdict::Write {
            spec: Box::new(spec),
            annotations: [changed, trace, done, mark, by].into_iter().flatten().collect(),
        }
    }

    /// Deletes an instance; `protected` while its deletion protection is on.
    pub async fn delete_instance(
        &self,
        namespace: &str,
        id: Option<InstanceId>,
        precondition: &Precondition,
    ) -> Result<(), Error> {
        let check = |item: &IndexedInstance| {
            precondition.check(&*item.instance)?;
            if item.instance.spec.deletion_protection {
                return Err(protected());
            }
            Ok(())
        };
        self.instances
            .remove(namespace, id, precondition.is_some(), check)
            .await
    }
}
