//! The one error of the service: what kind, a message for people, and details that name every wrong field.

use std::borrow::Cow;

use kube::core::Status;
use serde::Serialize;
use utoipa::ToSchema;

use crate::runtime::client::CallError;

/// Seconds after which to try again when the API server cannot be reached and does not say itself: a restart of a
/// replica of it takes about as long.
const RETRY_AFTER_SECONDS: u64 = 2;

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The API key is not valid.
    Unauthorized,
    /// An admission policy of the cluster refuses it.
    Forbidden,
    /// The account's quota is used up.
    ResourceLimitExceeded,
    /// There is no such thing, or it belongs to somebody else.
    NotFound,
    /// The object changed meanwhile; read it and try again.
    Conflict,
    /// The instance, webhook or delivery is in a status from which this is not allowed.
    InvalidState,
    /// Deletion protection is on.
    Protected,
    /// The request is for another version.
    PreconditionFailed,
    /// What it would become is too large to be stored.
    TooLarge,
    /// Wrong values; the details name each.
    InvalidInput,
    /// The idempotency key was used with another body.
    IdempotencyKeyReused,
    /// A fault of the service.
    Fault,
    /// The service cannot reach what it needs; try again.
    Unavailable,
}

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Detail {
    /// The field, or the query parameter or header of a request; an element of an array as `tags[3]`.
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
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{kind:?}: {message}")]
pub struct Error {
    /// Why.
    pub kind: ErrorKind,
    /// For people.
    pub message: Cow<'static, str>,
    /// What is wrong, field by field.
    pub details: Vec<Detail>,
    /// Seconds until it makes sense to try again.
    pub retry_after: Option<u64>,
}

impl Error {
    /// An error without details.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            details: Vec::new(),
            retry_after: None,
        }
    }

    /// `invalid_input` with every wrong field.
    pub fn invalid(details: Vec<Detail>) -> Self {
        let message = match details.as_slice() {
            [one] => Cow::Owned(format!("{} {}", one.field, one.message)),
            many => Cow::Owned(format!("{} fields are not valid, see details", many.len())),
        };
        Self {
            details,
            ..Self::new(ErrorKind::InvalidInput, message)
        }
    }

    /// The same words for what is not there and for what belongs to another account.
    pub fn no_such(word: &str) -> Self {
        Self::new(ErrorKind::NotFound, format!("there is no {word} with this id"))
    }

    /// Nothing can be said for now.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(ErrorKind::Unavailable, message)
        }
    }

    /// A fault of the service; the log tells it, the client only that there is one.
    pub fn fault() -> Self {
        Self::new(
            ErrorKind::Fault,
            "the service has failed on this request; the request id helps to find out why",
        )
    }
}

