//! The e-mail to the account holder about a webhook with too many deliveries (decisions, section 8).

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{
    affected::AffectedWebhook,
    message::{Notification, one_line},
    text::{alphanumeric, fact, name, paragraph, step},
};

/// A webhook whose deliveries are held or dropped because there are too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackloggedWebhook {
    /// The webhook.
    pub webhook: AffectedWebhook,
    /// Since when deliveries have been held or dropped, exactly as in the status.
    pub since: Timestamp,
    /// When that ended, if it has.
    pub until: Option<Timestamp>,
    /// Number of deliveries that are held now.
    pub held: i64,
    /// Number of deliveries that have been dropped since.
    pub dropped: i64,
}

impl BackloggedWebhook {
    /// The e-mail. The same backlog always gives the same Message-ID.
    pub fn notification(&self) -> Notification {
        let uid = alphanumeric(&self.webhook.uid);
        Notification {
            to: self.webhook.account_email.clone(),
            subject: format!(
                "Webhook {} has too many deliveries: {}",
                one_line(&self.webhook.id, 64),
                self.numbers()
            ),
            id: format!("webhook-backlog.{uid}.{}", self.since.as_microsecond()),
            date: self.since,
            body: self.body(),
        }
    }

    /// How many are held and dropped, such as `3 held, 12 dropped`.
    pub(super) fn numbers(&self) -> String {
        match (self.held, self.dropped) {
            (held, 0) => format!("{held} held"),
            (0, dropped) => format!("{dropped} dropped"),
            (held, dropped) => format!("{held} held, {dropped} dropped"),
        }
    }

    fn body(&self) -> String {
        let id = name(&self.webhook.id);
        let mut text = String::new();
        paragraph(
            &mut text,
            &format!(
                "There are more deliveries for a webhook of the account {} than its limits, or the quota of its namespace, \
                 allow. Any more are held until there is room; if too many are held, the oldest are dropped.",
                name(&self.webhook.account_name)
            ),
        );
        self.webhook.facts(&mut text);
        let mut line = |label, value: &str| fact(&mut text, label, value);
        line("Since", &self.since.strftime("%F %T UTC").to_string());
        if let Some(until) = self.until {
            line("Until", &until.strftime("%F %T UTC").to_string());
        }
        line("Held", &self.held.to_string());
        line("Dropped", &self.dropped.to_string());
        text.push('\n');
        paragraph(
            &mut text,
            "Held deliveries are sent, in order, as soon as there is room and the webhook is not disabled. Dropped ones are \
             never sent. This is the only e-mail about this backlog, however long it lasts.",
        );
        text.push_str("What to do\n\n");
        what_to_do(&mut text, &id);
        text
    }
}

fn what_to_do(text: &mut String, id: &str) {
    step(text, "1. See what is wrong (health and health_message):");
    let _ = writeln!(
        text,
        "\n   \
         curl \\\n     \
           \"$STELLAGE_URL/v1/webhooks/{id}\" \\\n     \
           -H \"Authorization: Bearer $STELLAGE_API_KEY\"\n",
    );
    step(
        text,
        "2. Fix the receiver. It must answer each POST with a 2xx status, and soon: it should only store the event, and \
         process it afterwards. If the webhook is disabled, enable it then: PATCH it with {\"active\": true}.",
    );
    step(text, "3. Send what waits for its next attempt at once:");
    let _ = writeln!(
        text,
        "\n   \
         curl -X POST \\\n     \
           \"$STELLAGE_URL/v1/webhooks/{id}/deliveries/retry\" \\\n     \
           -H \"Authorization: Bearer $STELLAGE_API_KEY\"",
    );
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        super::{affected, text::tests::overlong},
        *,
    };

    pub(in super::super) fn example() -> BackloggedWebhook {
        BackloggedWebhook {
            webhook: affected::tests::example(),
            since: "2026-11-21T10:00:00Z".parse().unwrap(),
            until: None,
            held: 1000,
            dropped: 37,
        }
    }

    #[test]
    fn the_mail_names_webhook_numbers_and_time_and_says_what_to_do() {
        let mail = example().notification();
        assert_eq!(mail.to, "ada@example.com");
        assert_eq!(
            mail.subject,
            "Webhook wh_0123456789abcdef has too many deliveries: 1000 held, 37 dropped"
        );
        for expected in [
            "account demo than its limits",
            "  Webhook     wh_0123456789abcdef (orders in namespace demo)\n",
            "  URL         https://hooks.example.com/stellage\n",
            "  Since       2026-11-21 10:00:00 UTC\n",
            "  Held        1000\n",
            "  Dropped     37\n",
            "curl \\\n     \"$STELLAGE_URL/v1/webhooks/wh_0123456789abcdef\" \\\n",
            "curl -X POST \\\n     \"$STELLAGE_URL/v1/webhooks/wh_0123456789abcdef/deliveries/retry\"",
        ] {
            let body = mail.body.replace('\n', " ");
            let found = mail.body.contains(expected) || body.contains(expected);
            assert!(found, "{expected:?} in\n{}", mail.body);
        }
        assert!(!mail.body.contains("Until"));
        assert_eq!(overlong(&mail.body), [""; 0]);
        let ended = BackloggedWebhook {
            until: "2026-11-21T10:20:00Z".parse().ok(),
            held: 0,
            ..example()
        };
        let mail = ended.notification();
        assert!(mail.subject.ends_with(": 37 dropped"), "{}", mail.subject);
        assert!(
            mail.body.contains("  Until       2026-11-21 10:20:00 UTC\n"),
            "{}",
            mail.body
        );
    }

    #[test]
    fn the_id_is_a_function_of_webhook_and_beginning() {
        let first = example().notification().message_id();
        assert_eq!(
            first,
            "<webhook-backlog.6f1c0c5e-7b0b-4a55-9a1c-9d2f4f2f8a11.1795255200000000@stellage.dev>"
        );
        let grown = BackloggedWebhook {
            dropped: 38,
            ..example()
        };
        assert_eq!(grown.notification().message_id(), first);
    }
}
