//! Leader election on a `coordination.k8s.io` Lease: every replica watches, the holder writes.
//!
//! Every write of the Lease is a replace guarded by the resourceVersion that was read, so two replicas can never both take
//! it. A Lease counts as expired once it has not changed for its duration *by this replica's own clock*, as in client-go:
//! clocks of different machines are never compared.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use rand::RngExt as _;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{Metrics, client::CallError};

/// Name of the Lease in the operator's namespace.
pub const LEASE_NAME: &str = "stellage-controller";

/// The times of the election. They must satisfy `attempt` < `renew_deadline` < `duration`, each with a margin: using
/// one value for the first two cost another project 90 leaderships in six days (home-operations/kopiur#319).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long other replicas wait for a holder that no longer renews.
    pub duration: Duration,
    /// How long the holder tries to renew before it gives up; less than `duration`, so that it stops before another
    /// replica starts.
    pub renew_deadline: Duration,
    /// Time between attempts to take or renew the Lease.
    pub retry: Duration,
    /// Timeout of one attempt.
    pub attempt: Duration,
}

impl LeaseTimes {
    /// Default duration of the Lease, as in the components of Kubernetes.
    pub const DEFAULT_SECONDS: u16 = 15;

    /// The times for a Lease of this duration, in the proportions of the components of Kubernetes (15, 10 and 2 s).
    pub fn for_duration(duration: Duration) -> Self {
        Self {
            duration,
            renew_deadline: duration * 2 / 3,
            retry: duration * 2 / 15,
            attempt: duration / 5,
        }
    }
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self::for_duration(Duration::from_secs(Self::DEFAULT_SECONDS.into()))
    }
}

/// What to do with the Lease that was just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It does not exist: create it.
    Create,
    /// This replica holds it: renew it.
    Renew,
    /// It is free or has expired: take it.
    Take,
    /// Another replica holds it.
    Wait,
}

/// The version of the Lease last seen, and when this replica first saw it.
#[derive(Clone, Debug, Default)]
struct Observed {
    version: Option<String>,
    since: Option<Instant>,
}

impl Observed {
    /// Records the Lease and decides what to do with it. `own` is this replica's Lease duration.
    fn decide(&mut self, lease: Option<&Lease>, identity: &str, now: Instant, own: Duration) -> Step {
        let Some(lease) = lease else {
            *self = Self::default();
            return Step::Create;
        };
        if self.since.is_none() || self.version != lease.metadata.resource_version {
            self.version.clone_from(&lease.metadata.resource_version);
            self.since = Some(now);
        }
        let spec = lease.spec.as_ref();
        let holder = spec
            .and_then(|s| s.holder_identity.as_deref())
            .unwrap_or_default();
        if holder == identity {
            return Step::Renew;
        }
        if holder.is_empty() {
            return Step::Take;
        }
        // The holder's duration counts, not ours: the holder may have been started with other settings.
        let promised = spec
            .and_then(|s| s.lease_duration_seconds)
            .and_then(|s| u64::try_from(s).ok())
            .map_or(own, Duration::from_secs);
        let silent = self.since.map_or(Duration::ZERO, |since| now - since);
        if silent >= promised {
            Step::Take
        } else {
            Step::Wait
        }
    }
}

/// The Lease to write for `identity`. An empty identity releases it.
fn written(
    lease: Option<&Lease>,
    namespace: &str,
    identity: &str,
    times: LeaseTimes,
    now: Timestamp,
) -> Lease {
    let mut lease = lease.cloned().unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(LEASE_NAME.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..Default::default()
        },
        spec: None,
    });
    let old = lease.spec.take().unwrap_or_default();
    let taken = old.holder_identity.as_deref() != Some(identity);
    let duration = if identity.is_empty() {
        Duration::from_secs(1)
    } else {
        times.duration
    };
    lease.metadata.managed_fields = None;
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(duration.as_secs().max(1)).ok(),
        acquire_time: if taken {
            Some(MicroTime(now))
        } else {
            old.acquire_time
        },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(
            old.lease_transitions.unwrap_or(0) + i32::from(taken && !identity.is_empty()),
        ),
        ..old
    });
    lease
}

/// A replica that takes part in the election.
#[derive(Clone)]
pub struct LeaderElection {
    api: Api<Lease>,
    namespace: Arc<str>,
    identity: Arc<str>,
    times: LeaseTimes,
    metrics: Metrics,
    /// The Lease as this process last wrote it as its holder.
    last_held: Arc<Mutex<Observed>>,
}

/// Whether the Lease is still held, by this process's own clock. Cheap to clone.
///
/// A task sets [`Leadership::lost`], and in a process that was suspended for longer than the Lease lasts, that task may not
/// have run yet. Check this before anything irreversible.
#[derive(Clone, Debug)]
pub struct Tenure(Arc<Mutex<Instant>>);

