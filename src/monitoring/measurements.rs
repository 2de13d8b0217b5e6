//! Answers questions about the usage of instances: the leader from its memory and by asking the provider, other replicas by asking
//! the leader.

use std::{collections::HashMap, sync::Arc};

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use parking_lot::{Mutex, RwLock};
use tokio::{sync::OnceCell, time::timeout};

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

/// Maximum number of simultaneous questions to the provider, in total and from one account.
const ASKED_AT_ONCE: usize = 64;
const ASKED_BY_ONE: usize = 16;
/// How long an answer of the provider is shared with others who ask about the same version of an instance, such as open
/// pages.
const SHARED_FOR: SignedDuration = SignedDuration::from_secs(5);

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
    /// The answers of the last seconds, by UID and version.
    shared: Mutex<HashMap<SharedKey, SharedAnswer>>,
}

type SharedKey = (Option<String>, Option<String>);
/// When the question was asked, and the answer once it is there.
type SharedAnswer = (Timestamp, Arc<OnceCell<Usage>>);

impl<U: UsageSource> Leader<U> {
    /// Answers from what the monitor knows, otherwise with what the provider says.
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
            shared: Mutex::default(),
        }
    }

    /// What the provider says, or has said to another caller in the last seconds.
    async fn ask_or_share(&self, instance: &Instance) -> Usage {
        let metadata = &instance.metadata;
        let key = (metadata.uid.clone(), metadata.resource_version.clone());
        let answer = {
            let (mut shared, now) = (self.shared.lock(), self.clock.now());
            shared.retain(|_, (since, _)| now.duration_since(*since).abs() < SHARED_FOR);
            shared
                .entry(key)
                .or_insert_with(|| (now, Arc::default()))
                .1
                .clone()
        };
        *answer.get_or_init(|| self.ask(instance)).await
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
                None => timeout(PATIENCE, self.ask_or_share(instance))
                    .await
                    .unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::json;

    use super::*;
    use crate::providers::ProviderError;

    /// Counts how often it is asked, and answers when others have asked as well.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl UsageSource for Counting {
        async fn usage(&self, _: &Instance, _: Timestamp) -> Result<Usage, ProviderError> {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            tokio::task::yield_now().await;
            Ok(Usage {
                network_in: i64::try_from(count).ok(),
                ..Usage::default()
            })
        }
    }

    #[derive(Default)]
    struct TestClock(Mutex<Timestamp>);

    impl Clock for TestClock {
        fn now(&self) -> Timestamp {
            *self.0.lock()
        }
    }

    #[tokio::test]
    async fn those_who_ask_about_an_instance_within_seconds_share_one_answer_until_it_changes() {
        let provider = Arc::new(Counting::default());
        let clock = Arc::new(TestClock::default());
        let monitor = Monitor::new(1, clock.now());
        let catalogue = SharedCatalogue::default();
        let leader = Leader::new(monitor, provider, catalogue, clock.clone());
        let version = |version: &str| -> Instance {
            serde_json::from_value(json!({
                "metadata": { "name": "a", "namespace": "demo", "uid": "u", "resourceVersion": version },
                "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
            }))
            .unwrap()
        };
        let (one, two) = (version("1"), version("2"));
        let (first, second) = tokio::join!(leader.usage(&one), leader.usage(&one));
        assert_eq!((first.network_in, second.network_in), (Some(1), Some(1)));
        assert_eq!(leader.usage(&one).await.network_in, Some(1));
        assert_eq!(leader.usage(&two).await.network_in, Some(2), "it has changed");
        *clock.0.lock() += SHARED_FOR;
        assert_eq!(leader.usage(&one).await.network_in, Some(3));
        assert_eq!(leader.shared.lock().len(), 1, "what is old is forgotten");
    }
}
