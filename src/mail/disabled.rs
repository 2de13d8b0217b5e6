//! The e-mail to the account holder about a disabled webhook (specification, sections 3 and 6.5).

use std::fmt::Write as _;

use jiff::{SignedDuration, Timestamp};

use super::{
    affected::AffectedWebhook,
    message::{Notification, one_line},
    text::{alphanumeric, fact, name, paragraph, step},
};

/// Longest quoted error, in characters.
const ERROR_CHARACTERS: usize = 500;
/// How long an exhausted delivery is kept (decisions, section 5).
const KEPT: SignedDuration = SignedDuration::from_hours(24);

/// A disabled webhook, and the delivery that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisabledWebhook {
    /// The webhook.
    pub webhook: AffectedWebhook,
    /// When it was disabled, exactly as in the status.
    pub disabled_at: Timestamp,
    /// Why it was disabled.
    pub reason: Reason,
    /// Id of the delivery that failed, `dlv_…`.
    pub delivery_id: String,
    /// Id of its event, `evt_…`.
    pub event_id: String,
    /// Type of its event.
    pub event_type: String,
    /// Number of attempts.
    pub attempts: u32,
    /// Status code of the last response, if there was one.
    pub last_status: Option<u16>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// Whether events are held while the webhook is disabled, and sent once it is enabled again.
    pub held: bool,
}

/// Why a webhook was disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The last retry of a delivery failed.
    RetriesExhausted,
    /// The receiver responded with 410 Gone.
    Gone,
}

impl DisabledWebhook {
    /// The e-mail. The same disablement gives the same e-mail, byte for byte.
    pub fn notification(&self) -> Notification {
        let uid = alphanumeric(&self.webhook.uid);
        let event_type = one_line(&self.event_type, 64);
        let id = one_line(&self.webhook.id, 64);
        let why = match self.reason {
            Reason::RetriesExhausted => format!("{event_type} could not be delivered"),
            Reason::Gone => "its receiver responded with 410 Gone".to_owned(),
        };
        Notification {
            to: self.webhook.account_email.clone(),
            subject: format!("Webhook {id} is disabled: {why}"),
            id: format!("webhook-disabled.{uid}.{}", self.disabled_at.as_microsecond()),
            date: self.disabled_at,
            body: self.body(),
        }
    }

    fn body(&self) -> String {
        let (id, delivery) = (name(&self.webhook.id), name(&self.delivery_id));
        let mut text = String::new();
        paragraph(
            &mut text,
            &format!(
                "Stellage has stopped sending events to a webhook of the account {}, because {}.",
                name(&self.webhook.account_name),
                match self.reason {
                    Reason::RetriesExhausted =>
                        "its receiver did not accept an event, not even in the retries",
                    Reason::Gone => "its receiver responded with 410 Gone, which asks for no more deliveries",
                }
            ),
        );
        self.facts(&mut text);
        paragraph(
            &mut text,
            if self.held {
                "No events are lost: events that happen while the webhook is disabled are held, and sent in order once \
                 it is enabled again. Only if very many accumulate are the oldest dropped. The event above is not held; \
                 step 3 sends it again."
            } else {
                "Events that happen while the webhook is disabled are not kept."
            },
        );
        text.push_str("What to do\n\n");
        step(
            &mut text,
            "1. Fix the receiver. It must answer each POST with a 2xx status, by default within 30 seconds.",
        );
        step(&mut text, "2. Enable the webhook, through REST or with kubectl:");
        let _ = writeln!(
            text,
            "\n   \
             curl -X PATCH \"$STELLAGE_URL/v1/webhooks/{id}\" \\\n     \
               -H \"Authorization: Bearer $STELLAGE_API_KEY\" \\\n     \
               -H \"Content-Type: application/json\" \\\n     \
               -d '{{\"active\": true}}'\n\
             \n   \
             kubectl patch webhook {} --namespace {} --type merge \\\n     \
               --patch '{{\"spec\": {{\"enableRequestedAt\": \"'$(date -u +%FT%TZ)'\"}}}}'\n",
            name(&self.webhook.name),
            name(&self.webhook.namespace),
        );
        step(
            &mut text,
            "3. Send the event above again, or every event whose retries were exhausted since a given time. By default \
             they are kept for 24 hours:",
        );
        let since = self.disabled_at.checked_sub(KEPT).unwrap_or(self.disabled_at);
        let _ = writeln!(
            text,
            "\n   \
             curl -X POST \\\n     \
               \"$STELLAGE_URL/v1/webhooks/{id}/deliveries/{delivery}/redeliver\" \\\n     \
               -H \"Authorization: Bearer $STELLAGE_API_KEY\"\n\
             \n   \
             curl -X POST \"$STELLAGE_URL/v1/webhooks/{id}/recover\" \\\n     \
               -H \"Authorization: Bearer $STELLAGE_API_KEY\" \\\n     \
               -H \"Content-Type: application/json\" \\\n     \
               -d '{{\"since\": \"{}\"}}'",
            since.strftime("%FT%TZ"),
        );
        text
    }

    fn facts(&self, text: &mut String) {
        self.webhook.facts(text);
        let mut fact = |label, value: &str| fact(text, label, value);
        fact("Disabled", &self.disabled_at.strftime("%F %T UTC").to_string());
        fact(
            "Event",
            &format!("{} ({})", name(&self.event_id), name(&self.event_type)),
        );
        fact("Delivery", &name(&self.delivery_id));
        fact("Attempts", &self.attempts.to_string());
        let status = self
            .last_status
            .map_or_else(|| "none".to_owned(), |code| code.to_string());
        fact("Last status", &status);
        if let Some(error) = &self.last_error {
            fact("Last error", &one_line(error, ERROR_CHARACTERS));
        }
        text.push('\n');
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{affected, text::tests::overlong},
        *,
    };

