//! The embedded provider: servers that exist only in the Instance object. Their state is a pure function of spec, status
//! and time, so a restart loses nothing (decisions, section 4).

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use ipnet::{Ipv4Net, Ipv6Net};
use jiff::{SignedDuration, Timestamp};

use super::{
    Provider, Step, UsageSource,
    ipam::{self, Ipam, Reservation, seed},
};
use domain::{
    catalogue::region::{Ipv4Prefix, Ipv6Prefix},
    provider::{
        Addresses, BackupObservation, BackupProgress, Deadlines, Notice, Observation, OffCause, Power,
        Progress, ProviderError, Series, Timings, Trouble, Usage, Window,
    },
};
use resources::{Backup, Instance, Operation, OperationKind, PowerState, origin};
use runtime::{Metrics, watch::key};

/// Annotation that switches on a fault, where faults are permitted: `provisioning`, `stop-hangs`, `shutdown`, `crash`, `unreachable` or `backup`. A
/// `shutdown` or `crash` happens once; remove the annotation and set it again to repeat it.
pub const FAULT_ANNOTATION: &str = "simulator.stellage.dev/fault";
const CPU_ANNOTATION: &str = "simulator.stellage.dev/cpu";
const MEMORY_ANNOTATION: &str = "simulator.stellage.dev/memory";
const DISK_ANNOTATION: &str = "simulator.stellage.dev/disk";

/// Key in `providerState`: the one-time fault that has happened.
const HAPPENED: &str = "fault";
/// Key in `providerState`: why the guest is off although no stop was requested.
const EXIT: &str = "exit";

/// The ranges of the simulator's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pools {
    /// IPv4 range; its first and last address are never used.
    pub ipv4: Ipv4Net,
    /// IPv6 range, a /64 or wider.
    pub ipv6: Ipv6Net,
}

impl Default for Pools {
    /// Addresses that no host on the Internet has: 198.18.0.0/15 is for benchmarks (RFC 2544), 2001:db8::/32 for
    /// documentation (RFC 3849).
    fn default() -> Self {
        Self {
            ipv4: Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15),
            ipv6: Ipv6Net::new_assert(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32),
        }
    }
}

impl Pools {
    fn ipam(self) -> Ipam {
        let ipv4 = Ipv4Prefix {
            prefix: self.ipv4,
            gateway: Ipv4Addr::UNSPECIFIED,
            exclude: Vec::new(),
        };
        let ipv6 = Ipv6Prefix {
            prefix: self.ipv6,
            gateway: Ipv6Addr::UNSPECIFIED,
        };
        Ipam::new("simulated", vec![ipv4], Some(ipv6))
    }
}

/// Whether annotations may make the simulator misbehave. Any account holder can annotate an Instance, and a provider
/// that hangs takes time from everybody, so this is only for experiments.
#[derive(Debug, Default)]
pub struct Faults {
    permitted: bool,
    /// Whether the log has said that a fault is ignored. It says so once: account holders must not be able to fill it.
    told: AtomicBool,
}

impl Faults {
    /// Faults that take effect if they are `permitted`.
    pub const fn new(permitted: bool) -> Self {
        Self {
            permitted,
            told: AtomicBool::new(false),
        }
    }

    /// The fault that is switched on for an Instance.
    fn of<'a>(&self, instance: &'a Instance) -> Option<&'a str> {
        let fault = instance.annotation(FAULT_ANNOTATION)?;
        if self.permitted {
            return Some(fault);
        }
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                instance = key(instance),
                "the annotation {FAULT_ANNOTATION} is ignored, here and on all other instances: start with --simulator-faults to permit simulated faults"
            );
        }
        None
    }
}

/// Simulates servers.
pub struct Simulator {
    timings: Timings,
    faults: Faults,
    ipam: Ipam,
}

