//! Alerts, kept in the status of the instance that they are about.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::times;

/// Most entries of `status.alerts` of an Instance: [`MAX_PER_RULE`] of each of [`MAX_RULES`] rules.
pub const MAX_ALERTS: usize = MAX_RULES * MAX_PER_RULE;
/// Most rules that a catalogue may have.
pub const MAX_RULES: usize = 16;
/// Most alerts of one rule that an Instance keeps: one that is firing, and the last that have ended.
pub const MAX_PER_RULE: usize = 4;

/// A metric that alerts can be about. All are in percent.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AlertMetric {
    /// Usage of the CPU.
    CpuUsage,
    /// Usage of the memory.
    MemoryUsage,
    /// Usage of the disk.
    DiskUsage,
}

impl AlertMetric {
    /// The metric as `include=metrics` spells it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Whether an alert is firing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum AlertPhase {
    /// The metric has not come back below the value that ends the alert.
    Firing,
    /// It has ended.
    Ended,
}

/// An alert that has fired.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Alert {
    /// Public identifier, `alr_…`.
    #[schemars(length(max = 64))]
    pub id: String,
    /// Name of the rule in the catalogue.
    #[schemars(length(max = 63))]
    pub rule: String,
    /// Whether it is firing.
    pub phase: AlertPhase,
    /// The metric.
    pub metric: AlertMetric,
    /// The threshold that the metric has crossed, in percent.
    pub threshold: f64,
    /// The value of the metric when the alert fired, in percent.
    pub value: f64,
    /// When the metric first crossed the threshold.
    #[schemars(schema_with = "times::time")]
    pub since: Timestamp,
    /// When the alert fired.
    #[schemars(schema_with = "times::time")]
    pub fired_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub ended_at: Option<Timestamp>,
}

impl Alert {
    /// Whether it is firing.
    pub fn is_firing(&self) -> bool {
        self.phase == AlertPhase::Firing
    }
}
