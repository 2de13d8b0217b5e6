//! Errors of `/v1` and of the console, and their causes.

use http::StatusCode;
use serde::Deserialize;

use super::text::sentence;

/// An error of `/v1`, or of the console itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its status.
    pub status: StatusCode,
    /// Its code.
    pub code: Box<str>,
    /// Its message.
    pub message: String,
    /// What is wrong with each field.
    pub details: Vec<Detail>,
    /// Its request id.
    pub request_id: Box<str>,
    /// Seconds to wait before trying again.
    pub retry_after: Option<String>,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Detail {
    /// The field, such as `tags[3]`.
    pub field: String,
    /// What is wrong, to be read after the field.
    pub message: String,
}

#[derive(Deserialize)]
struct Answer {
    error: Body,
}

#[derive(Deserialize)]
struct Body {
    code: Box<str>,
    message: String,
    details: Vec<Detail>,
    request_id: Box<str>,
}

impl Refusal {
    /// The refusal in a response.
    pub fn read(status: StatusCode, body: &[u8], retry_after: Option<String>) -> Self {
        let answer: Option<Answer> = serde_json::from_slice(body).ok();
        answer.map_or_else(Self::fault, |Answer { error }| Self {
            status,
            code: error.code,
            message: error.message,
            details: error.details,
            request_id: error.request_id,
            retry_after,
        })
    }

    /// A refusal by the console itself.
    pub fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            details: Vec::new(),
            request_id: Box::default(),
            retry_after: None,
        }
    }

    /// Its message as a sentence.
    pub fn sentence(&self) -> String {
        sentence(&self.message)
    }

    /// Whether its details say more than its message.
    pub fn has_more_details(&self) -> bool {
        let details = &mut self.details.iter();
        details.any(|detail| !self.message.contains(&detail.message))
    }

    /// An internal error of the console.
    pub fn fault() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "an internal error occurred",
        )
    }

    /// The error for a page that does not exist.
    pub fn no_such_page() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is no such page")
    }
}
