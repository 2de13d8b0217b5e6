//! Errors of `/v1` and of the console, and their causes.

use axum::response::Response;
use http::StatusCode;

use super::text::sentence;
use crate::facade::status;
use api::{ErrorAnswer, ErrorBody, ErrorCode};

/// What a page answers; the middleware makes a page of a refusal.
pub type Answer = Result<Response, Refusal>;

/// An error of `/v1`, or of the console itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    /// What it says.
    pub error: ErrorBody,
    /// Seconds to wait before trying again.
    pub retry_after: Option<String>,
}

impl Refusal {
    /// The refusal in a response.
    pub fn read(status: StatusCode, body: &[u8], retry_after: Option<String>) -> Self {
        let answer: Option<ErrorAnswer> = serde_json::from_slice(body).ok();
        answer.map_or_else(Self::fault, |ErrorAnswer { error }| Self {
            status,
            error,
            retry_after,
        })
    }

    /// A refusal by the console itself.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            status: status(code),
            error: ErrorBody {
                code,
                message: message.into(),
                details: Vec::new(),
                request_id: String::new(),
            },
            retry_after: None,
        }
    }

    /// Its message as a sentence.
    pub fn sentence(&self) -> String {
        sentence(&self.error.message)
    }

    /// Whether its details say more than its message.
    pub fn has_more_details(&self) -> bool {
        let details = &mut self.error.details.iter();
        details.any(|detail| !self.error.message.contains(&*detail.message))
    }

    /// An internal error of the console.
    pub fn fault() -> Self {
        Self::new(ErrorCode::ServerError, "an internal error occurred")
    }

    /// The error for a page that does not exist.
    pub fn no_such_page() -> Self {
        Self::new(ErrorCode::NotFound, "there is no such page")
    }
}
