//! Gathers what the decision about an instance depends on: whether it may be reconciled, and what the provider says.

use std::{pin::pin, time::Duration};

use super::{apply::Draft, reconcile::Reconciler};
use crate::provider_call;
use domain::{
    backup::restore,
    catalogue::Catalogue,
    event::payload::User,
    instance::{
        Gate, Question, Refused, Seen, project_behind, question,
        user_data::{USER_DATA_INVALID, USER_DATA_MISSING},
    },
    provider::{Addresses, Observation, PROVIDER, Progress, ProviderError, Trouble},
    user_data::UserData,
};
use providers::{Membership, Provider, Step};
use resources::{
    Account, Instance, InstanceStatus, Refusal, conditions,
    origin::{self, ORIGIN_ANNOTATION},
    refusal::Cause,
    validation,
};
use runtime::{
    ObjectRef,
    client::CallError,
    traces::{self, SpanKind},
    watch::key,
    work_queue::Class,
};

/// How long to wait for the provider before storing what it has been asked to do, if that write may be deferred.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Number of unsettled events at which an instance must wait. Each takes about 500 bytes, and an object in etcd may
/// have at most 1.5 MiB.
const MAX_OUTBOX: usize = 32;

/// What the provider says.
pub(super) enum Asked {
    Nothing(Addresses),
    Answer(Observation),
    Failure(ProviderError),
}

/// Nothing is decided now; when to look again.
pub(super) struct LookAgain(pub(super) Duration);

impl Asked {
    pub(super) fn seen(&self) -> Seen<'_> {
        match self {
            Self::Nothing(addresses) => Seen::NotAsked(addresses),
            Self::Answer(observation) => Seen::Observed(observation),
            Self::Failure(error) => Seen::Failed(error),
        }
    }

    /// Whether the operation waits for its user data, which nobody watches.
    pub(super) fn awaits_user_data(&self) -> bool {
        match self {
            Self::Answer(Observation {
                progress: Progress::Failed(trouble),
                ..
            }) => [USER_DATA_MISSING, USER_DATA_INVALID].contains(&trouble.reason),
            _ => false,
        }
    }
}

pub(super) fn is_accepted(instance: &Instance) -> bool {
    instance
        .status
        .as_ref()
        .is_some_and(|status| status.state.is_some())
}

/// Why the servers of a suspended account are off; `None` if they need not be.
fn kept_off(account: &Account) -> Option<Refusal> {
    let reason = account.keeps_servers_off()?;
    Some(Refusal {
        cause: Cause::AccountSuspended,
        message: format!("the server is kept off, because the account is suspended: {reason}"),
    })
}

impl<P: Provider> Reconciler<P> {
    pub(super) fn holder_of(&self, instance: &Instance) -> Option<User> {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        self.controller.directory.holder_of(namespace)
    }

    /// Whether the account limits vCPUs, memory or disk.
    pub(super) fn has_size_quotas(&self, instance: &Instance) -> bool {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let account = self.controller.directory.account_of(namespace);
        account.is_some_and(|account| !account.size_quotas().is_unlimited())
    }

    /// Whether the outbox is so full that the instance must wait for deliveries to be recorded.
    pub(super) fn is_congested(&self, instance: &Instance) -> bool {
        let outbox = instance.status.iter().flat_map(|status| &status.outbox);
        let unsettled = outbox.filter(|entry| !self.controller.outbox.is_settled(&entry.id));
        !instance.is_deleting() && unsettled.count() >= MAX_OUTBOX
    }

