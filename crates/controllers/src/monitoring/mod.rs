//! Samples the usage of monitored instances while this process is the leader.
//!
//! - [`monitor`]: the monitored instances of this process, fed by the watch;
//! - `sampler`: asks the provider, and triggers a reconcile of instances whose alerts fire or end.
//!
//! The instance controller fires the alerts themselves, in the same status write as their events.

pub mod monitor;
mod sampler;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use self::monitor::Current;
pub use self::monitor::Monitor;
use self::sampler::Sampler;
use providers::UsageSource;
use resources::Instance;
use runtime::{
    Clock, Metrics, ReconcileQueue,
    instance_metrics::{ShownInstance, ShownInstances},
    shared_catalogue::SharedCatalogue,
};

/// What the controller depends on.
pub struct MonitoringController {
    /// Reports the usage of servers.
    pub usage: Arc<dyn UsageSource>,
    /// The monitored instances.
    pub monitor: Arc<Monitor>,
    /// The alert rules.
    pub catalogue: SharedCatalogue,
    /// Where instances whose alerts fire or end are queued.
    pub queue: ReconcileQueue<Instance>,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// Where samples are counted.
    pub metrics: Metrics,
    /// Maximum number of concurrent samples.
    pub concurrency: u16,
    /// Timeout of a provider call.
    pub provider_timeout: Duration,
    /// Maximum number of instances whose usage is exported as metrics; `None` exports none.
    pub shown: Option<usize>,
}

impl MonitoringController {
    /// Samples usage until shutdown.
    pub async fn run(self, shutdown: CancellationToken) {
        if let Some(limit) = self.shown {
            let (monitor, catalogue) = (self.monitor.clone(), self.catalogue.clone());
            self.metrics.instances.show(move || {
                let interval = catalogue.current().alerts.interval;
                shown(&monitor, limit, interval)
            });
        }
        let sampler = Sampler {
            monitor: self.monitor,
            usage: self.usage,
            catalogue: self.catalogue,
            queue: self.queue,
            clock: self.clock,
            metrics: self.metrics,
            concurrency: self.concurrency.into(),
            timeout: self.provider_timeout,
        };
        sampler.run(&shutdown).await;
    }
}

/// The usage of at most `limit` instances, for the metrics.
fn shown(monitor: &Monitor, limit: usize, interval: Duration) -> ShownInstances {
    let (current, left_out) = monitor.current(limit, interval);
    let instances = current
        .into_iter()
        .map(|Current { instance, usage }| ShownInstance {
            namespace: instance.metadata.namespace.clone().unwrap_or_default(),
            instance: instance.id(),
            cpu_percent: usage.cpu_usage,
            memory_percent: usage.memory_usage,
            disk_percent: usage.disk_usage,
            received_bytes: usage.network_in.and_then(|bytes| u64::try_from(bytes).ok()),
            sent_bytes: usage.network_out.and_then(|bytes| u64::try_from(bytes).ok()),
        });
    ShownInstances {
        instances: instances.collect(),
        left_out,
    }
}
