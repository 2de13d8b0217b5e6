//! The operations: each is one guarded patch of the spec, as in REST.

use std::cell::Cell;

use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::Value;

use crate::{
    CliError,
    change::change,
    connect::Cluster,
    objects,
    program::program,
    wait::{self, Progress, Waiting},
};
use api::ChangeInstance;
use domain::{
    instance::{Action, DoesNotFit, Installation, changed_spec, current, disk_of},
    nonce::instance_nonce,
};
use resources::{
    Instance, InstanceSpec, InstanceState, Plan,
    conditions::{self, READY, STALLED},
    merge_patch,
};

/// An operation on an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Start, stop, poweroff or reboot.
    Power(Action),
    /// A change of plan, now or with the next reboot.
    Resize {
        plan: Plan,
        /// Whether to leave a running server running until its next reboot.
        on_reboot: bool,
    },
    /// A reinstallation.
    Rebuild(Installation),
}

/// How an operation ended.
pub(super) struct Ended {
    /// The instance after the operation.
    pub(super) instance: Instance,
    /// The result as a message.
    pub(super) message: String,
}

impl Operation {
    const fn action(&self) -> Action {
        match self {
            Self::Power(action) => *action,
            Self::Resize { .. } => Action::ChangePlan,
            Self::Rebuild(_) => Action::Rebuild,
        }
    }

    /// The name of the operation's command.
    const fn word(&self) -> &'static str {
        match self {
            Self::Resize { .. } => "resize",
            _ => self.action().as_str(),
        }
    }

    /// The patch that requests the operation; `None` if there is nothing to change, an error if the instance's state does not
    /// allow it.
    fn patch(&self, instance: &Instance, now: Timestamp) -> Result<Option<Value>, CliError> {
        let spec = self.spec(instance, now)?;
        Ok(merge_patch(&instance.metadata, &instance.spec, &spec, &[]))
    }

    fn spec(&self, instance: &Instance, now: Timestamp) -> Result<InstanceSpec, CliError> {
        let unsuitable = || wrong_state(self, instance);
        if let Self::Resize { plan, on_reboot } = self {
            let change = ChangeInstance {
                plan: Some(*plan),
                reboot: Some(!on_reboot),
                ..ChangeInstance::default()
            };
            return changed_spec(&change, instance).map_err(|_| unsuitable());
        }
        let is_allowed = |state| self.action().allowed_from().contains(&state);
        if !state(instance).is_some_and(is_allowed) {
            return Err(unsuitable());
        }
        let mut spec = instance.spec.clone();
        let nonce = instance_nonce(now, &spec);
        if let Self::Rebuild(installation) = self {
            let requested = installation.request(&mut spec, disk_of(instance));
            requested.map_err(|error| not_restorable(instance, error))?;
        }
        self.action().request(&mut spec, &nonce);
        Ok(spec)
    }

    /// What the operation destroys; `None` if nothing is lost.
    fn destroys(&self, instance: &Instance) -> Option<String> {
        let which = || {
            let (name, namespace) = (instance.name_any(), instance.namespace().unwrap_or_default());
            format!("instance {name} in namespace {namespace}")
        };
        match self {
            Self::Power(Action::PowerOff) => Some(format!(
                "cutting the power of {}; what it has not written to its disk is lost",
                which()
            )),
            Self::Rebuild(_) => Some(format!("erasing the disk of {}", which())),
            _ => None,
        }
    }

    /// The message for an operation that has been requested.
    fn begun(&self, instance: &Instance) -> String {
        let name = instance.name_any();
        match self {
            Self::Power(Action::Start) => format!("instance {name} is being started"),
            Self::Power(Action::Stop) => format!("instance {name} is being shut down"),
            Self::Power(Action::PowerOff) => format!("the power of instance {name} is being cut"),
            Self::Power(_) => format!("instance {name} is being rebooted"),
            Self::Rebuild(Installation::Image(image)) => {
                format!("instance {name} is being reinstalled from {image}")
            }
            Self::Rebuild(Installation::Backup(backup)) => {
                format!("instance {name} is being restored from backup {}", backup.id)
            }
            Self::Resize { plan, .. } if state(instance) == Some(InstanceState::Resizing) => {
                format!("instance {name} is changing to plan {}", plan.as_str())
            }
            Self::Resize { plan, .. } => settled(instance, *plan),
        }
    }

    /// The message for a completed operation.
    fn done(&self, instance: &Instance) -> String {
        match self {
            Self::Resize { plan, .. } => settled(instance, *plan),
            _ => format!(
                "instance {} is {}",
                instance.name_any(),
                state(instance).map_or("gone", InstanceState::as_str)
            ),
        }
    }
}

