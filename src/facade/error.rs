//! The one error of the facade, in the one format: code, message, details that name every wrong field.

use std::borrow::Cow;

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use kube::core::Status;
use serde::Serialize;
use thiserror::Error;
use utoipa::ToSchema;

use crate::runtime::client::CallError;

/// Seconds after which to try again when the API server cannot be reached and does not say itself: a restart of a
/// replica of it takes about as long.
const RETRY_AFTER_SECONDS: u64 = 2;

/// Every error code, with its status (decisions, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: the body is missing or not JSON.
    JsonError,
    /// 401: no key, or one that is not valid.
    Unauthorized,
    /// 403: an admission policy of the cluster refuses it.
    Forbidden,
    /// 403: the key may only read.
    TokenReadonly,
    /// 403: the account's quota is used up.
    ResourceLimitExceeded,
    /// 404: there is no such thing, or it belongs to somebody else.
    NotFound,
    /// 405: the path has no such method; `Allow` lists those it has.
    MethodNotAllowed,
    /// 409: the object changed meanwhile; read it and try again.
    Conflict,
    /// 409: the instance, webhook or delivery is in a status from which this is not allowed.
    InvalidState,
    /// 409: deletion protection is on.
    Protected,
    /// 412: `If-Match` names another version.
    PreconditionFailed,
    /// 413: the body is over 64 KiB.
    PayloadTooLarge,
    /// 415: the Content-Type is not JSON.
    UnsupportedMediaType,
    /// 422: well-formed, but with wrong values; `details` names each.
    InvalidInput,
    /// 422: the `Idempotency-Key` was used with another body.
    IdempotencyKeyReused,
    /// 429: the key's requests of this hour are used up.
    RateLimitExceeded,
    /// 500: a fault of the service.
    ServerError,
    /// 503: the service cannot reach what it needs; try again.
    ServiceUnavailable,
}

impl ErrorCode {
    /// Every code.
    pub const ALL: [Self; 18] = [
        Self::JsonError,
        Self::Unauthorized,
        Self::Forbidden,
        Self::TokenReadonly,
        Self::ResourceLimitExceeded,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::Conflict,
        Self::InvalidState,
        Self::Protected,
        Self::PreconditionFailed,
        Self::PayloadTooLarge,
        Self::UnsupportedMediaType,
        Self::InvalidInput,
        Self::IdempotencyKeyReused,
        Self::RateLimitExceeded,
        Self::ServerError,
        Self::ServiceUnavailable,
    ];

    /// The code as the body spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JsonError => "json_error",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::TokenReadonly => "token_readonly",
            Self::ResourceLimitExceeded => "resource_limit_exceeded",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Conflict => "conflict",
            Self::InvalidState => "invalid_state",
            Self::Protected => "protected",
            Self::PreconditionFailed => "precondition_failed",
            Self::PayloadTooLarge => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::InvalidInput => "invalid_input",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::RateLimitExceeded => "rate_limit_exceeded",
            Self::ServerError => "server_error",
            Self::ServiceUnavailable => "service_unavailable",
        }
    }

    /// The status that it is answered with.
    pub const fn status(self) -> StatusCode {
        match self {
            Self::JsonError => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::TokenReadonly | Self::ResourceLimitExceeded => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict | Self::InvalidState | Self::Protected => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::InvalidInput | Self::IdempotencyKeyReused => StatusCode::UNPROCESSABLE_ENTITY,
            Self::RateLimitExceeded => StatusCode::TOO_MANY_REQUESTS,
            Self::ServerError => StatusCode::INTERNAL_SERVER_ERROR,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Detail {
    /// The field, query parameter or header; an element of an array as `tags[3]`.
    #[schema(value_type = String)]
    pub field: Cow<'static, str>,
    /// `missing`, `null`, `invalid_type`, `invalid_value`, `unknown_field`, `duplicate_field`, `immutable` or
    /// `invalid_state`.
    #[schema(value_type = String)]
    pub code: &'static str,
    /// For people.
    #[schema(value_type = String)]
    pub message: Cow<'static, str>,
}

impl Detail {
    /// A detail.
    pub fn new(
        field: impl Into<Cow<'static, str>>,
        code: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            field: field.into(),
            code,
            message: message.into(),
        }
    }
}

/// A request that is not answered as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{}: {message}", code.as_str())]
pub struct ApiError {
    /// What kind of error.
    pub code: ErrorCode,
    /// For people.
    pub message: Cow<'static, str>,
    /// What is wrong, field by field.
    pub details: Vec<Detail>,
    /// Seconds until it makes sense to try again.
    pub retry_after: Option<u64>,
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

    /// 422 with every wrong field.
    pub fn invalid(details: Vec<Detail>) -> Self {
        let message = match details.as_slice() {
            [one] => Cow::Owned(format!("{} {}", one.field, one.message)),
            many => Cow::Owned(format!("{} fields are not valid, see details", many.len())),
        };
        Self {
            details,
            ..Self::new(ErrorCode::InvalidInput, message)
        }
    }

    /// The same words for what is not there and for what belongs to another account.
    pub fn no_such(word: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {word} with this id"))
    }

    /// Nothing can be said for now.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(ErrorCode::ServiceUnavailable, message)
        }
    }

    /// A fault of the service; the log tells it, the client only that there is one.
    pub fn fault() -> Self {
        Self::new(
            ErrorCode::ServerError,
            "the service has failed on this request; the request id helps to find out why",
        )
    }

    /// The answer's body.
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
    /// What kind of error, for programs.
    code: ErrorCode,
    /// For people; the words may change.
    message: &'a str,
    /// What is wrong, field by field; empty where no field is to blame.
    details: &'a [Detail],
    /// The same as the header `X-Request-Id`.
    request_id: &'a str,
}

