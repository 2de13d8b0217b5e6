//! What the samples change in the status of an instance: which alerts fire and which end.

use jiff::{SignedDuration, Timestamp};

use super::{
    evaluation::{Finding, firing},
    schedule::wall,
};
use crate::resources::{
    Alert, AlertPhase,
    alert::{MAX_ALERTS, MAX_PER_RULE},
    ids,
};

/// How long an alert is shown after its end (decisions, section 7).
pub const SHOWN_FOR: SignedDuration = SignedDuration::from_hours(24);

/// What the samples of a server's current run mean.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings {
    /// When the run began, according to the status. The findings mean nothing for another run.
    pub started_at: Option<Timestamp>,
    /// What follows for each rule.
    pub rules: Vec<Finding>,
    /// The moment at which they were read from memory, in milliseconds.
    pub moment: i64,
}

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
    let ends = |alert: &Alert| {
        let rule = findings.rules.iter().find(|of| *of.rule.name == *alert.rule);
        // Without its rule nothing would ever end it.
        rule.is_none_or(|of| of.ends.as_deref() == Some(alert.id.as_str()))
    };
    for alert in alerts.iter_mut().filter(|alert| alert.is_firing()) {
        if ends(alert) {
            end(alert, now);
        }
    }
    let mut fired = Vec::new();
    for Finding { rule, crossed, .. } in &findings.rules {
        let Some((first, value)) = crossed.filter(|_| firing(alerts, &rule.name).is_none()) else {
            continue;
        };
        let number = i64::try_from(fired.len()).unwrap_or(0) + 1;
        let since = Timestamp::from_millisecond(wall(first, now, findings.moment)).unwrap_or(now);
        fired.push(Alert {
            id: ids::alert_id(uid, sequence + number),
            rule: rule.name.to_string(),
            phase: AlertPhase::Firing,
            metric: rule.metric,
            threshold: rule.threshold.value(),
            value,
            since,
            fired_at: now,
            ended_at: None,
        });
    }
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
