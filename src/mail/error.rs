//! What can go wrong between a notification and its reader.

use thiserror::Error;

/// Why a mail was not sent, or a setting is of no use. No message holds a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MailError {
    /// There is no `--smtp-url`.
    #[error("no mail is sent: there is no --smtp-url (STELLAGE_SMTP_URL)")]
    NotConfigured,
    /// A setting cannot be used.
    #[error("{flag} {problem}")]
    Setting {
        /// The flag.
        flag: &'static str,
        /// What is wrong with its value, and what to write.
        problem: String,
    },
    /// The recipient's address is none.
    #[error("{0:?} is no address that mail can be sent to")]
    Recipient(String),
    /// The mail cannot be put together.
    #[error("the mail cannot be put together: {0}")]
    Message(String),
    /// The mail server said no.
    #[error("{server} refuses {step}: {code} {text}")]
    Refused {
        /// The mail server, as host and port.
        server: String,
        /// What it refuses.
        step: Step,
        /// Its answer: 4xx for now, 5xx for good (RFC 5321, section 4.2.1).
        code: u16,
        /// Its words, cut to 300 characters.
        text: String,
    },
    /// The mail server offers no STARTTLS, and `tls=required`.
    #[error("{server} offers no encryption (STARTTLS), and --smtp-url requires it; nothing was sent")]
    NotEncrypted {
        /// The mail server, as host and port.
        server: String,
    },
    /// The connection failed, or what came over it was no SMTP.
    #[error("{step} with {server} failed: {reason}")]
    Connection {
        /// The mail server, as host and port.
        server: String,
        /// What was being done.
        step: Step,
        /// Why.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write the mail to {path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// It took too long.
    #[error("sending to {to} took longer than {seconds} s (--mail-timeout-seconds)")]
    Timeout {
        /// Where it was being sent.
        to: String,
        /// The limit.
        seconds: u64,
    },
}

/// One part of a conversation with a mail server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TCP, the greeting and EHLO, with `smtps://` also TLS.
    Connect,
    /// STARTTLS.
    Encrypt,
    /// AUTH.
    Authenticate,
    /// Sender, recipient and content.
    Send,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "the connection",
            Self::Encrypt => "the encryption",
            Self::Authenticate => "the user name and password of --smtp-url",
            Self::Send => "the mail",
        })
    }
}

impl MailError {
    /// Whether sending the same mail again, with the same settings, is of no use: a 5xx answer, a mail that cannot be put
    /// together, or nowhere to send it.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::NotConfigured | Self::Setting { .. } | Self::Recipient(_) | Self::Message(_) => true,
            Self::Refused { code, .. } => *code >= 500,
            Self::NotEncrypted { .. }
            | Self::Connection { .. }
            | Self::File { .. }
            | Self::Timeout { .. } => false,
        }
    }

    /// What the account holder is told. Which server it is, and how it is reached, is for the log.
    pub fn told(&self) -> String {
        match self {
            Self::Recipient(_) => format!("{self}; the account's spec.email has to be mended"),
            Self::Refused {
                code,
                text,
                step: Step::Send,
                ..
            } => {
                format!("the mail server refuses the mail: {code} {text}; it will be tried again")
            }
            Self::NotConfigured => "no e-mails are sent here".to_owned(),
            _ => "the e-mail could not be sent; it will be tried again".to_owned(),
        }
    }

    /// The kind of error, for metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NotConfigured => "not_configured",
            Self::Setting { .. } => "setting",
            Self::Recipient(_) => "recipient",
            Self::Message(_) => "message",
            Self::Refused { .. } => "refused",
            Self::NotEncrypted { .. } => "not_encrypted",
            Self::Connection { .. } => "connection",
            Self::File { .. } => "file",
            Self::Timeout { .. } => "timeout",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_holder_is_not_told_which_mail_server_it_is() {
        let server = || "mail.internal:587".to_owned();
        let errors = [
            MailError::NotConfigured,
            MailError::NotEncrypted { server: server() },
            MailError::Timeout {
                to: server(),
                seconds: 30,
            },
            MailError::Connection {
                server: server(),
                step: Step::Connect,
                reason: "refused by mail.internal".to_owned(),
            },
            MailError::Refused {
                server: server(),
                step: Step::Authenticate,
                code: 535,
                text: "no".to_owned(),
            },
            MailError::Refused {
                server: server(),
                step: Step::Send,
                code: 550,
                text: "no such user".to_owned(),
            },
            MailError::File {
                path: "/var/mail.internal".to_owned(),
                reason: "full".to_owned(),
            },
        ];
        for error in errors {
            let told = error.told();
            assert!(!told.contains("internal") && !told.contains("smtp-url"), "{told}");
        }
    }
}
