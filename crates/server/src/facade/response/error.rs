//! Errors as responses.

use axum::response::{IntoResponse, Response};
use http::StatusCode;

pub use crate::service::error::{Detail, Error, ErrorCode};
pub use api::ErrorAnswer;

/// The status of an answer with this code.
pub fn status(code: ErrorCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// The body of the answer.
pub fn body(error: &Error, request_id: &str) -> Vec<u8> {
    let body = ErrorAnswer {
        error: api::ErrorBody {
            code: error.code,
            message: error.message.to_string(),
            details: error.details.clone(),
            request_id: request_id.to_owned(),
        },
    };
    serde_json::to_vec(&body).unwrap_or_default()
}

impl IntoResponse for Error {
    /// An answer with an empty body, which `facade::middleware` fills in, because it knows the request id.
    fn into_response(self) -> Response {
        let mut response = Response::new(axum::body::Body::empty());
        *response.status_mut() = status(self.code);
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_body_has_code_message_details_and_request_id() {
        let error = Error::invalid_value("tags[3]", "must be short");
        let body: serde_json::Value = serde_json::from_slice(&body(&error, "r-1")).unwrap();
        assert_eq!(
            body,
            json!({"error": {
                "code": "invalid_input", "message": "tags[3] must be short", "request_id": "r-1",
                "details": [{"field": "tags[3]", "code": "invalid_value", "message": "must be short"}]
            }})
        );
    }
}
