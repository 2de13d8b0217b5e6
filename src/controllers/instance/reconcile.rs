//! One pass over one instance: ask, decide, write.

use std::{sync::Arc, time::Duration};

use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
    runtime::controller::Action,
};
use serde_json::json;
use thiserror::Error;
use tokio::{sync::Semaphore, time::Instant};

use super::InstanceController;
use crate::{
    events::payload::User,
    lifecycle::{Audience, Gate, Seen, decide, project},
    providers::{Addresses, Observation, Provider, ProviderError},
    resources::{Instance, InstanceStatus, conditions, instance::FINALIZER, validation},
    runtime::{
        ReconcileQueue,
        backoff::Backoffs,
        client::{CallError, bounded, this_version},
        metrics::{KindLabels, ProviderLabels, ReconcileLabels},
        watch::key,
    },
};

/// Field manager of what the controller writes.
const FIELD_MANAGER: &str = "stellage-controller";

/// Status writes of one pass. A server goes through fewer steps at once even when nothing takes time; what is left is
/// done in the next pass.
const MAX_STEPS: usize = 6;

/// How soon to look again after a write was refused because the object had changed. Its new version comes through the
/// watch, usually sooner.
const AFTER_CONFLICT: Duration = Duration::from_secs(1);

/// Events of one instance that may be on their way before it is held back. Each has some 500 bytes, and an object of etcd
/// at most 1.5 MiB.
const MAX_OUTBOX: usize = 32;
/// How soon to look again at an instance that is held back.
const CONGESTED: Duration = Duration::from_secs(1);

/// Why a pass ended early.
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
    /// Bounds writes under way.
    pub(super) writes: Semaphore,
    /// Bounds provider calls for instances whose last one failed.
    pub(super) suspects: Semaphore,
    pub(super) backoffs: Backoffs,
}

pub(super) async fn reconcile<P: Provider>(
    instance: Arc<Instance>,
    reconciler: Arc<Reconciler<P>>,
) -> Result<Action, Arc<ReconcileError>> {
    let metrics = &reconciler.controller.metrics;
    let kind = KindLabels { kind: "Instance" };
    let depth = metrics.queue_depth.get_or_create_owned(&kind);
    depth.inc();
    let begun = Instant::now();
    let result = reconciler.pass(instance).await;
    depth.dec();
    metrics
        .reconcile_seconds
        .get_or_create(&kind)
        .observe(begun.elapsed().as_secs_f64());
    let outcome = result.as_ref().map_or_else(ReconcileError::label, |_| "ok");
    metrics
        .reconciles
        .get_or_create(&ReconcileLabels {
            kind: "Instance",
            outcome,
        })
        .inc();
    result.map_err(Arc::new)
}

pub(super) fn on_error<P: Provider>(
    instance: Arc<Instance>,
    error: &Arc<ReconcileError>,
    reconciler: Arc<Reconciler<P>>,
) -> Action {
    let ReconcileError::Call(call) = &**error;
    if call.is_not_found() {
        reconciler.backoffs.reset(uid(&instance));
        return Action::await_change();
    }
    if call.is_conflict() {
        return Action::requeue(AFTER_CONFLICT);
    }
    let delay = reconciler.backoffs.next(uid(&instance));
    tracing::warn!(instance = key(&*instance), %error, retry_in = ?delay, "reconcile failed");
    Action::requeue(delay)
}

fn uid(instance: &Instance) -> &str {
    instance.metadata.uid.as_deref().unwrap_or_default()
}

