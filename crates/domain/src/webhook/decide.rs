//! Decides the status of a Webhook, and how urgently a change of it must be written.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::delivery::{Backlog, Disablement, Tally};
use resources::{
    BacklogPeriod, DisableReason, Disabled, Webhook, WebhookStatus,
    conditions::{self, Desired, READY},
    webhook::{BACKLOG, HEALTHY, SECRET_READY},
};

/// Reason of the condition Backlog while a quota refuses deliveries.
const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Reason of the condition Backlog: held deliveries have been dropped.
const DROPPED: &str = "Dropped";

/// Reason of the condition Ready of a webhook that is a copy of an older one.
pub const ORIGIN_TAKEN: &str = "OriginTaken";

/// Why nothing can be sent to a webhook: reason and message of the condition.
pub type Obstacle = (&'static str, String);

/// What a decision depends on, besides the Webhook.
pub struct Situation<'a> {
    /// Its status when this process began to count.
    pub base: &'a WebhookStatus,
    /// Counts since then.
    pub tally: &'a Tally,
    /// Number of deliveries that are waiting for an attempt.
    pub pending: i64,
    /// Number of held deliveries.
    pub held: i64,
    /// Why nothing can be sent.
    pub obstacle: Option<Obstacle>,
    /// Whether its secret has been read for the current spec.
    pub is_secret_known: bool,
    /// Why its secret cannot be used.
    pub secret_problem: Option<Obstacle>,
    /// What to say about its secret although it can be used.
    pub secret_remark: Option<String>,
    /// Until when deliveries are signed with the previous secret too.
    pub overlap: Option<Timestamp>,
    /// A disablement to write.
    pub disablement: Option<&'a Disablement>,
}

/// The status to write.
pub fn decide(webhook: &Webhook, situation: &Situation<'_>, now: Timestamp) -> WebhookStatus {
    let Situation { base, tally, .. } = situation;
    let generation = webhook.metadata.generation;
    let disabled = disabled(webhook, situation);
    let before = webhook.status.as_ref();
    let mut status = WebhookStatus {
        id: Some(webhook.id()),
        observed_generation: generation,
        pending: situation.pending,
        held: situation.held,
        delivered: base.delivered + tally.delivered,
        failed_attempts: base.failed_attempts + tally.failed_attempts,
        dropped: base.dropped + tally.dropped,
        last_success_at: tally.last_success_at.or(base.last_success_at),
        last_failure_at: tally.last_failure_at.or(base.last_failure_at),
        last_failure: tally.last_failure.clone().or_else(|| base.last_failure.clone()),
        previous_secret_expires_at: situation.overlap.filter(|until| *until > now),
        unnotified: unnotified(webhook, disabled.as_ref()),
        backlog: None,
        // The notifier writes it, and whatever else concerns e-mails.
        notified_at: before.and_then(|before| before.notified_at),
        disabled,
        conditions: webhook
            .status
            .as_ref()
            .map(|status| status.conditions.clone())
            .unwrap_or_default(),
    };
    let mut conditions = std::mem::take(&mut status.conditions);
    // The secret of an earlier spec says nothing of this one's.
    let is_new = conditions::find(&conditions, SECRET_READY)
        .is_none_or(|condition| condition.observed_generation != generation);
    let mut set = |type_, state, reason: &str, message: String| {
        let desired = Desired {
            type_,
            status: state,
            reason,
            message,
        };
        conditions::set(&mut conditions, desired, generation, now);
    };
    let unread = || "the Secret has not been read yet; will retry".to_owned();
    match &situation.secret_problem {
        // Keep the condition of this spec until the secret is read again.
        None if !situation.is_secret_known && !is_new => {}
        None if !situation.is_secret_known => set(SECRET_READY, None, "NotRead", unread()),
        Some((reason, message)) => set(SECRET_READY, Some(false), reason, message.clone()),
        None => {
            let usable = || "the signing secret is usable".to_owned();
            let message = situation.secret_remark.clone().unwrap_or_else(usable);
            set(SECRET_READY, Some(true), "Usable", message);
        }
    }
    let (is_healthy, reason, message) = health(&status);
    set(HEALTHY, Some(is_healthy), reason, message);
    match (&situation.obstacle, &status.disabled) {
        (Some((reason, message)), _) => {
            let fate = if *reason == ORIGIN_TAKEN {
                ""
            } else {
                "; its events are held"
            };
            set(READY, Some(false), reason, format!("{message}{fate}"));
        }
        (None, Some(disabled)) => {
            let message = format!(
                "{}; its events are held. Fix the receiver, then enable the webhook: set spec.enableRequestedAt to the current time (or change anything else in the spec), or PATCH {{\"active\": true}} through REST",
                disabled.message
            );
            set(READY, Some(false), "Disabled", message);
        }
        (None, None) if !webhook.spec.active => set(
            READY,
            Some(true),
            "Inactive",
            "spec.active is false, so events are neither recorded nor sent".to_owned(),
        ),
        (None, None) if !situation.is_secret_known && !is_new => {}
        (None, None) if !situation.is_secret_known => set(READY, None, "SecretNotRead", unread()),
        (None, None) => set(READY, Some(true), "Active", "events are sent".to_owned()),
    }
    if let Some((state, reason, message)) =
        backlog(&conditions, situation, status.disabled.is_some(), status.dropped)
    {
        let desired = Desired {
            type_: BACKLOG,
            status: Some(state),
            reason,
            message: message.to_owned(),
        };
        conditions::set(&mut conditions, desired, generation, now);
    }
    status.backlog = backlog_period(before, &conditions);
    status.conditions = conditions;
    status
}

