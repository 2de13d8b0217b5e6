//! The usage of the servers of a region: of all of them at once, at most once a minute, from what the region's settings name. Nobody here
//! keeps series; those of a window are Prometheus'.
//!
//! - `queries`: the expressions; `prometheus`: the client;
//! - `pod_metrics`: CPU usage without Prometheus;
//! - `measured`: what the figures mean; pure.

mod measured;
mod pod_metrics;
mod prometheus;
mod queries;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, fmt::Write as _, sync::Arc, time::Duration};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, try_join_all},
};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::timeout;

use self::{
    measured::{Figure, History, Measured, is_current, is_running},
    prometheus::{Prometheus, QueryError, Range},
};
use super::names::Server;
use domain::{
    catalogue::region::{KubeVirt, UsageFrom},
    provider::{ProviderError, Series, Usage, Window},
};
use resources::Instance;

/// How old what is known may be until it is asked for again.
const FRESH: SignedDuration = SignedDuration::from_secs(60);
/// How old it may be if asking takes long or fails.
const USABLE: SignedDuration = SignedDuration::from_secs(120);
/// How long to wait for what is newer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long nothing is asked after a failure.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);
/// How long the counters of a server are remembered that is not seen.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(1);
/// The time over which CPU usage is averaged: samples are a minute apart at most.
const AVERAGED_SECONDS: i64 = 120;

/// The usage of the servers of a region.
pub(crate) struct RegionUsage {
    code: String,
    settings: Arc<KubeVirt>,
    source: Source,
    state: Mutex<State>,
}

enum Source {
    Prometheus(Prometheus),
    PodMetrics,
    Nothing,
}

#[derive(Default)]
struct State {
    newest: Option<Arc<Snapshot>>,
    /// When asking failed last, unless it has succeeded since.
    failed: Option<(Timestamp, ProviderError)>,
    /// What the log has said.
    complaint: String,
    /// Asks. All who want to know wait for the same.
    asking: Option<Shared<BoxFuture<'static, ()>>>,
}

/// What was known at a time.
#[derive(Debug)]
struct Snapshot {
    at: Timestamp,
    /// By [`Key`].
    servers: HashMap<Box<str>, Measured>,
}

/// What tells servers apart: their namespace, and their name or, in metrics.k8s.io, the UID of the Instance.
#[derive(Default)]
struct Key(String);

impl Key {
    fn of(&mut self, namespace: &str, rest: &str) -> &str {
        self.0.clear();
        let _ = write!(self.0, "{namespace}/{rest}");
        &self.0
    }
}

impl Snapshot {
    /// A time ago, counted in the past or, if the clock was put back, in the future.
    fn is_within(&self, age: SignedDuration, now: Timestamp) -> bool {
        now.duration_since(self.at).abs() < age
    }
}

impl RegionUsage {
    /// The usage of the servers of a region with these settings.
    pub(crate) fn new(code: &str, settings: &Arc<KubeVirt>) -> Arc<Self> {
        let source = match &settings.usage {
            Some(UsageFrom::Prometheus(settings)) => Source::Prometheus(Prometheus::new(settings.clone())),
            Some(UsageFrom::PodMetrics) => Source::PodMetrics,
            None => Source::Nothing,
        };
        Arc::new(Self {
            code: code.to_owned(),
            settings: settings.clone(),
            source,
            state: Mutex::default(),
        })
    }

    pub(crate) const fn settings(&self) -> &Arc<KubeVirt> {
        &self.settings
    }

