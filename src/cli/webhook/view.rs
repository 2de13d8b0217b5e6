//! Webhooks as text.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use crate::{
    cli::{
        duration,
        objects::Shown,
        output::{self, cell, or_dash},
        program::program,
    },
    resources::{
        Webhook, WebhookStatus,
        conditions::{self, READY},
        ids,
        webhook::HEALTHY,
    },
    service::webhooks::{Health, health},
};

/// Longest URL that a table shows in full.
const LONGEST_URL: usize = 60;

fn condition<'a>(webhook: &'a Webhook, type_: &str) -> Option<&'a Condition> {
    conditions::find(&webhook.status.as_ref()?.conditions, type_)
}

impl Shown for Webhook {
    /// The columns of `kubectl get`, and the reason.
    const COLUMNS: &'static [&'static str] = &[
        "NAME",
        "URL",
        "ACTIVE",
        "HEALTHY",
        "PENDING",
        "LAST-SUCCESS",
        "DISABLED-SINCE",
        "WHY",
        "AGE",
        "REASON",
    ];

    fn row(&self, now: Timestamp) -> Vec<String> {
        row(self, now)
    }

    fn description(&self, now: Timestamp) -> String {
        description(self, now)
    }
}

fn row(webhook: &Webhook, now: Timestamp) -> Vec<String> {
    let status = webhook.status.as_ref();
    let age = |time| duration::age(time, now);
    vec![
        webhook.name_any(),
        cell(&webhook.spec.url, LONGEST_URL),
        webhook.spec.active.to_string(),
        or_dash(condition(webhook, HEALTHY).map(|healthy| healthy.status.as_str())),
        or_dash(status.map(|status| status.pending)),
        or_dash(status.and_then(|status| status.last_success_at).map(age)),
        or_dash(webhook.disabled().map(|disabled| age(disabled.at))),
        or_dash(webhook.disabled().map(|disabled| disabled.reason.as_str())),
        age(webhook.created_at()),
        or_dash(condition(webhook, READY).map(|ready| ready.reason.as_str())),
    ]
}

/// The health in a word, and the reason. In addition to the values of REST: `inactive`, and `unknown` until the operator has
/// processed the webhook.
fn health_and_reason(webhook: &Webhook) -> (&'static str, String) {
    let (health, complaint) = health(webhook);
    let ready = condition(webhook, READY);
    if health == Health::Healthy && !webhook.spec.active {
        let why = "it is not active, so no events are recorded or sent";
        return ("inactive", why.to_owned());
    }
    if health == Health::Healthy && ready.is_none_or(|ready| ready.status != "True") {
        let why = ready.map_or("the operator has not processed it yet", |ready| &ready.message);
        return ("unknown", why.to_owned());
    }
    let why = match complaint {
        Some(complaint) => format!("{}: {}", complaint.reason, complaint.message),
        None => condition(webhook, HEALTHY).map_or_else(String::new, |healthy| {
            format!("{}: {}", healthy.reason, healthy.message)
        }),
    };
    (health.as_str(), why)
}

