//! The health of a webhook's deliveries.

use crate::resources::{
    Webhook,
    conditions::{self, READY},
    webhook::HEALTHY,
};

/// The health of a webhook's deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The last attempt succeeded, or nothing was sent yet.
    Healthy,
    /// The last attempt failed; it will be retried.
    Failing,
    /// Nothing can be sent because of a problem with the URL or the Secret.
    Blocked,
    /// All retries failed, or the receiver answered 410.
    Disabled,
}

impl Health {
    /// Every value.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Failing, Self::Blocked, Self::Disabled];

    /// The value as it appears in REST.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
            Self::Blocked => "blocked",
            Self::Disabled => "disabled",
        }
    }
}

/// The health of a webhook's deliveries, and the reason if they are not healthy.
pub fn health(webhook: &Webhook) -> (Health, Option<&str>) {
    if let Some(disabled) = webhook.disabled() {
        return (Health::Disabled, Some(&disabled.message));
    }
    let conditions = webhook.status.as_ref().map(|status| status.conditions.as_slice());
    let complaint = |type_| {
        conditions::find(conditions.unwrap_or_default(), type_)
            .filter(|found| found.status == "False")
            // Ignore a disablement that the spec has ended already, but the status still shows.
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
    fn health_follows_the_conditions_unless_the_spec_has_ended_the_disablement() {
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