    pub(in super::super) fn example() -> DisabledWebhook {
        DisabledWebhook {
            webhook: affected::tests::example(),
            disabled_at: "2026-11-21T10:00:00.5Z".parse().unwrap(),
            reason: Reason::RetriesExhausted,
            delivery_id: "dlv_abc".into(),
            event_id: "evt_def".into(),
            event_type: "instance.started".into(),
            attempts: 6,
            last_status: Some(503),
            last_error: Some("status 503 Service Unavailable".into()),
            held: true,
        }
    }

    #[test]
    fn the_mail_names_webhook_event_and_error_and_says_what_to_do() {
        let mail = example().notification();
        assert_eq!(mail.to, "ada@example.com");
        assert_eq!(
            mail.subject,
            "Webhook wh_0123456789abcdef is disabled: instance.started could not be delivered"
        );
        for expected in [
            "account demo,",
            "  Webhook     wh_0123456789abcdef (orders in namespace demo)\n",
            "  URL         https://hooks.example.com/stellage\n",
            "  Disabled    2026-11-21 10:00:00 UTC\n",
            "  Event       evt_def (instance.started)\n",
            "  Delivery    dlv_abc\n",
            "  Attempts    6\n",
            "  Last status 503\n",
            "  Last error  status 503 Service Unavailable\n",
            "are held",
            "curl -X PATCH \"$STELLAGE_URL/v1/webhooks/wh_0123456789abcdef\"",
            "-d '{\"active\": true}'",
            "kubectl patch webhook orders --namespace demo",
            "/v1/webhooks/wh_0123456789abcdef/deliveries/dlv_abc/redeliver\"",
            "/v1/webhooks/wh_0123456789abcdef/recover\"",
            "-d '{\"since\": \"2026-11-20T10:00:00Z\"}'",
        ] {
            assert!(mail.body.contains(expected), "{expected:?} in\n{}", mail.body);
        }
        assert_eq!(overlong(&mail.body), [""; 0]);
    }

    #[test]
    fn a_shell_parses_the_commands_as_intended() {
        let body = example().notification().body;
        let commands = body.replace("\\\n", " ");
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
        assert_eq!(lines.len(), 4, "{said}");
        assert!(
            lines[0]
                .contains("[https://api/v1/webhooks/wh_0123456789abcdef][-H][Authorization: Bearer a key]")
                && lines[0].ends_with("[-d][{\"active\": true}]"),
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
    fn a_receiver_that_is_gone_reads_differently() {
        let gone = DisabledWebhook {
            reason: Reason::Gone,
            attempts: 1,
            last_status: None,
            last_error: None,
            held: false,
            ..example()
        };
        let mail = gone.notification();
        assert!(
            mail.subject
                .ends_with("is disabled: its receiver responded with 410 Gone")
        );
        assert!(
            mail.body
                .replace('\n', " ")
                .contains("410 Gone, which asks for no more deliveries."),
            "{}",
            mail.body
        );
        assert!(mail.body.contains("Last status none") && !mail.body.contains("Last error"));
        assert!(mail.body.contains("are not kept") && !mail.body.contains("are held"));
    }

    #[test]
    fn the_id_is_a_function_of_webhook_and_moment() {
        let id = |webhook: DisabledWebhook| webhook.notification().message_id();
        let of_uid = |uid: &str| AffectedWebhook {
            uid: uid.into(),
            ..affected::tests::example()
        };
        let first = id(example());
        assert_eq!(
            first,
            "<webhook-disabled.6f1c0c5e-7b0b-4a55-9a1c-9d2f4f2f8a11.1795255200500000@stellage.dev>"
        );
        assert_eq!(
            id(DisabledWebhook {
                last_error: None,
                ..example()
            }),
            first
        );
        let later = example().disabled_at + SignedDuration::from_millis(1);
        assert_ne!(
            id(DisabledWebhook {
                disabled_at: later,
                ..example()
            }),
            first
        );
        assert_ne!(
            id(DisabledWebhook {
                webhook: of_uid("other"),
                ..example()
            }),
            first
        );
        let hostile = id(DisabledWebhook {
            webhook: of_uid("a>\r\nBcc: <x@y>/../"),
            ..example()
        });
        assert!(hostile.starts_with("<webhook-disabled.aBccxy."), "{hostile}");
    }

    #[test]
    fn no_field_adds_a_line() {
        let evil = "x\r\nBcc: eve@example.com\r\n\r\nforged\u{2028}\u{202e}y\u{85}\0";
        let mail = DisabledWebhook {
            webhook: AffectedWebhook {
                account_name: evil.into(),
                id: evil.into(),
                name: evil.into(),
                namespace: evil.into(),
                url: evil.into(),
                ..affected::tests::example()
            },
            delivery_id: evil.into(),
            event_id: evil.into(),
            event_type: evil.into(),
            last_error: Some(evil.into()),
            ..example()
        }
        .notification();
        for text in [&mail.subject, &mail.body] {
            assert!(
                !text.contains(['\r', '\0', '\u{85}', '\u{2028}', '\u{202e}']),
                "{text:?}"
            );
            assert!(
                text.lines()
                    .all(|line| !line.starts_with("Bcc:") && line != "forged"),
                "{text}"
            );
        }
        assert!(!mail.subject.contains('\n'));
    }

    #[test]
    fn a_long_error_is_cut_and_wrapped() {
        let error = "tls handshake ".repeat(100);
        let body = DisabledWebhook {
            last_error: Some(error),
            ..example()
        }
        .notification()
        .body;
        assert!(body.contains("..."), "{body}");
        assert_eq!(overlong(&body), [""; 0]);
    }
}
