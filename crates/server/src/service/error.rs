//! The error type of the service and of the facade: a code, a message for people, and details that name every invalid field.

use std::borrow::Cow;

use kube::core::Status;

pub use api::{Detail, ErrorCode};

use domain::instance::{DoesNotFit, NotAllowed};
use resources::{
    Plan,
    quota::{self, Exceeded},
};
use runtime::client::{CallError, is_denial, is_namespace_terminating};

/// Seconds after which to try again if the API server cannot be reached or names no time: about as long as one of its
/// replicas takes to restart.
const RETRY_AFTER_SECONDS: u64 = 2;

/// Invalid fields that an answer names (decisions, section 6), and how much of the name that a client gave to one.
const MAX_DETAILS: usize = 100;
const MAX_FIELD: usize = 100;

fn shorten(field: &mut Cow<'static, str>) {
    if let Some((end, _)) = field.char_indices().nth(MAX_FIELD) {
        *field = Cow::Owned(format!("{}…", &field[..end]));
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{code}: {message}")]
pub struct Error {
    /// The kind of error.
    pub code: ErrorCode,
    /// A message for people.
    pub message: Cow<'static, str>,
    /// What is wrong with each field.
    pub details: Vec<Detail>,
    /// Seconds to wait before trying again.
    pub retry_after: Option<u64>,
}

impl Error {
    /// An error without details.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            details: Vec::new(),
            retry_after: None,
        }
    }

    /// `invalid_input` that names one field with a wrong value.
    pub fn invalid_value(field: impl Into<Cow<'static, str>>, message: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(vec![Detail::new(field, "invalid_value", message)])
    }

    /// `invalid_state` that names the field whose value does not allow it. `what` has that field, and the message is about both.
    pub fn invalid_state(what: &str, field: &'static str, message: &str) -> Self {
        Self {
            details: vec![Detail::new(field, "invalid_state", message.to_owned())],
            ..Self::new(ErrorCode::InvalidState, format!("{what} {message}"))
        }
    }

    /// `invalid_input` that names every invalid field, or the first hundred if there are more.
    pub fn invalid(mut details: Vec<Detail>) -> Self {
        let count = details.len();
        details.truncate(MAX_DETAILS);
        for detail in &mut details {
            shorten(&mut detail.field);
        }
        let message = match details.as_slice() {
            [one] => format!("{} {}", one.field, one.message),
            all if all.len() == count => format!("{count} fields are not valid; see details"),
            some => format!(
                "{count} fields are not valid; details names {}, and {} more are left out",
                some.len(),
                count - some.len()
            ),
        };
        Self {
            details,
            ..Self::new(ErrorCode::InvalidInput, message)
        }
    }

    /// `not_found`; deliberately the same for unknown ids and for ids of other accounts.
    pub fn no_such(word: &str) -> Self {
        Self::new(ErrorCode::NotFound, format!("there is no {word} with this id"))
    }

    /// The request cannot be answered at the moment.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(ErrorCode::ServiceUnavailable, message)
        }
    }

    /// An internal error, without the cause: the caller logs it.
    pub fn fault() -> Self {
        Self::new(
            ErrorCode::ServerError,
            "internal error; quote the request id when you report it",
        )
    }
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error.status() {
            Some(status) => refused(status),
            None => match error {
                CallError::Busy => Self::unavailable("the service is busy; try again"),
                CallError::Api(kube::Error::SerdeError(error)) => {
                    tracing::error!(%error, "cannot parse the API server's answer");
                    Self::fault()
                }
                error => {
                    tracing::warn!(%error, "cannot reach the API server");
                    Self::unavailable("the service cannot reach its database at the moment; try again")
                }
            },
        }
    }
}

/// What a quota counts, in the API server's message and in words.
const COUNTED: [(&str, &str); 6] = [
    (quota::INSTANCES, "instances"),
    (quota::WEBHOOKS, "webhooks"),
    (quota::KEYS, "API keys"),
    (quota::DELIVERIES, "deliveries"),
    (quota::BACKUPS, "backups"),
    (quota::NETWORKS, "private networks"),
];