/// One webhook in full, without its secret.
fn description(webhook: &Webhook, now: Timestamp) -> String {
    let ago = |time: Timestamp| format!("{time:.0} ({} ago)", duration::age(time, now));
    let nothing = WebhookStatus::default();
    let status = webhook.status.as_ref().unwrap_or(&nothing);
    let (health, why) = health_and_reason(webhook);
    let events: Vec<_> = webhook.spec.events.iter().map(|event| event.as_str()).collect();
    let secret = &webhook.spec.secret_ref;
    let (name, namespace) = (webhook.name_any(), webhook.namespace().unwrap_or_default());
    let mut fields = vec![
        ("Name", name.clone()),
        ("Namespace", namespace.clone()),
        ("ID", webhook.id()),
        ("URL", output::printable(&webhook.spec.url)),
        ("Events", events.join(", ")),
        ("Active", webhook.is_active().to_string()),
        ("Health", health.to_owned()),
        ("Why", output::printable(&why)),
    ];
    if let Some(disabled) = webhook.disabled() {
        let stellage = program();
        let notified = match (disabled.notified_at, &disabled.notification_error) {
            (Some(at), _) => format!("{at:.0}"),
            (None, Some(error)) => format!("not yet: {error}"),
            (None, None) => "not yet".to_owned(),
        };
        fields.extend([
            ("Disabled since", ago(disabled.at)),
            (
                "Disabled by",
                format!("delivery {}", ids::delivery_id(&disabled.delivery)),
            ),
            ("E-mail sent", output::printable(&notified)),
            (
                "To do",
                format!(
                    "fix the receiver and test it: {stellage} webhook test {name} -n {namespace} --wait\n\
                     then: {stellage} webhook enable {name} -n {namespace}"
                ),
            ),
        ]);
    }
    fields.extend([
        ("Last success", or_dash(status.last_success_at.map(ago))),
        ("Last failure", or_dash(status.last_failure_at.map(ago))),
    ]);
    if let Some(failure) = &status.last_failure {
        fields.push(("Last error", output::printable(failure)));
    }
    fields.extend([
        ("Pending", status.pending.to_string()),
        ("Held", status.held.to_string()),
        ("Dropped", status.dropped.to_string()),
        ("Delivered", status.delivered.to_string()),
        ("Failed attempts", status.failed_attempts.to_string()),
        (
            "Secret",
            format!("key {} of Secret {} (never shown)", secret.key, secret.name),
        ),
    ]);
    if let Some(until) = status.previous_secret_expires_at.filter(|until| *until > now) {
        fields.push(("Old secret", format!("also signs until {until:.0}")));
    }
    fields.push(("Created", ago(webhook.created_at())));
    output::description(&fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::objects::table;

    fn now() -> Timestamp {
        "2026-11-21T10:05:00Z".parse().unwrap()
    }

    fn webhook(active: bool, status: &Value) -> Webhook {
        serde_json::from_value(json!({
            "metadata": {
                "name": "orders", "namespace": "ada", "uid": "u", "generation": 3,
                "creationTimestamp": "2026-11-21T10:00:00Z",
            },
            "spec": {
                "url": "https://example.com/hook", "events": ["instance.created"], "secretRef": { "name": "s" },
                "active": active,
            },
            "status": status,
        }))
        .unwrap()
    }

    fn conditions(ready: (&str, &str), healthy: (&str, &str)) -> Value {
        let condition = |type_: &str, (status, reason): (&str, &str)| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-11-21T10:00:00Z", "observedGeneration": 3,
            })
        };
        json!([condition("Ready", ready), condition("Healthy", healthy)])
    }

    fn disabled() -> Value {
        json!({
            "at": "2026-11-21T10:04:00Z", "reason": "Gone", "message": "the receiver answered 410", "delivery": "dlv-abcdefgh01234567",
            "eventId": "evt_1", "eventType": "instance.created", "attempts": 1, "error": "no", "generation": 3,
        })
    }

    #[test]
    fn health_is_a_word_with_a_reason() {
        let well = ("True", "Active");
        for (active, status, expected) in [
            (
                true,
                json!({ "conditions": conditions(well, ("True", "Succeeding")) }),
                "healthy",
            ),
            (
                true,
                json!({ "conditions": conditions(well, ("False", "Failing")) }),
                "failing",
            ),
            (
                true,
                json!({ "conditions": conditions(("False", "SecretMissing"), ("True", "NotTried")) }),
                "blocked",
            ),
            (
                true,
                json!({ "conditions": conditions(("False", "Disabled"), ("False", "Disabled")), "disabled": disabled() }),
                "disabled",
            ),
            (
                false,
                json!({ "conditions": conditions(well, ("True", "NotTried")) }),
                "inactive",
            ),
            (true, json!({}), "unknown"),
        ] {
            let (word, why) = health_and_reason(&webhook(active, &status));
            assert_eq!(word, expected, "{status}");
            assert!(!why.is_empty());
        }
    }

    #[test]
    fn a_description_shows_the_reason_and_the_fix_but_no_secret() {
        let status = json!({
            "disabled": disabled(), "pending": 1, "held": 7, "dropped": 2, "lastSuccessAt": "2026-11-21T10:03:00Z",
            "lastFailureAt": "2026-11-21T10:04:00Z", "lastFailure": "answered \u{1b}[31m410",
            "previousSecretExpiresAt": "2026-11-22T10:00:00Z",
        });
        let text = description(&webhook(true, &status), now());
        for line in [
            "Health:           disabled",
            "Why:              Gone: the receiver answered 410",
            "Disabled by:      delivery dlv_abcdefgh01234567",
            "                  then: stellage webhook enable orders -n ada",
            "Last success:     2026-11-21T10:03:00Z (2m ago)",
            "Last error:       answered \\u{1b}[31m410",
            "Held:             7",
            "Dropped:          2",
            "Old secret:       also signs until 2026-11-22T10:00:00Z",
        ] {
            assert!(text.lines().any(|text| text == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_list_has_the_columns_of_kubectl_and_the_reason() {
        let status = json!({ "conditions": conditions(("True", "Active"), ("True", "NotTried")) });
        let text = table(&[webhook(true, &status)], false, now());
        let row = text.lines().nth(1).unwrap();
        let cells: Vec<_> = row.split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "orders",
                "https://example.com/hook",
                "true",
                "True",
                "0",
                "-",
                "-",
                "-",
                "5m",
                "Active"
            ]
        );
    }
}
