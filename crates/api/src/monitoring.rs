//! Alerts and usage over time: `/v1/alerts` and `/v1/instances/{id}/metrics` (decisions, section 7).

use serde::{Deserialize, Serialize};
use utoipa::{PartialSchema as _, ToSchema};

use crate::{schema, time::Seconds};
use resources::{AlertMetric, AlertPhase};

/// An alert of an instance.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Alert {
    /// Identifier.
    #[schema(pattern = "^alr_[a-z0-9]{16}$", example = "alr_2m8x1ta4q7hz0c9k")]
    pub id: String,
    /// The rule that fired.
    #[schema(example = "cpu_usage_high")]
    pub rule: String,
    /// Whether it is firing.
    #[schema(schema_with = AlertStatus::schema)]
    pub status: AlertStatus,
    /// Identifier of the instance.
    #[schema(schema_with = schema::instance_id)]
    pub instance_id: String,
    /// The metric.
    pub metric: AlertMetric,
    /// The threshold that the metric has crossed, in percent.
    #[schema(minimum = 0, maximum = 100, example = 90.0)]
    pub threshold: f64,
    /// The value of the metric when the alert fired, in percent.
    #[schema(minimum = 0, maximum = 100, example = 96.4)]
    pub value: f64,
    /// When the metric first crossed the threshold.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T09:57:31Z")]
    pub since: Seconds,
    /// When the alert fired.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    pub fired_at: Seconds,
    /// When it ended; `null` while it is firing.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:31:31Z")]
    pub ended_at: Option<Seconds>,
}

/// The usage of an instance over a window.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct InstanceSeries {
    /// The window.
    #[schema(value_type = String, pattern = "^(1h|24h)$", example = "1h")]
    pub window: String,
    /// Seconds from one point to the next.
    #[schema(minimum = 1, example = 60)]
    pub resolution_seconds: i64,
    /// Since when anything is known, within the window; `null` if nothing is.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T09:02:31Z")]
    pub known_since: Option<Seconds>,
    /// The points of each metric.
    pub series: InstanceSeriesPoints,
}

/// The points of each metric, oldest first.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct InstanceSeriesPoints {
    /// CPU usage in percent.
    #[schema(schema_with = schema::series_points)]
    pub cpu_usage: Vec<(Seconds, Option<f64>)>,
    /// Memory usage in percent.
    #[schema(schema_with = schema::series_points)]
    pub memory_usage: Vec<(Seconds, Option<f64>)>,
    /// Disk usage in percent.
    #[schema(schema_with = schema::series_points)]
    pub disk_usage: Vec<(Seconds, Option<f64>)>,
    /// Bytes received since the last start.
    #[schema(schema_with = schema::series_points)]
    pub network_in: Vec<(Seconds, Option<i64>)>,
    /// Bytes sent since the last start.
    #[schema(schema_with = schema::series_points)]
    pub network_out: Vec<(Seconds, Option<i64>)>,
}

/// Whether an alert is firing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, ToSchema, strum::AsRefStr, strum::Display,
)]
#[schema(
    description = "`firing`: the metric has not come back below the value that ends the alert. `ended`: it has, or the instance was stopped or is no longer monitored, or samples were missing for an hour."
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum AlertStatus {
    /// The metric has not come back below the value that ends the alert.
    Firing,
    /// It has, or the instance was stopped or is no longer monitored, or samples were missing for an hour.
    Ended,
}

impl From<AlertPhase> for AlertStatus {
    fn from(phase: AlertPhase) -> Self {
        match phase {
            AlertPhase::Firing => Self::Firing,
            AlertPhase::Ended => Self::Ended,
        }
    }
}