impl Simulator {
    /// A simulator with the given times, address ranges and faults. `known` are the existing instances, whose addresses are
    /// taken.
    pub fn new<'a>(
        timings: Timings,
        pools: Pools,
        faults: Faults,
        known: impl IntoIterator<Item = &'a Instance>,
    ) -> Self {
        let simulator = Self {
            timings,
            faults,
            ipam: pools.ipam(),
        };
        for instance in ipam::oldest_first(known.into_iter().collect()) {
            simulator.adopt(instance);
        }
        simulator
    }

    /// The same, with metrics of how many addresses are free.
    #[must_use]
    pub fn with_metrics(self, metrics: &Metrics) -> Self {
        Self {
            ipam: self.ipam.with_metrics(metrics),
            ..self
        }
    }

    /// Marks the address in an Instance's status as taken.
    fn adopt(&self, instance: &Instance) {
        self.ipam
            .adopt(origin::uid(&instance.metadata), &ipam::in_status(instance), None);
    }

    fn reservation(&self, instance: &Instance) -> Reservation {
        let uid = origin::uid(&instance.metadata);
        self.ipam.reserve(uid, &ipam::in_status(instance), Instant::now())
    }

    fn show(&self, instance: &Instance, now: Timestamp) -> Observation {
        let status = instance.status.as_ref();
        let mut state: BTreeMap<String, String> =
            status.map(|s| s.provider_state.clone()).unwrap_or_default();
        let fault = self.faults.of(instance);
        if state.get(HAPPENED).map(String::as_str) != fault {
            state.remove(HAPPENED);
        }
        let Reservation { addresses, trouble } = self.reservation(instance);
        let made = status.is_some_and(|s| s.provisioned_at.is_some());
        let Some(operation) = status.and_then(|s| s.operation.as_ref()) else {
            let power =
                if status.is_none_or(|status| status.state.is_none() && status.provisioned_at.is_none()) {
                    self.restored_power(instance, now)
                } else {
                    power_of(instance, fault, &mut state)
                };
            return Observation {
                power,
                addresses,
                state,
                notice: trouble.filter(|_| made).map(Notice::Told),
                ..Observation::default()
            };
        };
        let power = status
            .and_then(|s| s.power)
            .filter(|_| made)
            .map(|power| match power {
                PowerState::Running => Power::On,
                PowerState::Stopped => Power::Off(OffCause::Requested),
            });
        let mut seen = Observation {
            power,
            progress: Progress::Busy,
            addresses,
            state,
            ..Observation::default()
        };
        let needs_making = operation.kind.makes_server();
        if fault == Some("provisioning") && !made && needs_making {
            seen.progress = Progress::Failed(Trouble::failed(
                operation.kind,
                "the simulated fault 'provisioning' is switched on".to_owned(),
            ));
            return seen;
        }
        if let Some(trouble) = trouble.filter(|_| !made && needs_making) {
            seen.progress = Progress::Failed(trouble);
            return seen;
        }
        let hangs = fault == Some("stop-hangs") && operation.kind == OperationKind::Stop && !operation.forced;
        // Any operation on a server that was never created includes creating it.
        let takes = if needs_making && !made {
            OperationKind::Create
        } else {
            operation.kind
        };
        let left = if operation.forced {
            Duration::ZERO
        } else {
            self.left(takes, operation, now)
        };
        if hangs {
            return seen;
        }
        if left.is_zero() {
            seen.progress = Progress::Done;
            seen.power = (operation.kind != OperationKind::Delete).then_some(match operation.ends_in {
                PowerState::Running => Power::On,
                PowerState::Stopped => Power::Off(OffCause::Requested),
            });
            if operation.ends_in == PowerState::Running || !needs_making {
                seen.state.remove(EXIT);
            }
        } else {
            seen.recheck_after = Some(left);
        }
        seen
    }

    /// The power of a server whose Instance was restored without its status: the server was created with the first Instance.
    fn restored_power(&self, instance: &Instance, now: Timestamp) -> Option<Power> {
        let age = now.duration_since(origin::created_at(&instance.metadata)?);
        let age = Duration::try_from(age).ok()?;
        let has_server =
            origin::is_restored(&instance.metadata) && age >= self.timings.duration(OperationKind::Create);
        has_server.then_some(match instance.spec.power_state {
            PowerState::Running => Power::On,
            PowerState::Stopped => Power::Off(OffCause::Requested),
        })
    }

    /// A backup as a pure function of its beginning and the disk's usage.
    fn show_backup(&self, backup: &Backup, instance: &Instance, now: Timestamp) -> BackupObservation {
        let status = backup.status.as_ref();
        let seen = |progress, recheck_after| BackupObservation {
            progress,
            state: BTreeMap::new(),
            recheck_after,
        };
        let Some((begun, source)) = status.and_then(|s| s.started_at.zip(s.source.as_ref())) else {
            return seen(BackupProgress::Busy, None);
        };
        if self.faults.of(instance) == Some("backup") {
            let progress = BackupProgress::Failed {
                code: "storage_unavailable",
                message: "the simulated fault 'backup' is switched on".to_owned(),
            };
            return seen(progress, None);
        }
        let used = asked(instance, DISK_ANNOTATION).unwrap_or_else(|| disk_usage(&source.uid));
        let size_gb = round(f64::from(source.disk_size_gb) * used / 100.0);
        let elapsed = now.duration_since(begun).max(SignedDuration::ZERO);
        let elapsed = Duration::try_from(elapsed).unwrap_or_default();
        let left = self.timings.backup_duration(size_gb).saturating_sub(elapsed);
        if left.is_zero() {
            seen(BackupProgress::Done { size_gb }, None)
        } else {
            seen(BackupProgress::Busy, Some(left))
        }
    }

    /// Time until an operation is done; its whole duration if the clock went back.
    fn left(&self, takes: OperationKind, operation: &Operation, now: Timestamp) -> Duration {
        let elapsed = now
            .duration_since(operation.counted_from())
            .max(SignedDuration::ZERO);
        self.timings
            .duration(takes)
            .saturating_sub(Duration::try_from(elapsed).unwrap_or_default())
    }
}

