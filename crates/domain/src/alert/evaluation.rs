//! What the samples of an instance mean for each rule.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::schedule::milliseconds;
use crate::{
    catalogue::{Alerts, alerts::AlertRule},
    provider::Usage,
};
use resources::{Alert, AlertMetric, Instance, PowerState};

/// Maximum number of consecutive samples that may be missing while a metric counts as above a threshold all the time.
pub const MAX_MISSED: i64 = 3;
/// Samples that are missing for longer than this end an alert (decisions, section 7).
pub const MAX_GAP: Duration = Duration::from_hours(1);

/// A run of a server, told apart from others by when it began; `None` while it is off.
pub type Run = Option<Option<Timestamp>>;

/// The run that an instance's status shows.
pub fn run_of(instance: &Instance) -> Run {
    let status = instance.status.as_ref()?;
    (status.power == Some(PowerState::Running)).then_some(status.started_at)
}

/// What the samples mean for the alert of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Every sample has been above the threshold for long enough: the alert fires, unless it is firing already.
    Fires {
        /// The moment of the first of these samples.
        since: i64,
        /// The value of the last.
        value: f64,
    },
    /// The alert ends, if it is firing.
    Ends,
}

/// What is known about one rule.
#[derive(Clone, Debug)]
struct RuleState {
    /// The last known sample; initially one interval before the first one that was due.
    last_at: i64,
    /// The first of the samples above the threshold, if the last known sample was above it.
    crossed_at: Option<i64>,
    /// `Ends` stays until the rule fires again, because the status may not show the end yet.
    verdict: Option<Verdict>,
}

/// What the samples of one run of a server mean. All times are moments in milliseconds, see
/// [`Timeline`](super::schedule::Timeline).
#[derive(Debug, Default)]
pub struct Evaluation {
    run: Run,
    /// The rules of `states`; `None` before the first sample of the run.
    alerts: Option<Arc<Alerts>>,
    states: Vec<RuleState>,
}

/// What follows for one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub rule: AlertRule,
    /// What the samples mean for its alert, if anything.
    pub verdict: Option<Verdict>,
}

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

fn value(usage: &Usage, metric: AlertMetric) -> Option<f64> {
    match metric {
        AlertMetric::CpuUsage => usage.cpu_usage,
        AlertMetric::MemoryUsage => usage.memory_usage,
        AlertMetric::DiskUsage => usage.disk_usage,
    }
}

impl Evaluation {
    /// Takes the sample that was due at a moment, `None` if it failed.
    pub fn sample(&mut self, alerts: &Arc<Alerts>, run: Run, at: i64, usage: Option<&Usage>) {
        if self.run != run || run.is_none() {
            *self = Self {
                run,
                ..Self::default()
            };
        }
        if run.is_none() {
            return;
        }
        let interval = milliseconds(alerts.interval);
        self.adopt(alerts, at - interval);
        for (rule, state) in alerts.rules.iter().zip(&mut self.states) {
            let value = usage.and_then(|usage| value(usage, rule.metric));
            state.sample(rule, interval, at, value);
        }
    }

    /// Adopts changed rules. What is known about unchanged rules stays; of others nothing is known since `last_at`.
    fn adopt(&mut self, alerts: &Arc<Alerts>, last_at: i64) {
        if self.alerts.as_ref().is_some_and(|old| Arc::ptr_eq(old, alerts)) {
            return;
        }
        let old = self.alerts.replace(alerts.clone());
        let rules = old.iter().flat_map(|old| &old.rules);
        let known: Vec<_> = rules.zip(std::mem::take(&mut self.states)).collect();
        let state_of = |rule: &AlertRule| {
            let same = known.iter().find(|(known, _)| *known == rule);
            same.map_or_else(|| RuleState::new(last_at), |(_, state)| state.clone())
        };
        self.states = alerts.rules.iter().map(state_of).collect();
    }

    /// What follows for each rule; `None` before the first sample of a run.
    pub fn findings(&self, run: Run, moment: i64) -> Option<Findings> {
        let alerts = self.alerts.as_ref().filter(|_| run == self.run)?;
        let rules = alerts.rules.iter().zip(&self.states);
        Some(Findings {
            started_at: run?,
            rules: rules
                .map(|(rule, state)| Finding {
                    rule: rule.clone(),
                    verdict: state.verdict,
                })
                .collect(),
            moment,
        })
    }
}

impl RuleState {
    const fn new(last_at: i64) -> Self {
        Self {
            last_at,
            crossed_at: None,
            verdict: None,
        }
    }

    fn sample(&mut self, rule: &AlertRule, interval: i64, at: i64, value: Option<f64>) {
        let gap = at - self.last_at;
        if gap > milliseconds(MAX_GAP) {
            self.verdict = Some(Verdict::Ends);
        } else if self.verdict != Some(Verdict::Ends) {
            self.verdict = None;
        }
        // No sample is not zero.
        let Some(value) = value else { return };
        self.last_at = at;
        if value > rule.threshold.value() {
            let is_unbroken = gap <= (MAX_MISSED + 1) * interval;
            let since = self.crossed_at.filter(|_| is_unbroken).unwrap_or(at);
            self.crossed_at = Some(since);
            if at - since >= milliseconds(rule.lasting) {
                self.verdict = Some(Verdict::Fires { since, value });
            }
        } else {
            self.crossed_at = None;
            if value < rule.rearm_below.value() {
                self.verdict = Some(Verdict::Ends);
            }
        }
    }
}

impl Findings {
    /// Whether an alert that is firing ends.
    pub fn end(&self, alert: &Alert) -> bool {
        let finding = self.rules.iter().find(|of| *of.rule.name == *alert.rule);
        // Without its rule nothing would ever end it.
        finding.is_none_or(|of| of.verdict == Some(Verdict::Ends))
    }

    /// The rules whose alerts fire, with the moment of the first sample above the threshold, and the value of the last.
    pub fn to_fire<'a>(
        &'a self,
        alerts: &'a [Alert],
    ) -> impl Iterator<Item = (&'a AlertRule, i64, f64)> + use<'a> {
        let is_firing = |rule: &str| alerts.iter().any(|alert| alert.is_firing() && alert.rule == rule);
        let fires = move |Finding { rule, verdict }: &'a Finding| match *verdict {
            Some(Verdict::Fires { since, value }) if !is_firing(&rule.name) => Some((rule, since, value)),
            _ => None,
        };
        self.rules.iter().filter_map(fires)
    }

    /// Whether they change these alerts.
    pub fn change(&self, alerts: &[Alert]) -> bool {
        let ends = |alert: &Alert| alert.is_firing() && self.end(alert);
        alerts.iter().any(ends) || self.to_fire(alerts).next().is_some()
    }
}