impl<P: Provider> Reconciler<P> {
    async fn pass(&self, instance: Arc<Instance>) -> Result<Action, ReconcileError> {
        let mut instance = self.queue.freshest(instance);
        for _ in 0..MAX_STEPS {
            if instance.is_deleting() && !instance.has_finalizer() {
                return Ok(Action::await_change());
            }
            if self.is_congested(&instance) {
                return Ok(Action::requeue(CONGESTED));
            }
            let holder = self.holder_of(&instance);
            let gate = self.gate(&instance, holder.as_ref());
            if gate == Gate::Open && !instance.has_finalizer() {
                instance = self.add_finalizer(&instance).await?;
            }
            let asked = match self.ask(&instance, &gate).await {
                Asked::Later(delay) => return Ok(Action::requeue(delay)),
                asked => asked,
            };
            // What was asked may have taken its time. A spec that changed meanwhile is decided on as it is now; the answer
            // still belongs to the status, which nobody else writes.
            let fresh = self.queue.freshest(Arc::clone(&instance));
            if fresh.status == instance.status {
                instance = fresh;
            }
            let now = self.controller.clock.now();
            let audience = Audience {
                user: holder.as_ref(),
                is_settled: &|event_id| self.controller.outbox.is_settled(event_id),
            };
            let timings = &self.controller.timings;
            let decision = decide(&instance, &gate, asked.seen(), audience, now, timings);
            if decision.finished {
                self.finish(&instance).await?;
                return Ok(Action::await_change());
            }
            let unchanged = instance.status.as_ref() == Some(&decision.status);
            if !unchanged {
                let before = instance.status.as_ref().map_or(0, |status| status.event_sequence);
                instance = self.write_status(&instance, &decision.status).await?;
                self.controller.outbox.recorded(&instance, before);
                for note in &decision.notes {
                    let action = decision
                        .status
                        .operation
                        .as_ref()
                        .map_or("Reconcile", |op| op.kind.as_str());
                    self.controller.events.publish(
                        &*instance,
                        note.warning,
                        note.reason,
                        action,
                        &note.message,
                    );
                }
            }
            if decision.retry {
                return Ok(Action::requeue(self.backoffs.next(uid(&instance))));
            }
            self.backoffs.reset(uid(&instance));
            if unchanged || decision.status.operation.is_none() {
                return Ok(decision
                    .recheck_after
                    .map_or_else(Action::await_change, Action::requeue));
            }
        }
        Ok(Action::requeue(Duration::ZERO))
    }