/// What the quota of a refusal limits: the message lists what is requested, what is used, and the limits.
fn exceeded(message: &str) -> &'static str {
    let requested = message.split("used: ").next().unwrap_or(message);
    let found = COUNTED.iter().find(|(resource, _)| requested.contains(resource));
    found.map_or("objects", |(_, words)| words)
}

/// Whether RBAC refuses the service itself.
fn is_unauthorised(message: &str) -> bool {
    let who = message.find("User \"");
    who.is_some_and(|start| message[start..].contains("\" cannot "))
}

/// Translates a refusal of the API server for clients who do not know about it.
fn refused(status: &Status) -> Error {
    match status.code {
        403 | 422 if status.message.contains("deletion-protection.stellage.dev") => protected(),
        // Somebody removed the finalizer, and the operator has not put it back yet.
        403 | 422 if status.message.contains("server-finalizer-kept.stellage.dev") => {
            Error::unavailable("the instance cannot be deleted at the moment; try again")
        }
        // Before all others: a denial may have any code.
        _ if is_denial(status) => Error::new(
            ErrorCode::Forbidden,
            format!("a policy of the cluster refuses this: {}", status.message),
        ),
        404 if status.details.as_ref().is_some_and(|d| d.kind == "namespaces") => Error::new(
            ErrorCode::Conflict,
            "the account is being set up or removed; try again",
        ),
        404 => Error::no_such(match status.details.as_ref().map(|d| d.kind.as_str()) {
            Some("webhooks") => "webhook",
            Some("deliveries") => "delivery",
            Some("apikeys") => "API key",
            Some("backups") => "backup",
            _ => "instance",
        }),
        409 if quota::is_contended(status) => {
            Error::unavailable("Kubernetes is busy counting what the account has; try again")
        }
        409 => Error::new(
            ErrorCode::Conflict,
            "the object changed during the request; read it and try again",
        ),
        403 if is_namespace_terminating(status) => Error::new(
            ErrorCode::Conflict,
            "the account is being deleted; nothing can be created in it",
        ),
        403 if quota::is_exceeded(status) => quota_used_up(exceeded(&status.message)),
        // RBAC refuses the service itself. An API server that has just started has not loaded the roles yet.
        403 if is_unauthorised(&status.message) => {
            tracing::error!(
                message = status.message,
                "the API server refused a request of the service"
            );
            Error::unavailable("the service is starting; try again")
        }
        403 if quota::is_pending(status) => Error::unavailable(
            "the account's quota is not counted yet, which takes up to 40 s after an installation; try again",
        ),
        422 => Error::invalid(causes(status)),
        // The continue token expired: the list has too many pages to be read in time.
        410 => Error::unavailable("the list took too long to read; try again"),
        413 => Error::new(ErrorCode::PayloadTooLarge, "the object would become too large"),
        429 | 500..=599 => {
            tracing::warn!(
                code = status.code,
                message = status.message,
                "the API server is overloaded or failing"
            );
            let proposed = status.details.as_ref().map(|d| u64::from(d.retry_after_seconds));
            Error {
                retry_after: proposed.filter(|s| *s > 0).or(Some(RETRY_AFTER_SECONDS)),
                ..Error::unavailable("the service's database is busy; try again")
            }
        }
        _ => {
            tracing::error!(
                code = status.code,
                message = status.message,
                "the API server refused a request of the service"
            );
            Error::fault()
        }
    }
}

/// The refusal of a create that exceeds the account's quota; `words` names the objects in the plural.
pub fn quota_used_up(words: &str) -> Error {
    Error::new(
        ErrorCode::ResourceLimitExceeded,
        format!("the account's quota of {words} is used up; delete one or ask for a higher quota"),
    )
}

/// The refusal to change anything of a suspended account.
pub fn suspended(reason: &str) -> Error {
    Error::new(
        ErrorCode::AccountSuspended,
        format!("the account is suspended: {reason}; until that is lifted, it can only be read"),
    )
}

/// The refusal of a plan for which the account's quotas of vCPUs, memory and disk have no room.
pub fn no_room(plan: Plan, exceeded: &Exceeded) -> Error {
    Error::new(
        ErrorCode::ResourceLimitExceeded,
        format!("there is no room for plan {}: {exceeded}", plan.as_str()),
    )
}

