//! What the samples change in the status of an instance: which alerts fire and which end.

use jiff::{SignedDuration, Timestamp};

use super::{evaluation::Findings, schedule::wall};
use crate::catalogue::alerts::AlertRule;
use resources::{
    Alert, AlertPhase,
    alert::{MAX_ALERTS, MAX_PER_RULE},
    ids,
};

/// How long an alert is shown after its end (decisions, section 7).
pub const SHOWN_FOR: SignedDuration = SignedDuration::from_hours(24);

/// Ends all alerts, since the server is off, is no longer monitored or is being deleted.
pub fn end_all(alerts: &mut [Alert], now: Timestamp) {
    for alert in alerts.iter_mut().filter(|alert| alert.is_firing()) {
        end(alert, now);
    }
}

fn end(alert: &mut Alert, now: Timestamp) {
    alert.phase = AlertPhase::Ended;
    alert.ended_at = Some(now);
}

/// Ends and fires alerts as the samples say. Returns those that have fired; the event of the first has the sequence number after
/// `sequence`, and so on.
pub fn advance(
    alerts: &mut Vec<Alert>,
    findings: &Findings,
    uid: &str,
    sequence: i64,
    now: Timestamp,
) -> Vec<Alert> {
    for alert in alerts
        .iter_mut()
        .filter(|alert| alert.is_firing() && findings.end(alert))
    {
        end(alert, now);
    }
    let fire = |(number, (rule, since, value)): (i64, (&AlertRule, i64, f64))| Alert {
        id: ids::alert_id(uid, number),
        rule: rule.name.to_string(),
        phase: AlertPhase::Firing,
        metric: rule.metric,
        threshold: rule.threshold.value(),
        value,
        since: Timestamp::from_millisecond(wall(since, now, findings.moment)).unwrap_or(now),
        fired_at: now,
        ended_at: None,
    };
    let fired: Vec<_> = (sequence + 1..).zip(findings.to_fire(alerts)).map(fire).collect();
    alerts.extend_from_slice(&fired);
    bound(alerts);
    fired
}

/// Removes the alerts that ended a day ago or earlier.
pub fn purge(alerts: &mut Vec<Alert>, now: Timestamp) {
    alerts.retain(|alert| is_shown(alert, now));
}

/// Whether an alert is still shown: it is firing, or ended within a day.
pub fn is_shown(alert: &Alert, now: Timestamp) -> bool {
    alert
        .ended_at
        .is_none_or(|ended| now.duration_since(ended) < SHOWN_FOR)
}

/// Keeps only the newest alerts of each rule. An alert that is firing is its rule's newest.
fn bound(alerts: &mut Vec<Alert>) {
    let excess = |alerts: &[Alert]| {
        let of_rule = |rule: &str| alerts.iter().filter(|alert| alert.rule == rule).count();
        let is_too_many = |alert: &Alert| alerts.len() > MAX_ALERTS || of_rule(&alert.rule) > MAX_PER_RULE;
        alerts
            .iter()
            .position(|alert| !alert.is_firing() && is_too_many(alert))
    };
    // They are in the order in which they fired.
    while let Some(oldest) = excess(alerts) {
        alerts.remove(oldest);
    }
}
