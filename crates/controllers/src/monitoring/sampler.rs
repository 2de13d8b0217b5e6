//! Takes the samples.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::monitoring::{Monitor, monitor::Due};
use domain::{catalogue::Alerts, provider::ProviderError};
use providers::UsageSource;
use resources::Instance;
use runtime::{
    Clock, FairPermits, Metrics, ReconcileQueue, metrics::OutcomeLabels, shared_catalogue::SharedCatalogue,
};

/// How often to check which samples are due: this many times per interval, but at most every tenth of a second.
const LOOKS: u32 = 60;
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

/// Samples the monitored instances. Each provider call has a timeout, and accounts take turns, so that no account keeps the
/// others from being sampled. A sample that is not taken in time leaves a gap.
pub(super) struct Sampler {
    pub(super) monitor: Arc<Monitor>,
    pub(super) usage: Arc<dyn UsageSource>,
    pub(super) catalogue: SharedCatalogue,
    pub(super) queue: ReconcileQueue<Instance>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    pub(super) concurrency: usize,
    pub(super) timeout: Duration,
}

/// The permits for provider calls, of which an account gets at most half.
struct Permits {
    usual: Arc<FairPermits>,
    /// A quarter as many, for instances whose last sample failed.
    suspect: Arc<FairPermits>,
}

impl Sampler {
    /// Samples until shutdown.
    pub(super) async fn run(&self, shutdown: &CancellationToken) {
        let half = |permits: usize| FairPermits::new(permits.max(1), permits.div_ceil(2));
        let permits = Permits {
            usual: half(self.concurrency),
            suspect: half(self.concurrency / 4),
        };
        let mut taking = FuturesUnordered::new();
        let mut looked = self.monitor.moment();
        loop {
            let alerts = self.catalogue.current().alerts.clone();
            let now = self.monitor.moment();
            for due in self.monitor.due(alerts.interval, looked, now) {
                taking.push(self.sample(due, alerts.clone(), &permits));
            }
            looked = now;
            let monitored = i64::try_from(self.monitor.count()).unwrap_or(i64::MAX);
            self.metrics.monitored_instances.set(monitored);
            let pause = sleep((alerts.interval / LOOKS).max(SHORTEST_PAUSE));
            let mut pause = std::pin::pin!(pause);
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = &mut pause => break,
                    Some(()) = taking.next() => {}
                }
            }
        }
    }

    async fn sample(&self, due: Due, alerts: Arc<Alerts>, permits: &Permits) {
        let permits = if due.is_suspect {
            &permits.suspect
        } else {
            &permits.usual
        };
        let permit = permits.acquire(due.namespace()).await;
        let limit = self.timeout.min(alerts.interval);
        let asking = self.usage.usage(&due.instance, self.clock.now());
        let answer = timeout(limit, asking)
            .await
            .unwrap_or(Err(ProviderError::Timeout(limit)));
        drop(permit);
        let outcome = answer.as_ref().map_or_else(ProviderError::reason, |_| "ok");
        let labels = OutcomeLabels { outcome };
        self.metrics.usage_samples.get_or_create_owned(&labels).inc();
        self.queue
            .again(self.monitor.record(&due, &alerts, answer.ok().as_ref()));
    }
}
