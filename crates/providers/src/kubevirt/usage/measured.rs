//! What was measured of servers, and what it means for the usage of an Instance. Pure.

use jiff::{SignedDuration, Timestamp};

use domain::provider::Usage;
use resources::{Instance, PowerState};

/// How many times a counter may have begun anew in one run of a server; before that, the oldest are forgotten.
const MAX_RESETS: usize = 32;

/// What is asked about servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Figure {
    /// When the server was last scraped, in seconds since 1970. Without it, or long after it, nothing is known.
    SampledAt,
    /// Processors in use.
    Cores,
    /// Memory in use, in percent.
    Memory,
    /// Use of the root file system, in percent, which only the guest agent knows.
    Disk,
    /// Bytes received through the public interface.
    Received,
    /// Bytes sent through it.
    Sent,
}

impl Figure {
    pub(super) const ALL: [Self; 6] = [
        Self::SampledAt,
        Self::Cores,
        Self::Memory,
        Self::Disk,
        Self::Received,
        Self::Sent,
    ];
}

/// The bytes that went through an interface: a counter that begins anew with each run of the server, and also when the server is
/// migrated live, although the run goes on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counter {
    /// The last sample.
    newest: Option<(Timestamp, u64)>,
    /// The last samples before it began anew.
    resets: Vec<(Timestamp, u64)>,
}

impl Counter {
    /// Takes the next sample.
    pub(super) fn take(&mut self, at: Timestamp, bytes: u64) {
        if let Some(before) = self.newest
            && bytes < before.1
        {
            if self.resets.len() == MAX_RESETS {
                self.resets.remove(0);
            }
            self.resets.push(before);
        }
        self.newest = Some((at, bytes));
    }

    /// The bytes since a time at which the server was started: what was counted before that is not part of them.
    pub(super) fn since(&self, started_at: Option<Timestamp>) -> Option<i64> {
        let (_, newest) = self.newest?;
        Some(bytes(newest.saturating_add(self.before(started_at, None))))
    }

    /// What was counted since `started_at` and before a time at which it began anew, up to `until`.
    fn before(&self, started_at: Option<Timestamp>, until: Option<Timestamp>) -> u64 {
        let resets = self.resets.iter().filter(|(at, _)| {
            started_at.is_none_or(|started| started <= *at) && until.is_none_or(|until| *at < until)
        });
        resets.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

fn bytes(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// What is known about one server.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Measured {
    /// When it was last scraped.
    pub(super) at: Timestamp,
    cores: Option<f64>,
    memory: Option<f64>,
    disk: Option<f64>,
    received: Reading,
    sent: Reading,
}

/// A counter, and whether it has been read this time.
#[derive(Clone, Debug, Default, PartialEq)]
struct Reading {
    is_new: bool,
    counter: Counter,
}

impl Reading {
    fn take(&mut self, at: Timestamp, value: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "counters are finite and not negative, and casts saturate"
        )]
        self.counter.take(at, value as u64);
        self.is_new = true;
    }

    fn since(&self, started_at: Option<Timestamp>) -> Option<i64> {
        self.is_new.then(|| self.counter.since(started_at)).flatten()
    }
}

impl Measured {
    /// What is known at first about a server that was scraped at a time. Of what was known `before`, only the counters are of use.
    pub(super) fn begin(at: Timestamp, before: Option<&Self>) -> Self {
        let reading = |of: fn(&Self) -> &Reading| Reading {
            is_new: false,
            counter: before
                .map(|before| of(before).counter.clone())
                .unwrap_or_default(),
        };
        Self {
            at,
            received: reading(|before| &before.received),
            sent: reading(|before| &before.sent),
            ..Self::default()
        }
    }

    /// Takes a figure. Prometheus knows numbers that are none: what is divided by nothing.
    pub(super) fn take(&mut self, figure: Figure, value: f64) {
        if !value.is_finite() {
            return;
        }
        match figure {
            Figure::SampledAt => {}
            Figure::Cores => self.cores = Some(value),
            Figure::Memory => self.memory = Some(value),
            Figure::Disk => self.disk = Some(value),
            Figure::Received => self.received.take(self.at, value),
            Figure::Sent => self.sent.take(self.at, value),
        }
    }

