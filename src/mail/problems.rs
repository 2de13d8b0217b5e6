//! The e-mail to the account holder about everything that is wrong with their webhooks. A single problem gets an e-mail of its own
//! type; several are listed.

use std::fmt::Write as _;

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{
    affected::AffectedWebhook,
    backlog::BackloggedWebhook,
    disabled::{DisabledWebhook, Reason},
    message::{Notification, one_line},
    text::{alphanumeric, fact, name, paragraph, step},
};

/// Maximum number of problems that an e-mail lists; it only gives the number of any others.
pub const MAX_LISTED: usize = 20;
/// Longest quoted URL or error in a list, in characters.
const QUOTED_CHARACTERS: usize = 200;

/// What is wrong with a webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It was disabled.
    Disabled(DisabledWebhook),
    /// It has too many deliveries.
    Backlog(BackloggedWebhook),
}

/// Everything to report to an account holder about their webhooks at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// E-mail address of the account holder.
    pub account_email: String,
    /// Name of the Account.
    pub account_name: String,
    /// UID of the Account; the Message-ID consists of it and `fingerprint`.
    pub account_uid: String,
    /// The account's namespace.
    pub namespace: String,
    /// The oldest problems, at most [`MAX_LISTED`].
    pub listed: Vec<Problem>,
    /// Number of webhooks that were disabled, listed or not.
    pub disabled: usize,
    /// Number of webhooks with too many deliveries, listed or not.
    pub backlogged: usize,
    /// When the latest of them happened.
    pub latest: Timestamp,
    /// A [`Fingerprint`], which differs if anything else is reported.
    pub fingerprint: String,
}

/// Computes a digest of which problems are reported, whatever has become of them since.
#[derive(Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds a problem: the UID of its webhook, its kind and when it began.
    pub fn add(&mut self, webhook_uid: &str, kind: &str, at: Timestamp) {
        self.0
            .update(format!("{webhook_uid}\n{kind}\n{}\n", at.as_microsecond()));
    }

    /// The digest, as hexadecimal digits.
    pub fn finish(self) -> String {
        hex::encode(&self.0.finalize()[..16])
    }
}

impl Problems {
    /// The e-mail. The same problems always give the same Message-ID.
    pub fn notification(&self) -> Notification {
        match self.listed.as_slice() {
            [Problem::Disabled(webhook)] => webhook.notification(),
            [Problem::Backlog(webhook)] => webhook.notification(),
            _ => Notification {
                to: self.account_email.clone(),
                subject: format!(
                    "Webhooks of the account {}: {}",
                    one_line(&self.account_name, 64),
                    self.numbers()
                ),
                id: format!(
                    "webhooks.{}.{}",
                    alphanumeric(&self.account_uid),
                    self.fingerprint
                ),
                date: self.latest,
                body: self.body(),
            },
        }
    }

    /// Such as `3 disabled, 1 with too many deliveries`.
    fn numbers(&self) -> String {
        match (self.disabled, self.backlogged) {
            (disabled, 0) => format!("{disabled} disabled"),
            (0, backlogged) => format!("{backlogged} with too many deliveries"),
            (disabled, backlogged) => {
                format!("{disabled} disabled, {backlogged} with too many deliveries")
            }
        }
    }

    fn body(&self) -> String {
        let mut text = String::new();
        paragraph(
            &mut text,
            &format!(
                "Webhooks of the account {} need your attention: {}.",
                name(&self.account_name),
                self.numbers()
            ),
        );
        if self.disabled > 0 {
            paragraph(
                &mut text,
                "Stellage has stopped sending events to disabled webhooks. Their events are held, and sent in order once they \
                 are enabled again; only if very many accumulate are the oldest dropped.",
            );
        }
        if self.backlogged > 0 {
            paragraph(
                &mut text,
                "If more deliveries wait for a receiver than may wait at a time, further ones are held until there is room. \
                 If too many are held, the oldest are dropped, and never sent.",
            );
        }
        for problem in &self.listed {
            problem.list(&mut text);
        }
        let others = (self.disabled + self.backlogged).saturating_sub(self.listed.len());
        let namespace = name(&self.namespace);
        if others > 0 {
            let _ = writeln!(text, "... and {others} more. To see all webhooks:\n");
        } else {
            text.push_str("To see all webhooks:\n\n");
        }
        let _ = writeln!(
            text,
            "   \
             curl \"$STELLAGE_URL/v1/webhooks?limit=100\" \\\n     \
               -H \"Authorization: Bearer $STELLAGE_API_KEY\"\n             \n   \
             kubectl get webhooks --namespace {namespace}\n",
        );
        self.what_to_do(&mut text);
        text
    }

    fn what_to_do(&self, text: &mut String) {
        text.push_str("What to do, with the id of each webhook in place of $ID\n\n");
        step(
            text,
            "1. Fix the receiver. It must answer each POST with a 2xx status, by default within 30 seconds.",
        );
        if self.disabled > 0 {
            step(
                text,
                "2. Enable the webhook, if it is disabled, and send again what was given up:",
            );
            let _ = writeln!(
                text,
                "\n   \
                 curl -X PATCH \"$STELLAGE_URL/v1/webhooks/$ID\" \\\n     \
                   -H \"Authorization: Bearer $STELLAGE_API_KEY\" \\\n     \
                   -H \"Content-Type: application/json\" \\\n     \
                   -d '{{\"active\": true}}'\n                 \n   \
                 curl -X POST \"$STELLAGE_URL/v1/webhooks/$ID/recover\" \\\n     \
                   -H \"Authorization: Bearer $STELLAGE_API_KEY\"",
            );
        }
        if self.backlogged > 0 {
            let number = if self.disabled > 0 { "\n3" } else { "2" };
            let _ = writeln!(
                text,
                "{number}. Send what waits for its next attempt at once:\n                 \n   \
                 curl -X POST \"$STELLAGE_URL/v1/webhooks/$ID/deliveries/retry\" \\\n     \
                   -H \"Authorization: Bearer $STELLAGE_API_KEY\"",
            );
        }
    }
}