/// Whether one more fits into an account's quota; `words` names the objects in the plural.
pub fn check_quota(count: usize, quota: u32, words: &str) -> Result<(), Error> {
    if count < usize::try_from(quota).unwrap_or(usize::MAX) {
        Ok(())
    } else {
        Err(quota_used_up(words))
    }
}

/// The refusal to show the usage over time of an instance that is not monitored.
pub fn not_monitored() -> Error {
    let message = "is false; set it to true first";
    Error {
        details: vec![Detail::new("monitoring_enabled", "invalid_state", message)],
        ..Error::new(
            ErrorCode::InvalidState,
            "the instance is not monitored: monitoring_enabled is false",
        )
    }
}

/// The refusal to show the usage over time of an instance whose provider keeps none.
pub fn no_series() -> Error {
    Error::new(
        ErrorCode::InvalidState,
        "no metrics system keeps the usage of the instance; only its current usage can be shown",
    )
}

/// The refusal to delete or rebuild a protected instance.
pub fn protected() -> Error {
    Error::new(
        ErrorCode::Protected,
        "the instance has deletion protection; switch it off before deleting or rebuilding the instance",
    )
}

/// The fields that the API server refused although the facade accepted them, under their REST names.
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

/// The REST name of a field: `ssh_keys[0]` for `spec.sshKeys[0]`.
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

/// The error for a backup that cannot be restored.
pub fn wrong_backup(message: impl Into<Cow<'static, str>>) -> Error {
    Error::invalid_value("backup", message)
}

/// What is wrong with `backup_enabled` in a region without backups.
pub fn no_daily_backups(region: &str) -> Detail {
    let message = format!("must not be true: backups are not available in region {region}");
    Detail::new("backup_enabled", "invalid_value", message)
}

/// The error for a backup of an instance in a region without backups.
pub fn no_backups(region: &str) -> Error {
    let message = format!("backups are not available in region {region}");
    Error {
        message: message.clone().into(),
        ..Error::invalid_value("region", message)
    }
}

impl From<DoesNotFit> for Error {
    fn from(error: DoesNotFit) -> Self {
        wrong_backup(error.to_string())
    }
}

impl From<NotAllowed> for Error {
    fn from(error: NotAllowed) -> Self {
        Self::invalid_state("the instance", "status", &error.to_string())
    }
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
    fn at_most_a_hundred_invalid_fields_are_named_and_then_how_many_more() {
        let unknown = |count: usize| {
            let detail = |n| {
                Detail::new(
                    format!("{n}{}", "ü".repeat(1000)),
                    "unknown_field",
                    "is not known",
                )
            };
            Error::invalid((0..count).map(detail).collect())
        };
        let all = unknown(100);
        assert_eq!(all.details.len(), 100);
        assert_eq!(all.message, "100 fields are not valid; see details");
        let some = unknown(5000);
        assert_eq!(some.details.len(), 100);
        assert!(
            some.message.ends_with("names 100, and 4900 more are left out"),
            "{some}"
        );
        assert!(
            some.details
                .iter()
                .all(|detail| detail.field.chars().count() <= 101)
        );
        assert!(unknown(1).message.len() < 300);
    }

    #[test]
    fn who_waits_too_long_for_a_turn_is_told_to_try_again() {
        let busy = Error::from(CallError::Busy);
        assert_eq!(busy.code, ErrorCode::ServiceUnavailable);
        assert!(busy.message.contains("busy"), "{}", busy.message);
    }