    /// Decides whether the instance may be reconciled.
    pub(super) fn gate(&self, instance: &Instance) -> Gate {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let Some(account) = self.controller.directory.account_of(namespace) else {
            return Gate::NoAccount(format!(
                "namespace {namespace} belongs to no Account, so the instance is ignored; create an Account with spec.namespace {namespace}"
            ));
        };
        let accepted = is_accepted(instance);
        if !accepted && let Some(refusal) = self.copy(instance) {
            return Gate::InvalidSpec(refusal);
        }
        let catalogue = self.controller.catalogue.current();
        if let Some(message) = self.lost_region(instance, &catalogue) {
            return Gate::NoRegion(message);
        }
        let complaint = self.complaint(instance, accepted, &catalogue);
        if accepted {
            // The only possible complaint is about the image to install.
            let refused = Refused {
                installation: complaint,
                plan: self.room.refusal(&account, instance),
                power: kept_off(&account),
            };
            return refused.gate();
        }
        let refusal = match complaint.or_else(|| kept_off(&account)) {
            Some(refusal) => {
                self.room.forget(instance);
                Some(refusal)
            }
            None => self.room.refusal(&account, instance),
        };
        refusal.map_or(Gate::Open, Gate::InvalidSpec)
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

    /// Why nothing can be said about an accepted instance's server: the catalogue lacks its region, or has it with servers of another
    /// kind.
    fn lost_region(&self, instance: &Instance, catalogue: &Catalogue) -> Option<String> {
        let status = instance.status.as_ref().filter(|status| status.state.is_some())?;
        let region = &instance.spec.region;
        let is_real = status.provider_state.contains_key(PROVIDER);
        let why = match catalogue.offer(region) {
            None => "the catalogue does not have it",
            Some(offer) if offer.simulated && is_real => {
                "the catalogue says that its servers are simulated, but this one is real"
            }
            Some(_) => return None,
        };
        if self.lost_regions.lock().insert(region.clone()) {
            tracing::error!(
                region,
                instance = key(instance),
                "there are instances in a region that is not available: {why}; nothing is done about them until the catalogue is mended"
            );
        }
        Some(format!(
            "region {region} is not available at the moment; the server is left as it is"
        ))
    }

    /// Checks what admission cannot. Keys and region are immutable, so they are checked only until the instance is accepted.
    fn complaint(&self, instance: &Instance, accepted: bool, catalogue: &Catalogue) -> Option<Refusal> {
        let spec = &instance.spec;
        let region = &spec.region;
        let offer = catalogue.offer(region);
        if !accepted {
            for (index, ssh_key) in spec.ssh_keys.iter().enumerate() {
                if let Err(complaint) = validation::ssh_key(ssh_key) {
                    return Some(Refusal::invalid(format!(
                        "spec.sshKeys[{index}] {complaint}; keys are immutable, so delete this instance and create another"
                    )));
                }
            }
            let Some(offer) = offer else {
                let codes = catalogue.region_codes();
                return Some(Refusal::invalid(format!(
                    "spec.region {region} is not available; choose one of {codes}"
                )));
            };
            if spec.private_network.is_some() && !offer.private_networks {
                return Some(Refusal::invalid(format!(
                    "spec.privateNetwork: private networks are not available in region {region}; it is immutable, so delete this instance and create another"
                )));
            }
            if spec.backup_enabled && !offer.backups {
                return Some(Refusal::invalid(format!(
                    "spec.backupEnabled: backups are not available in region {region}; set it to false"
                )));
            }
        }
        if let Some(name) = &spec.restore_from
            && self.will_install(instance)
            && let Some(refusal) = self.cannot_restore(instance, name, catalogue)
        {
            return Some(refusal);
        }
        // An image that is already installed, or that comes with a backup, need not be on offer any more.
        let installed = instance.status.as_ref().and_then(|status| status.image.as_ref());
        let is_installed = accepted && installed == Some(&spec.image);
        let lacks = offer.filter(|offer| !offer.has_image(&spec.image));
        if let Some(offer) = lacks
            && !is_installed
            && spec.restore_from.is_none()
        {
            let images: Vec<_> = offer.images().iter().map(|image| image.id).collect();
            return Some(Refusal::invalid(format!(
                "spec.image {} is not available in region {region}; choose one of {}",
                spec.image,
                images.join(", ")
            )));
        }
        // Last, because it is given an address.
        if accepted {
            return None;
        }
        self.controller.networks.address(instance).err()
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
    fn cannot_restore(&self, instance: &Instance, name: &str, catalogue: &Catalogue) -> Option<Refusal> {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let backup = self.controller.backups.get(namespace, name);
        restore::complaint(name, backup.as_deref(), instance, |from, to| {
            catalogue.moves_backups(from, to)
        })
    }

    /// Asks the provider for whatever the instance needs next. Returns [`LookAgain`] if that takes a slot for suspects, which this
    /// reconcile does not have, or if it is too early. If the provider does not answer right away, a status that has not been stored
    /// yet is stored in the meantime.
    pub(super) async fn ask(
        &self,
        draft: &mut Draft,
        gate: &Gate,
        class: Class,
    ) -> Result<Result<Asked, LookAgain>, CallError> {
        let instance = draft.instance.clone();
        match question(&instance, gate, self.controller.clock.now()) {
            Question::Nothing => return Ok(Ok(Asked::Nothing(Addresses::default()))),
            Question::Addresses => {
                return Ok(Ok(Asked::Nothing(Addresses {
                    private: self.private_address(&instance),
                    ..self.controller.provider.reserve(&instance)
                })));
            }
            Question::Step if self.is_suspect(&instance) && class == Class::Normal => {
                return Ok(Err(LookAgain(Duration::ZERO)));
            }
            Question::Step => {}
        }
        let mut step = pin!(self.step(&instance));
        if draft.unstored().is_none() {
            return step.await;
        }
        if let Ok(asked) = tokio::time::timeout(AT_ONCE, &mut step).await {
            return asked;
        }
        // If it cannot be stored, the step is cancelled and its slot freed.
        let (asked, ()) = tokio::try_join!(step, self.store(draft))?;
        Ok(asked)
    }

    /// The address of an instance in its private network; `None` where the network gives it by itself.
    fn private_address(&self, instance: &Instance) -> Option<String> {
        let catalogue = self.controller.catalogue.current();
        let region = catalogue.kubevirt(&instance.spec.region);
        if region.is_some_and(|region| !region.network.private_networks.has_known_addresses()) {
            return None;
        }
        self.controller.networks.address(instance).ok().flatten()
    }

    /// Has the provider perform one step.
    async fn step(&self, instance: &Instance) -> Result<Result<Asked, LookAgain>, CallError> {
        Ok(match self.user_data_of(instance).await? {
            Ok(user_data) => {
                let user_data = user_data.as_ref().map(Option::as_ref);
                Ok(self.provider_step(instance, user_data).await)
            }
            Err(look_again) => Err(look_again),
        })
    }

    async fn provider_step(
        &self,
        instance: &Instance,
        user_data: Result<Option<&UserData>, &Trouble>,
    ) -> Asked {
        let controller = &self.controller;
        let operation = instance
            .status
            .as_ref()
            .and_then(|status| status.operation.as_ref());
        let account = self.holder_of(instance).map(|holder| holder.id);
        let restored = operation.and_then(|operation| operation.restore_from.as_deref());
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let restored = restored.and_then(|name| controller.backups.get(namespace, name));
        let network = controller.networks.of_instance(instance);
        let address = self.private_address(instance);
        let step = controller.provider.step(Step {
            instance,
            account: account.as_deref().unwrap_or_default(),
            user_data,
            restore: restored.as_deref(),
            network: network.as_deref().map(|network| Membership {
                network,
                address: address.as_deref(),
            }),
            now: controller.clock.now(),
        });
        let span = traces::child("provider step", SpanKind::Client);
        if let (Some(span), Some(operation)) = (&span, operation) {
            span.set("stellage.operation", operation.kind.as_str());
        }
        let (provider, limit) = (&*controller.provider, controller.provider_timeout);
        let region = &instance.spec.region;
        match provider_call::within(provider, region, &controller.metrics, limit, span, step).await {
            Ok(mut observation) => {
                observation.addresses.private.clone_from(&address);
                Asked::Answer(observation)
            }
            Err(error @ ProviderError::Unreachable { .. }) => Asked::Failure(error),
            Err(error) => {
                tracing::warn!(instance = key(instance), %error, "provider call failed");
                Asked::Failure(error)
            }
        }
    }

    /// Whether the last provider call for this instance failed, according to this process or to the status.
    pub(super) fn is_suspect(&self, instance: &Instance) -> bool {
        let conditions = instance
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let ready = conditions::find(conditions, conditions::READY);
        self.backoffs.has_failed(&ObjectRef::of(instance))
            || ready.is_some_and(|ready| ProviderError::is_reason(&ready.reason))
    }
}
