//! The webhook that an e-mail is about.

use super::{
    message::one_line,
    text::{fact, name},
};

/// A webhook that an e-mail is about, and its account holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffectedWebhook {
    /// E-mail address of the account holder.
    pub account_email: String,
    /// Name of the Account.
    pub account_name: String,
    /// The Webhook's UID; the Message-ID contains it.
    pub uid: String,
    /// Public id, `wh_…`.
    pub id: String,
    /// The Webhook's name.
    pub name: String,
    /// The Webhook's namespace.
    pub namespace: String,
    /// URL of the receiver.
    pub url: String,
}

impl AffectedWebhook {
    /// Adds its names and its URL.
    pub(super) fn facts(&self, text: &mut String) {
        let (id, webhook, namespace) = (name(&self.id), name(&self.name), name(&self.namespace));
        fact(
            text,
            "Webhook",
            &format!("{id} ({webhook} in namespace {namespace})"),
        );
        fact(text, "URL", &one_line(&self.url, 2048));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn example() -> AffectedWebhook {
        AffectedWebhook {
            account_email: "ada@example.com".into(),
            account_name: "demo".into(),
            uid: "6f1c0c5e-7b0b-4a55-9a1c-9d2f4f2f8a11".into(),
            id: "wh_0123456789abcdef".into(),
            name: "orders".into(),
            namespace: "demo".into(),
            url: "https://hooks.example.com/stellage".into(),
        }
    }
}
