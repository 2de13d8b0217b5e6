//! The health of a webhook's deliveries.

use std::borrow::Cow;

use api::WebhookHealth;
use resources::{
    Webhook,
    conditions::{self, READY},
    webhook::HEALTHY,
};

/// The reason in the conditions of a webhook whose last attempt failed.
const FAILING: &str = "Failing";

/// Why a webhook is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Complaint<'a> {
    /// The reason in the conditions.
    pub reason: &'a str,
    /// The message for `kubectl` users.
    pub message: &'a str,
}

impl<'a> Complaint<'a> {
    /// The reason for programs that use REST, in CamelCase. For a failed attempt it says more than the health does.
    pub fn reason_for_api(&self) -> &'a str {
        match self.reason {
            FAILING => "AttemptFailed",
            reason => reason,
        }
    }

    /// The message for REST clients: without the object's field names, and with a fix through REST.
    pub fn for_api(&self) -> Cow<'a, str> {
        match self.reason {
            "SecretMissing" | "SecretUnusable" => Cow::Borrowed(
                "the signing secret is missing or cannot be used; rotate it to get a new one, or correct its Secret with kubectl if that is your own",
            ),
            _ if self.message.contains("spec.") => Cow::Owned(self.message.replace("spec.", "")),
            _ => Cow::Borrowed(self.message),
        }
    }
}

/// The health of a webhook according to its status, and the reason if it is not healthy. A status of an earlier spec is ignored.
pub fn health(webhook: &Webhook) -> (WebhookHealth, Option<Complaint<'_>>) {
    if let Some(disabled) = webhook.disabled() {
        let complaint = Complaint {
            reason: disabled.reason.as_str(),
            message: &disabled.message,
        };
        return (WebhookHealth::Disabled, Some(complaint));
    }
    let Some(status) = &webhook.status else {
        return (WebhookHealth::Healthy, None);
    };
    let obstacle = conditions::find(&status.conditions, READY)
        .filter(|ready| ready.status == "False" && ready.reason != "Disabled")
        .filter(|ready| ready.observed_generation == webhook.metadata.generation);
    if let Some(obstacle) = obstacle {
        let complaint = Complaint {
            reason: &obstacle.reason,
            message: &obstacle.message,
        };
        return (WebhookHealth::Blocked, Some(complaint));
    }
    let healthy = conditions::find(&status.conditions, HEALTHY).filter(|healthy| healthy.status == "False");
    let failure = match healthy {
        // The disablement has ended, but the status still shows it.
        Some(healthy) if healthy.reason == "Disabled" => status
            .last_failure
            .as_deref()
            .filter(|_| status.last_failure_at > status.last_success_at),
        healthy => healthy.map(|healthy| healthy.message.as_str()),
    };
    if let Some(message) = failure {
        let complaint = Complaint {
            reason: FAILING,
            message,
        };
        return (WebhookHealth::Failing, Some(complaint));
    }
    (WebhookHealth::Healthy, None)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use resources::testing;

    fn condition(type_: &str, status: &str, reason: &str) -> Value {
        json!({
            "type": type_, "status": status, "reason": reason, "message": format!("spec.{reason}"),
            "lastTransitionTime": "2026-11-21T10:00:00Z", "observedGeneration": 3,
        })
    }

    fn webhook(status: &Value) -> Webhook {
        testing::webhook(json!({ "metadata": { "generation": 3 }, "status": status }))
    }

    fn health_of(status: &Value) -> (WebhookHealth, Option<String>) {
        let webhook = webhook(status);
        let (health, complaint) = health(&webhook);
        (
            health,
            complaint.map(|complaint| complaint.for_api().into_owned()),
        )
    }

    #[test]
    fn health_follows_from_the_status() {
        let failed = "2026-11-21T10:00:00Z";
        let good = [
            condition("Ready", "True", "Active"),
            condition("Healthy", "True", "NotTried"),
        ];
        assert_eq!(
            health_of(&json!({ "conditions": good })),
            (WebhookHealth::Healthy, None)
        );
        assert_eq!(health_of(&json!({})), (WebhookHealth::Healthy, None));
        let blocked = [
            condition("Ready", "False", "InvalidURL"),
            condition("Healthy", "False", "Failing"),
        ];
        assert_eq!(
            health_of(&json!({ "conditions": blocked, "lastFailureAt": failed })),
            (WebhookHealth::Blocked, Some("InvalidURL".to_owned()))
        );
        let failing = [
            condition("Ready", "True", "Active"),
            condition("Healthy", "False", "Failing"),
        ];
        assert_eq!(
            health_of(&json!({ "conditions": failing, "lastFailureAt": failed })),
            (WebhookHealth::Failing, Some("Failing".to_owned()))
        );
        for (conditions, reason) in [(blocked, "InvalidURL"), (failing, "AttemptFailed")] {
            let webhook = webhook(&json!({ "conditions": conditions }));
            assert_eq!(health(&webhook).1.unwrap().reason_for_api(), reason);
        }
    }

    #[test]
    fn what_the_status_says_of_an_earlier_spec_does_not_count() {
        let mut blocked = condition("Ready", "False", "InvalidURL");
        blocked["observedGeneration"] = json!(2);
        assert_eq!(
            health_of(&json!({ "conditions": [blocked] })),
            (WebhookHealth::Healthy, None)
        );
        let ended = [
            condition("Ready", "False", "Disabled"),
            condition("Healthy", "False", "Disabled"),
        ];
        let status = json!({
            "conditions": ended, "lastFailureAt": "2026-11-21T10:00:00Z", "lastFailure": "the receiver answered 500",
        });
        assert_eq!(
            health_of(&status),
            (
                WebhookHealth::Failing,
                Some("the receiver answered 500".to_owned())
            ),
            "the disablement was ended, and nothing has succeeded since"
        );
    }

    #[test]
    fn a_secret_that_is_missing_can_be_rotated_through_the_api() {
        let missing = [condition("Ready", "False", "SecretMissing")];
        let (health, message) = health_of(&json!({ "conditions": missing }));
        assert!(health == WebhookHealth::Blocked && message.unwrap().contains("rotate"));
    }
}
