//! Why an instance is not as its account holder asked, in words for the account holder.

use super::{requests::project, summary::in_progress};
use crate::resources::{
    Instance, InstanceState, InstanceStatus,
    conditions::{self, READY},
};

/// Why an instance is not as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// CamelCase, as in the conditions.
    pub reason: String,
    /// For people who use the API: it names no fields of the object.
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

/// Why an instance is not as asked, once the controller has seen its spec; `None` if it is.
pub fn explain(instance: &Instance) -> Option<Explanation> {
    let status = project(instance, jiff::Timestamp::UNIX_EPOCH);
    if let Some(operation) = &status.operation
        && status.state != Some(InstanceState::Error)
    {
        // What the conditions tell of the same operation is more: that the provider does not answer, say.
        let stored = instance.status.as_ref();
        let is_stored = stored.and_then(|stored| stored.operation.as_ref()) == Some(operation);
        let told = stored.filter(|_| is_stored).and_then(of_condition);
        let (reason, message) = in_progress(operation.kind);
        return told.or_else(|| Some(Explanation::new(reason, message)));
    }
    let pending = status.plan.filter(|plan| *plan != instance.spec.plan);
    of_condition(&status).or_else(|| {
        pending.map(|plan| {
            let (wanted, plan) = (instance.spec.plan.as_str(), plan.as_str());
            let message = format!(
                "plan {wanted} takes effect with the next reboot, or stop and start; {plan} is in effect"
            );
            Explanation::new("PlanChangePending", message)
        })
    })
}

fn of_condition(status: &InstanceStatus) -> Option<Explanation> {
    let ready = conditions::find(&status.conditions, READY).filter(|ready| ready.status != "True")?;
    let message = match ready.reason.as_str() {
        "GuestShutdown" => "the guest shut itself down; start the instance to power it on again",
        "Stopped" => "the server is off; start the instance to power it on again",
        _ => &ready.message,
    };
    Some(Explanation::new(&ready.reason, message))
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
                "conditions": [ready("True", "Running", "the server is on")],
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

    fn told(spec: &Value, status: &Value) -> Option<(String, String)> {
        explain(&instance(spec, status)).map(|told| (told.reason, told.message))
    }

    fn reason(spec: &Value, status: &Value) -> Option<String> {
        told(spec, status).map(|(reason, _)| reason)
    }

    #[test]
    fn an_instance_that_is_as_asked_needs_no_explanation() {
        assert_eq!(told(&json!({}), &json!({})), None);
        let stopped = json!({
            "state": "stopped", "power": "Stopped", "powerState": "Stopped",
            "conditions": [ready("True", "Stopped", "the server is off, as asked for")],
        });
        assert_eq!(told(&json!({ "powerState": "Stopped" }), &stopped), None);
    }

    #[test]
    fn an_operation_is_told_before_the_controller_has_seen_it() {
        assert_eq!(
            reason(&json!({ "powerState": "Stopped" }), &json!({})).as_deref(),
            Some("Stopping")
        );
        let mut new = instance(&json!({}), &json!({}));
        new.status = None;
        assert_eq!(explain(&new).unwrap().reason, "Provisioning");
    }

    #[test]
    fn trouble_with_an_operation_is_told_rather_than_the_operation() {
        let status = json!({
            "state": "rebooting",
            "operation": {
                "kind": "Reboot", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "starter",
                "image": "debian-13",
            },
            "conditions": [ready("False", "ProviderTimeout", "the provider did not answer within 10 s")],
        });
        assert_eq!(
            told(&json!({}), &status),
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
            told(&json!({}), &status).unwrap(),
            (
                "ProvisioningFailed".to_owned(),
                "no capacity in fr-par-1".to_owned()
            )
        );
    }

    #[test]
    fn a_guest_that_shut_itself_down_can_be_started_without_naming_fields() {
        let status = json!({
            "state": "stopped", "power": "Stopped",
            "conditions": [ready("False", "GuestShutdown", "start it with a new spec.startRequestedAt")],
        });
        let (reason, message) = told(&json!({}), &status).unwrap();
        assert!(
            reason == "GuestShutdown" && !message.contains("spec."),
            "{message}"
        );
    }

    #[test]
    fn a_plan_that_waits_for_a_reboot_is_told() {
        let spec = json!({ "plan": "business", "planChange": "OnReboot" });
        let (reason, message) = told(&spec, &json!({})).unwrap();
        assert_eq!(reason, "PlanChangePending");
        assert!(
            message.contains("business") && message.contains("starter"),
            "{message}"
        );
    }
}