impl Tenure {
    /// A tenure that ends at this time.
    pub fn until(end: Instant) -> Self {
        Self(Arc::new(Mutex::new(end)))
    }

    /// Whether the Lease is held.
    pub fn holds(&self) -> bool {
        Instant::now() < *self.0.lock()
    }

    fn set_end(&self, end: Instant) {
        *self.0.lock() = end;
    }
}

/// A held Lease. A background task renews it until [`release`](Self::release) or until it is lost.
pub struct Leadership {
    /// Cancelled when the Lease is lost: stop writing at once.
    pub lost: CancellationToken,
    /// Whether the Lease is still held, even if the background task has not run yet.
    pub tenure: Tenure,
    /// When the Lease was last held before, by its holder's clock; `None` if it is new.
    pub vacant_since: Option<Timestamp>,
    election: LeaderElection,
    renewal: JoinHandle<()>,
    stop: CancellationToken,
}

impl LeaderElection {
    /// A candidate for the Lease [`LEASE_NAME`] in `namespace`. `identity` must be different for every replica and every
    /// start, see [`identity`].
    pub fn new(client: Client, namespace: &str, identity: &str, metrics: Metrics) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.into(),
            identity: identity.into(),
            times: LeaseTimes::default(),
            metrics,
            last_held: Arc::default(),
        }
    }

    /// The same candidate under another identity: to the API server it is another replica, which has to wait until the
    /// former one's Lease has expired.
    #[must_use]
    pub fn renamed(&self, identity: &str) -> Self {
        Self {
            identity: identity.into(),
            ..self.clone()
        }
    }

    /// The Lease to write as its holder, or to release it.
    fn written(&self, lease: Option<&Lease>, is_held: bool) -> Lease {
        let identity = if is_held { &*self.identity } else { "" };
        written(lease, &self.namespace, identity, self.times, Timestamp::now())
    }

    /// Replaces the default times.
    #[must_use]
    pub fn with_times(mut self, times: LeaseTimes) -> Self {
        self.times = times;
        self
    }

    /// Waits until this replica holds the Lease. Returns `None` if `shutdown` comes first.
    pub async fn acquire(&self, shutdown: &CancellationToken) -> Option<Leadership> {
        let mut observed = self.last_held.lock().clone();
        let mut waiting_for = None;
        loop {
            let begun = Instant::now();
            let attempt = timeout(self.times.attempt, self.attempt(&mut observed));
            let outcome = tokio::select! {
                () = shutdown.cancelled() => return None,
                outcome = attempt => outcome.unwrap_or(Err(CallError::Timeout)),
            };
            match outcome {
                Ok(Attempt::Held { lease, vacant_since }) => {
                    tracing::info!(identity = %self.identity, "acquired the Lease; this replica is the leader");
                    return Some(self.lead(*lease, vacant_since, begun));
                }
                Ok(Attempt::HeldBy(holder)) => {
                    if waiting_for.as_ref() != Some(&holder) {
                        tracing::info!(%holder, "another replica is the leader; waiting for the Lease");
                        waiting_for = Some(holder);
                    }
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => tracing::warn!(%error, "cannot acquire the Lease; will retry"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return None,
                () = sleep(self.jittered_retry()) => {}
            }
        }
    }

    async fn attempt(&self, observed: &mut Observed) -> Result<Attempt, CallError> {
        let lease = self.api.get_opt(LEASE_NAME).await?;
        if let Some(lease) = &lease {
            self.show_transitions(lease);
        }
        let step = observed.decide(
            lease.as_ref(),
            &self.identity,
            Instant::now(),
            self.times.duration,
        );
        let ours = self.written(lease.as_ref(), true);
        let vacant_since = lease.as_ref().and_then(renewed_at);
        let held = match step {
            Step::Wait => {
                let holder = lease.and_then(|l| l.spec).and_then(|s| s.holder_identity);
                return Ok(Attempt::HeldBy(holder.unwrap_or_default()));
            }
            Step::Create => self.api.create(&PostParams::default(), &ours).await?,
            Step::Renew | Step::Take => {
                self.api
                    .replace(LEASE_NAME, &PostParams::default(), &ours)
                    .await?
            }
        };
        Ok(Attempt::Held {
            lease: Box::new(held),
            vacant_since,
        })
    }

    /// Remembers the Lease as this process wrote it at that time.
    fn held(&self, lease: &Lease, since: Instant) {
        *self.last_held.lock() = Observed {
            version: lease.metadata.resource_version.clone(),
            since: Some(since),
        };
    }

    /// Replicas that wait show them, too: counters of leaders would begin anew with each of them.
    fn show_transitions(&self, lease: &Lease) {
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        self.metrics
            .lease_transitions
            .set(transitions.unwrap_or_default().into());
    }

    fn lead(&self, lease: Lease, vacant_since: Option<Timestamp>, begun: Instant) -> Leadership {
        self.metrics.leader.set(1);
        self.show_transitions(&lease);
        self.held(&lease, begun);
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let tenure = Tenure::until(begun + self.times.renew_deadline);
        let renewal = self
            .clone()
            .renew(lease, begun, tenure.clone(), lost.clone(), stop.clone());
        Leadership {
            lost,
            tenure,
            vacant_since,
            renewal: tokio::spawn(renewal),
            election: self.clone(),
            stop,
        }
    }

    /// Renews until stopped or lost. However this ends, even by a panic, the guard cancels `lost`.
    async fn renew(
        self,
        mut lease: Lease,
        mut renewed: Instant,
        tenure: Tenure,
        lost: CancellationToken,
        stop: CancellationToken,
    ) {
        let guard = lost.drop_guard();
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    guard.disarm();
                    return;
                }
                () = sleep(self.jittered_retry()) => {}
            }
            // Count from the request, not from its response: others may have seen the renewal that early.
            let begun = Instant::now();
            let remaining = self.times.renew_deadline.saturating_sub(renewed.elapsed());
            match timeout(self.times.attempt.min(remaining), self.renew_once(&lease)).await {
                Ok(Ok(Some(now))) => {
                    lease = now;
                    renewed = begun;
                    self.held(&lease, begun);
                    tenure.set_end(renewed + self.times.renew_deadline);
                }
                Ok(Ok(None)) => {
                    tracing::error!("another replica has taken the Lease");
                    break;
                }
                Ok(Err(error)) => tracing::warn!(%error, "cannot renew the Lease; will retry"),
                Err(_) => tracing::warn!("renewing the Lease timed out; will retry"),
            }
            if renewed.elapsed() >= self.times.renew_deadline {
                tracing::error!("giving up leadership: the Lease was not renewed in time");
                break;
            }
        }
        tenure.set_end(Instant::now());
        self.metrics.leader.set(0);
    }

    /// Returns `None` if this replica no longer holds the Lease. A conflict may come from our own write whose response was
    /// lost, so the Lease is read again.
    async fn renew_once(&self, lease: &Lease) -> Result<Option<Lease>, CallError> {
        let ours = |lease: &Lease| self.written(Some(lease), true);
        let replace = async |lease: Lease| {
            self.api
                .replace(LEASE_NAME, &PostParams::default(), &lease)
                .await
                .map_err(CallError::from)
        };
        match replace(ours(lease)).await {
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            outcome => return outcome.map(Some),
        }
        match self.api.get_opt(LEASE_NAME).await? {
            Some(now) if holder(&now) == Some(&self.identity) => replace(ours(&now)).await.map(Some),
            // A deleted Lease counts as lost: nothing guards our writes any more.
            _ => Ok(None),
        }
    }

    /// The retry period plus up to a fifth, so that replicas do not call in lockstep.
    fn jittered_retry(&self) -> Duration {
        self.times.retry.mul_f64(1.0 + rand::rng().random_range(0.0..0.2))
    }
}