/// Status, reason and message of the condition about the last attempt.
fn health(status: &WebhookStatus) -> (bool, &'static str, String) {
    if let Some(disabled) = &status.disabled {
        return (false, "Disabled", disabled.message.clone());
    }
    if status.last_failure_at > status.last_success_at {
        let message = status.last_failure.as_deref().unwrap_or_default();
        return (false, "Failing", format!("the last attempt failed: {message}"));
    }
    if status.last_success_at.is_some() {
        return (true, "Succeeding", "the last attempt succeeded".to_owned());
    }
    (true, "NotTried", "nothing has been sent yet".to_owned())
}

/// Status, reason and message of the condition about too many deliveries; `None` to leave it as it is.
fn backlog(
    conditions: &[Condition],
    situation: &Situation<'_>,
    is_disabled: bool,
    dropped: i64,
) -> Option<(bool, &'static str, &'static str)> {
    let is_known = conditions::find(conditions, BACKLOG).is_some();
    match situation.tally.backlog {
        Some(Backlog::Held) => Some((
            true,
            "Held",
            "too many deliveries wait for an attempt; later ones are held until there is room",
        )),
        Some(Backlog::Dropped) => Some((
            true,
            DROPPED,
            "too many deliveries are held, so the oldest are dropped; status.dropped is their number",
        )),
        Some(Backlog::Refused) => Some((
            true,
            QUOTA_EXCEEDED,
            "the namespace's quota allows no more deliveries, so some are dropped; status.dropped is their number",
        )),
        // An earlier process was refused, and this one has not tried yet.
        None if is_backlogged(conditions, QUOTA_EXCEEDED) && !situation.tally.has_stored => None,
        // An earlier process set it, and what that process held is still held. A disabled webhook holds everything anyway, so
        // only dropped deliveries are worth reporting.
        None if conditions::is_true(conditions, BACKLOG)
            && situation.held > 0
            && (!is_disabled || is_backlogged(conditions, DROPPED)) =>
        {
            None
        }
        None => (is_known || dropped > 0).then_some((
            false,
            "None",
            "no deliveries are held or dropped for their number; status.dropped is the number of those dropped earlier",
        )),
    }
}

/// Whether the condition Backlog is True for this reason.
fn is_backlogged(conditions: &[Condition], reason: &str) -> bool {
    let backlog = conditions::find(conditions, BACKLOG);
    backlog.is_some_and(|backlog| backlog.status == "True" && backlog.reason == reason)
}

