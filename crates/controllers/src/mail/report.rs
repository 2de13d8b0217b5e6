//! The e-mail to an account holder about webhooks that were disabled (specification, section 6.5) or have a backlog (decisions,
//! section 8). Its text is `crates/controllers/templates/mail/webhooks.txt`, with a paragraph for each cause.

use std::sync::Arc;

use askama::Template;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    error::MailError,
    message::{Notification, one_line},
};
use resources::{
    Account, BacklogPeriod, DisableReason, Disabled, Webhook, conditions, ids::delivery_id, origin,
    webhook::BACKLOG,
};

/// Maximum number of problems that an e-mail lists; it only gives the number of any others.
const MAX_LISTED: usize = 20;
/// Longest quoted URL or error, in characters.
const QUOTED_CHARACTERS: usize = 300;

/// The e-mail about everything that the account holder has not been told yet about these webhooks, according to their statuses.
/// The same problems always give the same Message-ID.
///
/// Errors: [`MailError::Message`].
pub fn report(account: &Account, webhooks: &[Arc<Webhook>]) -> Result<Notification, MailError> {
    let mut problems: Vec<_> = webhooks
        .iter()
        .flat_map(|webhook| WebhookTrouble::of(webhook))
        .collect();
    problems.sort_by_key(|problem| (problem.at(), problem.id()));
    let is_disabled = |problem: &&WebhookTrouble<'_>| matches!(problem.cause, Cause::Disabled(_));
    let disabled = problems.iter().filter(is_disabled).count();
    let backlogged = problems.len() - disabled;
    let summary = match (disabled, backlogged) {
        (disabled, 0) => disabled_webhooks(disabled),
        (0, backlogged) => backlogged_webhooks(backlogged),
        _ => format!(
            "{} and {}",
            disabled_webhooks(disabled),
            backlogged_webhooks(backlogged)
        ),
    };
    let account_name = account.metadata.name.as_deref().unwrap_or_default();
    let (id, name, subject) = match problems.as_slice() {
        [only] => (only.id(), only.name(), only.subject()),
        _ => (
            "$ID".to_owned(),
            "$NAME",
            format!("The account {account_name} has {summary}"),
        ),
    };
    let listed = &problems[..problems.len().min(MAX_LISTED)];
    let text = Text {
        account: account_name,
        namespace: account.owned_namespace().unwrap_or_default(),
        summary: &summary,
        listed,
        unlisted: problems.len() - listed.len(),
        disabled,
        backlogged,
        id: &id,
        name,
    };
    let body = text.render();
    Ok(Notification {
        to: account.spec.email.clone(),
        subject,
        id: format!("webhooks.{}", fingerprint(&problems)),
        date: problems.last().map(WebhookTrouble::at).unwrap_or_default(),
        body: body.map_err(|error| MailError::Message(error.to_string()))?,
    })
}

#[derive(Template)]
#[template(path = "mail/webhooks.txt")]
struct Text<'a> {
    account: &'a str,
    namespace: &'a str,
    summary: &'a str,
    listed: &'a [WebhookTrouble<'a>],
    unlisted: usize,
    disabled: usize,
    backlogged: usize,
    /// Id and name of the webhook in the commands.
    id: &'a str,
    name: &'a str,
}

/// Something to report about a webhook.
struct WebhookTrouble<'a> {
    webhook: &'a Webhook,
    cause: Cause<'a>,
}

