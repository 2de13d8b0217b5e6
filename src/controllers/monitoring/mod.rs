//! Samples the usage of monitored instances while this process is the leader, and serves it to other replicas.
//!
//! - `sampler`: asks the provider, and triggers a reconcile of instances whose alerts fire or end;
//! - `port`: the port for other replicas; `key`: the Secret with which both sides prove who they are.
//!
//! The instance controller fires the alerts themselves, in the same status write as their events.

mod key;
mod port;
mod sampler;

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::{key::SharedKey, port::Port, sampler::Sampler};
use crate::{
    catalogue::SharedCatalogue,
    monitoring::{Monitor, measurements::Leader, monitor::Current},
    providers::UsageSource,
    resources::Instance,
    runtime::{
        Clock, Metrics, ReconcileQueue, Store,
        instance_metrics::{ShownInstance, ShownInstances},
    },
};

pub use port::advertised;

/// What the controller depends on.
pub struct MonitoringController<U> {
    /// Client of the API server.
    pub client: Client,
    /// The operator's namespace, which holds the Secret.
    pub namespace: String,
    /// Reports the usage of servers.
    pub usage: Arc<U>,
    /// The monitored instances.
    pub monitor: Arc<Monitor>,
    /// The alert rules.
    pub catalogue: SharedCatalogue,
    /// Where instances whose alerts fire or end are queued.
    pub queue: ReconcileQueue<Instance>,
    /// All instances.
    pub instances: Store<Instance>,
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

impl<U: UsageSource> MonitoringController<U> {
    /// What this process can answer as the leader.
    pub fn answers(&self) -> Arc<Leader<U>> {
        Arc::new(Leader::new(
            self.monitor.clone(),
            self.usage.clone(),
            self.catalogue.clone(),
            self.clock.clone(),
        ))
    }

    /// Samples usage and answers questions until shutdown.
    pub async fn run(self, answers: Arc<Leader<U>>, listener: TcpListener, shutdown: CancellationToken) {
        let key = SharedKey::default();
        if let Some(limit) = self.shown {
            let (monitor, catalogue) = (self.monitor.clone(), self.catalogue.clone());
            self.metrics.instances.show(move || {
                let interval = catalogue.current().alerts.interval;
                shown(&monitor, limit, interval)
            });
        }
        let port = Port {
            answers,
            instances: self.instances,
            key: key.clone(),
            clock: self.clock.clone(),
        };
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
        tokio::join!(
            sampler.run(&shutdown),
            port.serve(listener, shutdown.clone()),
            key.make(&self.client, &self.namespace, &shutdown),
        );
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