    #[test]
    fn answers_of_the_api_server_are_translated() {
        let none = json!({});
        let table = [
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: exceeded quota: stellage, requested: count/instances.stellage.dev=1, used: count/instances.stellage.dev=2, limited: count/instances.stellage.dev=2",
                ErrorCode::ResourceLimitExceeded,
            ),
            (
                403,
                "webhooks.stellage.dev \"wh-1\" is forbidden: exceeded quota: stellage, requested: count/webhooks.stellage.dev=1",
                ErrorCode::ResourceLimitExceeded,
            ),
            (
                403,
                "instances.stellage.dev \"i-1\" is forbidden: status unknown for quota: account",
                ErrorCode::ServiceUnavailable,
            ),
            (
                403,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                ErrorCode::Protected,
            ),
            (
                422,
                "ValidatingAdmissionPolicy 'deletion-protection.stellage.dev' with binding 'x' denied request: no",
                ErrorCode::Protected,
            ),
            (
                403,
                "ValidatingAdmissionPolicy 'server-finalizer-kept.stellage.dev' with binding 'x' denied request: no",
                ErrorCode::ServiceUnavailable,
            ),
            (
                403,
                "admission webhook \"x\" denied the request: no",
                ErrorCode::Forbidden,
            ),
            (
                403,
                "User \"system:serviceaccount:a:b\" cannot create resource",
                ErrorCode::ServiceUnavailable,
            ),
            (
                403,
                "admission webhook \"x\" denied the request: User \"a\" cannot have this",
                ErrorCode::Forbidden,
            ),
            (
                422,
                "instances.stellage.dev \"i-1\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: you cannot",
                ErrorCode::Forbidden,
            ),
            (401, "Unauthorized", ErrorCode::ServerError),
            (404, "instances.stellage.dev \"x\" not found", ErrorCode::NotFound),
            (409, "the object has been modified", ErrorCode::Conflict),
            (
                410,
                "The provided continue parameter is too old",
                ErrorCode::ServiceUnavailable,
            ),
            (429, "too many requests", ErrorCode::ServiceUnavailable),
            (500, "etcdserver: leader changed", ErrorCode::ServiceUnavailable),
            (504, "timeout", ErrorCode::ServiceUnavailable),
        ];
        for (code, message, expected) in table {
            let error = answered(code, message, &none);
            assert_eq!(error.code, expected, "{message}");
            assert_eq!(
                error.retry_after.is_some(),
                expected == ErrorCode::ServiceUnavailable,
                "{message}"
            );
        }
        let busy = answered(429, "slow down", &json!({ "retryAfterSeconds": 7 }));
        assert_eq!(busy.retry_after, Some(7));
        let counting = answered(
            409,
            "the object has been modified",
            &json!({ "kind": "resourcequotas" }),
        );
        assert!(counting.code == ErrorCode::ServiceUnavailable && counting.retry_after.is_some());
        let ending = answered(
            403,
            "forbidden",
            &json!({ "causes": [{ "reason": "NamespaceTerminating", "field": "metadata.namespace" }] }),
        );
        assert_eq!(ending.code, ErrorCode::Conflict);
        for error in [CallError::Timeout, CallError::Busy].map(Error::from) {
            assert!(error.code == ErrorCode::ServiceUnavailable && error.retry_after.is_some());
        }
    }

    #[test]
    fn denials_of_admission_webhooks_are_told_as_such_whatever_code_they_have() {
        for code in [400, 404, 409, 410, 413, 429, 500, 503] {
            let details = json!({ "kind": "namespaces", "retryAfterSeconds": 7 });
            let message = "admission webhook \"x\" denied the request without explanation";
            let denied = answered(code, message, &details);
            assert_eq!(
                (denied.code, denied.retry_after),
                (ErrorCode::Forbidden, None),
                "{code}"
            );
            assert!(denied.message.contains(message), "{denied}");
        }
        let failed = "Internal error occurred: failed calling webhook \"x\": no answer";
        assert_eq!(
            answered(500, failed, &json!({})).code,
            ErrorCode::ServiceUnavailable
        );
    }

    #[test]
    fn the_refusal_of_a_quota_names_what_it_limits() {
        for (resource, words) in COUNTED {
            let message = format!(
                "x is forbidden: exceeded quota: stellage, requested: {resource}=1, used: {resource}=5, limited: {resource}=5"
            );
            let error = answered(403, &message, &json!({}));
            assert_eq!(error.code, ErrorCode::ResourceLimitExceeded);
            assert!(
                error.message.contains(&format!("quota of {words} is used up")),
                "{error}"
            );
        }
        let both = "exceeded quota: stellage, requested: count/apikeys.stellage.dev=1, used: count/apikeys.stellage.dev=50, limited: count/apikeys.stellage.dev=50";
        assert_eq!(exceeded(both), "API keys");
    }

    #[test]
    fn refusals_of_admission_name_fields_as_rest_does() {
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
