//! Errors of the mail settings and of sending mails.

use thiserror::Error;

/// Why a mail was not sent, or a setting is invalid. No message contains a password.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MailError {
    /// `--smtp-url` is not set.
    #[error("e-mail is not configured: set --smtp-url (STELLAGE_SMTP_URL)")]
    NotConfigured,
    /// A setting is invalid.
    #[error("{flag} {problem}")]
    Setting {
        flag: &'static str,
        /// What is wrong with its value, and what to write.
        problem: String,
    },
    /// The recipient's address is invalid.
    #[error("{0:?} is not a valid e-mail address")]
    Recipient(String),
    /// The mail cannot be composed.
    #[error("cannot compose the e-mail: {0}")]
    Message(String),
    /// The mail server refused a step.
    #[error("{server} refuses {step}: {code} {text}")]
    Refused {
        /// The mail server, as host and port.
        server: String,
        /// The refused step.
        step: Step,
        /// Reply code: 4xx is temporary, 5xx permanent (RFC 5321, section 4.2.1).
        code: u16,
        /// Reply text, cut to 300 characters.
        text: String,
    },
    /// `tls=required` is set, but the mail server does not offer STARTTLS.
    #[error("{server} does not offer encryption (STARTTLS), which --smtp-url requires; nothing was sent")]
    NotEncrypted {
        /// The mail server, as host and port.
        server: String,
    },
    /// The connection failed, or the peer does not speak SMTP.
    #[error("{step} with {server} failed: {reason}")]
    Connection {
        /// The mail server, as host and port.
        server: String,
        /// The failed step.
        step: Step,
        /// Why it failed.
        reason: String,
    },
    /// The file cannot be written.
    #[error("cannot write the mail to {path}: {reason}")]
    File {
        /// Path of the file.
        path: String,
        /// Why it cannot be written.
        reason: String,
    },
    /// Sending took too long.
    #[error("sending to {to} took longer than {seconds} s (--mail-timeout-seconds)")]
    Timeout {
        /// The mail server or folder.
        to: String,
        /// The timeout in seconds.
        seconds: u64,
    },
}

/// A step of an SMTP session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TCP, the greeting and EHLO; with `smtps://` also TLS.
    Connect,
    /// STARTTLS.
    Encrypt,
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
    /// The message for the account holder. It does not name the mail server, which only the log shows.
    pub fn public_message(&self) -> String {
        match self {
            Self::Recipient(_) => format!("{self}; correct spec.email of the Account"),
            Self::Refused {
                code,
                text,
                step: Step::Send,
                ..
            } => {
                format!("the mail server refuses the e-mail: {code} {text}; will retry")
            }
            Self::NotConfigured => "this installation sends no e-mails".to_owned(),
            _ => "cannot send the e-mail; will retry".to_owned(),
        }
    }

    /// A static label for metrics.
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
    fn the_message_for_the_account_holder_does_not_name_the_mail_server() {
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
            let message = error.public_message();
            assert!(
                !message.contains("internal") && !message.contains("smtp-url"),
                "{message}"
            );
        }
    }
}