enum Cause<'a> {
    Disabled(&'a Disabled),
    Backlog(&'a BacklogPeriod),
}

impl<'a> WebhookTrouble<'a> {
    fn of(webhook: &'a Webhook) -> impl Iterator<Item = Self> {
        let disabled = webhook.untold().map(Cause::Disabled);
        let backlog = webhook.untold_backlog().map(Cause::Backlog);
        let causes = disabled.into_iter().chain(backlog);
        causes.map(move |cause| Self { webhook, cause })
    }

    fn at(&self) -> Timestamp {
        match self.cause {
            Cause::Disabled(disabled) => disabled.at,
            Cause::Backlog(backlog) => backlog.since,
        }
    }

    fn id(&self) -> String {
        self.webhook.id()
    }

    fn name(&self) -> &str {
        self.webhook.metadata.name.as_deref().unwrap_or_default()
    }

    fn subject(&self) -> String {
        let id = self.id();
        match self.cause {
            Cause::Disabled(disabled) => match disabled.reason {
                DisableReason::RetriesExhausted => format!(
                    "Webhook {id} is disabled: {} could not be delivered",
                    disabled.event_type.as_str()
                ),
                DisableReason::Gone => {
                    format!("Webhook {id} is disabled: its receiver responded with 410 Gone")
                }
            },
            Cause::Backlog(backlog) => format!(
                "Webhook {id} has too many deliveries: {}",
                self.backlog_size(backlog)
            ),
        }
    }

    /// When the backlog ended, if it has.
    fn backlog_until(&self) -> Option<Timestamp> {
        let condition = conditions::find(&self.webhook.status.as_ref()?.conditions, BACKLOG)?;
        (condition.status != "True").then_some(condition.last_transition_time.0)
    }

    /// How many deliveries are held now and how many were dropped since it began, such as `3 held, 12 dropped`.
    fn backlog_size(&self, backlog: &BacklogPeriod) -> String {
        let status = self.webhook.status.as_ref();
        let held = status.map_or(0, |status| status.held);
        let dropped = status.map_or(0, |status| status.dropped - backlog.dropped_before);
        format!("{held} held, {dropped} dropped")
    }
}

fn disabled_webhooks(number: usize) -> String {
    match number {
        1 => "1 disabled webhook".to_owned(),
        _ => format!("{number} disabled webhooks"),
    }
}

fn backlogged_webhooks(number: usize) -> String {
    match number {
        1 => "1 webhook with too many deliveries".to_owned(),
        _ => format!("{number} webhooks with too many deliveries"),
    }
}

/// A digest of which problems are reported, whatever has become of them since.
fn fingerprint(problems: &[WebhookTrouble<'_>]) -> String {
    let mut digest = Sha256::new();
    for problem in problems {
        let kind = match problem.cause {
            Cause::Disabled(_) => "disabled",
            Cause::Backlog(_) => "backlog",
        };
        let uid = origin::uid(&problem.webhook.metadata);
        digest.update(format!("{uid}\n{kind}\n{}\n", problem.at().as_microsecond()));
    }
    hex::encode(&digest.finalize()[..16])
}

/// Text of the account holder or a receiver, on one line.
fn quoted(text: &str) -> String {
    one_line(text, QUOTED_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn account() -> Account {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": "demo", "uid": "0a1b" },
            "spec": { "email": "ada@example.com" },
            "status": { "namespace": "shop", "conditions": [{
                "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
                "lastTransitionTime": "2026-11-22T09:00:00Z",
            }] },
        }))
        .unwrap()
    }

    fn webhook(name: &str, status: &Value) -> Arc<Webhook> {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook",
            "metadata": { "name": name, "namespace": "shop", "uid": name, "generation": 1 },
            "spec": {
                "url": "https://hooks.example.com/stellage", "events": ["instance.started"], "secretRef": { "name": "s" },
            },
            "status": status,
        }))
        .map(Arc::new)
        .unwrap()
    }

    fn disabled(reason: &str) -> Value {
        json!({ "disabled": {
            "at": "2026-11-21T10:00:00.5Z", "reason": reason, "message": "", "delivery": "dlv-abc", "eventId": "evt_def",
            "eventType": "instance.started", "attempts": 6, "error": "status 503 Service Unavailable", "generation": 1,
        } })
    }

    fn backlog(status: &str) -> Value {
        json!({
            "held": 1000, "dropped": 40,
            "backlog": { "since": "2026-11-21T10:00:00Z", "droppedBefore": 3 },
            "conditions": [{
                "type": "Backlog", "status": status, "reason": "Held", "message": "",
                "lastTransitionTime": "2026-11-21T10:20:00Z",
            }],
        })
    }

    fn mail(webhooks: &[Arc<Webhook>]) -> Notification {
        report(&account(), webhooks).unwrap()
    }

    fn assert_contains(body: &str, all: &[&str]) {
        for expected in all {
            assert!(body.contains(expected), "{expected:?} in\n{body}");
        }
    }

    #[test]
    fn the_mail_about_a_disabled_webhook_names_event_and_error_and_says_what_to_do() {
        let webhook = webhook("orders", &disabled("RetriesExhausted"));
        let id = webhook.id();
        let mail = mail(&[webhook]);
        assert_eq!(mail.to, "ada@example.com");
        assert_eq!(
            mail.subject,
            format!("Webhook {id} is disabled: instance.started could not be delivered")
        );
        assert_eq!(mail.date, "2026-11-21T10:00:00.5Z".parse().unwrap());
        assert_contains(
            &mail.body,
            &[
                "The account demo has 1 disabled webhook.\n",
                &format!("{id} (orders)\n"),
                "  URL:         https://hooks.example.com/stellage\n",
                "  Disabled:    2026-11-21 10:00:00 UTC\n",
                "  Why:         the last retry of an event has failed\n",
                "  Event:       evt_def (instance.started)\n",
                "  Delivery:    dlv_abc\n",
                "  Attempts:    6\n",
                "  Last error:  status 503 Service Unavailable\n",
                "Events that happen meanwhile\nare held",
                &format!("curl -X PATCH \"$STELLAGE_URL/v1/webhooks/{id}\""),
                "kubectl patch webhook orders --namespace shop",
                &format!("/v1/webhooks/{id}/recover\""),
            ],
        );
        assert!(
            !mail.body.contains("too many") && !mail.body.contains("$ID"),
            "{}",
            mail.body
        );
    }

    #[test]
    fn a_receiver_that_is_gone_reads_differently() {
        let mail = mail(&[webhook("orders", &disabled("Gone"))]);
        assert!(
            mail.subject
                .ends_with("is disabled: its receiver responded with 410 Gone"),
            "{}",
            mail.subject
        );
        assert_contains(&mail.body, &["410 Gone, which asks for no more deliveries\n"]);
    }

    #[test]
    fn the_mail_about_a_backlog_names_numbers_and_time_and_says_what_to_do() {
        let webhook = webhook("orders", &backlog("True"));
        let id = webhook.id();
        let mail = mail(&[webhook]);
        assert_eq!(
            mail.subject,
            format!("Webhook {id} has too many deliveries: 1000 held, 37 dropped")
        );
        assert_contains(
            &mail.body,
            &[
                "The account demo has 1 webhook with too many deliveries.\n",
                "  Since:       2026-11-21 10:00:00 UTC\n",
                "  Deliveries:  1000 held, 37 dropped\n",
                &format!("curl -X POST \"$STELLAGE_URL/v1/webhooks/{id}/deliveries/retry\""),
            ],
        );
        let ended = self::mail(&[self::webhook("orders", &backlog("False"))]);
        assert_contains(&ended.body, &["10:00:00 UTC, until 2026-11-21 10:20:00 UTC\n"]);
    }

    #[test]
    fn several_problems_are_one_mail_that_lists_them() {
        let mail = mail(&[
            webhook("one", &disabled("RetriesExhausted")),
            webhook("two", &disabled("Gone")),
            webhook("three", &backlog("True")),
        ]);
        assert_eq!(
            mail.subject,
            "The account demo has 2 disabled webhooks and 1 webhook with too many deliveries"
        );
        assert_contains(
            &mail.body,
            &[
                " (one)\n",
                " (two)\n",
                " (three)\n",
                "\"$STELLAGE_URL/v1/webhooks/$ID/recover\"",
                "\"$STELLAGE_URL/v1/webhooks/$ID/deliveries/retry\"",
                "kubectl get webhooks --namespace shop\n",
            ],
        );
        assert!(!mail.body.contains("more.\n"), "{}", mail.body);
    }

    #[test]
    fn a_shell_parses_the_commands_as_intended() {
        let webhook = webhook("orders", &disabled("Gone"));
        let id = webhook.id();
        let commands = mail(&[webhook]).body.replace("\\\n", " ");
        let script = format!(
            "STELLAGE_URL=https://api STELLAGE_API_KEY='a key'\n\
             date() {{ echo 2026-11-21T12:00:00Z; }}\n\
             curl() {{ printf '[%s]' curl \"$@\"; echo; }}\n\
             kubectl() {{ printf '[%s]' kubectl \"$@\"; echo; }}\n{}",
            commands
                .lines()
                .filter(|line| line.trim().starts_with("curl ") || line.trim().starts_with("kubectl "))
                .collect::<Vec<_>>()
                .join("\n")
        );
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 3, "{said}");
        let patched = format!("[https://api/v1/webhooks/{id}][-H][Authorization: Bearer a key]");
        assert!(
            lines[0].contains(&patched) && lines[0].ends_with("[-d][{\"active\": true}]"),
            "{said}"
        );
        assert!(
            lines[1].ends_with(
                "[--type][merge][--patch][{\"spec\": {\"enableRequestedAt\": \"2026-11-21T12:00:00Z\"}}]"
            ),
            "{said}"
        );
    }

    #[test]
    fn the_mail_about_ten_thousand_webhooks_is_bounded() {
        let mut worst = disabled("RetriesExhausted");
        worst["disabled"]["error"] = json!("tls handshake ".repeat(1000));
        let mail = mail(&vec![webhook("orders", &worst); 10_000]);
        assert_contains(&mail.body, &["\n... and 9980 more.\n"]);
        assert!(mail.body.len() < 20_000, "{} bytes", mail.body.len());
    }

    #[test]
    fn no_text_of_a_tenant_or_a_receiver_adds_a_line() {
        let evil = "x\r\nBcc: eve@example.com\r\n\r\nforged\u{2028}\u{202e}y\u{85}\0";
        let mut status = disabled("RetriesExhausted");
        status["disabled"]["error"] = json!(evil);
        let mut webhook = webhook("orders", &status);
        Arc::make_mut(&mut webhook).spec.url = evil.to_owned();
        let body = mail(&[webhook]).body;
        assert!(
            !body.contains(['\r', '\0', '\u{85}', '\u{2028}', '\u{202e}']),
            "{body:?}"
        );
        assert!(
            body.lines()
                .all(|line| !line.starts_with("Bcc:") && line != "forged"),
            "{body}"
        );
    }

    #[test]
    fn the_message_id_changes_only_with_what_is_told() {
        let id = |webhooks: &[Arc<Webhook>]| mail(webhooks).message_id();
        let one = || webhook("one", &backlog("True"));
        let mut grown = backlog("True");
        grown["dropped"] = json!(50);
        assert_eq!(id(&[one()]), id(&[webhook("one", &grown)]));
        assert_ne!(id(&[one()]), id(&[webhook("two", &backlog("True"))]));
        assert_ne!(id(&[one()]), id(&[webhook("one", &disabled("Gone"))]));
        let two = webhook("two", &disabled("Gone"));
        assert_ne!(id(&[one()]), id(&[one(), two.clone()]));
        assert_eq!(id(&[one(), two.clone()]), id(&[two, one()]));
    }
}