/// The backlog that the account holder has not been told about yet, or has been told about and that still lasts. A backlog
/// that begins before an earlier one was reported counts as part of it.
fn backlog_period(before: Option<&WebhookStatus>, conditions: &[Condition]) -> Option<BacklogPeriod> {
    let condition = conditions::find(conditions, BACKLOG).filter(|condition| condition.status == "True");
    let known = before.and_then(|before| before.backlog.clone());
    let begun = || {
        Some(BacklogPeriod {
            since: condition?.last_transition_time.0,
            dropped_before: before.map_or(0, |before| before.dropped),
            notified_at: None,
            notification_error: None,
        })
    };
    let period = known.or_else(begun)?;
    Some(period).filter(|period| condition.is_some() || period.notified_at.is_none())
}

/// The disablement that ended before the account holder was notified of it. A notification of a later one covers it.
fn unnotified(webhook: &Webhook, disabled: Option<&Disabled>) -> Option<Disabled> {
    let status = webhook.status.as_ref()?;
    if disabled.is_some() {
        return None;
    }
    let ended = status
        .disabled
        .as_ref()
        .filter(|ended| ended.notified_at.is_none());
    ended.or(status.unnotified.as_ref()).cloned()
}

fn disabled(webhook: &Webhook, situation: &Situation<'_>) -> Option<Disabled> {
    let generation = webhook.metadata.generation?;
    let new = situation
        .disablement
        .filter(|disablement| disablement.is_of(webhook))
        .map(|disablement| Disabled {
            at: disablement.at,
            reason: disablement.reason,
            message: match disablement.reason {
                DisableReason::RetriesExhausted => format!(
                    "delivery of {} failed after {} attempts; the last error: {}",
                    disablement.event_id, disablement.attempts, disablement.error
                ),
                DisableReason::Gone => format!(
                    "delivery of {} was refused with 410 Gone, which asks for no more deliveries",
                    disablement.event_id
                ),
            },
            delivery: disablement.delivery.clone(),
            event_id: disablement.event_id.to_string(),
            event_type: disablement.event_type,
            attempts: disablement.attempts,
            last_status_code: disablement.last_status_code,
            error: disablement.error.clone(),
            generation,
            notified_at: None,
            notification_error: None,
        });
    webhook.disabled().cloned().or(new)
}

/// How urgent a write of a status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It must be written now.
    Now,
    /// A failing webhook has recovered: written as soon as the budget allows. Each recovery follows a written
    /// [`Urgency::Failure`], so there cannot be more of them than failures.
    Recovery,
    /// A healthy webhook has begun to fail. A receiver that fails every other time must not cause a write for each attempt.
    Failure,
    /// Counters and times can wait (decisions, section 5).
    Counters,
}

/// How urgently a change must be written.
pub fn urgency(before: &WebhookStatus, after: &WebhookStatus) -> Urgency {
    let is_healthy = |status: &WebhookStatus| conditions::is_true(&status.conditions, HEALTHY);
    if is_urgent(before, after) {
        return Urgency::Now;
    }
    match (is_healthy(before), is_healthy(after)) {
        (false, true) => Urgency::Recovery,
        (true, false) => Urgency::Failure,
        _ => Urgency::Counters,
    }
}

