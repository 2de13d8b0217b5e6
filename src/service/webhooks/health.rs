//! How the deliveries of a webhook go.

use crate::resources::{
    Webhook,
    conditions::{self, READY},
    webhook::HEALTHY,
};

/// How the deliveries of a webhook go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The last attempt succeeded, or nothing was sent yet.
    Healthy,
    /// The last attempt failed, and is retried.
    Failing,
    /// It cannot be sent to, because of its URL or its Secret.
    Blocked,
    /// Retries were exhausted, or the receiver answered 410.
    Disabled,
}

impl Health {
    /// Every value.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Failing, Self::Blocked, Self::Disabled];

    /// The value as REST spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
            Self::Blocked => "blocked",
            Self::Disabled => "disabled",
        }
    }
}

/// How the deliveries of a webhook go, and if not well why.
pub fn health(webhook: &Webhook) -> (Health, Option<&str>) {
    if let Some(disabled) = webhook.disabled() {
        return (Health::Disabled, Some(&disabled.message));
    }
    let conditions = webhook.status.as_ref().map(|status| status.conditions.as_slice());
    let complaint = |type_| {
        conditions::find(conditions.unwrap_or_default(), type_)
            .filter(|found| found.status == "False")
            // What the status says of a disablement that has just been ended no longer holds.
            .filter(|found| found.reason != "Disabled")
            .map(|found| found.message.as_str())
    };
    if let Some(obstacle) = complaint(READY) {
        (Health::Blocked, Some(obstacle))
    } else if let Some(failure) = complaint(HEALTHY) {
        (Health::Failing, Some(failure))
    } else {
        (Health::Healthy, None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn health_is_what_the_conditions_say_of_the_spec_as_it_is() {
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": reason,
                "lastTransitionTime": "2026-11-21T10:00:00Z",
            })
        };
        let of = |conditions: Vec<Value>| {
            let webhook: Webhook = serde_json::from_value(json!({
                "metadata": { "name": "orders", "generation": 3 },
                "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
                "status": { "conditions": conditions },
            }))
            .unwrap();
            let (health, message) = health(&webhook);
            (health, message.map(str::to_owned))
        };
        let good = [
            condition("Ready", "True", "Active"),
            condition("Healthy", "True", "NotTried"),
        ];
        assert_eq!(of(good.to_vec()), (Health::Healthy, None));
        assert_eq!(of(vec![]), (Health::Healthy, None));
        let blocked = condition("Ready", "False", "InvalidURL");
        let failing = condition("Healthy", "False", "Failing");
        assert_eq!(
            of(vec![blocked, failing.clone()]),
            (Health::Blocked, Some("InvalidURL".to_owned()))
        );
        assert_eq!(
            of(vec![good[0].clone(), failing]),
            (Health::Failing, Some("Failing".to_owned()))
        );
        let ended = [
            condition("Ready", "False", "Disabled"),
            condition("Healthy", "False", "Disabled"),
        ];
        assert_eq!(
            of(ended.to_vec()),
            (Health::Healthy, None),
            "the disablement was ended"
        );
    }
}
