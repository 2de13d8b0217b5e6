//! Alerts and series as responses show them (decisions, section 7).

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::response::view::{Seconds, schema},
    service::{
        alerts::{ShownAlert, status},
        id::InstanceId,
    },
};
use domain::provider::{Series, Usage, Window};
use resources::AlertMetric;

/// An alert of an instance.
#[derive(Serialize, ToSchema)]
#[schema(as = Alert)]
pub struct AlertView<'a> {
    /// Identifier.
    #[schema(pattern = "^alr_[a-z0-9]{16}$", example = "alr_2m8x1ta4q7hz0c9k")]
    id: &'a str,
    /// The rule that fired.
    #[schema(example = "cpu_usage_high")]
    rule: &'a str,
    /// Whether it is firing.
    #[schema(schema_with = alert_status)]
    status: &'static str,
    /// Identifier of the instance.
    #[schema(schema_with = instance_id)]
    instance_id: InstanceId,
    /// The metric.
    metric: AlertMetric,
    /// The threshold that the metric has crossed, in percent.
    #[schema(minimum = 0, maximum = 100, example = 90.0)]
    threshold: f64,
    /// The value of the metric when the alert fired, in percent.
    #[schema(minimum = 0, maximum = 100, example = 96.4)]
    value: f64,
    /// When the metric first crossed the threshold.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T09:57:31Z")]
    since: Seconds,
    /// When the alert fired.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    fired_at: Seconds,
    /// When it ended; `null` while it is firing.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T10:31:31Z")]
    ended_at: Option<Seconds>,
}

impl<'a> AlertView<'a> {
    /// An alert as lists show it.
    pub fn of(shown: &'a ShownAlert) -> Option<Self> {
        let alert = shown.alert()?;
        Some(Self {
            id: &alert.id,
            rule: &alert.rule,
            status: status(alert.phase),
            instance_id: shown.item.id,
            metric: alert.metric,
            threshold: alert.threshold,
            value: alert.value,
            since: Seconds(alert.since),
            fired_at: Seconds(alert.fired_at),
            ended_at: alert.ended_at.map(Seconds),
        })
    }
}

fn instance_id() -> RefOr<Schema> {
    Ref::from_schema_name("InstanceId").into()
}

fn alert_status() -> RefOr<Schema> {
    schema(&json!({
        "type": "string", "enum": ["firing", "ended"],
        "description": "`firing`: the metric has not come back below the value that ends the alert. `ended`: it has, or the instance was stopped or is no longer monitored, or samples were missing for an hour.",
    }))
}

/// The usage of an instance over a window.
#[derive(Serialize, ToSchema)]
#[schema(as = InstanceSeries)]
pub struct SeriesView {
    /// The window.
    #[schema(value_type = String, pattern = "^(1h|24h)$", example = "1h")]
    window: &'static str,
    /// Seconds from one point to the next.
    #[schema(minimum = 1, example = 60)]
    resolution_seconds: i64,
    /// Since when anything is known, within the window; `null` if nothing is.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2026-11-21T09:02:31Z")]
    known_since: Option<Seconds>,
    /// The points of each metric.
    series: Points,
}

/// The points of each metric, oldest first.
#[derive(Serialize, ToSchema)]
#[schema(as = InstanceSeriesPoints)]
pub struct Points {
    /// CPU usage in percent.
    #[schema(schema_with = points)]
    cpu_usage: Vec<(Seconds, Option<f64>)>,
    /// Memory usage in percent.
    #[schema(schema_with = points)]
    memory_usage: Vec<(Seconds, Option<f64>)>,
    /// Disk usage in percent.
    #[schema(schema_with = points)]
    disk_usage: Vec<(Seconds, Option<f64>)>,
    /// Bytes received since the last start.
    #[schema(schema_with = points)]
    network_in: Vec<(Seconds, Option<i64>)>,
    /// Bytes sent since the last start.
    #[schema(schema_with = points)]
    network_out: Vec<(Seconds, Option<i64>)>,
}

fn points() -> RefOr<Schema> {
    Ref::from_schema_name("SeriesPoints").into()
}

impl SeriesView {
    /// A series as answers show it.
    pub fn of(window: Window, series: &Series) -> Self {
        fn each<T>(series: &Series, value: impl Fn(&Usage) -> T) -> Vec<(Seconds, T)> {
            let points = series.points.iter();
            points
                .map(|(time, usage)| (Seconds(*time), value(usage)))
                .collect()
        }
        Self {
            window: window.as_str(),
            resolution_seconds: window.resolution_seconds(),
            known_since: series.known_since.map(Seconds),
            series: Points {
                cpu_usage: each(series, |usage| usage.cpu_usage),
                memory_usage: each(series, |usage| usage.memory_usage),
                disk_usage: each(series, |usage| usage.disk_usage),
                network_in: each(series, |usage| usage.network_in),
                network_out: each(series, |usage| usage.network_out),
            },
        }
    }
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> Value {
    json!({
        "SeriesPoints": {
            "type": "array", "description": "Pairs of a time and the value at that time, oldest first. A value is `null` where it is unknown.",
            "items": {
                "type": "array", "minItems": 2, "maxItems": 2, "items": {},
                "prefixItems": [
                    { "type": "string", "format": "date-time", "description": "The time." },
                    { "type": ["number", "null"], "description": "The value." },
                ],
            },
            "examples": [[["2026-11-21T10:00:00Z", 12.5], ["2026-11-21T10:01:00Z", null]]],
        },
    })
}
