//! Why an instance differs from its spec, in words for the account holder.

use super::{
    requests::current,
    summary::{in_progress, plan_change_pending},
    user_data::{USER_DATA_INVALID, USER_DATA_MISSING},
};
use resources::{
    Instance, InstanceState, InstanceStatus,
    conditions::{self, READY},
    refusal::Cause,
};

/// Why an instance differs from its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// CamelCase reason, as in the conditions.
    pub reason: String,
    /// Message for API users; unlike a condition's, it names no fields of the Kubernetes object.
    pub message: String,
}

impl Explanation {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Why an instance differs from its spec, as if the controller had already seen that spec; `None` if it does not differ.
pub fn explain(instance: &Instance) -> Option<Explanation> {
    let status = current(instance);
    if let Some(operation) = &status.operation
        && status.state != Some(InstanceState::Error)
    {
        // If the controller is already working on this operation, its conditions say more, for example that the
        // provider does not answer.
        let stored = instance.status.as_ref();
        let is_stored = stored.and_then(|stored| stored.operation.as_ref()) == Some(operation);
        let from_condition = stored.filter(|_| is_stored).and_then(of_condition);
        let (reason, message) = in_progress(operation.kind);
        return from_condition.or_else(|| Some(Explanation::new(reason, message)));
    }
    let pending = status.plan.filter(|plan| *plan != instance.spec.plan);
    of_condition(&status).or_else(|| {
        pending
            .map(|plan| Explanation::new("PlanChangePending", plan_change_pending(instance.spec.plan, plan)))
    })
}

fn of_condition(status: &InstanceStatus) -> Option<Explanation> {
    let ready = conditions::find(&status.conditions, READY).filter(|ready| ready.status != "True")?;
    let message = match ready.reason.as_str() {
        "GuestShutdown" => "the guest shut itself down; start the instance to power it on again".to_owned(),
        "Stopped" => "the server is stopped; start the instance to power it on again".to_owned(),
        "StoppedOutside" => {
            "the server was stopped by its platform's staff; start the instance to power it on again"
                .to_owned()
        }
        // The condition names a Secret, which REST does not have.
        USER_DATA_MISSING => {
            "the server is not installed, because its user data is missing; whoever manages the instance in Kubernetes can add it, or delete the instance and create another".to_owned()
        }
        USER_DATA_INVALID => {
            "the server is not installed, because its user data cannot be used; whoever manages the instance in Kubernetes can correct it, or delete the instance and create another".to_owned()
        }
        // The provider's own message is for administrators.
        "ProviderUnavailable" | "ProviderNonsense" => {
            "the provider cannot do this at the moment; it is being retried".to_owned()
        }
        reason => match Cause::of(reason) {
            Some(cause) => of_refusal(cause, &ready.message),
            None => ready.message.clone(),
        },
    };
    Some(Explanation::new(&ready.reason, message))
}

/// The message for kubectl names fields and kinds that REST does not have.
fn of_refusal(cause: Cause, message: &str) -> String {
    let what = match cause {
        Cause::Spec => return message.replace("spec.", ""),
        Cause::OriginTaken | Cause::QuotaExceeded | Cause::AccountSuspended => return message.to_owned(),
        Cause::PrivateNetworkUnavailable => {
            return "the private network that it is to be in does not exist in its region; delete the instance and create another".to_owned();
        }
        Cause::PrivateNetworkNotReady => {
            return "the private network that it is to be in is being made, or cannot be; if it cannot, the network's own message says why".to_owned();
        }
        Cause::PrivateNetworkFull => {
            return "the private network that it is to be in has no free address; delete another instance in it, or delete this one and create it in another network".to_owned();
        }
        Cause::BackupUnavailable => "is gone or was not completed",
        Cause::BackupImageDiffers => "has another image than it is to have",
        Cause::BackupTooLarge => "needs the disk of a larger plan",
        Cause::BackupRegionDiffers => "is in another region",
    };
    format!(
        "the backup that it is to be restored from {what}; rebuild it from an image or another backup, or, if it was never installed, delete it and create another"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(spec: &Value, status: &Value) -> Instance {
        let mut object = json!({
            "metadata": { "name": "web", "uid": "u", "generation": 2 },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "powerState": "Running" },
            "status": {
                "state": "running", "power": "Running", "powerState": "Running", "plan": "starter", "image": "debian-13",
                "conditions": [ready("True", "Running", "the server is running")],
            },
        });
        for (of, changes) in [("spec", spec), ("status", status)] {
            for (field, value) in changes.as_object().unwrap() {
                object[of][field] = value.clone();
            }
        }
        serde_json::from_value(object).unwrap()
    }

    fn ready(status: &str, reason: &str, message: &str) -> Value {
        json!({
            "type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        })
    }

    fn explained(spec: &Value, status: &Value) -> Option<(String, String)> {
        explain(&instance(spec, status)).map(|explanation| (explanation.reason, explanation.message))
    }

    fn reason(spec: &Value, status: &Value) -> Option<String> {
        explained(spec, status).map(|(reason, _)| reason)
    }

    #[test]
    fn an_instance_that_is_as_asked_needs_no_explanation() {
        assert_eq!(explained(&json!({}), &json!({})), None);
        let stopped = json!({
            "state": "stopped", "power": "Stopped", "powerState": "Stopped",
            "conditions": [ready("True", "Stopped", "the server is stopped, as requested")],
        });
        assert_eq!(explained(&json!({ "powerState": "Stopped" }), &stopped), None);
    }

    #[test]
    fn an_operation_is_explained_before_the_controller_has_seen_it() {
        assert_eq!(
            reason(&json!({ "powerState": "Stopped" }), &json!({})).as_deref(),
            Some("Stopping")
        );
        let mut new = instance(&json!({}), &json!({}));
        new.status = None;
        assert_eq!(explain(&new).unwrap().reason, "Provisioning");
    }

    #[test]
    fn trouble_with_an_operation_is_explained_rather_than_the_operation() {
        let status = json!({
            "state": "rebooting",
            "operation": {
                "kind": "Reboot", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "starter",
                "image": "debian-13",
            },
            "conditions": [ready("False", "ProviderTimeout", "the provider did not answer within 10 s")],
        });
        assert_eq!(
            explained(&json!({}), &status),
            Some((
                "ProviderTimeout".to_owned(),
                "the provider did not answer within 10 s".to_owned()
            ))
        );
    }

    #[test]
    fn an_error_says_why() {
        let status = json!({
            "state": "error", "conditions": [ready("False", "ProvisioningFailed", "no capacity in fr-par-1")],
        });
        assert_eq!(
            explained(&json!({}), &status).unwrap(),
            (
                "ProvisioningFailed".to_owned(),
                "no capacity in fr-par-1".to_owned()
            )
        );
    }

    #[test]
    fn a_server_that_went_off_can_be_started_without_naming_fields() {
        for why in ["GuestShutdown", "Stopped"] {
            let status = json!({
                "state": "stopped", "power": "Stopped",
                "conditions": [ready("False", why, "start it with a new spec.startRequestedAt")],
            });
            let (reason, message) = explained(&json!({}), &status).unwrap();
            assert!(reason == why && !message.contains("spec."), "{message}");
        }
    }

    #[test]
    fn a_refused_spec_is_explained_rather_than_what_it_asks_for() {
        let refused = json!({
            "observedGeneration": 2, "state": null,
            "conditions": [ready("False", "InvalidSpec", "spec.sshKeys[0] must be an SSH public key")],
        });
        let (reason, message) = explained(&json!({ "powerState": "Stopped" }), &refused).unwrap();
        assert_eq!(
            (reason.as_str(), message.as_str()),
            ("InvalidSpec", "sshKeys[0] must be an SSH public key")
        );
    }

    #[test]
    fn a_backup_or_network_that_cannot_be_used_is_explained_by_its_cause_in_the_words_of_rest() {
        for (cause, says) in [
            (Cause::BackupUnavailable, "is gone or was not completed"),
            (Cause::BackupImageDiffers, "another image"),
            (Cause::BackupTooLarge, "a larger plan"),
            (Cause::BackupRegionDiffers, "in another region"),
            (Cause::PrivateNetworkUnavailable, "does not exist in its region"),
            (Cause::PrivateNetworkNotReady, "is being made, or cannot be"),
            (Cause::PrivateNetworkFull, "has no free address"),
        ] {
            let refused = json!({
                "observedGeneration": 2, "state": null,
                "conditions": [ready("False", cause.reason(), "spec.restoreFrom x, spec.privateNetwork y")],
            });
            let (reason, message) = explained(&json!({}), &refused).unwrap();
            assert_eq!(reason, cause.reason());
            assert!(message.contains(says) && !message.contains("spec."), "{message}");
        }
        let of_another_field = json!({
            "observedGeneration": 2, "state": null,
            "conditions": [ready("False", "InvalidSpec", "spec.image x is unknown; or set spec.restoreFrom")],
        });
        let (_, message) = explained(&json!({}), &of_another_field).unwrap();
        assert_eq!(message, "image x is unknown; or set restoreFrom");
    }

    #[test]
    fn the_providers_own_words_are_not_passed_on() {
        let status = json!({
            "state": "error",
            "conditions": [ready("False", "ProviderUnavailable", "the provider reports: vm-17.internal: 500")],
        });
        let (_, message) = explained(&json!({}), &status).unwrap();
        assert!(!message.contains("internal"), "{message}");
    }

    #[test]
    fn a_plan_that_waits_for_a_reboot_is_explained() {
        let spec = json!({ "plan": "business", "planOnReboot": "business" });
        let (reason, message) = explained(&spec, &json!({})).unwrap();
        assert_eq!(reason, "PlanChangePending");
        assert!(
            message.contains("business") && message.contains("starter"),
            "{message}"
        );
    }
}