    fn holder_of(&self, instance: &Instance) -> Option<User> {
        (self.controller.holder_of)(instance.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Whether so many of its events are still on their way that nothing more shall happen to it: they cannot be written
    /// down elsewhere, or the API server does not keep up.
    fn is_congested(&self, instance: &Instance) -> bool {
        let outbox = instance.status.iter().flat_map(|status| &status.outbox);
        let unsettled = outbox.filter(|entry| !self.controller.outbox.is_settled(&entry.id));
        !instance.is_deleting() && unsettled.count() >= MAX_OUTBOX
    }

    /// Whether the instance may be worked on.
    fn gate(&self, instance: &Instance, holder: Option<&User>) -> Gate {
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        if holder.is_none() {
            return Gate::NoAccount(format!(
                "namespace {namespace} belongs to no Account; the instance is left alone until one has spec.namespace {namespace}"
            ));
        }
        let accepted = instance
            .status
            .as_ref()
            .is_some_and(|status| status.state.is_some());
        match self.complaint(instance, accepted) {
            Some(complaint) => Gate::InvalidSpec(complaint),
            None => Gate::Open,
        }
    }

    /// What admission cannot check. Keys and region never change, so they are looked at once.
    fn complaint(&self, instance: &Instance, accepted: bool) -> Option<String> {
        let spec = &instance.spec;
        let catalogue = &self.controller.catalogue;
        if !accepted {
            for (index, ssh_key) in spec.ssh_keys.iter().enumerate() {
                if let Err(complaint) = validation::ssh_key(ssh_key) {
                    return Some(format!(
                        "spec.sshKeys[{index}] {complaint}; create the instance anew, keys are immutable"
                    ));
                }
            }
            if !catalogue.serves_region(&spec.region) {
                let offer = catalogue.regions.join(", ");
                return Some(format!(
                    "spec.region {} is not on offer; choose one of {offer}",
                    spec.region
                ));
            }
        }
        if !catalogue.serves_image(&spec.image) {
            return Some(format!(
                "spec.image {} is not on offer; choose one of {}",
                spec.image,
                catalogue.images.join(", ")
            ));
        }
        None
    }

    /// Asks the provider where there is something to ask.
    async fn ask(&self, instance: &Instance, gate: &Gate) -> Asked {
        let accepted = instance
            .status
            .as_ref()
            .is_some_and(|status| status.state.is_some());
        if *gate != Gate::Open && !instance.is_deleting() {
            return Asked::Nothing(Addresses::default());
        }
        if !accepted {
            let wanted = !instance.is_deleting();
            return Asked::Nothing(if wanted {
                self.controller.provider.reserve(instance)
            } else {
                Addresses::default()
            });
        }
        if self.has_something_to_take_on(instance) {
            return Asked::Nothing(Addresses::default());
        }
        let _suspect = if self.is_suspect(instance) {
            match self.suspects.try_acquire() {
                Ok(permit) => Some(permit),
                Err(_) => return Asked::Later(self.backoffs.pause()),
            }
        } else {
            None
        };
        let limit = self.controller.provider_timeout;
        let begun = Instant::now();
        let step = self
            .controller
            .provider
            .step(instance, self.controller.clock.now());
        let answer = tokio::time::timeout(limit, step)
            .await
            .unwrap_or(Err(ProviderError::Timeout(limit)));
        let metrics = &self.controller.metrics;
        metrics.provider_seconds.observe(begun.elapsed().as_secs_f64());
        let outcome = answer.as_ref().map_or_else(ProviderError::reason, |_| "ok");
        let provider = self.controller.provider.name();
        metrics
            .provider_calls
            .get_or_create(&ProviderLabels { provider, outcome })
            .inc();
        match answer {
            Ok(observation) => Asked::Answer(observation),
            Err(error) => {
                tracing::warn!(instance = key(instance), %error, "provider call failed");
                Asked::Failure(error)
            }
        }
    }

    /// Whether the spec asks for an operation that is not in the status yet: it is written down before the provider is
    /// asked for it, and shows at once even if the provider hangs.
    fn has_something_to_take_on(&self, instance: &Instance) -> bool {
        let asked_for = project(instance, self.controller.clock.now()).operation;
        instance
            .status
            .as_ref()
            .is_some_and(|status| status.operation != asked_for)
    }

    /// Whether the provider's last call for this instance failed, as far as this process or the status knows.
    fn is_suspect(&self, instance: &Instance) -> bool {
        let conditions = instance
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        let ready = conditions::find(conditions, conditions::READY);
        self.backoffs.has_failed(uid(instance))
            || ready.is_some_and(|ready| ready.reason.starts_with("Provider"))
    }

    async fn add_finalizer(&self, instance: &Instance) -> Result<Arc<Instance>, ReconcileError> {
        let finalizers = instance.metadata.finalizers.iter().flatten().map(String::as_str);
        let written = self.patch_finalizers(instance, finalizers.chain([FINALIZER]).collect());
        Ok(self.remember(written.await?))
    }

    /// The server is gone: takes away the finalizer, and any that an earlier version left. Whose others are is theirs.
    async fn finish(&self, instance: &Instance) -> Result<(), ReconcileError> {
        let foreign: Vec<&str> = instance
            .metadata
            .finalizers
            .iter()
            .flatten()
            .map(String::as_str)
            .filter(|f| !f.starts_with("stellage.dev/"))
            .collect();
        if !foreign.is_empty() {
            let note = format!(
                "the server is removed; the object waits for finalizers of others: {}",
                foreign.join(", ")
            );
            tracing::info!(
                instance = key(instance),
                ?foreign,
                "waiting for finalizers of others"
            );
            self.controller
                .events
                .publish(instance, false, "WaitingForFinalizers", "Delete", &note);
        }
        match self.patch_finalizers(instance, foreign).await {
            // Not remembered: the watch may have shown its end already.
            Ok(_) => {}
            Err(ReconcileError::Call(error)) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
        self.controller.provider.release(uid(instance));
        self.backoffs.reset(uid(instance));
        Ok(())
    }

    async fn patch_finalizers(
        &self,
        instance: &Instance,
        list: Vec<&str>,
    ) -> Result<Instance, ReconcileError> {
        let patch = json!({
            "metadata": { "finalizers": list, "resourceVersion": instance.metadata.resource_version, "uid": instance.metadata.uid },
        });
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let _permit = self.writes.acquire().await;
        let api = self.api(instance);
        Ok(bounded(api.patch(name(instance), &params, &Patch::Merge(&patch))).await?)
    }

    /// Writes the status whole, with the version that it was decided on: a stale decision is refused, not applied. A PUT
    /// costs the API server less than server-side apply does, and says the same where one writer owns all of it.
    async fn write_status(
        &self,
        instance: &Instance,
        status: &InstanceStatus,
    ) -> Result<Arc<Instance>, ReconcileError> {
        let object = Instance {
            metadata: this_version(&instance.metadata),
            spec: instance.spec.clone(),
            status: Some(status.clone()),
        };
        let params = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let _permit = self.writes.acquire().await;
        let api = self.api(instance);
        let written = bounded(api.replace_status(self::name(instance), &params, &object)).await?;
        Ok(self.remember(written))
    }

    fn remember(&self, mut written: Instance) -> Arc<Instance> {
        written.metadata.managed_fields = None;
        let written = Arc::new(written);
        self.queue.wrote(Arc::clone(&written));
        written
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

enum Asked {
    Nothing(Addresses),
    Answer(Observation),
    Failure(ProviderError),
    /// No slot for an instance that failed before.
    Later(Duration),
}

impl Asked {
    fn seen(&self) -> Seen<'_> {
        const NONE: &Addresses = &Addresses {
            ipv4: None,
            ipv6: None,
        };
        match self {
            Self::Nothing(addresses) => Seen::NotAsked(addresses),
            Self::Answer(observation) => Seen::Observed(observation),
            Self::Failure(error) => Seen::Failed(error),
            Self::Later(_) => Seen::NotAsked(NONE),
        }
    }
}
