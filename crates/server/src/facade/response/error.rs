//! The error format of `/v1`: a code, a message, details that name every invalid field, and the request id.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

pub use crate::service::error::Detail;
use crate::service::error::{Error as ServiceError, ErrorKind};

/// Every error code, with its status (decisions, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ErrorCode {
    /// 400: the request is not valid HTTP.
    BadRequest,
    /// 400: the body is missing or not JSON.
    JsonError,
    /// 401: the API key is missing or not valid.
    Unauthorized,
    /// 403: an admission policy of the cluster refuses the request.
    Forbidden,
    /// 403: the key may only read.
    TokenReadonly,
    /// 403: the account's quota is used up.
    ResourceLimitExceeded,
    /// 404: it does not exist, or it belongs to another account.
    NotFound,
    /// 405: the path does not support the method; `Allow` lists those that it does.
    MethodNotAllowed,
    /// 408: the head of the request did not arrive in time.
    RequestTimeout,
    /// 409: the object changed during the request; read it and try again.
    Conflict,
    /// 409: the status of the instance, webhook or delivery does not allow the request.
    InvalidState,
    /// 409: deletion protection is on.
    Protected,
    /// 412: `If-Match` does not match the current version.
    PreconditionFailed,
    /// 413: the body is larger than 64 KiB.
    PayloadTooLarge,
    /// 415: the Content-Type is not JSON.
    UnsupportedMediaType,
    /// 422: well-formed, but some values are not valid; `details` names each.
    InvalidInput,
    /// 422: the `Idempotency-Key` was used with another body.
    IdempotencyKeyReused,
    /// 429: the key has used up its requests for now.
    RateLimitExceeded,
    /// 431: the head of the request is too large.
    HeadersTooLarge,
    /// 500: an internal error.
    ServerError,
    /// 503: the service cannot reach a system that it depends on; try again.
    ServiceUnavailable,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 21] = [
        Self::BadRequest,
        Self::JsonError,
        Self::Unauthorized,
        Self::Forbidden,
        Self::TokenReadonly,
        Self::ResourceLimitExceeded,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::RequestTimeout,
        Self::Conflict,
        Self::InvalidState,
        Self::Protected,
        Self::PreconditionFailed,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidInput,
        Self::IdempotencyKeyReused,
        Self::RateLimitExceeded,
        Self::HeadersTooLarge,
        Self::ServerError,
        Self::ServiceUnavailable,
    ];

    /// The code as it appears in the body.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The HTTP status of the answer.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::BadRequest | Self::JsonError => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::TokenReadonly | Self::ResourceLimitExceeded => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict | Self::InvalidState | Self::Protected => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::InvalidInput | Self::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::RateLimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::ServerError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl From<ErrorKind> for ErrorCode {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Unauthorized => Self::Unauthorized,
            ErrorKind::Forbidden => Self::Forbidden,
            ErrorKind::ResourceLimitExceeded => Self::ResourceLimitExceeded,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::InvalidState => Self::InvalidState,
            ErrorKind::Protected => Self::Protected,
            ErrorKind::PreconditionFailed => Self::PreconditionFailed,
            ErrorKind::TooLarge => Self::PayloadTooLarge,
            ErrorKind::InvalidInput => Self::InvalidInput,
            ErrorKind::IdempotencyKeyReused => Self::IdempotencyKeyReused,
            ErrorKind::Fault => Self::ServerError,
            ErrorKind::Unavailable => Self::ServiceUnavailable,
        }
    }
}

/// An error answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}: {message}", code.as_str())]
pub struct ApiError {
    /// The kind of error.
    pub code: ErrorCode,
    /// A message for people.
    pub message: Cow<'static, str>,
    /// What is wrong with each field.
    pub details: Vec<Detail>,
    /// Seconds to wait before trying again.
    pub retry_after: Option<u64>,
}

impl From<ServiceError> for ApiError {
    fn from(error: ServiceError) -> Self {
        Self {
            code: error.kind.into(),
            message: error.message,
            details: error.details,
            retry_after: error.retry_after,
        }
    }
}

impl ApiError {
    /// An error without details.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
            retry_after: None,
        }
    }

    /// 422 that names every invalid field.
    pub fn invalid(details: Vec<Detail>) -> Self {
        ServiceError::invalid(details).into()
    }

    /// 503: the request cannot be answered at the moment.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        ServiceError::unavailable(message).into()
    }

    /// 500 without the cause, which the caller logs.
    pub fn fault() -> Self {
        ServiceError::fault().into()
    }

    /// The body of the answer.
    pub fn body(&self, request_id: &str) -> Vec<u8> {
        let body = ErrorAnswer {
            error: ErrorBody {
                code: self.code,
                message: &self.message,
                details: &self.details,
                request_id,
            },
        };
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

/// The body of every answer that is not a success.
#[derive(Serialize, ToSchema)]
pub struct ErrorAnswer<'a> {
    /// The error.
    #[serde(borrow)]
    error: ErrorBody<'a>,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub struct ErrorBody<'a> {
    /// The kind of error, for programs.
    code: ErrorCode,
    /// A message for people; the wording may change.
    message: &'a str,
    /// What is wrong with each field; empty if the error is not about fields.
    details: &'a [Detail],
    /// The request id, as in the header `X-Request-Id`.
    request_id: &'a str,
}

impl IntoResponse for ApiError {
    /// An answer with an empty body, which [`crate::facade::middleware`] fills in, because it knows the request id.
    fn into_response(self) -> Response {
        let mut response = Response::new(axum::body::Body::empty());
        *response.status_mut() = self.code.status();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_code_is_serialized_as_its_name() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
        }
    }

    #[test]
    fn the_body_has_code_message_details_and_request_id() {
        let error = ApiError::invalid(vec![Detail::new("tags[3]", "invalid_value", "must be short")]);
        let body: serde_json::Value = serde_json::from_slice(&error.body("r-1")).unwrap();
        assert_eq!(
            body,
            json!({"error": {
                "code": "invalid_input", "message": "tags[3] must be short", "request_id": "r-1",
                "details": [{"field": "tags[3]", "code": "invalid_value", "message": "must be short"}]
            }})
        );
    }
}