/// The power of a server without an operation in progress; a one-time fault may take effect.
fn power_of(instance: &Instance, fault: Option<&str>, state: &mut BTreeMap<String, String>) -> Option<Power> {
    let status = instance.status.as_ref()?;
    status.provisioned_at?;
    let is_on = status.power == Some(PowerState::Running);
    if let Some(fault @ ("shutdown" | "crash")) = fault
        && is_on
        && !state.contains_key(HAPPENED)
    {
        state.insert(HAPPENED.to_owned(), fault.to_owned());
        state.insert(EXIT.to_owned(), fault.to_owned());
    }
    match state.get(EXIT).map(String::as_str) {
        Some("shutdown") => Some(Power::Off(OffCause::GuestShutdown)),
        Some(_) => Some(Power::Off(OffCause::Crashed)),
        None if is_on => Some(Power::On),
        None => Some(Power::Off(OffCause::Requested)),
    }
}

impl Provider for Simulator {
    fn name(&self, _: &str) -> &'static str {
        "simulator"
    }

    fn deadlines(&self, _: &str) -> Deadlines {
        self.timings.deadlines()
    }

    fn reserve(&self, instance: &Instance) -> Addresses {
        self.reservation(instance).addresses
    }

    fn release(&self, instance: &Instance) {
        self.ipam.release(origin::uid(&instance.metadata), Instant::now());
    }

    async fn step(&self, step: Step<'_>) -> Result<Observation, ProviderError> {
        let instance = step.instance;
        if self.faults.of(instance) == Some("unreachable") {
            std::future::pending::<()>().await;
        }
        let mut seen = self.show(instance, step.now);
        if let Err(trouble) = step.user_data {
            seen.progress = Progress::Failed(trouble.clone());
        }
        Ok(seen)
    }

    async fn create_backup(
        &self,
        backup: &Backup,
        instance: &Instance,
        now: Timestamp,
    ) -> Result<BackupObservation, ProviderError> {
        if self.faults.of(instance) == Some("unreachable") {
            std::future::pending::<()>().await;
        }
        Ok(self.show_backup(backup, instance, now))
    }

    async fn delete_backup(&self, _: &Backup) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// Usage as a pure function of the Instance and the time, so every replica computes the same.
#[derive(Debug, Default)]
pub struct SimulatedUsage {
    /// Whether the fault `unreachable` takes effect.
    pub faults: Faults,
}

impl SimulatedUsage {
    /// The answer, unless the server is unreachable.
    async fn answer<T>(&self, instance: &Instance, answer: T) -> Result<T, ProviderError> {
        if self.faults.of(instance) == Some("unreachable") {
            std::future::pending::<()>().await;
        }
        Ok(answer)
    }
}

impl UsageSource for SimulatedUsage {
    fn usage<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>> {
        Box::pin(self.answer(instance, simulate_usage(instance, now)))
    }

    fn series<'a>(
        &'a self,
        instance: &'a Instance,
        window: Window,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Option<Series>, ProviderError>> {
        Box::pin(self.answer(instance, Some(simulate_series(instance, window, now))))
    }
}

/// What the present says about the past: a server used its disk from its creation on, and the rest from its last start on.
/// What it did before that is not in its status, and unknown.
fn simulate_series(instance: &Instance, window: Window, now: Timestamp) -> Series {
    let status = instance.status.as_ref();
    let made = status.and_then(|status| status.provisioned_at);
    let started = status.and_then(|status| status.started_at);
    let point = |time: Timestamp| {
        if made.is_none_or(|made| time < made) {
            return Usage::default();
        }
        let usage = simulate_usage(instance, time);
        if started.is_some_and(|started| time < started) {
            return Usage {
                disk_usage: usage.disk_usage,
                ..Usage::default()
            };
        }
        usage
    };
    let points: Vec<_> = window.times(now).map(|time| (time, point(time))).collect();
    let known_since = made
        .zip(points.first())
        .map(|(made, (first, _))| made.max(*first));
    Series { known_since, points }
}

