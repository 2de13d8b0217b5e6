//! The error format: a code, a message, details that name every invalid field, and the request id.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;

/// Every error code, with its status (decisions, section 6).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    ToSchema,
    strum::Display,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
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
    /// 403: the account is suspended, and can only be read; the message says why.
    AccountSuspended,
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
    /// The code as it appears in the body.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The HTTP status of the answer.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest | Self::JsonError => 400,
            Self::Unauthorized => 401,
            Self::Forbidden | Self::TokenReadonly | Self::AccountSuspended | Self::ResourceLimitExceeded => {
                403
            }
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::RequestTimeout => 408,
            Self::Conflict | Self::InvalidState | Self::Protected => 409,
            Self::PreconditionFailed => 412,
            Self::PayloadTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::InvalidInput | Self::IdempotencyKeyReused => 422,
            Self::RateLimitExceeded => 429,
            Self::HeadersTooLarge => 431,
            Self::ServerError => 500,
            Self::ServiceUnavailable => 503,
        }
    }
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct ErrorBody {
    /// The kind of error, for programs.
    pub code: ErrorCode,
    /// A message for people; the wording may change.
    pub message: String,
    /// What is wrong with each field; empty if the error is not about fields.
    pub details: Vec<Detail>,
    /// The request id, as in the header `X-Request-Id`.
    pub request_id: String,
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Detail {
    /// The field, query parameter or header. An element of an array is written `tags[3]`.
    #[schema(value_type = String)]
    pub field: Cow<'static, str>,
    /// `missing`, `null`, `invalid_type`, `invalid_value`, `unknown_field`, `duplicate_field`, `immutable` or
    /// `invalid_state`.
    #[schema(schema_with = schema::detail_code)]
    pub code: Cow<'static, str>,
    /// A message for people.
    #[schema(value_type = String)]
    pub message: Cow<'static, str>,
}

impl Detail {
    /// A detail about one field.
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            field: field.into(),
            code: code.into(),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use strum::VariantArray as _;

    use super::*;

    #[test]
    fn every_code_is_serialized_as_its_name() {
        for code in ErrorCode::VARIANTS {
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
        }
    }
}