/// The error for a backup that does not fit on the instance's disk.
fn not_restorable(instance: &Instance, error: DoesNotFit) -> CliError {
    CliError::Refused {
        doing: format!("restore the backup to instance {}", instance.name_any()),
        reason: format!("the backup {error}"),
    }
}

/// The message for a plan change that is complete, or waiting for a reboot.
fn settled(instance: &Instance, plan: Plan) -> String {
    let name = instance.name_any();
    let in_effect = instance.status.as_ref().and_then(|status| status.plan);
    if in_effect == Some(plan) {
        format!("instance {name} has plan {}", plan.as_str())
    } else {
        format!(
            "instance {name} changes to plan {} with its next reboot, or stop and start",
            plan.as_str()
        )
    }
}

/// Requests an operation, and with `--wait` waits until it is done.
pub(super) async fn operate(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    operation: &Operation,
    waiting: Waiting,
) -> Result<Ended, CliError> {
    let said = Cell::new(false);
    let decide = |instance: &Instance| -> Result<Option<Value>, CliError> {
        let patch = operation.patch(instance, Timestamp::now())?;
        if let (Some(_), Some(what)) = (&patch, operation.destroys(instance))
            && !said.replace(true)
        {
            cluster.announce(&what);
        }
        Ok(patch)
    };
    let instance = change(cluster, namespace, name, operation.word(), decide).await?;
    if !waiting.wait {
        let message = operation.begun(&instance);
        return Ok(Ended { instance, message });
    }
    let api = Api::namespaced(cluster.client.clone(), namespace);
    let instance = wait::until_done(api, instance, waiting.timeout, progress).await?;
    let message = operation.done(&instance);
    Ok(Ended { instance, message })
}

/// The state as shown by REST, which reflects a new request immediately. `None` if the instance is not managed, because its
/// namespace belongs to no account.
fn state(instance: &Instance) -> Option<InstanceState> {
    let is_orphan = instance
        .status
        .as_ref()
        .is_some_and(|status| status.state.is_none() && !status.conditions.is_empty());
    if is_orphan {
        return None;
    }
    current(instance).state
}

fn progress(instance: &Instance) -> Progress {
    let status = instance.status.clone().unwrap_or_default();
    let is_stalled = conditions::is_true(&status.conditions, STALLED);
    Progress::of(
        instance,
        status.observed_generation,
        &status.conditions,
        READY,
        is_stalled,
    )
}

