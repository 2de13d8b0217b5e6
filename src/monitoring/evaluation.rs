//! What the samples of an instance mean for each rule.

use std::sync::Arc;

use jiff::Timestamp;

use super::schedule::milliseconds;
use crate::{
    catalogue::{Alerts, alerts::AlertRule},
    providers::Usage,
    resources::{Alert, AlertMetric, Instance, PowerState},
};

/// Maximum number of consecutive samples that may be missing. One more ends an alert (decisions, section 7).
pub const MAX_MISSED: i64 = 3;

/// A run of a server, told apart from others by when it began; `None` while it is off.
pub type Run = Option<Option<Timestamp>>;

/// The run that an instance's status shows.
pub fn run_of(instance: &Instance) -> Run {
    let status = instance.status.as_ref()?;
    (status.power == Some(PowerState::Running)).then_some(status.started_at)
}

/// What is known about one rule.
#[derive(Clone, Debug, PartialEq)]
struct RuleState {
    /// The first of the samples above the threshold, if the last sample was above it.
    crossed_at: Option<i64>,
    /// The last known sample; initially one interval before the first one that was due.
    last_at: i64,
    /// The value of the last sample, if it was above the threshold for long enough.
    crossing: Option<f64>,
    /// The alert that has ended. It stays until the status shows that.
    ends: Option<Box<str>>,
}

/// What the samples of one run of a server mean. All times are moments in milliseconds, see
/// [`Timeline`](super::schedule::Timeline).
#[derive(Debug, Default)]
pub struct Evaluation {
    alerts: Option<Arc<Alerts>>,
    run: Run,
    /// One for each rule; none before the first sample of the run.
    states: Vec<RuleState>,
}

/// What follows for one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The rule.
    pub rule: AlertRule,
    /// The alert that ends, by its id.
    pub ends: Option<Box<str>>,
    /// If every sample has been above the threshold for long enough: the moment of the first, and the value of the last.
    pub crossed: Option<(i64, f64)>,
}

fn value(usage: &Usage, metric: AlertMetric) -> Option<f64> {
    match metric {
        AlertMetric::CpuUsage => usage.cpu_usage,
        AlertMetric::MemoryUsage => usage.memory_usage,
        AlertMetric::DiskUsage => usage.disk_usage,
    }
}

/// The alert of a rule that is firing.
pub fn firing<'a>(alerts: &'a [Alert], rule: &str) -> Option<&'a Alert> {
    alerts
        .iter()
        .find(|alert| alert.is_firing() && alert.rule == rule)
}

impl Evaluation {
    /// Takes the sample that was due at a moment, `None` if it failed. `shown` are the alerts in the instance's status.
    pub fn sample(
        &mut self,
        alerts: &Arc<Alerts>,
        run: Run,
        shown: &[Alert],
        at: i64,
        usage: Option<&Usage>,
    ) {
        if self.run != run {
            self.states.clear();
            self.run = run;
        }
        self.adopt(alerts);
        if run.is_none() {
            self.states.clear();
            return;
        }
        let interval = milliseconds(alerts.interval);
        if self.states.is_empty() {
            self.states = vec![RuleState::new(at - interval); alerts.rules.len()];
        }
        for (rule, state) in alerts.rules.iter().zip(&mut self.states) {
            let shown = firing(shown, &rule.name).map(|alert| alert.id.as_str());
            let value = usage.and_then(|usage| value(usage, rule.metric));
            state.sample(rule, interval, shown, at, value);
        }
    }

    /// Adopts changed rules. What is known about unchanged rules stays.
    fn adopt(&mut self, alerts: &Arc<Alerts>) {
        let is_same = |old: &Arc<Alerts>| Arc::ptr_eq(old, alerts) || old == alerts;
        if self.alerts.as_ref().is_some_and(is_same) {
            return;
        }
        let old = self.alerts.replace(alerts.clone());
        let Some(old) = old.filter(|old| old.interval == alerts.interval && !self.states.is_empty()) else {
            self.states.clear();
            return;
        };
        let known: Vec<_> = old.rules.iter().zip(std::mem::take(&mut self.states)).collect();
        let last_at = known.iter().map(|(_, state)| state.last_at).max();
        let state_of = |rule: &AlertRule| {
            let same = known.iter().find(|(known, _)| *known == rule);
            same.map(|(_, state)| state.clone())
                .or_else(|| Some(RuleState::new(last_at?)))
        };
        self.states = alerts.rules.iter().filter_map(state_of).collect();
        if self.states.len() != alerts.rules.len() {
            self.states.clear();
        }
    }

    /// What follows for each rule; `None` before the first sample of a run.
    pub fn findings(&self, run: Run) -> Option<Vec<Finding>> {
        let alerts = self.alerts.as_ref()?;
        if run.is_none() || run != self.run || self.states.len() != alerts.rules.len() {
            return None;
        }
        let each = alerts.rules.iter().zip(&self.states);
        let findings = each.map(|(rule, state)| Finding {
            rule: rule.clone(),
            ends: state.ends.clone(),
            crossed: state.crossed_at.zip(state.crossing),
        });
        Some(findings.collect())
    }

    /// Whether the status of the instance, with these alerts, must change.
    pub fn calls_for_a_change(&self, run: Run, shown: &[Alert]) -> bool {
        let Some(alerts) = self.alerts.as_ref().filter(|_| run.is_some() && run == self.run) else {
            return false;
        };
        let has_changed = |(rule, state): (&AlertRule, &RuleState)| {
            let shown = firing(shown, &rule.name);
            match shown {
                Some(alert) => state.ends.as_deref() == Some(alert.id.as_str()),
                None => state.crossing.is_some(),
            }
        };
        let has_no_rule = |alert: &Alert| {
            let is_known = alerts.rules.iter().any(|rule| *rule.name == *alert.rule);
            alert.is_firing() && !is_known
        };
        alerts.rules.iter().zip(&self.states).any(has_changed) || shown.iter().any(has_no_rule)
    }
}

impl RuleState {
    const fn new(last_at: i64) -> Self {
        Self {
            crossed_at: None,
            last_at,
            crossing: None,
            ends: None,
        }
    }

    fn sample(&mut self, rule: &AlertRule, interval: i64, shown: Option<&str>, at: i64, value: Option<f64>) {
        if self.ends.as_deref() != shown {
            self.ends = None;
        }
        let end = || shown.map(Into::into);
        self.crossing = None;
        let missed = (at - self.last_at) / interval - i64::from(value.is_some());
        if missed > MAX_MISSED {
            self.crossed_at = None;
            self.ends = end();
        }
        let Some(value) = value else { return };
        self.last_at = at;
        if value > rule.threshold.value() {
            let first = *self.crossed_at.get_or_insert(at);
            if at - first >= milliseconds(rule.lasting) {
                self.crossing = Some(value);
            }
        } else {
            self.crossed_at = None;
            if value < rule.rearm_below.value() {
                self.ends = end();
            }
        }
    }
}
