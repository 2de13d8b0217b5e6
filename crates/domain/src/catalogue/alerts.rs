//! The alert rules, and their part of the catalogue's file.

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer, de};

use resources::{AlertMetric, alert::MAX_RULES};

/// Longest interval of samples: a minute.
const MAX_INTERVAL: i64 = 60;
/// Longest time for which a metric may have to stay above a threshold: a day.
const MAX_FOR: i64 = 86_400;
/// Longest name of a rule.
const MAX_NAME: usize = 63;

/// A percentage from 0 to 100, in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u16);

impl Percent {
    /// As a number from 0 to 100.
    pub fn value(self) -> f64 {
        f64::from(self.0) / 100.0
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.value())
    }
}

/// When an alert fires, and when it can fire again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRule {
    /// Its name, unique among the rules.
    pub name: Arc<str>,
    pub metric: AlertMetric,
    /// It fires when every sample has been above this for the time of `lasting`.
    pub threshold: Percent,
    /// How long the samples must have been above the threshold.
    pub lasting: Duration,
    /// A sample below this ends the alert. At most the threshold.
    pub rearm_below: Percent,
}

/// How the usage of instances is sampled, and the rules for alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alerts {
    /// Time between two samples of an instance: 1 to 60 seconds.
    pub interval: Duration,
    /// The rules, at most 16.
    pub rules: Vec<AlertRule>,
}

impl Default for Alerts {
    /// Every minute; above 90 % for five minutes, re-armed below 80 % (decisions, section 7).
    fn default() -> Self {
        let rule = |metric: AlertMetric| AlertRule {
            name: format!("{}_high", metric.as_str()).into(),
            metric,
            threshold: Percent(90_00),
            lasting: Duration::from_mins(5),
            rearm_below: Percent(80_00),
        };
        Self {
            interval: Duration::from_mins(1),
            rules: [
                AlertMetric::CpuUsage,
                AlertMetric::MemoryUsage,
                AlertMetric::DiskUsage,
            ]
            .map(rule)
            .into(),
        }
    }
}

/// The section of the catalogue file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct AlertsSection {
    interval: Option<Seconds<MAX_INTERVAL>>,
    rules: Option<Vec<RuleSection>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RuleSection {
    name: RuleName,
    metric: AlertMetric,
    threshold: Percent,
    r#for: Seconds<MAX_FOR>,
    rearm_below: Percent,
}

#[derive(Debug)]
struct RuleName(String);

/// A time of 1 to `MAX` whole seconds.
#[derive(Debug)]
struct Seconds<const MAX: i64>(Duration);

impl<'de> Deserialize<'de> for RuleName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_allowed) {
            return Ok(Self(name));
        }
        Err(de::Error::custom(format!(
            "{name:?} must be 1 to {MAX_NAME} lower-case letters, digits or '_', such as cpu_usage_high"
        )))
    }
}

impl<'de> Deserialize<'de> for Percent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = f64::deserialize(deserializer)?;
        // The nearest, unless digits would be lost.
        let hundredths = (0..=10_000_u16).find(|hundredths| {
            let exact = f64::from(*hundredths) / 100.0;
            (exact - number).abs() < 1e-9
        });
        hundredths.map(Self).ok_or_else(|| {
            de::Error::custom(format!(
                "{number} must be a percentage from 0 to 100 with at most two decimals"
            ))
        })
    }
}

impl<'de, const MAX: i64> Deserialize<'de> for Seconds<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || {
            de::Error::custom(format!(
                "{text:?} must be a time of 1 to {MAX} whole seconds, such as 30s or 1m"
            ))
        };
        let time: SignedDuration = text.parse().map_err(|_| wrong())?;
        if time.subsec_nanos() != 0 || !(1..=MAX).contains(&time.as_secs()) {
            return Err(wrong());
        }
        Duration::try_from(time).map(Self).map_err(|_| wrong())
    }
}

impl AlertsSection {
    /// The settings of the section, with defaults for what it leaves out. The error is the path of a field and what is wrong with it.
    pub(super) fn alerts(self) -> Result<Alerts, (String, String)> {
        let default = Alerts::default();
        let interval = self.interval.map_or(default.interval, |interval| interval.0);
        let Some(sections) = self.rules else {
            return Ok(Alerts { interval, ..default });
        };
        if sections.len() > MAX_RULES {
            let problem = format!("has {} entries; must have at most {MAX_RULES}", sections.len());
            return Err(("alerts.rules".to_owned(), problem));
        }
        let mut names = HashSet::new();
        let mut rules = Vec::with_capacity(sections.len());
        for (index, section) in sections.into_iter().enumerate() {
            let wrong =
                |field: &str, problem: String| Err((format!("alerts.rules[{index}].{field}"), problem));
            if section.rearm_below > section.threshold {
                let problem = format!(
                    "{} is above the threshold; must be at most {}",
                    section.rearm_below, section.threshold
                );
                return wrong("rearmBelow", problem);
            }
            if !names.insert(section.name.0.clone()) {
                let problem = format!(
                    "{:?} is the name of another rule; each must have its own",
                    section.name.0
                );
                return wrong("name", problem);
            }
            rules.push(AlertRule {
                name: section.name.0.into(),
                metric: section.metric,
                threshold: section.threshold,
                lasting: section.r#for.0,
                rearm_below: section.rearm_below,
            });
        }
        Ok(Alerts { interval, rules })
    }
}
