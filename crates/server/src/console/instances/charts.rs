//! The usage of a monitored instance over time, as small charts: SVG drawn here, because pages run no script for it.

use std::fmt::Write as _;

use crate::console::{
    page::Shown,
    text::{bytes, percent},
};
use api::{InstanceSeries, Seconds};

/// Width of a chart in its own units.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 60.0;

/// Usage over a window.
pub type Measured = Shown<InstanceSeries>;

/// A time, and the value at that time if it is known.
type Point<T> = (Seconds, Option<T>);

#[derive(Debug, PartialEq)]
pub struct Chart {
    /// What the chart shows.
    pub label: &'static str,
    /// The line, as SVG path data, with gaps where nothing is known.
    pub path: String,
    /// The last value.
    pub last: String,
    /// The greatest value.
    pub most: String,
    /// The value at the upper edge.
    pub top: String,
}

impl Measured {
    pub fn charts(&self) -> Vec<Chart> {
        let series = &self.series;
        let usage = |label, points: &[Point<f64>]| {
            let values: Vec<_> = points.iter().map(|(_, value)| *value).collect();
            Chart::new(label, &values, Some(100.0), percent)
        };
        let traffic = |label, points: &[Point<i64>]| {
            Chart::new(label, &self.rates(points), None, |rate| {
                #[expect(clippy::cast_possible_truncation, reason = "rates are far below the limit")]
                let rate = rate.map(|rate| rate as i64);
                rate.map_or_else(|| bytes(None), |rate| format!("{}/s", bytes(Some(rate))))
            })
        };
        vec![
            usage("CPU", &series.cpu_usage),
            usage("Memory", &series.memory_usage),
            usage("Disk", &series.disk_usage),
            traffic("Received", &series.network_in),
            traffic("Sent", &series.network_out),
        ]
    }

    /// Bytes per second between points. The counters begin again each time the server starts.
    #[expect(clippy::cast_precision_loss, reason = "a chart has some hundred pixels")]
    fn rates(&self, points: &[Point<i64>]) -> Vec<Option<f64>> {
        let seconds = self.resolution_seconds.max(1) as f64;
        let rate = |pair: &[Point<i64>]| {
            let more = pair[1].1?.checked_sub(pair[0].1?)?;
            (more >= 0).then(|| more as f64 / seconds)
        };
        points.windows(2).map(rate).collect()
    }
}

impl Chart {
    /// A chart of these values, from 0 to `top` or, without it, to the greatest value.
    fn new(
        label: &'static str,
        values: &[Option<f64>],
        top: Option<f64>,
        shown: impl Fn(Option<f64>) -> String,
    ) -> Self {
        let most = values.iter().flatten().copied().reduce(f64::max);
        let edge = top.or(most);
        let top = edge.filter(|top| *top > 0.0).unwrap_or(1.0);
        #[expect(clippy::cast_precision_loss, reason = "some hundred points at most")]
        let step = WIDTH / values.len().saturating_sub(1).max(1) as f64;
        let mut path = String::new();
        let (mut x, mut is_drawing) = (0.0, false);
        for value in values {
            if let Some(value) = value {
                let y = HEIGHT - (value / top).clamp(0.0, 1.0) * HEIGHT;
                let command = if is_drawing { 'L' } else { 'M' };
                // A short line shows a value between two gaps as a dot. Writing to a String cannot fail.
                let _ = write!(path, "{command}{x:.1} {y:.1}h.1");
            }
            is_drawing = value.is_some();
            x += step;
        }
        Self {
            label,
            path,
            last: shown(values.iter().rev().copied().find(Option::is_some).flatten()),
            most: shown(most),
            top: shown(edge),
        }
    }

    /// Whether any value is known.
    pub fn is_known(&self) -> bool {
        !self.path.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chart_is_interrupted_where_nothing_is_known() {
        let time = "2026-11-23T10:00:00Z";
        let usage = json!([[time, 0.0], [time, 50.0], [time, null], [time, 100.0]]);
        let traffic = json!([[time, 0], [time, 600], [time, 0], [time, 122_880]]);
        let measured: Measured = serde_json::from_value(json!({
            "window": "1h", "resolution_seconds": 60, "known_since": null,
            "series": {
                "cpu_usage": usage, "memory_usage": [], "disk_usage": [[time, null]],
                "network_in": traffic, "network_out": [[time, 5]],
            },
        }))
        .unwrap();
        let charts = measured.charts();
        assert_eq!(
            charts[0],
            Chart {
                label: "CPU",
                path: "M0.0 60.0h.1L100.0 30.0h.1M300.0 0.0h.1".to_owned(),
                last: "100.0 %".to_owned(),
                most: "100.0 %".to_owned(),
                top: "100.0 %".to_owned(),
            }
        );
        assert_eq!((charts[1].path.as_str(), charts[2].last.as_str()), ("", "–"));
        // Between 600 and 0 the server was started.
        assert_eq!(charts[3].path, "M0.0 59.7h.1M300.0 0.0h.1");
        assert_eq!(
            (charts[3].last.as_str(), charts[3].most.as_str()),
            ("2.0 KiB/s", "2.0 KiB/s")
        );
        assert_eq!((charts[4].path.as_str(), charts[4].most.as_str()), ("", "–"));
    }
}