    /// The newest usage of a server.
    pub(crate) async fn usage(
        self: Arc<Self>,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<Usage, ProviderError> {
        if matches!(self.source, Source::Nothing) || !is_running(instance) {
            return Ok(Usage::default());
        }
        let snapshot = self.snapshot(now).await?;
        let measured = snapshot.servers.get(self.key(instance).as_str());
        let measured = measured.filter(|measured| is_current(measured.at, now));
        Ok(measured.map_or_else(Usage::default, |measured| measured.usage(instance)))
    }

    /// The usage of a server over a window, if there is a Prometheus.
    pub(crate) async fn series(
        self: Arc<Self>,
        instance: &Instance,
        window: Window,
        now: Timestamp,
    ) -> Result<Option<Series>, ProviderError> {
        let Source::Prometheus(prometheus) = &self.source else {
            return Ok(None);
        };
        let times: Vec<Timestamp> = window.times(now).collect();
        let (Some(first), Some(last)) = (times.first(), times.last()) else {
            return Ok(None);
        };
        let step = window.resolution_seconds();
        let range = Range {
            start: first.as_second(),
            end: last.as_second(),
            step,
        };
        let server = Server::of(instance, &self.settings);
        let selected = queries::of_server(&self.settings.installation, &server);
        let seconds = step.max(AVERAGED_SECONDS);
        let all = Figure::ALL.map(async |figure| {
            let mut values = Vec::new();
            let query = queries::query(figure, &selected, seconds);
            #[expect(clippy::cast_possible_truncation, reason = "a time of ours, in whole seconds")]
            let each = |value: prometheus::Value<'_>| values.push((value.at.round() as i64, value.number));
            prometheus.query(&query, Some(range), each).await?;
            Ok((figure, values))
        });
        let answers = try_join_all(all)
            .await
            .map_err(|error| self.provider_error(&error))?;
        let mut history = History::default();
        for (figure, values) in answers {
            for (second, value) in values {
                history.take(figure, second, value);
            }
        }
        let newest = self.state.lock().newest.clone();
        let known = newest
            .as_ref()
            .and_then(|newest| newest.servers.get(self.key(instance).as_str()));
        let points = history.points(times.into_iter(), instance, known);
        let known_since = points
            .iter()
            .find(|(_, usage)| *usage != Usage::default())
            .map(|(time, _)| *time);
        Ok(Some(Series { known_since, points }))
    }

    fn key(&self, instance: &Instance) -> String {
        let server = Server::of(instance, &self.settings);
        let rest = match self.source {
            Source::PodMetrics => &server.uid,
            Source::Prometheus(_) | Source::Nothing => &server.name,
        };
        Key::default().of(&server.namespace, rest).to_owned()
    }

    /// What is known about all servers. The first question after a minute asks anew. If that takes long, what was known before it will do.
    async fn snapshot(self: &Arc<Self>, now: Timestamp) -> Result<Arc<Snapshot>, ProviderError> {
        let usable = |state: &State| {
            state
                .newest
                .clone()
                .filter(|newest| newest.is_within(USABLE, now))
        };
        let (known, asking) = {
            let mut state = self.state.lock();
            let known = usable(&state);
            let is_over = |asking: &Shared<_>| asking.peek().is_some();
            let under_way = state.asking.clone().filter(|asking| !is_over(asking));
            let asking = if let Some(asking) = under_way {
                asking
            } else {
                if let Some(known) = known.as_ref().filter(|known| known.is_within(FRESH, now)) {
                    return Ok(known.clone());
                }
                if let Some((at, error)) = &state.failed
                    && now.duration_since(*at).abs() < PAUSE
                {
                    return known.ok_or_else(|| error.clone());
                }
                // In a task of its own, which goes on if whoever asks waits no longer.
                let refresh = tokio::spawn(self.clone().refresh(now));
                let asking = refresh.map(drop).boxed().shared();
                state.asking = Some(asking.clone());
                asking
            };
            (known, asking)
        };
        if known.is_some() {
            let _ = timeout(PATIENCE, asking).await;
        } else {
            asking.await;
        }
        let state = self.state.lock();
        let failed = || {
            let failed = state.failed.as_ref().map(|(_, error)| error.clone());
            failed.unwrap_or_else(|| ProviderError::Unavailable("the usage is not known".to_owned()))
        };
        usable(&state).ok_or_else(failed)
    }

    async fn refresh(self: Arc<Self>, now: Timestamp) {
        let before = self.state.lock().newest.clone();
        let mut servers = HashMap::with_capacity(before.as_ref().map_or(0, |before| before.servers.len()));
        let measured = match &self.source {
            Source::Prometheus(prometheus) => {
                let asked = self.ask_prometheus(prometheus, now, before.as_deref(), &mut servers);
                asked.await.map_err(|error| self.provider_error(&error))
            }
            Source::PodMetrics => self.ask_pods(&mut servers).await.map(|()| None),
            Source::Nothing => Ok(None),
        };
        for (key, known) in before.iter().flat_map(|before| &before.servers) {
            if !servers.contains_key(key) && now.duration_since(known.at) < REMEMBERED {
                servers.insert(key.clone(), Measured::begin(known.at, Some(known)));
            }
        }
        let mut state = self.state.lock();
        let complaint = match measured {
            Ok(complaint) => {
                state.newest = Some(Arc::new(Snapshot { at: now, servers }));
                state.failed = None;
                complaint
            }
            Err(error) => {
                state.failed = Some((now, error.clone()));
                Some(error)
            }
        };
        let complaint = complaint.map(|error| error.to_string()).unwrap_or_default();
        if complaint == state.complaint {
            return;
        }
        if complaint.is_empty() {
            tracing::info!(
                region = self.code,
                "the usage of the region's servers is known again"
            );
        } else {
            tracing::warn!(
                region = self.code,
                error = complaint,
                "the usage of the region's servers, or a part of it, is not known"
            );
        }
        state.complaint = complaint;
    }

    /// Asks about all servers. Fails if nothing can be known; if only a part can, returns why.
    async fn ask_prometheus(
        &self,
        prometheus: &Prometheus,
        now: Timestamp,
        before: Option<&Snapshot>,
        servers: &mut HashMap<Box<str>, Measured>,
    ) -> Result<Option<ProviderError>, QueryError> {
        let selected = queries::of_installation(&self.settings.installation);
        let mut key = Key::default();
        let mut complaint = None;
        // One after the other, so that only one answer at a time is in memory.
        for figure in Figure::ALL {
            let query = queries::query(figure, &selected, AVERAGED_SECONDS);
            let answer = prometheus.query(&query, None, |value| {
                let key = key.of(value.namespace, value.name);
                if figure == Figure::SampledAt {
                    // By Prometheus' clock, which may differ from ours.
                    let age = SignedDuration::try_from_secs_f64(value.at - value.number).unwrap_or_default();
                    let at = now.saturating_sub(age).unwrap_or(now);
                    let before = before.and_then(|before| before.servers.get(key));
                    servers.insert(key.into(), Measured::begin(at, before));
                } else if let Some(measured) = servers.get_mut(key) {
                    measured.take(figure, value.number);
                }
            });
            match answer.await {
                Ok(()) => {}
                Err(error) if figure == Figure::SampledAt => return Err(error),
                Err(error) => complaint = Some(self.provider_error(&error)),
            }
        }
        Ok(complaint)
    }

    async fn ask_pods(&self, servers: &mut HashMap<Box<str>, Measured>) -> Result<(), ProviderError> {
        let asked = async {
            let client = pod_metrics::client(&self.settings).await?;
            pod_metrics::read(&client, &self.settings).await
        };
        let pods = asked.await.map_err(|error| {
            ProviderError::Unavailable(format!("the cluster of the region {}: {error}", self.code))
        })?;
        let mut key = Key::default();
        for pod in pods {
            let mut measured = Measured::begin(pod.at, None);
            measured.take(Figure::Cores, pod.cores);
            let key = key.of(&pod.namespace, &pod.instance_uid);
            // During a live migration there are two.
            let other = servers.get(key).filter(|other| other.at >= pod.at);
            if other.is_none() {
                servers.insert(key.into(), measured);
            }
        }
        Ok(())
    }

    fn provider_error(&self, error: &QueryError) -> ProviderError {
        let message = format!("Prometheus of the region {}: {error}", self.code);
        match error {
            QueryError::Nonsense(_) => ProviderError::Nonsense(message),
            _ => ProviderError::Unavailable(message),
        }
    }
}

/// What a Prometheus knows of virtual machines, for checks of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// How many there are.
    pub all: usize,
    /// How many of them belong to the installation.
    pub ours: usize,
    /// Whether the scrape has renamed the labels by which servers are found.
    pub is_renamed: bool,
}

/// Asks what a Prometheus knows of virtual machines, or returns why it does not say.
pub async fn known(
    settings: &domain::catalogue::region::Prometheus,
    installation: &str,
) -> Result<Known, String> {
    let prometheus = Prometheus::new(settings.clone());
    let count = async |selected: &str| {
        let mut count = 0;
        let query = queries::count(selected);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a number of series"
        )]
        let each = |value: prometheus::Value<'_>| count = value.number as usize;
        let answer = prometheus.query(&query, None, each).await;
        answer.map(|()| count).map_err(|error| error.to_string())
    };
    Ok(Known {
        all: count("").await?,
        ours: count(&queries::of_installation(installation)).await?,
        is_renamed: count(r#"exported_namespace!="""#).await? > 0,
    })
}