/// The error if the instance's state does not allow the operation: the state, the allowed ones, and the fix.
fn wrong_state(operation: &Operation, instance: &Instance) -> CliError {
    let (name, namespace) = (instance.name_any(), instance.namespace().unwrap_or_default());
    let what = format!("instance {name}");
    let look = objects::describe(instance);
    let Some(state) = state(instance) else {
        let status = instance.status.as_ref();
        let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
        return CliError::WrongState {
            what,
            why: format!("is not managed: {}", ready.map_or("", |ready| &ready.message)),
            fix: "The operator will manage it once that is fixed.".to_owned(),
        };
    };
    let allowed: Vec<_> = operation
        .action()
        .allowed_from()
        .iter()
        .map(|state| state.as_str())
        .collect();
    let why = format!(
        "is {state}; {} is allowed from {}",
        operation.word(),
        allowed.join(", ")
    );
    let fix = match (operation.action(), state) {
        (_, InstanceState::Deleting) => "A deletion cannot be stopped.".to_owned(),
        (Action::Start, InstanceState::Running)
        | (Action::Stop, InstanceState::Stopped | InstanceState::Stopping) => {
            "There is nothing to do.".to_owned()
        }
        (Action::PowerOff, InstanceState::Stopped) => "Its power is already off.".to_owned(),
        (Action::Reboot, InstanceState::Stopped) => {
            format!(
                "Start it instead: {} instance start {name} -n {namespace}",
                program()
            )
        }
        (_, InstanceState::Error) => {
            format!("`{look}` shows why; start, poweroff, reboot, resize and rebuild are allowed.")
        }
        _ => format!("Wait until the present operation is done; `{look}` shows its progress."),
    };
    CliError::WrongState { what, why, fix }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::{PowerState, testing};

    fn now() -> Timestamp {
        "2026-11-21T10:05:00Z".parse().unwrap()
    }

    fn instance(state: &str, power: &str) -> Instance {
        testing::instance(json!({
            "metadata": { "namespace": "ada", "resourceVersion": "7", "generation": 3 },
            "spec": { "powerState": power, "rebootRequestedAt": "2026-11-21T10:05:00.000000Z" },
            "status": {
                "state": state, "power": power, "powerState": power, "plan": "starter", "image": "debian-13",
                "rebootRequestedAt": "2026-11-21T10:05:00.000000Z", "observedGeneration": 3,
            },
        }))
    }

    fn patch_of(operation: &Operation, instance: &Instance) -> Option<Value> {
        operation.patch(instance, now()).unwrap().map(|patch| {
            assert_eq!(patch["metadata"]["resourceVersion"], "7");
            patch["spec"].clone()
        })
    }

    #[test]
    fn patches_have_a_new_nonce_each_time() {
        let nonce = "2026-11-21T10:05:00.000001Z";
        let (on, off) = (instance("running", "Running"), instance("stopped", "Stopped"));
        for (operation, instance, expected) in [
            (
                Operation::Power(Action::Reboot),
                &on,
                json!({ "rebootRequestedAt": nonce }),
            ),
            (
                Operation::Power(Action::Stop),
                &on,
                json!({ "powerState": "Stopped" }),
            ),
            (
                Operation::Power(Action::PowerOff),
                &on,
                json!({ "powerState": "Stopped", "powerOffRequestedAt": nonce }),
            ),
            (
                Operation::Power(Action::Start),
                &off,
                json!({ "powerState": "Running", "startRequestedAt": nonce }),
            ),
            (
                Operation::Rebuild(Installation::Image("debian-12".to_owned())),
                &on,
                json!({ "image": "debian-12", "rebuildRequestedAt": nonce }),
            ),
            (
                Operation::Resize {
                    plan: Plan::Business,
                    on_reboot: false,
                },
                &on,
                json!({ "plan": "business" }),
            ),
            (
                Operation::Resize {
                    plan: Plan::Business,
                    on_reboot: true,
                },
                &on,
                json!({ "plan": "business", "planOnReboot": "business" }),
            ),
        ] {
            assert_eq!(patch_of(&operation, instance), Some(expected), "{operation:?}");
        }
        let same = Operation::Resize {
            plan: Plan::Starter,
            on_reboot: false,
        };
        assert_eq!(patch_of(&same, &on), None);
    }

    #[test]
    fn an_unsuitable_state_is_refused_with_the_allowed_ones() {
        let refusal = |operation: Operation, state: &str, power: &str| {
            let error = operation.patch(&instance(state, power), now()).unwrap_err();
            assert!(matches!(error, CliError::WrongState { .. }));
            error.to_string()
        };
        assert_eq!(
            refusal(Operation::Power(Action::Start), "running", "Running"),
            "instance web is running; start is allowed from stopped, error\nThere is nothing to do."
        );
        let reboot = refusal(Operation::Power(Action::Reboot), "stopped", "Stopped");
        assert!(reboot.contains("instance start web -n ada"), "{reboot}");
        let resize = Operation::Resize {
            plan: Plan::Business,
            on_reboot: true,
        };
        let resize = refusal(resize, "rebuilding", "Running");
        assert!(
            resize.contains("is rebuilding; resize is allowed from running, stopped, error"),
            "{resize}"
        );
    }

    #[test]
    fn a_request_shows_before_the_controller_has_seen_it() {
        let mut stopping = instance("running", "Running");
        stopping.spec.power_state = PowerState::Stopped;
        stopping.metadata.generation = Some(4);
        assert_eq!(state(&stopping), Some(InstanceState::Stopping));
    }

    #[test]
    fn an_instance_of_no_account_is_not_operated_and_says_why() {
        let mut orphan = instance("running", "Running");
        orphan.status = serde_json::from_value(json!({ "conditions": [{
            "type": "Ready", "status": "False", "reason": "NoAccount", "message": "namespace ada belongs to no Account",
            "lastTransitionTime": "2026-11-21T10:03:00Z",
        }]}))
        .unwrap();
        let error = Operation::Power(Action::Stop)
            .patch(&orphan, now())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("instance web is not managed: namespace ada belongs to no Account\n"),
            "{error}"
        );
    }

    #[test]
    fn waiting_ends_with_a_status_of_the_current_spec_only() {
        let with = |observed: i64, ready: &str, stalled: &str| {
            let mut instance = instance("running", "Running");
            let status = instance.status.as_mut().unwrap();
            status.observed_generation = Some(observed);
            let condition = |type_: &str, status: &str| {
                json!({
                    "type": type_, "status": status, "reason": "Reason", "message": "m",
                    "lastTransitionTime": "2026-11-21T10:00:00Z",
                })
            };
            let list = json!([condition("Ready", ready), condition("Stalled", stalled)]);
            status.conditions = serde_json::from_value(list).unwrap();
            progress(&instance)
        };
        assert_eq!(with(3, "True", "False"), Progress::Done);
        assert!(matches!(with(2, "True", "False"), Progress::Pending(_)));
        assert_eq!(
            with(3, "False", "False"),
            Progress::Pending("Reason: m".to_owned())
        );
        assert_eq!(
            with(3, "False", "True"),
            Progress::Failed("is not ready: Reason: m".to_owned())
        );
        // The provider cannot be reached.
        assert!(matches!(with(3, "Unknown", "False"), Progress::Pending(_)));
    }
}
