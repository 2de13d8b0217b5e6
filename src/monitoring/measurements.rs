//! Answers questions about the usage of instances: the leader from its memory and by asking the provider, other replicas by asking
//! the leader.

use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use tokio::time::timeout;

use super::{
    monitor::Monitor,
    remote::Remote,
    series::{Measured, Window},
    wire::{PATIENCE, Unavailable},
};
use crate::{
    catalogue::SharedCatalogue,
    providers::{Usage, UsageSource},
    resources::Instance,
    runtime::{Clock, FairPermits},
};

/// Questions that the provider is asked at the same time, and those of one account.
const ASKED_AT_ONCE: usize = 64;
const ASKED_BY_ONE: usize = 16;

/// Answers questions about usage.
pub trait Measurements: Send + Sync + 'static {
    /// The current usage of an instance. Unknown if there is no answer within two seconds.
    fn usage<'a>(&'a self, instance: &'a Instance) -> BoxFuture<'a, Usage>;

    /// The series of a monitored instance.
    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
    ) -> BoxFuture<'a, Result<Measured, Unavailable>>;
}

/// The answers of the leader.
pub struct Leader<U> {
    monitor: Arc<Monitor>,
    provider: Arc<U>,
    catalogue: SharedCatalogue,
    clock: Arc<dyn Clock>,
    permits: Arc<FairPermits>,
}

impl<U: UsageSource> Leader<U> {
    /// Answers from what the monitor knows, and else with what the provider says.
    pub fn new(
        monitor: Arc<Monitor>,
        provider: Arc<U>,
        catalogue: SharedCatalogue,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            monitor,
            provider,
            catalogue,
            clock,
            permits: FairPermits::new(ASKED_AT_ONCE, ASKED_BY_ONE),
        }
    }

    async fn ask(&self, instance: &Instance) -> Usage {
        let account = instance.metadata.namespace.as_deref().unwrap_or_default();
        let _permit = self.permits.acquire(account).await;
        let answer = self.provider.usage(instance, self.clock.now()).await;
        answer.unwrap_or_else(|error| {
            tracing::debug!(instance = crate::runtime::watch::key(instance), %error, "no usage");
            Usage::default()
        })
    }
}

impl<U: UsageSource> Measurements for Leader<U> {
    fn usage<'a>(&'a self, instance: &'a Instance) -> BoxFuture<'a, Usage> {
        Box::pin(async {
            let interval = self.catalogue.current().alerts.interval;
            match self.monitor.newest(instance, interval) {
                Some(newest) => newest,
                None => timeout(PATIENCE, self.ask(instance)).await.unwrap_or_default(),
            }
        })
    }

    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
    ) -> BoxFuture<'a, Result<Measured, Unavailable>> {
        let series = self.monitor.series(instance, window, self.clock.now());
        Box::pin(std::future::ready(Ok(series)))
    }
}

/// Where this process finds the answers of the leader while it is the leader itself.
#[derive(Clone, Default)]
pub struct LeaderSlot(Arc<RwLock<Option<Arc<dyn Measurements>>>>);

impl LeaderSlot {
    /// This process is the leader from now on.
    pub fn lead(&self, answers: Arc<dyn Measurements>) {
        *self.0.write() = Some(answers);
    }

    /// This process is no longer the leader.
    pub fn resign(&self) {
        *self.0.write() = None;
    }

    /// The leader's answers, if this process is the leader.
    pub fn get(&self) -> Option<Arc<dyn Measurements>> {
        self.0.read().clone()
    }
}

/// The answers of the leader, wherever it is.
pub struct Anywhere {
    /// This process, if it is the leader.
    pub own: LeaderSlot,
    /// The leader if it is another process.
    pub remote: Remote,
}

impl Measurements for Anywhere {
    fn usage<'a>(&'a self, instance: &'a Instance) -> BoxFuture<'a, Usage> {
        let own = self.own.get();
        Box::pin(async move {
            match own {
                Some(own) => own.usage(instance).await,
                None => self.remote.usage(instance).await.unwrap_or_default(),
            }
        })
    }

    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
    ) -> BoxFuture<'a, Result<Measured, Unavailable>> {
        let own = self.own.get();
        Box::pin(async move {
            match own {
                Some(own) => own.series(instance, window).await,
                None => self.remote.series(instance, window).await,
            }
        })
    }
}

#[cfg(test)]
pub(crate) struct NoMeasurements;

#[cfg(test)]
impl Measurements for NoMeasurements {
    fn usage<'a>(&'a self, _: &'a Instance) -> BoxFuture<'a, Usage> {
        Box::pin(std::future::ready(Usage::default()))
    }

    fn series<'a>(&'a self, _: &'a Instance, _: Window) -> BoxFuture<'a, Result<Measured, Unavailable>> {
        Box::pin(std::future::ready(Err(Unavailable)))
    }
}