fn is_urgent(before: &WebhookStatus, after: &WebhookStatus) -> bool {
    let urgent_part = |status: &WebhookStatus| {
        let conditions = [READY, SECRET_READY].map(|type_| {
            conditions::find(&status.conditions, type_).map(|condition| {
                (
                    condition.status.clone(),
                    condition.reason.clone(),
                    condition.message.clone(),
                )
            })
        });
        (
            status.id.clone(),
            status.observed_generation,
            status.disabled.clone(),
            status.unnotified.clone(),
            conditions,
        )
    };
    urgent_part(before) != urgent_part(after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: &str = "2026-11-21T10:00:00Z";

    fn webhook(generation: i64, status: &serde_json::Value) -> Webhook {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook",
            "metadata": { "name": "hook", "namespace": "demo", "uid": "u", "generation": generation },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" } },
            "status": status,
        }))
        .unwrap()
    }

    fn disabled(generation: i64) -> serde_json::Value {
        json!({ "disabled": {
            "at": AT, "reason": "Gone", "message": "", "delivery": "dlv-1", "eventId": "evt_1",
            "eventType": "instance.created", "attempts": 1, "error": "", "generation": generation,
        } })
    }

    fn decide_with(webhook: &Webhook, tally: &Tally) -> WebhookStatus {
        let base = webhook.status.clone().unwrap_or_default();
        let situation = Situation {
            base: &base,
            tally,
            pending: 0,
            held: 0,
            obstacle: None,
            is_secret_known: true,
            secret_problem: None,
            secret_remark: None,
            overlap: None,
            disablement: None,
        };
        decide(webhook, &situation, "2026-11-21T11:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_remark_on_a_usable_secret_is_the_message_of_its_condition() {
        let webhook = webhook(1, &json!({}));
        let told = |secret_remark: Option<String>| {
            let situation = Situation {
                base: &WebhookStatus::default(),
                tally: &Tally::default(),
                pending: 0,
                held: 0,
                obstacle: None,
                is_secret_known: true,
                secret_problem: None,
                secret_remark,
                overlap: None,
                disablement: None,
            };
            let status = decide(&webhook, &situation, AT.parse().unwrap());
            let condition = conditions::find(&status.conditions, SECRET_READY)
                .cloned()
                .unwrap();
            (condition.status, condition.message)
        };
        let remark = "it ends in a line break".to_owned();
        assert_eq!(told(Some(remark.clone())), ("True".to_owned(), remark));
        assert_eq!(told(None).1, "the signing secret is usable");
    }

    #[test]
    fn a_disablement_that_ends_before_its_mail_went_is_kept_until_it_is_told() {
        let tally = Tally::default();
        let enabled = webhook(2, &disabled(1));
        assert_eq!(enabled.untold(), None, "not recorded yet");
        let status = decide_with(&enabled, &tally);
        assert_eq!(status.disabled, None);
        assert_eq!(status.unnotified.as_ref().unwrap().event_id, "evt_1");
        // Another process takes over.
        let enabled = webhook(2, &serde_json::to_value(&status).unwrap());
        assert_eq!(enabled.untold().unwrap().event_id, "evt_1");
        assert_eq!(decide_with(&enabled, &tally).unnotified, status.unnotified);
        // A disablement that was reported in time is not kept.
        let mut told = disabled(1);
        told["disabled"]["notifiedAt"] = json!(AT);
        assert_eq!(decide_with(&webhook(2, &told), &tally).unnotified, None);
    }

    #[test]
    fn the_condition_backlog_appears_once_there_are_too_many_deliveries_and_waits_for_the_counters() {
        let told = |tally: &Tally, before: &WebhookStatus| {
            let status = decide_with(&webhook(1, &serde_json::to_value(before).unwrap()), tally);
            let backlog = conditions::find(&status.conditions, BACKLOG).cloned();
            (status, backlog.map(|backlog| (backlog.status, backlog.reason)))
        };
        let (quiet, backlog) = told(&Tally::default(), &WebhookStatus::default());
        assert_eq!(backlog, None);
        let dropping = Tally {
            dropped: 3,
            backlog: Some(Backlog::Dropped),
            ..Tally::default()
        };
        let (status, backlog) = told(&dropping, &quiet);
        assert_eq!(backlog, Some(("True".to_owned(), "Dropped".to_owned())));
        assert_eq!(status.dropped, 3);
        assert!(!is_urgent(&quiet, &status), "it is written with the counters");
        let (_, backlog) = told(&Tally::default(), &status);
        assert_eq!(backlog, Some(("False".to_owned(), "None".to_owned())));
        // What a disabled webhook holds is not a backlog, but dropped deliveries remain one, no matter which
        // process evaluates it.
        for (is_disabled, reason, expected) in [
            (false, "Held", "True"),
            (true, "Held", "False"),
            (true, DROPPED, "True"),
        ] {
            let mut before = status.clone();
            let known = before
                .conditions
                .iter_mut()
                .find(|it| it.type_ == BACKLOG)
                .unwrap();
            reason.clone_into(&mut known.reason);
            let mut before = serde_json::to_value(&before).unwrap();
            if is_disabled {
                before["disabled"] = disabled(1)["disabled"].clone();
            }
            let webhook = webhook(1, &before);
            let situation = Situation {
                base: &status,
                tally: &Tally::default(),
                pending: 0,
                held: 2,
                obstacle: None,
                is_secret_known: true,
                secret_problem: None,
                secret_remark: None,
                overlap: None,
                disablement: None,
            };
            let after = decide(&webhook, &situation, AT.parse().unwrap());
            let backlog = conditions::find(&after.conditions, BACKLOG).unwrap();
            assert_eq!(backlog.status, expected, "{is_disabled} {reason}");
        }
    }

    #[test]
    fn a_first_failure_and_a_recovery_are_written_before_counters_but_not_like_a_disablement() {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let after = |before: &WebhookStatus, tally: Tally| {
            let webhook = webhook(1, &serde_json::to_value(before).unwrap());
            decide_with(&webhook, &tally)
        };
        let succeeded = |time| Tally {
            delivered: 1,
            last_success_at: at(time),
            ..Tally::default()
        };
        let failed = |time, why: &str| Tally {
            failed_attempts: 1,
            last_failure_at: at(time),
            last_failure: Some(why.to_owned()),
            ..Tally::default()
        };
        let new = after(&WebhookStatus::default(), Tally::default());
        let good = after(&new, succeeded("2026-11-21T10:00:00Z"));
        assert_eq!(urgency(&new, &good), Urgency::Counters);
        let bad = after(&good, failed("2026-11-21T10:00:01Z", "answered 500"));
        assert_eq!(urgency(&good, &bad), Urgency::Failure);
        let worse = after(&bad, failed("2026-11-21T10:00:02Z", "timed out"));
        assert_eq!(urgency(&bad, &worse), Urgency::Counters);
        let recovered = after(&worse, succeeded("2026-11-21T10:00:03Z"));
        assert_eq!(urgency(&worse, &recovered), Urgency::Recovery);
        let disabled = webhook(1, &disabled(1)).status.unwrap();
        assert_eq!(urgency(&recovered, &disabled), Urgency::Now);
    }

    #[test]
    fn a_backlog_is_to_be_told_once_and_again_only_when_it_begins_anew() {
        let again = |before: &WebhookStatus, tally: &Tally| {
            let status = decide_with(&webhook(1, &serde_json::to_value(before).unwrap()), tally);
            (webhook(1, &serde_json::to_value(&status).unwrap()), status)
        };
        let dropping = Tally {
            dropped: 3,
            backlog: Some(Backlog::Dropped),
            ..Tally::default()
        };
        let earlier = WebhookStatus {
            dropped: 4,
            ..WebhookStatus::default()
        };
        let (begun, status) = again(&earlier, &dropping);
        let untold = begun.untold_backlog().unwrap();
        assert_eq!((untold.dropped_before, status.dropped), (4, 7));
        // A backlog that ends unreported is reported all the same.
        let (ended, ended_status) = again(&status, &Tally::default());
        assert!(!conditions::is_true(&ended_status.conditions, BACKLOG));
        assert_eq!(ended.untold_backlog(), Some(untold));
        // It is told. Another process takes over and drops more.
        let mut told = status;
        told.backlog.as_mut().unwrap().notified_at = Some("2026-11-21T11:00:05Z".parse().unwrap());
        let (still, status) = again(&told, &dropping);
        assert_eq!(still.untold_backlog(), None);
        let (_, over) = again(&status, &Tally::default());
        assert_eq!(over.backlog, None);
        let (anew, _) = again(&over, &dropping);
        assert_eq!(anew.untold_backlog().unwrap().dropped_before, over.dropped);
    }

    #[test]
    fn a_new_process_leaves_the_refusals_of_a_quota_until_a_record_is_accepted() {
        let refused = Tally {
            backlog: Some(Backlog::Refused),
            ..Tally::default()
        };
        let reason = |before: &WebhookStatus, tally: &Tally| {
            let status = decide_with(&webhook(1, &serde_json::to_value(before).unwrap()), tally);
            let reason = conditions::find(&status.conditions, BACKLOG)
                .unwrap()
                .reason
                .clone();
            (status, reason)
        };
        let (status, _) = reason(&WebhookStatus::default(), &refused);
        let (status, told) = reason(&status, &Tally::default());
        assert_eq!(told, QUOTA_EXCEEDED);
        let stored = Tally {
            has_stored: true,
            ..Tally::default()
        };
        assert_eq!(reason(&status, &stored).1, "None");
    }
}
