//! `metav1.Condition`s: their schema, and the function that sets them.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{Schema, SchemaGenerator, json_schema};

/// Summary: True when the object matches its spec. `kubectl wait --for=condition=Ready` waits for it.
pub const READY: &str = "Ready";
/// True while the controller works towards the spec (kstatus: `InProgress`); absent if it never did.
pub const RECONCILING: &str = "Reconciling";
/// True when there is no progress without a change by a user or administrator (kstatus: `Failed`); absent if that never was.
pub const STALLED: &str = "Stalled";
/// True while a plan change waits for the next reboot; absent otherwise.
pub const RESTART_REQUIRED: &str = "RestartRequired";

/// Longest message kept in a condition, in bytes. The API allows 32,768; a status stays readable with less.
const MAX_MESSAGE: usize = 1024;

/// The content of a condition; [`set`] turns it into a `metav1.Condition`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired<'a> {
    /// The condition's type, such as [`READY`].
    pub type_: &'a str,
    /// True, False, or `None` for Unknown.
    pub status: Option<bool>,
    /// CamelCase reason, never empty.
    pub reason: &'a str,
    /// For people: the current state, and what to do about it.
    pub message: String,
}

/// Sets one condition; one that is True in exceptional times alone, and that has never been, is left out, which kstatus reads as
/// False. `lastTransitionTime` changes only when the status does, so that the same input gives the same list
/// and causes no write.
pub fn set(conditions: &mut Vec<Condition>, desired: Desired<'_>, generation: Option<i64>, now: Timestamp) {
    let status = match desired.status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let mut message = desired.message;
    if message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE)
            .rev()
            .find(|i| message.is_char_boundary(*i))
            .unwrap_or(0);
        message.truncate(end);
    }
    let existing = conditions.iter_mut().find(|c| c.type_ == desired.type_);
    if let Some(condition) = existing {
        if condition.status != status {
            status.clone_into(&mut condition.status);
            condition.last_transition_time = Time(whole_seconds(now));
        }
        desired.reason.clone_into(&mut condition.reason);
        condition.message = message;
        condition.observed_generation = generation;
    } else if desired.status != Some(false) || !is_exceptional(desired.type_) {
        conditions.push(Condition {
            type_: desired.type_.to_owned(),
            status: status.to_owned(),
            reason: desired.reason.to_owned(),
            message,
            observed_generation: generation,
            last_transition_time: Time(whole_seconds(now)),
        });
    }
}

/// Whether a condition is True only in exceptional times, so that its absence means False.
fn is_exceptional(type_: &str) -> bool {
    matches!(type_, RECONCILING | STALLED)
}

/// Leaves out what is False now and was never stored as True: it was True in a draft alone.
pub fn forget_drafts(conditions: &mut Vec<Condition>, stored: &[Condition]) {
    conditions
        .retain(|c| !is_exceptional(&c.type_) || c.status != "False" || find(stored, &c.type_).is_some());
}

/// Removes a condition, such as one that exists only while it is true.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

/// Looks a condition up by its type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether a condition exists and is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|c| c.status == "True")
}

/// Cuts a time to whole seconds, the precision of `metav1.Time`.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The schema of a list of conditions: the bounds of `metav1.Condition`, one entry per type.
pub fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "description": "The current state of the object, one entry per type.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One aspect of the object's state (metav1.Condition).",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "maxLength": 316, "description": "Which aspect, in CamelCase." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024, "description": "Why, as one CamelCase word for programs." },
                "message": { "type": "string", "maxLength": 32768, "description": "Why, as a message for people." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0, "description": "The metadata.generation that this condition describes." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "pattern": crate::times::READABLE, "description": "When the status last changed." }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn last_transition_time_moves_only_when_the_status_flips() {
        let mut conditions = Vec::new();
        let ready = |status, message: &str| Desired {
            type_: READY,
            status,
            reason: "Because",
            message: message.into(),
        };
        set(&mut conditions, ready(Some(false), "a"), Some(1), at(10));
        set(&mut conditions, ready(Some(false), "b"), Some(2), at(20));
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].last_transition_time.0, at(10));
        assert_eq!(
            (conditions[0].message.as_str(), conditions[0].observed_generation),
            ("b", Some(2))
        );
        set(&mut conditions, ready(Some(true), "c"), Some(2), at(30));
        assert_eq!(conditions[0].last_transition_time.0, at(30));
    }

    #[test]
    fn what_was_the_matter_in_a_draft_alone_is_not_stored() {
        let mut conditions = Vec::new();
        let reconciling = |status| Desired {
            type_: RECONCILING,
            status: Some(status),
            reason: "Because",
            message: String::new(),
        };
        set(&mut conditions, reconciling(true), Some(1), at(10));
        let stored = conditions.clone();
        forget_drafts(&mut conditions, &[]);
        assert_eq!(conditions, stored);
        set(&mut conditions, reconciling(false), Some(1), at(10));
        forget_drafts(&mut conditions, &stored);
        assert_eq!(conditions.len(), 1);
        forget_drafts(&mut conditions, &[]);
        assert_eq!(conditions, []);
    }

    #[test]
    fn what_never_was_the_matter_is_not_mentioned() {
        let mut conditions = Vec::new();
        let stalled = |status| Desired {
            type_: STALLED,
            status: Some(status),
            reason: "Because",
            message: String::new(),
        };
        set(&mut conditions, stalled(false), Some(1), at(10));
        assert_eq!(conditions, []);
        set(&mut conditions, stalled(true), Some(1), at(20));
        set(&mut conditions, stalled(false), Some(1), at(30));
        assert_eq!((conditions.len(), conditions[0].status.as_str()), (1, "False"));
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let mut conditions = Vec::new();
        let message = "é".repeat(2000);
        set(
            &mut conditions,
            Desired {
                type_: READY,
                status: None,
                reason: "R",
                message,
            },
            None,
            at(0),
        );
        assert_eq!(conditions[0].message.len(), 1024);
        assert_eq!(conditions[0].status, "Unknown");
    }
}
