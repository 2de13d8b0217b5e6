//! A notification, and its conversion to an e-mail message.

use std::time::SystemTime;

use jiff::Timestamp;
use lettre::{
    Address, Message,
    message::{
        Mailbox, SinglePart,
        header::{Header, HeaderName, HeaderValue},
    },
};

use super::error::MailError;

/// An e-mail to an account holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The recipient's address.
    pub to: String,
    /// The subject, one line.
    pub subject: String,
    /// The part of the Message-ID before the `@`: letters, digits, `-` and `.`; always the same for the same notification.
    pub id: String,
    /// When the reported event happened; the Date header.
    pub date: Timestamp,
    /// Plain text, lines ending in `\n`.
    pub body: String,
}

impl Notification {
    /// The Message-ID, in angle brackets. Unique across clusters if [`id`](Self::id) is.
    pub fn message_id(&self) -> String {
        format!("<{}@stellage.dev>", self.id)
    }

    /// The file name. It begins with the date, so that files sort by date.
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}.eml", self.date.strftime("%Y%m%dT%H%M%S.%6fZ"), self.id)
    }

    pub(super) fn message(&self, from: &Mailbox) -> Result<Message, MailError> {
        let to: Address = self
            .to
            .parse()
            .map_err(|_| MailError::Recipient(one_line(&self.to, 254)))?;
        Message::builder()
            .from(from.clone())
            .to(Mailbox::new(None, to))
            .subject(one_line(&self.subject, 200))
            .message_id(Some(self.message_id()))
            .date(SystemTime::from(self.date))
            .header(AutoSubmitted)
            .singlepart(SinglePart::plain(self.body.clone()))
            .map_err(|error| MailError::Message(error.to_string()))
    }
}

/// Tells vacation responders not to answer (RFC 3834, section 5).
#[derive(Clone)]
struct AutoSubmitted;

impl Header for AutoSubmitted {
    fn name() -> HeaderName {
        HeaderName::new_from_ascii_str("Auto-Submitted")
    }

    fn parse(_: &str) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self)
    }

    fn display(&self) -> HeaderValue {
        HeaderValue::new(Self::name(), "auto-generated".to_owned())
    }
}

/// Makes untrusted text safe to use within a line: replaces line breaks, control characters and bidirectional controls by
/// spaces, collapses runs of spaces, and cuts the text to `characters`.
pub(super) fn one_line(text: &str, characters: usize) -> String {
    let spaced = text.replace(resources::text::is_control, " ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let spaced = words.join(" ");
    if spaced.chars().count() <= characters {
        return spaced;
    }
    let cut: String = spaced.chars().take(characters.saturating_sub(3)).collect();
    format!("{}...", cut.trim_end())
}
