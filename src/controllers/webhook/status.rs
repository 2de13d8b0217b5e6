//! Decides the status of a Webhook. No I/O.

use jiff::Timestamp;

use super::shared::{FORMER_ACCOUNT, Notification};
use crate::{
    delivery::dispatch::{Disablement, Tally},
    resources::{
        DisableReason, Disabled, Webhook, WebhookStatus,
        conditions::{self, Desired, READY},
        webhook::{HEALTHY, SECRET_READY},
    },
};

/// What is known about a webhook besides the Webhook itself.
pub(super) struct Facts<'a> {
    /// Its status when this process began to count.
    pub(super) base: &'a WebhookStatus,
    /// UID of the Account that its namespace belongs to.
    pub(super) account_uid: Option<String>,
    /// Counts since then.
    pub(super) tally: &'a Tally,
    /// Number of deliveries that wait for an attempt.
    pub(super) pending: i64,
    /// Number of held deliveries.
    pub(super) held: i64,
    /// Why nothing can be sent: reason and message.
    pub(super) obstacle: Option<(&'static str, String)>,
    /// Whether its secret has been read for the current spec.
    pub(super) is_secret_known: bool,
    /// Why its secret cannot be used: reason and message.
    pub(super) secret_problem: Option<(&'static str, String)>,
    /// Until when deliveries are signed with the previous secret too.
    pub(super) overlap: Option<Timestamp>,
    /// A disablement to write.
    pub(super) disablement: Option<&'a Disablement>,
    /// The outcome of the e-mail about the disablement.
    pub(super) notification: Option<&'a Notification>,
}

/// The status to write.
pub(super) fn decide(webhook: &Webhook, facts: &Facts<'_>, now: Timestamp) -> WebhookStatus {
    let Facts { base, tally, .. } = facts;
    let generation = webhook.metadata.generation;
    let disabled = disabled(webhook, facts);
    let mut status = WebhookStatus {
        id: Some(webhook.id()),
        account_uid: account_uid(webhook, facts),
        observed_generation: generation,
        pending: facts.pending,
        held: facts.held,
        delivered: base.delivered + tally.delivered,
        failed_attempts: base.failed_attempts + tally.failed_attempts,
        dropped: base.dropped + tally.dropped,
        last_success_at: tally.last_success_at.or(base.last_success_at),
        last_failure_at: tally.last_failure_at.or(base.last_failure_at),
        last_failure: tally.last_failure.clone().or_else(|| base.last_failure.clone()),
        previous_secret_expires_at: facts.overlap.filter(|until| *until > now),
        disabled,
        conditions: webhook
            .status
            .as_ref()
            .map(|status| status.conditions.clone())
            .unwrap_or_default(),
    };
    let mut conditions = std::mem::take(&mut status.conditions);
    let is_new = conditions::find(&conditions, SECRET_READY).is_none();
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
    match &facts.secret_problem {
        // Keep the condition until the secret is read.
        None if !facts.is_secret_known && !is_new => {}
        None if !facts.is_secret_known => set(SECRET_READY, None, "NotRead", unread()),
        Some((reason, message)) => set(SECRET_READY, Some(false), reason, message.clone()),
        None => set(
            SECRET_READY,
            Some(true),
            "Usable",
            "the signing secret is usable".to_owned(),
        ),
    }
    let failing = status.last_failure_at > status.last_success_at;
    match (&status.disabled, failing) {
        (Some(disabled), _) => set(HEALTHY, Some(false), "Disabled", disabled.message.clone()),
        (None, true) => {
            let message = status.last_failure.clone().unwrap_or_default();
            set(
                HEALTHY,
                Some(false),
                "Failing",
                format!("the last attempt failed: {message}"),
            );
        }
        (None, false) if status.last_success_at.is_some() => {
            set(
                HEALTHY,
                Some(true),
                "Succeeding",
                "the last attempt succeeded".to_owned(),
            );
        }
        (None, false) => set(
            HEALTHY,
            Some(true),
            "NotTried",
            "nothing has been sent yet".to_owned(),
        ),
    }
    match (&facts.obstacle, &status.disabled) {
        (Some((reason, message)), _) => {
            let fate = fate_of_events(reason);
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
        (None, None) if !facts.is_secret_known && !is_new => {}
        (None, None) if !facts.is_secret_known => set(READY, None, "SecretNotRead", unread()),
        (None, None) => set(READY, Some(true), "Active", "events are sent".to_owned()),
    }
    status.conditions = conditions;
    status
}

/// What a webhook's condition says of its events, after the reason why nothing can be sent.
fn fate_of_events(reason: &str) -> &'static str {
    match reason {
        FORMER_ACCOUNT => "",
        _ => "; its events are held",
    }
}

/// The Account that the webhook belongs to: the first one stays.
fn account_uid(webhook: &Webhook, facts: &Facts<'_>) -> Option<String> {
    let bound = webhook
        .status
        .as_ref()
        .and_then(|status| status.account_uid.clone());
    bound.or_else(|| facts.account_uid.clone())
}

fn disabled(webhook: &Webhook, facts: &Facts<'_>) -> Option<Disabled> {
    let generation = webhook.metadata.generation?;
    let new = facts
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
    let mut disabled = webhook.disabled().cloned().or(new)?;
    if let Some(notification) = facts.notification
        && notification.disabled_at == disabled.at
        && disabled.notified_at.is_none()
    {
        match &notification.result {
            Ok(sent_at) => {
                disabled.notified_at = Some(*sent_at);
                disabled.notification_error = None;
            }
            Err(error) => disabled.notification_error = Some(error.clone()),
        }
    }
    Some(disabled)
}

/// Whether a change must be written now. Counters and times can wait (decisions, section 5).
pub(super) fn is_urgent(before: &WebhookStatus, after: &WebhookStatus) -> bool {
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
            status.dropped,
            conditions,
        )
    };
    urgent_part(before) != urgent_part(after)
}
