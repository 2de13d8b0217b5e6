//! Alerts and series as responses show them (decisions, section 7).

use crate::service::alerts::ShownAlert;
use api::{Alert, InstanceMetrics, InstanceSeries, InstanceSeriesPoints, Seconds};
use domain::provider::{Series, Window};

/// An alert as lists show it.
pub fn alert(ShownAlert { item, alert }: &ShownAlert) -> Alert {
    Alert {
        id: alert.id.clone(),
        rule: alert.rule.clone(),
        status: alert.phase.into(),
        instance_id: item.id.to_string(),
        metric: alert.metric,
        threshold: alert.threshold,
        value: alert.value,
        since: Seconds(alert.since),
        fired_at: Seconds(alert.fired_at),
        ended_at: alert.ended_at.map(Seconds),
    }
}

/// A series as answers show it.
pub fn series(window: Window, series: &Series) -> InstanceSeries {
    fn each<T>(series: &Series, value: impl Fn(&InstanceMetrics) -> T) -> Vec<(Seconds, T)> {
        let points = series.points.iter();
        points
            .map(|(time, usage)| (Seconds(*time), value(usage)))
            .collect()
    }
    InstanceSeries {
        window: window.as_str().to_owned(),
        resolution_seconds: window.resolution_seconds(),
        known_since: series.known_since.map(Seconds),
        series: InstanceSeriesPoints {
            cpu_usage: each(series, |usage| usage.cpu_usage),
            memory_usage: each(series, |usage| usage.memory_usage),
            disk_usage: each(series, |usage| usage.disk_usage),
            network_in: each(series, |usage| usage.network_in),
            network_out: each(series, |usage| usage.network_out),
        },
    }
}