impl IntoResponse for ApiError {
    /// The body comes later, from [`super::front`], which knows the request id.
    fn into_response(self) -> Response {
        let mut response = Response::new(axum::body::Body::empty());
        *response.status_mut() = self.code.status();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<CallError> for ApiError {
    fn from(error: CallError) -> Self {
        match error.status() {
            Some(status) => refused(status),
            None => match error {
                CallError::Api(kube::Error::SerdeError(error)) => {
                    tracing::error!(%error, "the API server's answer does not parse");
                    Self::fault()
                }
                error => {
                    tracing::warn!(%error, "the API server cannot be reached");
                    Self::unavailable("the service cannot reach its database for now; try again")
                }
            },
        }
    }
}

/// What the API server says while a new quota has not been counted yet.
const NOT_COUNTED: &str = "status unknown for quota";

/// Whether it would have been another answer a moment later.
pub(super) fn is_not_counted(error: &CallError) -> bool {
    let status = error.status();
    status.is_some_and(|status| status.code == 403 && status.message.contains(NOT_COUNTED))
}

/// What an answer of the API server means for a client that does not know that there is one.
fn refused(status: &Status) -> ApiError {
    let terminating = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating");
    match status.code {
        404 if status.details.as_ref().is_some_and(|d| d.kind == "namespaces") => ApiError::new(
            ErrorCode::Conflict,
            "the account is being set up or removed; try again",
        ),
        404 => ApiError::no_such(match status.details.as_ref().map(|d| d.kind.as_str()) {
            Some("webhooks") => "webhook",
            Some("deliveries") => "delivery",
            _ => "instance",
        }),
        409 => ApiError::new(
            ErrorCode::Conflict,
            "the object changed while the request was handled; read it and try again",
        ),
        403 if terminating => ApiError::new(
            ErrorCode::Conflict,
            "the account is being removed; nothing can be created in it",
        ),
        403 if status.message.contains("exceeded quota") => quota_used_up(
            if status.message.contains("requested: count/webhooks.stellage.dev") {
                "webhooks"
            } else {
                "instances"
            },
        ),
        // The operator's rights: an API server that has just started does not know them for a moment.
        403 if status.message.contains(" cannot ") => {
            tracing::error!(message = status.message, "the API server refuses the facade");
            ApiError::unavailable("the service may not do this for now; try again")
        }
        403 if status.message.contains(NOT_COUNTED) => {
            ApiError::unavailable("the account's quota is not counted yet; try again")
        }
        403 | 422 if status.message.contains("deletion-protection.stellage.dev") => protected(),
        403 | 400
            if status.message.contains("denied request") || status.message.contains("denied the request") =>
        {
            ApiError::new(
                ErrorCode::Forbidden,
                format!("a policy of the cluster refuses this: {}", status.message),
            )
        }
        422 => ApiError::invalid(causes(status)),
        // What was asked for has more pages than the API server remembers for long.
        410 => ApiError::unavailable("the list took too long to read; try again"),
        413 => ApiError::new(ErrorCode::PayloadTooLarge, "the object would become too large"),
        429 | 500..=599 => {
            tracing::warn!(
                code = status.code,
                message = status.message,
                "the API server cannot serve"
            );
            let asked = status.details.as_ref().map(|d| u64::from(d.retry_after_seconds));
            ApiError {
                retry_after: asked.filter(|s| *s > 0).or(Some(RETRY_AFTER_SECONDS)),
                ..ApiError::unavailable("the service's database is busy for now; try again")
            }
        }
        _ => {
            tracing::error!(
                code = status.code,
                message = status.message,
                "the API server refuses the facade"
            );
            ApiError::fault()
        }
    }
}

/// 403 for one too many.
pub(super) fn quota_used_up(words: &str) -> ApiError {
    ApiError::new(
        ErrorCode::ResourceLimitExceeded,
        format!("the account has as many {words} as its quota allows; delete one or ask for a higher quota"),
    )
}

/// 409 for a DELETE of what is protected.
pub(super) fn protected() -> ApiError {
    ApiError::new(
        ErrorCode::Protected,
        "deletion protection is on for this instance; it has to be switched off before the instance can be deleted",
    )
}

/// What admission refuses that the facade let through, in the facade's words for fields.
fn causes(status: &Status) -> Vec<Detail> {
    let mut details: Vec<Detail> = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .map(|cause| {
            let message = cause.message.rsplit(": ").next().unwrap_or(&cause.message);
            Detail::new(rest_field(&cause.field), "invalid_value", message.to_owned())
        })
        .collect();
    if details.is_empty() {
        details.push(Detail::new("body", "invalid_value", status.message.clone()));
    }
    details
}

/// `spec.sshKeys[0]` as REST spells it: `ssh_keys[0]`.
fn rest_field(field: &str) -> String {
    let mut name = String::new();
    for letter in field.strip_prefix("spec.").unwrap_or(field).chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answered(code: u16, message: &str, details: &serde_json::Value) -> ApiError {
        let status: Status =
            serde_json::from_value(json!({ "status": "Failure", "code": code, "message": message, "reason": "", "details": details }))
                .unwrap();
        CallError::Api(kube::Error::Api(Box::new(status))).into()
    }

    #[test]
    fn every_code_has_the_decided_name() {
        for code in ErrorCode::ALL {
            assert_eq!(serde_json::to_value(code).unwrap(), json!(code.as_str()));
        }
    }

    #[test]
    fn the_body_has_the_decided_format() {
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

    #[test]
    fn answers_of_the_api_server_are_translated() {
        let none = json!({});
        let table = [
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: exceeded quota: instances, requested: 1",
                "resource_limit_exceeded",
            ),
            (
                403,
                "webhooks.stellage.dev \"wh-1\" is forbidden: exceeded quota: stellage, requested: count/webhooks.stellage.dev=1",
                "resource_limit_exceeded",
            ),
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: status unknown for quota: account",
                "service_unavailable",
            ),
            (
                403,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                "protected",
            ),
            (
                422,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                "protected",
            ),
            (403, "admission webhook \"x\" denied the request: no", "forbidden"),
            (
                403,
                "User \"system:serviceaccount:a:b\" cannot create resource",
                "service_unavailable",
            ),
            (401, "Unauthorized", "server_error"),
            (404, "instances.stellage.dev \"x\" not found", "not_found"),
            (409, "the object has been modified", "conflict"),
            (
                410,
                "The provided continue parameter is too old",
                "service_unavailable",
            ),
            (429, "too many requests", "service_unavailable"),
            (500, "etcdserver: leader changed", "service_unavailable"),
            (504, "timeout", "service_unavailable"),
        ];
        for (code, message, expected) in table {
            let error = answered(code, message, &none);
            assert_eq!(error.code.as_str(), expected, "{message}");
            assert_eq!(
                error.retry_after.is_some(),
                expected == "service_unavailable",
                "{message}"
            );
        }
        let told = answered(429, "slow down", &json!({ "retryAfterSeconds": 7 }));
        assert_eq!(told.retry_after, Some(7));
        let ending = answered(
            403,
            "forbidden",
            &json!({ "causes": [{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }] }),
        );
        assert_eq!(ending.code, ErrorCode::Conflict);
        assert_eq!(
            ApiError::from(CallError::Timeout).code,
            ErrorCode::ServiceUnavailable
        );
    }

    #[test]
    fn what_admission_refuses_names_fields_as_rest_does() {
        let error = answered(
            422,
            "Instance is invalid",
            &json!({ "causes": [{ "field": "spec.sshKeys[0]", "message": "Invalid value: \"string\": must be one line" }] }),
        );
        assert_eq!(error.code, ErrorCode::InvalidInput);
        assert_eq!(
            error.details,
            [Detail::new("ssh_keys[0]", "invalid_value", "must be one line")]
        );
    }
}