impl Problem {
    /// Adds the problem to a list.
    fn list(&self, text: &mut String) {
        let time = |at: Timestamp| at.strftime("%F %T UTC").to_string();
        let quoted = |text: &str| one_line(text, QUOTED_CHARACTERS);
        let about = |text: &mut String, webhook: &AffectedWebhook| {
            let _ = writeln!(text, "{} ({})", name(&webhook.id), name(&webhook.name));
            fact(text, "URL", &quoted(&webhook.url));
        };
        match self {
            Self::Disabled(webhook) => {
                about(text, &webhook.webhook);
                fact(text, "Disabled", &time(webhook.disabled_at));
                let event = name(&webhook.event_id);
                let why = match webhook.reason {
                    Reason::RetriesExhausted => {
                        format!("{event} could not be delivered in {} attempts", webhook.attempts)
                    }
                    Reason::Gone => format!("its receiver responded to {event} with 410 Gone"),
                };
                fact(text, "Why", &why);
                if let Some(error) = &webhook.last_error {
                    fact(text, "Last error", &quoted(error));
                }
            }
            Self::Backlog(webhook) => {
                about(text, &webhook.webhook);
                let until = webhook.until.map(|until| format!(" until {}", time(until)));
                let since = format!("{}{}", time(webhook.since), until.unwrap_or_default());
                fact(text, "Since", &since);
                fact(text, "Deliveries", &webhook.numbers());
            }
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{affected, backlog, disabled, text::tests::overlong},
        *,
    };

    fn problems(listed: Vec<Problem>, disabled: usize, backlogged: usize) -> Problems {
        let mut fingerprint = Fingerprint::default();
        for number in 0..disabled + backlogged {
            fingerprint.add(&number.to_string(), "disabled", Timestamp::UNIX_EPOCH);
        }
        Problems {
            account_email: "ada@example.com".into(),
            account_name: "demo".into(),
            account_uid: "0a1b".into(),
            namespace: "shop".into(),
            listed,
            disabled,
            backlogged,
            latest: "2026-11-21T11:00:00Z".parse().unwrap(),
            fingerprint: fingerprint.finish(),
        }
    }

    #[test]
    fn a_single_problem_has_the_mail_of_its_kind() {
        let disabled = disabled::tests::example();
        let one = problems(vec![Problem::Disabled(disabled.clone())], 1, 0);
        assert_eq!(one.notification(), disabled.notification());
        let backlog = backlog::tests::example();
        let one = problems(vec![Problem::Backlog(backlog.clone())], 0, 1);
        assert_eq!(one.notification(), backlog.notification());
    }

    #[test]
    fn several_problems_are_one_mail_that_lists_them() {
        let listed = vec![
            Problem::Disabled(disabled::tests::example()),
            Problem::Disabled(DisabledWebhook {
                reason: Reason::Gone,
                webhook: AffectedWebhook {
                    id: "wh_gone".into(),
                    ..affected::tests::example()
                },
                ..disabled::tests::example()
            }),
            Problem::Backlog(backlog::tests::example()),
        ];
        let mail = problems(listed, 2, 1).notification();
        assert_eq!(
            mail.subject,
            "Webhooks of the account demo: 2 disabled, 1 with too many deliveries"
        );
        assert!(
            mail.message_id().starts_with("<webhooks.0a1b."),
            "{}",
            mail.message_id()
        );
        for expected in [
            "wh_0123456789abcdef (orders)\n",
            "  Disabled    2026-11-21 10:00:00 UTC\n",
            "  Why         evt_def could not be delivered in 6 attempts\n",
            "  Last error  status 503 Service Unavailable\n",
            "wh_gone (orders)\n",
            "  Why         its receiver responded to evt_def with 410 Gone\n",
            "  Since       2026-11-21 10:00:00 UTC\n",
            "  Deliveries  1000 held, 37 dropped\n",
            "kubectl get webhooks --namespace shop\n",
            "\"$STELLAGE_URL/v1/webhooks/$ID/recover\"",
            "\"$STELLAGE_URL/v1/webhooks/$ID/deliveries/retry\"",
        ] {
            assert!(mail.body.contains(expected), "{expected:?} in\n{}", mail.body);
        }
        assert!(!mail.body.contains("more."), "{}", mail.body);
        assert_eq!(overlong(&mail.body), [""; 0]);
    }

    #[test]
    fn the_mail_about_ten_thousand_webhooks_is_bounded() {
        let worst = DisabledWebhook {
            webhook: AffectedWebhook {
                url: format!("https://hooks.example.com/{}", "x".repeat(2000)),
                ..affected::tests::example()
            },
            last_error: Some("tls handshake ".repeat(1000)),
            ..disabled::tests::example()
        };
        let mail = problems(vec![Problem::Disabled(worst); MAX_LISTED], 9_000, 1_000).notification();
        assert!(mail.body.contains("\n... and 9980 more. "), "{}", mail.body);
        assert!(mail.body.len() < 20_000, "{} bytes", mail.body.len());
    }

    #[test]
    fn the_id_changes_only_with_what_is_told() {
        let id = |number| problems(Vec::new(), number, 0).notification().message_id();
        assert_eq!(id(2), id(2));
        assert_ne!(id(2), id(3));
    }
}