impl From<CallError> for Error {
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
pub fn is_not_counted(error: &CallError) -> bool {
    let status = error.status();
    status.is_some_and(|status| status.code == 403 && status.message.contains(NOT_COUNTED))
}

/// What an answer of the API server means for a client that does not know that there is one.
fn refused(status: &Status) -> Error {
    let terminating = status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating");
    match status.code {
        404 if status.details.as_ref().is_some_and(|d| d.kind == "namespaces") => Error::new(
            ErrorKind::Conflict,
            "the account is being set up or removed; try again",
        ),
        404 => Error::no_such(match status.details.as_ref().map(|d| d.kind.as_str()) {
            Some("webhooks") => "webhook",
            Some("deliveries") => "delivery",
            Some("apikeys") => "API key",
            _ => "instance",
        }),
        409 => Error::new(
            ErrorKind::Conflict,
            "the object changed while the request was handled; read it and try again",
        ),
        403 if terminating => Error::new(
            ErrorKind::Conflict,
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
            tracing::error!(message = status.message, "the API server refuses the service");
            Error::unavailable("the service may not do this for now; try again")
        }
        403 if status.message.contains(NOT_COUNTED) => {
            Error::unavailable("the account's quota is not counted yet; try again")
        }
        403 | 422 if status.message.contains("deletion-protection.stellage.dev") => protected(),
        403 | 400
            if status.message.contains("denied request") || status.message.contains("denied the request") =>
        {
            Error::new(
                ErrorKind::Forbidden,
                format!("a policy of the cluster refuses this: {}", status.message),
            )
        }
        422 => Error::invalid(causes(status)),
        // What was asked for has more pages than the API server remembers for long.
        410 => Error::unavailable("the list took too long to read; try again"),
        413 => Error::new(ErrorKind::TooLarge, "the object would become too large"),
        429 | 500..=599 => {
            tracing::warn!(
                code = status.code,
                message = status.message,
                "the API server cannot serve"
            );
            let asked = status.details.as_ref().map(|d| u64::from(d.retry_after_seconds));
            Error {
                retry_after: asked.filter(|s| *s > 0).or(Some(RETRY_AFTER_SECONDS)),
                ..Error::unavailable("the service's database is busy for now; try again")
            }
        }
        _ => {
            tracing::error!(
                code = status.code,
                message = status.message,
                "the API server refuses the service"
            );
            Error::fault()
        }
    }
}

/// 403 for one too many.
pub fn quota_used_up(words: &str) -> Error {
    Error::new(
        ErrorKind::ResourceLimitExceeded,
        format!("the account has as many {words} as its quota allows; delete one or ask for a higher quota"),
    )
}

/// 409 for a DELETE of what is protected.
pub fn protected() -> Error {
    Error::new(
        ErrorKind::Protected,
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

    fn answered(code: u16, message: &str, details: &serde_json::Value) -> Error {
        let status: Status =
            serde_json::from_value(json!({ "status": "Failure", "code": code, "message": message, "reason": "", "details": details }))
                .unwrap();
        CallError::Api(kube::Error::Api(Box::new(status))).into()
    }

    #[test]
    fn answers_of_the_api_server_are_translated() {
        let none = json!({});
        let table = [
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: exceeded quota: instances, requested: 1",
                ErrorKind::ResourceLimitExceeded,
            ),
            (
                403,
                "webhooks.stellage.dev \"wh-1\" is forbidden: exceeded quota: stellage, requested: count/webhooks.stellage.dev=1",
                ErrorKind::ResourceLimitExceeded,
            ),
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: status unknown for quota: account",
                ErrorKind::Unavailable,
            ),
            (
                403,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                ErrorKind::Protected,
            ),
            (
                422,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                ErrorKind::Protected,
            ),
            (
                403,
                "admission webhook \"x\" denied the request: no",
                ErrorKind::Forbidden,
            ),
            (
                403,
                "User \"system:serviceaccount:a:b\" cannot create resource",
                ErrorKind::Unavailable,
            ),
            (401, "Unauthorized", ErrorKind::Fault),
            (404, "instances.stellage.dev \"x\" not found", ErrorKind::NotFound),
            (409, "the object has been modified", ErrorKind::Conflict),
            (
                410,
                "The provided continue parameter is too old",
                ErrorKind::Unavailable,
            ),
            (429, "too many requests", ErrorKind::Unavailable),
            (500, "etcdserver: leader changed", ErrorKind::Unavailable),
            (504, "timeout", ErrorKind::Unavailable),
        ];
        for (code, message, expected) in table {
            let error = answered(code, message, &none);
            assert_eq!(error.kind, expected, "{message}");
            assert_eq!(
                error.retry_after.is_some(),
                expected == ErrorKind::Unavailable,
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
        assert_eq!(ending.kind, ErrorKind::Conflict);
        assert_eq!(Error::from(CallError::Timeout).kind, ErrorKind::Unavailable);
    }

    #[test]
    fn what_admission_refuses_names_fields_as_rest_does() {
        let error = answered(
            422,
            "Instance is invalid",
            &json!({ "causes": [{ "field": "spec.sshKeys[0]", "message": "Invalid value: \"string\": must be one line" }] }),
        );
        assert_eq!(error.kind, ErrorKind::InvalidInput);
        assert_eq!(
            error.details,
            [Detail::new("ssh_keys[0]", "invalid_value", "must be one line")]
        );
    }
}