impl Leadership {
    /// Releases the Lease, so that the next replica takes over at once. Call it when all writing has stopped.
    pub async fn release(self) {
        self.stop.cancel();
        let _ = self.renewal.await;
        self.tenure.set_end(Instant::now());
        let election = self.election;
        election.metrics.leader.set(0);
        if self.lost.is_cancelled() {
            return;
        }
        let release = async {
            let Some(lease) = election.api.get_opt(LEASE_NAME).await? else {
                return Ok(());
            };
            if holder(&lease) != Some(&election.identity) {
                return Ok(());
            }
            let free = election.written(Some(&lease), false);
            election
                .api
                .replace(LEASE_NAME, &PostParams::default(), &free)
                .await
                .map(drop)
        };
        match timeout(election.times.attempt, release).await {
            Ok(Ok(())) => tracing::info!("released the Lease"),
            Ok(Err(error)) => tracing::warn!(%error, "cannot release the Lease; it will expire"),
            Err(_) => tracing::warn!("releasing the Lease timed out; it will expire"),
        }
    }
}

enum Attempt {
    Held {
        lease: Box<Lease>,
        vacant_since: Option<Timestamp>,
    },
    HeldBy(String),
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// When a Lease was last written by its holder, who also does so when it releases it.
fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// The Lease in `namespace` by its name alone, for Events about it.
pub fn named_in(namespace: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(LEASE_NAME.to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        spec: None,
    }
}

/// The name of this replica: `configured`, else the host's name, with a random suffix, so that a restarted process is not
/// taken for its predecessor, whose last writes may still arrive.
pub fn identity(configured: Option<&str>) -> String {
    let base = configured
        .map(str::to_owned)
        .or_else(|| std::env::var("HOSTNAME").ok());
    let base = base.or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(name.trim().to_owned())
    });
    let base = base
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "stellage".to_owned());
    format!("{base}-{}", &resources::ids::random_suffix()[..6])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Duration = Duration::from_secs(15);

    fn lease(holder: &str, version: &str, seconds: i32) -> Lease {
        Lease {
            metadata: ObjectMeta {
                resource_version: Some(version.to_owned()),
                ..Default::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                lease_duration_seconds: Some(seconds),
                // Far in the past by the holder's clock: must not matter.
                renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
                lease_transitions: Some(4),
                ..Default::default()
            }),
        }
    }

    #[test]
    fn the_default_times_are_those_of_the_components_of_kubernetes() {
        let [duration, renew_deadline, retry, attempt] = [15, 10, 2, 3].map(Duration::from_secs);
        let expected = LeaseTimes {
            duration,
            renew_deadline,
            retry,
            attempt,
        };
        assert_eq!(LeaseTimes::default(), expected);
    }

    #[test]
    fn an_attempt_that_hangs_leaves_time_for_another_before_the_leader_gives_up() {
        let times = LeaseTimes::default();
        let longest_retry = times.retry.mul_f64(1.2);
        assert!(longest_retry + times.attempt + longest_retry < times.renew_deadline);
    }

    #[test]
    fn a_missing_lease_is_created_and_a_released_one_taken_at_once() {
        let mut observed = Observed::default();
        let now = Instant::now();
        assert_eq!(observed.decide(None, "me", now, OWN), Step::Create);
        assert_eq!(
            observed.decide(Some(&lease("", "1", 1)), "me", now, OWN),
            Step::Take
        );
        assert_eq!(
            observed.decide(Some(&lease("me", "2", 15)), "me", now, OWN),
            Step::Renew
        );
    }

    #[test]
    fn a_lease_expires_by_local_observation_whatever_the_holders_clock_says() {
        let mut observed = Observed::default();
        let start = Instant::now();
        let held = lease("other", "1", 15);
        let mut at = |seconds, lease: &Lease| {
            observed.decide(Some(lease), "me", start + Duration::from_secs(seconds), OWN)
        };
        assert_eq!(at(0, &held), Step::Wait);
        assert_eq!(at(14, &held), Step::Wait);
        assert_eq!(
            at(14, &lease("other", "2", 15)),
            Step::Wait,
            "a renewal restarts the count"
        );
        assert_eq!(at(28, &lease("other", "2", 15)), Step::Wait);
        assert_eq!(at(29, &lease("other", "2", 15)), Step::Take);
    }

    #[test]
    fn the_holders_promise_counts_rather_than_ones_own() {
        let mut observed = Observed::default();
        let start = Instant::now();
        let held = lease("other", "1", 60);
        observed.decide(Some(&held), "me", start, OWN);
        assert_eq!(
            observed.decide(Some(&held), "me", start + Duration::from_secs(59), OWN),
            Step::Wait
        );
        assert_eq!(
            observed.decide(Some(&held), "me", start + Duration::from_secs(60), OWN),
            Step::Take
        );
    }

    #[test]
    fn taking_over_counts_a_transition_and_keeps_the_resource_version() {
        let times = LeaseTimes::default();
        let now = Timestamp::from_second(100).unwrap();
        let taken = written(Some(&lease("other", "7", 15)), "ns", "me", times, now);
        assert_eq!(
            taken.metadata.resource_version.as_deref(),
            Some("7"),
            "guards the write"
        );
        let spec = taken.spec.clone().unwrap();
        assert_eq!(
            (spec.lease_transitions, spec.acquire_time),
            (Some(5), Some(MicroTime(now)))
        );

        assert_eq!(
            renewed_at(&taken),
            Some(now),
            "the next holder learns it from here"
        );

        let later = Timestamp::from_second(102).unwrap();
        let renewed = written(Some(&taken), "ns", "me", times, later).spec.unwrap();
        assert_eq!(
            (renewed.lease_transitions, renewed.acquire_time),
            (Some(5), Some(MicroTime(now)))
        );
        assert_eq!(renewed.renew_time, Some(MicroTime(later)));

        let released = written(Some(&taken), "ns", "", times, later).spec.unwrap();
        assert_eq!(
            (released.holder_identity.as_deref(), released.lease_transitions),
            (Some(""), Some(5))
        );
    }

    #[test]
    fn two_replicas_on_one_host_have_different_identities() {
        assert_ne!(identity(Some("host")), identity(Some("host")));
    }
}
