//! The usage of instances as metrics, if the administrator wants them. Their label values include names of objects, so
//! their number is limited.

use std::{fmt, sync::Arc};

use parking_lot::RwLock;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// What is shown for one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownInstance {
    pub namespace: String,
    /// Its id.
    pub instance: String,
    /// CPU usage in percent.
    pub cpu_percent: Option<f64>,
    /// Memory usage in percent.
    pub memory_percent: Option<f64>,
    /// Disk usage in percent.
    pub disk_percent: Option<f64>,
    /// Bytes received since the last start.
    pub received_bytes: Option<u64>,
    /// Bytes sent since the last start.
    pub sent_bytes: Option<u64>,
}

/// The instances that are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShownInstances {
    pub instances: Vec<ShownInstance>,
    /// How many more there are.
    pub left_out: usize,
}

/// Returns what to show, each time the metrics are read.
type Source = Box<dyn Fn() -> ShownInstances + Send + Sync>;

/// A value of an instance, if it is known.
type ValueOf<T> = fn(&ShownInstance) -> Option<T>;

/// The usage of instances. Shows nothing until [`show`](Self::show) is called. Cheap to clone.
#[derive(Clone, Default)]
pub struct InstanceMetrics(Arc<RwLock<Option<Source>>>);

impl InstanceMetrics {
    /// Shows what `source` returns from now on.
    pub fn show(&self, source: impl Fn() -> ShownInstances + Send + Sync + 'static) {
        *self.0.write() = Some(Box::new(source));
    }

    /// Shows nothing from now on.
    pub fn hide(&self) {
        *self.0.write() = None;
    }
}

impl fmt::Debug for InstanceMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InstanceMetrics")
    }
}

impl Collector for InstanceMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let source = self.0.read();
        let Some(source) = &*source else { return Ok(()) };
        let shown = source();
        let percentages: [(&str, &str, ValueOf<f64>); 3] = [
            ("cpu", "CPU usage", |one| one.cpu_percent),
            ("memory", "Memory usage", |one| one.memory_percent),
            ("disk", "Disk usage", |one| one.disk_percent),
        ];
        for (name, help, value) in percentages {
            let name = format!("instance_{name}_usage");
            let unit = Unit::Other("percent".to_owned());
            let help = format!("{help} of a monitored instance");
            let mut metric = encoder.encode_descriptor(&name, &help, Some(&unit), MetricType::Gauge)?;
            for one in &shown.instances {
                if let Some(value) = value(one) {
                    ConstGauge::new(value).encode(metric.encode_family(&labels(one))?)?;
                }
            }
        }
        let counters: [(&str, &str, ValueOf<u64>); 2] = [
            ("receive", "received", |one| one.received_bytes),
            ("transmit", "sent", |one| one.sent_bytes),
        ];
        for (name, what, value) in counters {
            let name = format!("instance_network_{name}");
            let help = format!("Bytes {what} since the last start of a monitored instance");
            let mut metric =
                encoder.encode_descriptor(&name, &help, Some(&Unit::Bytes), MetricType::Counter)?;
            for one in &shown.instances {
                if let Some(value) = value(one) {
                    ConstCounter::new(value).encode(metric.encode_family(&labels(one))?)?;
                }
            }
        }
        let left_out = i64::try_from(shown.left_out).unwrap_or(i64::MAX);
        let metric = encoder.encode_descriptor(
            "instance_metrics_left_out",
            "Monitored instances whose usage is not shown, because there are more than --instance-metrics-limit",
            None,
            MetricType::Gauge,
        )?;
        ConstGauge::new(left_out).encode(metric)
    }
}

fn labels(one: &ShownInstance) -> [(&'static str, &str); 2] {
    [("namespace", &one.namespace), ("instance", &one.instance)]
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn usage_is_shown_once_it_is_wanted_and_what_is_unknown_is_left_out() {
        let metrics = InstanceMetrics::default();
        let mut registry = Registry::with_prefix("stellage");
        registry.register_collector(Box::new(metrics.clone()));
        let page = || {
            let mut page = String::new();
            encode(&mut page, &registry).unwrap();
            page
        };
        assert_eq!(page(), "# EOF\n");
        metrics.show(|| ShownInstances {
            instances: vec![ShownInstance {
                namespace: "demo".into(),
                instance: "i-1".into(),
                cpu_percent: Some(95.5),
                memory_percent: None,
                disk_percent: Some(10.0),
                received_bytes: Some(7),
                sent_bytes: None,
            }],
            left_out: 3,
        });
        let page = page();
        for line in [
            "stellage_instance_cpu_usage_percent{namespace=\"demo\",instance=\"i-1\"} 95.5",
            "stellage_instance_network_receive_bytes_total{namespace=\"demo\",instance=\"i-1\"} 7",
            "stellage_instance_metrics_left_out 3",
        ] {
            assert!(page.contains(line), "{line} in {page}");
        }
        assert!(!page.contains("memory_usage_percent{"), "{page}");
    }
}
