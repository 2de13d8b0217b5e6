//! The monitored instances of this process: when each is sampled, and what is known about it. Fed by the watch of
//! Instances. Only the leader takes samples, so other replicas know nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use parking_lot::Mutex;

use domain::alert::{
    evaluation::{Evaluation, Findings, MAX_MISSED, Run, run_of},
    schedule::{self, Timeline, milliseconds},
};
use domain::{catalogue::Alerts, provider::Usage};
use resources::{Instance, origin};
use runtime::watch::{Change, Listener};

/// The monitored instances. Share it in an `Arc`.
#[derive(Debug)]
pub struct Monitor {
    timeline: Timeline,
    state: Mutex<State>,
    #[cfg(test)]
    skipped: std::sync::atomic::AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Arc<str>, Entry>,
    /// The UIDs, ordered by phase.
    schedule: BTreeSet<(u32, Arc<str>)>,
}

#[derive(Debug)]
struct Entry {
    /// As the watch shows it.
    instance: Arc<Instance>,
    evaluation: Evaluation,
    newest: Option<Newest>,
    /// Whether a sample is being taken.
    is_busy: bool,
    /// Whether the last one failed.
    has_failed: bool,
}

/// The newest known sample.
#[derive(Clone, Copy, Debug)]
struct Newest {
    at: i64,
    run: Run,
    usage: Usage,
}

/// A sample that is due.
#[derive(Clone, Debug)]
pub struct Due {
    /// The instance to ask about.
    pub instance: Arc<Instance>,
    /// Whether its last sample failed.
    pub is_suspect: bool,
    uid: Arc<str>,
}

impl Due {
    /// The namespace of the instance.
    pub fn namespace(&self) -> &str {
        namespace(&self.instance)
    }
}

/// The newest sample of an instance.
#[derive(Clone, Debug)]
pub struct Current {
    pub instance: Arc<Instance>,
    pub usage: Usage,
}

fn namespace(instance: &Instance) -> &str {
    instance.metadata.namespace.as_deref().unwrap_or_default()
}

fn uid(instance: &Instance) -> &str {
    origin::uid(&instance.metadata)
}

/// Whether an instance has a server that is monitored.
fn is_monitored(instance: &Instance) -> bool {
    let is_made = instance
        .status
        .as_ref()
        .is_some_and(|status| status.provisioned_at.is_some());
    instance.spec.monitoring_enabled && is_made && !instance.is_deleting()
}

impl Monitor {
    /// A monitor whose timeline begins at this time.
    pub fn new(now: Timestamp) -> Arc<Self> {
        Arc::new(Self {
            timeline: Timeline::start(now),
            state: Mutex::default(),
            #[cfg(test)]
            skipped: std::sync::atomic::AtomicI64::default(),
        })
    }