    /// The usage of an Instance. What was measured before its server was started is that of another run, or of another server.
    pub(super) fn usage(&self, instance: &Instance) -> Usage {
        let status = instance.status.as_ref();
        let started_at = status.and_then(|status| status.started_at);
        if started_at.is_some_and(|started| self.at < started) {
            return Usage::default();
        }
        Usage {
            cpu_usage: self.cores.map(|cores| share(cores, instance)),
            memory_usage: self.memory.map(percent),
            disk_usage: self.disk.map(percent),
            network_in: self.received.since(started_at),
            network_out: self.sent.since(started_at),
        }
    }
}

/// Whether a server is running, as far as its Instance knows. Of one that is off, Prometheus may still have samples.
pub(super) fn is_running(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    status.is_some_and(|status| status.power == Some(PowerState::Running))
}

/// Percent of the processors of a server that are in use. QEMU's own work may make it more than they could do.
fn share(cores: f64, instance: &Instance) -> f64 {
    let plan = instance.status.as_ref().and_then(|status| status.plan);
    let plan = plan.unwrap_or(instance.spec.plan);
    percent(100.0 * cores / f64::from(plan.size().vcpu))
}

fn percent(value: f64) -> f64 {
    (value.clamp(0.0, 100.0) * 10.0).round() / 10.0
}

/// The figures of one server at the times of a window.
#[derive(Debug, Default)]
pub(super) struct History {
    /// By figure and time.
    figures: [Vec<(i64, f64)>; Figure::ALL.len()],
}

impl History {
    /// Takes a figure at a time, in order.
    pub(super) fn take(&mut self, figure: Figure, second: i64, value: f64) {
        if value.is_finite() {
            self.figures[figure as usize].push((second, value));
        }
    }

    fn at(&self, figure: Figure, second: i64) -> Option<f64> {
        let figures = &self.figures[figure as usize];
        let index = figures.binary_search_by_key(&second, |(at, _)| *at).ok()?;
        figures.get(index).map(|(_, value)| *value)
    }

    /// The usage at each time. `known` is what is known about the counters from before the window. Nothing is said about the time before
    /// the Instance was created: it may be that of another one with its name.
    pub(super) fn points(
        &self,
        times: impl Iterator<Item = Timestamp>,
        instance: &Instance,
        known: Option<&Measured>,
    ) -> Vec<(Timestamp, Usage)> {
        let created = instance.created_at();
        let started_at = instance.status.as_ref().and_then(|status| status.started_at);
        let mut counters = [
            (Figure::Received, Counter::default()),
            (Figure::Sent, Counter::default()),
        ];
        let mut first = None;
        times
            .map(|time| {
                let second = time.as_second();
                if time < created || self.at(Figure::SampledAt, second).is_none() {
                    return (time, Usage::default());
                }
                let first = *first.get_or_insert(time);
                let is_this_run = started_at.is_none_or(|started| started <= time);
                let mut count = |index: usize, of: fn(&Measured) -> &Reading| {
                    let (figure, counter) = &mut counters[index];
                    let value = self.at(*figure, second)?;
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "counters are finite and not negative, and casts saturate"
                    )]
                    counter.take(time, value as u64);
                    if !is_this_run {
                        return counter.newest.map(|(_, newest)| bytes(newest));
                    }
                    let before = known.map_or(0, |known| of(known).counter.before(started_at, Some(first)));
                    let since = counter.since(started_at)?;
                    Some(since.saturating_add(bytes(before)))
                };
                let (network_in, network_out) =
                    (count(0, |known| &known.received), count(1, |known| &known.sent));
                let usage = Usage {
                    cpu_usage: self.at(Figure::Cores, second).map(|cores| share(cores, instance)),
                    memory_usage: self.at(Figure::Memory, second).map(percent),
                    disk_usage: self.at(Figure::Disk, second).map(percent),
                    network_in,
                    network_out,
                };
                (time, usage)
            })
            .collect()
    }
}

/// Whether what was measured at a time still counts.
pub(super) fn is_current(at: Timestamp, now: Timestamp) -> bool {
    now.duration_since(at) <= SignedDuration::from_secs(super::queries::STALE_SECONDS)
}