/// Percentages that vary around a base of each server's own, and counters that grow from the last start. Unknown while the
/// server is off, except for disk usage.
fn simulate_usage(instance: &Instance, now: Timestamp) -> Usage {
    let uid = origin::uid(&instance.metadata);
    let Some(status) = &instance.status else {
        return Usage::default();
    };
    if status.provisioned_at.is_none() {
        return Usage::default();
    }
    let disk = asked(instance, DISK_ANNOTATION).or_else(|| Some(disk_usage(uid)));
    if status.power != Some(PowerState::Running) {
        return Usage {
            disk_usage: disk,
            ..Usage::default()
        };
    }
    let level = |name: &'static [u8], base: f64, spread: f64, swing: f64| {
        let phase = unit(uid, name) * std::f64::consts::TAU;
        let minutes = now.as_duration().as_secs_f64() / 60.0;
        round(
            (spread.mul_add(unit(uid, name), base) + swing * (minutes / 7.0 + phase).sin()).clamp(0.0, 100.0),
        )
    };
    let up = status
        .started_at
        .map_or(0, |start| now.duration_since(start).as_millis().max(0));
    let up = i64::try_from(up).unwrap_or(i64::MAX) / 1000;
    let rate = |name: &'static [u8]| 2_000 + i64::try_from(seed(uid, name) % 50_000).unwrap_or(0);
    Usage {
        cpu_usage: asked(instance, CPU_ANNOTATION).or_else(|| Some(level(b"cpu", 5.0, 40.0, 4.0))),
        memory_usage: asked(instance, MEMORY_ANNOTATION).or_else(|| Some(level(b"memory", 25.0, 40.0, 3.0))),
        disk_usage: disk,
        network_in: Some(up.saturating_mul(rate(b"in"))),
        network_out: Some(up.saturating_mul(rate(b"out"))),
    }
}

/// The percentage of the disk that a server uses.
fn disk_usage(uid: &str) -> f64 {
    round(10.0 + unit(uid, b"disk") * 40.0)
}

/// The percentage in an annotation; any other value is ignored.
fn asked(instance: &Instance, annotation: &str) -> Option<f64> {
    let value: f64 = instance
        .annotation(annotation)?
        .trim_end_matches('%')
        .trim()
        .parse()
        .ok()?;
    (0.0..=100.0).contains(&value).then_some(value)
}