    /// The current moment in milliseconds.
    pub fn moment(&self) -> i64 {
        self.timeline.now() + self.skipped()
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only tests let time pass")]
    const fn skipped(&self) -> i64 {
        0
    }

    /// The listener for the watch of Instances.
    pub fn listener(self: &Arc<Self>) -> Box<dyn Listener<Instance>> {
        let monitor = self.clone();
        Box::new(move |change: &Change<Instance>| monitor.changed(change))
    }

    fn changed(&self, change: &Change<Instance>) {
        let state = &mut *self.state.lock();
        match change {
            Change::Replaced(all) => {
                let listed: std::collections::HashSet<&str> =
                    all.iter().map(|instance| uid(instance)).collect();
                let gone = state.entries.keys().filter(|uid| !listed.contains(&***uid));
                for uid in gone.cloned().collect::<Vec<_>>() {
                    state.remove(&uid);
                }
                for instance in all {
                    state.apply(instance);
                }
            }
            Change::Applied(instance) => state.apply(instance),
            Change::Deleted(instance) => state.remove(uid(instance)),
            // Its last readable version has already been reported as deleted.
            Change::Unreadable(_) => {}
        }
    }

    /// The samples that have become due since the moment `from`. A sample that is still being taken is left out, and so
    /// missed. Each must be followed by a [`record`](Self::record).
    pub fn due(&self, interval: Duration, from: i64, to: i64) -> Vec<Due> {
        let state = &mut *self.state.lock();
        let mut due = Vec::new();
        for (first, last) in schedule::due(interval, from, to) {
            let begin = (first, Arc::<str>::from(""));
            for (phase, uid) in state.schedule.range(begin..) {
                if *phase > last {
                    break;
                }
                if let Some(entry) = state.entries.get_mut(uid)
                    && !std::mem::replace(&mut entry.is_busy, true)
                {
                    due.push(Due {
                        instance: entry.instance.clone(),
                        is_suspect: entry.has_failed,
                        uid: uid.clone(),
                    });
                }
            }
        }
        due
    }

    /// Records a sample; `usage` is `None` if there is none. It counts for the last moment at which it was due, and for
    /// the run of the server during which it was asked for. Returns the instance if its status must change.
    pub fn record(&self, due: &Due, alerts: &Arc<Alerts>, usage: Option<&Usage>) -> Option<Arc<Instance>> {
        let moment = self.moment();
        let state = &mut *self.state.lock();
        // It may have been deleted, or is no longer monitored.
        let entry = state.entries.get_mut(&due.uid)?;
        entry.is_busy = false;
        entry.has_failed = usage.is_none();
        let at = schedule::last_due(schedule::phase(&due.uid), alerts.interval, moment);
        let (run, asked) = (run_of(&entry.instance), run_of(&due.instance));
        // An answer about another run says nothing about this one.
        let usage = usage.filter(|_| run == asked);
        entry.evaluation.sample(alerts, run, at, usage);
        if let Some(usage) = usage {
            entry.newest = Some(Newest {
                at,
                run,
                usage: *usage,
            });
        }
        let findings = entry.evaluation.findings(run, moment)?;
        let status = entry.instance.status.as_ref();
        let shown = status.map_or(&[][..], |status| &status.alerts);
        findings.change(shown).then(|| entry.instance.clone())
    }

    /// What the samples of an instance's current run mean for its alerts; `None` if there are none.
    pub fn findings(&self, instance: &Instance) -> Option<Findings> {
        let moment = self.moment();
        let state = self.state.lock();
        let entry = state.entries.get(uid(instance))?;
        entry.evaluation.findings(run_of(instance), moment)
    }

    /// How many instances are monitored.
    pub fn count(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// The newest samples of at most `limit` instances, and the number of further instances. Accounts take turns: each
    /// has as many shown as any other, if it has that many. The choice stays the same as long as the instances do.
    pub fn current(&self, limit: usize, interval: Duration) -> (Vec<Current>, usize) {
        let moment = self.moment();
        let state = self.state.lock();
        let is_current = |entry: &&Entry| {
            let newest = entry.newest;
            newest.is_some_and(|newest| newest.is_current(run_of(&entry.instance), interval, moment))
        };
        let mut accounts: HashMap<&str, Vec<&Entry>> = HashMap::new();
        for entry in state.entries.values().filter(is_current) {
            accounts
                .entry(namespace(&entry.instance))
                .or_default()
                .push(entry);
        }
        let total: usize = accounts.values().map(Vec::len).sum();
        let mut ranked: Vec<(usize, &str, &Entry)> = Vec::with_capacity(total);
        for (account, mut entries) in accounts {
            entries.sort_unstable_by_key(|entry| &entry.instance.metadata.name);
            let entries = entries.into_iter().enumerate();
            ranked.extend(entries.map(|(rank, entry)| (rank, account, entry)));
        }
        ranked.sort_unstable_by_key(|(rank, account, _)| (*rank, *account));
        let shown = ranked.into_iter().take(limit).filter_map(|(_, _, entry)| {
            Some(Current {
                instance: entry.instance.clone(),
                usage: entry.newest?.usage,
            })
        });
        (shown.collect(), total.saturating_sub(limit))
    }
}

impl Newest {
    fn is_current(&self, run: Run, interval: Duration, moment: i64) -> bool {
        self.run == run && moment - self.at <= (MAX_MISSED + 1) * milliseconds(interval)
    }
}

impl State {
    fn apply(&mut self, instance: &Arc<Instance>) {
        if !is_monitored(instance) {
            self.remove(uid(instance));
            return;
        }
        if let Some(entry) = self.entries.get_mut(uid(instance)) {
            entry.instance = instance.clone();
            return;
        }
        let uid: Arc<str> = uid(instance).into();
        self.schedule.insert((schedule::phase(&uid), uid.clone()));
        let entry = Entry {
            instance: instance.clone(),
            evaluation: Evaluation::default(),
            newest: None,
            is_busy: false,
            has_failed: false,
        };
        self.entries.insert(uid, entry);
    }

    fn remove(&mut self, uid: &str) {
        if let Some((uid, _)) = self.entries.remove_entry(uid) {
            self.schedule.remove(&(schedule::phase(&uid), uid));
        }
    }
}

#[cfg(test)]
impl Monitor {
    fn skipped(&self) -> i64 {
        self.skipped.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Lets time pass.
    pub(crate) fn skip(&self, time: Duration) {
        self.skipped
            .fetch_add(milliseconds(time), std::sync::atomic::Ordering::Relaxed);
    }
}