fn unit(uid: &str, name: &[u8]) -> f64 {
    f64::from(u32::try_from(seed(uid, name) >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::InstanceStatus;

    fn instance(uid: &str) -> Instance {
        let spec = serde_json::from_value(
            serde_json::json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" }),
        );
        let mut instance = Instance::new("web", spec.unwrap());
        instance.metadata.uid = Some(uid.to_owned());
        instance
    }

    fn running(uid: &str, since: Timestamp) -> Instance {
        let mut instance = instance(uid);
        instance.status = Some(InstanceStatus {
            power: Some(PowerState::Running),
            provisioned_at: Some(since),
            started_at: Some(since),
            ..InstanceStatus::default()
        });
        instance
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn step(instance: &Instance, second: i64) -> Step<'_> {
        Step {
            instance,
            account: "usr_1",
            user_data: Ok(None),
            restore: None,
            network: None,
            now: at(second),
        }
    }

    #[tokio::test]
    async fn a_restored_instance_without_a_status_has_the_server_of_the_first_one() {
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(true), []);
        let metadata = |created: i64| kube::core::ObjectMeta {
            uid: Some("new".to_owned()),
            creation_timestamp: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(created))),
            annotations: Some(
                [(
                    origin::ORIGIN_ANNOTATION.to_owned(),
                    origin::annotation("first", at(0)),
                )]
                .into(),
            ),
            ..kube::core::ObjectMeta::default()
        };
        let power = async |created: i64, now: i64| {
            let mut restored = instance("new");
            restored.metadata = metadata(created);
            simulator.step(step(&restored, now)).await.unwrap().power
        };
        assert_eq!(power(130, 149).await, None, "it was still being created");
        assert_eq!(power(130, 150).await, Some(Power::On));
        assert_eq!(power(0, 150).await, None, "it is the first one");
    }

    #[test]
    fn addresses_are_unique_stay_and_survive_a_restart() {
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(true), []);
        let mut known = std::collections::HashSet::new();
        for i in 0..20_000 {
            let addresses = simulator.reserve(&instance(&format!("uid-{i}")));
            assert_eq!(addresses, simulator.reserve(&instance(&format!("uid-{i}"))));
            let ipv4: Ipv4Addr = addresses.ipv4.unwrap().parse().unwrap();
            assert_eq!(ipv4.octets()[0], 198);
            assert!(matches!(ipv4.octets()[1], 18 | 19));
            assert!(known.insert(ipv4), "{ipv4} twice");
        }
        let mut first = instance("uid-0");
        let mine = simulator.reserve(&first);
        first.status = Some(InstanceStatus {
            ip_address: mine.ipv4.clone(),
            ..InstanceStatus::default()
        });
        let restarted = Simulator::new(Timings::default(), Pools::default(), Faults::new(true), [&first]);
        for i in 1..20_000 {
            assert_ne!(restarted.reserve(&instance(&format!("uid-{i}"))).ipv4, mine.ipv4);
        }
    }

    #[test]
    fn a_server_is_not_made_without_an_address_and_one_with_the_address_of_another_is_told_of_it() {
        let pools = Pools {
            ipv4: "192.0.2.7/32".parse().unwrap(),
            ..Pools::default()
        };
        let (first, mut second) = (running("first", at(0)), instance("second"));
        let simulator = Simulator::new(Timings::for_provisioning(0.0), pools, Faults::new(true), []);
        assert_eq!(simulator.reserve(&first).ipv4.as_deref(), Some("192.0.2.7"));
        assert_eq!(simulator.reserve(&second).ipv4, None);
        let operation = serde_json::json!({
            "kind": "Create", "startedAt": at(0), "endsIn": "Running", "plan": "starter", "image": "debian-13",
        });
        second.status = Some(InstanceStatus {
            operation: serde_json::from_value(operation).unwrap(),
            ..InstanceStatus::default()
        });
        let Progress::Failed(trouble) = simulator.show(&second, at(1)).progress else {
            panic!("it was made");
        };
        assert_eq!(trouble.reason, "NoFreeAddress");
        let mut twin = running("twin", at(0));
        twin.status.as_mut().unwrap().ip_address = Some("192.0.2.7".to_owned());
        let seen = simulator.show(&twin, at(1));
        assert_eq!(seen.power, Some(Power::On));
        assert!(matches!(seen.notice, Some(Notice::Told(trouble)) if trouble.reason == "AddressTaken"));
    }

    #[test]
    fn a_shutdown_happens_once_and_again_when_the_annotation_is_set_again() {
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(true), []);
        let mut instance = running("u", at(0));
        let annotate = |instance: &mut Instance, fault: Option<&str>| {
            instance.metadata.annotations =
                fault.map(|f| [(FAULT_ANNOTATION.to_owned(), f.to_owned())].into());
        };
        annotate(&mut instance, Some("shutdown"));
        let seen = simulator.show(&instance, at(1));
        assert_eq!(seen.power, Some(Power::Off(OffCause::GuestShutdown)));
        // Started again, with the annotation still there.
        instance.status.as_mut().unwrap().provider_state =
            BTreeMap::from([(HAPPENED.into(), "shutdown".into())]);
        assert_eq!(simulator.show(&instance, at(2)).power, Some(Power::On));
        annotate(&mut instance, None);
        let seen = simulator.show(&instance, at(3));
        assert!(seen.state.is_empty());
        instance.status.as_mut().unwrap().provider_state = seen.state;
        annotate(&mut instance, Some("shutdown"));
        assert_eq!(
            simulator.show(&instance, at(4)).power,
            Some(Power::Off(OffCause::GuestShutdown))
        );
    }

    #[tokio::test]
    async fn where_faults_are_not_permitted_their_annotation_changes_nothing() {
        for fault in [
            "provisioning",
            "stop-hangs",
            "shutdown",
            "crash",
            "unreachable",
            "backup",
        ] {
            let mut instance = running("u", at(0));
            let simulator =
                |permitted| Simulator::new(Timings::default(), Pools::default(), Faults::new(permitted), []);
            let well = simulator(false).show(&instance, at(1));
            instance.metadata.annotations = Some([(FAULT_ANNOTATION.to_owned(), fault.to_owned())].into());
            let step = simulator(false).step(step(&instance, 1)).await;
            assert_eq!(step.unwrap(), well, "{fault}");
            let usage = SimulatedUsage::default().usage(&instance, at(1)).await;
            assert!(usage.is_ok(), "{fault}");
        }
    }

    #[test]
    fn a_backup_has_the_size_of_what_is_on_the_disk_and_takes_its_time() {
        let simulator = Simulator::new(Timings::default(), Pools::default(), Faults::new(true), []);
        let mut instance = running("u", at(0));
        let mut backup: Backup = serde_json::from_value(serde_json::json!({
            "metadata": { "name": "b" }, "spec": { "instance": "web" },
        }))
        .unwrap();
        let seen = |backup: &Backup, instance: &Instance, second| {
            simulator.show_backup(backup, instance, at(second))
        };
        assert_eq!(seen(&backup, &instance, 0).progress, BackupProgress::Busy);
        backup.status = Some(resources::BackupStatus {
            started_at: Some(at(0)),
            source: Some(resources::BackupSource::of(&instance)),
            ..resources::BackupStatus::default()
        });
        instance.metadata.annotations = Some([(DISK_ANNOTATION.to_owned(), "50".to_owned())].into());
        // 20 of 40 GB: 30 s, and 1.5 s for each GB.
        let early = seen(&backup, &instance, 59);
        assert_eq!(
            (early.progress, early.recheck_after),
            (BackupProgress::Busy, Some(Duration::from_secs(1)))
        );
        assert_eq!(
            seen(&backup, &instance, 60).progress,
            BackupProgress::Done { size_gb: 20.0 }
        );
        instance.metadata.annotations = Some([(FAULT_ANNOTATION.to_owned(), "backup".to_owned())].into());
        assert!(matches!(
            seen(&backup, &instance, 60).progress,
            BackupProgress::Failed {
                code: "storage_unavailable",
                ..
            }
        ));
    }

    #[test]
    fn usage_follows_annotations_grows_since_the_last_start_and_is_unknown_while_off() {
        let mut instance = running("u", at(0));
        let (early, late) = (
            simulate_usage(&instance, at(10)),
            simulate_usage(&instance, at(20)),
        );
        assert!(late.network_in > early.network_in && early.network_out > Some(0));
        for level in [early.cpu_usage, early.memory_usage, early.disk_usage] {
            assert!((0.0..=100.0).contains(&level.unwrap()));
        }
        instance.metadata.annotations = Some([(CPU_ANNOTATION.to_owned(), "97.5".to_owned())].into());
        assert_eq!(simulate_usage(&instance, at(10)).cpu_usage, Some(97.5));
        instance.status.as_mut().unwrap().power = Some(PowerState::Stopped);
        let off = simulate_usage(&instance, at(30));
        assert_eq!(
            (off.cpu_usage, off.memory_usage, off.network_in),
            (None, None, None)
        );
        assert_eq!(off.disk_usage, early.disk_usage);
    }

    #[test]
    fn a_series_reaches_back_to_the_last_start_and_for_the_disk_to_the_creation_and_ends_in_the_newest_usage()
    {
        let mut instance = running("u", at(0));
        instance.status.as_mut().unwrap().started_at = Some(at(600));
        let now = at(1_230);
        let series = simulate_series(&instance, Window::Hour, now);
        assert_eq!(series.known_since, Some(at(0)));
        let known =
            |value: fn(&Usage) -> bool| series.points.iter().filter(|(_, usage)| value(usage)).count();
        // One a minute, from 0 or 600 s to 1,200 s.
        assert_eq!(known(|usage| usage.disk_usage.is_some()), 21);
        assert_eq!(known(|usage| usage.cpu_usage.is_some()), 11);
        assert_eq!(known(|usage| usage.network_in.is_some()), 11);
        let (last, usage) = series.points.last().unwrap();
        assert_eq!((*last, *usage), (at(1_200), simulate_usage(&instance, at(1_200))));
        // It is older than the window.
        let series = simulate_series(&instance, Window::Day, at(200_000));
        assert_eq!(series.known_since, Some(series.points[0].0));
        assert!(series.points.iter().all(|(_, usage)| usage.cpu_usage.is_some()));
        // There is no server yet.
        instance.status.as_mut().unwrap().provisioned_at = None;
        let series = simulate_series(&instance, Window::Hour, now);
        assert_eq!(series.known_since, None);
        assert!(series.points.iter().all(|(_, usage)| *usage == Usage::default()));
    }
}
