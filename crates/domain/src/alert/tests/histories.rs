//! Any history of a server's usage, with gaps, restarts of the operator, and clocks that are changed.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::{
    alert::{
        alerts,
        evaluation::{Evaluation, MAX_GAP, MAX_MISSED},
    },
    catalogue::{
        Alerts,
        alerts::{AlertRule, Percent},
    },
    provider::Usage,
};
use resources::{Alert, AlertMetric};

const INTERVAL: i64 = 60_000;
const START: i64 = 1_800_000_000_000;

/// What happens in an interval.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A sample with this value.
    Known(u8),
    /// The provider does not answer, for this many intervals.
    Failed(u8),
    /// Nobody asks, for this many intervals: the process is suspended.
    Suspended(u8),
    /// The operator restarts, or another replica becomes the leader.
    Restart,
    /// The clock is set, by this many minutes.
    ClockSet(i16),
    /// The server is restarted between two samples.
    PowerCycle,
    /// The server is off.
    Off,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (85_u8..=100).prop_map(Step::Known),
        4 => (0_u8..=100).prop_map(Step::Known),
        3 => (1_u8..=2).prop_map(Step::Failed),
        1 => (1_u8..=90).prop_map(Step::Failed),
        1 => (1_u8..=90).prop_map(Step::Suspended),
        1 => Just(Step::Restart),
        1 => any::<i16>().prop_map(Step::ClockSet),
        1 => Just(Step::PowerCycle),
        1 => Just(Step::Off),
    ]
}

fn rules(minutes: u64) -> Arc<Alerts> {
    Arc::new(Alerts {
        interval: Duration::from_mins(1),
        rules: vec![AlertRule {
            name: "cpu".into(),
            metric: AlertMetric::CpuUsage,
            threshold: Percent(90_00),
            lasting: Duration::from_mins(minutes),
            rearm_below: Percent(80_00),
        }],
    })
}

/// The code under test: what the sampler and the instance controller do with it.
struct World {
    rules: Arc<Alerts>,
    evaluation: Evaluation,
    /// The alerts in the status. They outlast restarts.
    alerts: Vec<Alert>,
    sequence: i64,
    /// Minutes since the beginning.
    minute: i64,
    /// How far the wall clock is off.
    off: SignedDuration,
    /// The minute at which the server started; none while it is off.
    run: Option<i64>,
    fired: Vec<(i64, Alert)>,
    writes: usize,
}

impl World {
    fn new(rules: &Arc<Alerts>) -> Self {
        Self {
            rules: rules.clone(),
            evaluation: Evaluation::default(),
            alerts: Vec::new(),
            sequence: 0,
            minute: 0,
            off: SignedDuration::ZERO,
            run: Some(-1),
            fired: Vec::new(),
            writes: 0,
        }
    }

    fn moment(&self) -> i64 {
        START + self.minute * INTERVAL
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.moment()).unwrap() + self.off
    }

    #[expect(
        clippy::option_option,
        reason = "a run whose time cannot be told is still a run"
    )]
    fn run(&self) -> Option<Option<Timestamp>> {
        self.run.map(|minute| Timestamp::from_second(minute).ok())
    }

    /// Takes a sample, and what follows from it.
    fn sample(&mut self, value: Option<f64>) {
        let run = self.run();
        let calls = self.take(value);
        let before = self.alerts.clone();
        self.reconcile();
        // A stop is written anyway.
        let is_own = before != self.alerts && run.is_some();
        assert_eq!(calls, is_own, "{before:?} {:?}", self.alerts);
        self.writes += usize::from(calls);
    }

    /// Takes a sample. Returns whether the status must change.
    fn take(&mut self, value: Option<f64>) -> bool {
        let usage = value.map(|value| Usage {
            cpu_usage: Some(value),
            ..Usage::default()
        });
        let (run, moment) = (self.run(), self.moment());
        self.evaluation.sample(&self.rules, run, moment, usage.as_ref());
        let findings = self.evaluation.findings(run, moment);
        findings.is_some_and(|findings| findings.change(&self.alerts))
    }

    /// What `instance::decide` does.
    fn reconcile(&mut self) {
        let (run, now, moment) = (self.run(), self.now(), self.moment());
        if run.is_none() {
            alerts::end_all(&mut self.alerts, now);
        }
        let Some(findings) = self.evaluation.findings(run, moment) else {
            return;
        };
        let fired = alerts::advance(&mut self.alerts, &findings, "uid", self.sequence, now);
        self.sequence += i64::try_from(fired.len()).unwrap();
        self.fired
            .extend(fired.into_iter().map(|alert| (self.minute, alert)));
    }

    /// Takes these samples, one a minute.
    fn sample_all(&mut self, values: &[Option<f64>]) {
        for value in values {
            self.minute += 1;
            self.sample(*value);
        }
    }

    fn is_firing(&self) -> bool {
        self.alerts.iter().any(Alert::is_firing)
    }
}

/// A slow and obvious reference: it looks at all samples since the process or the server started, each
/// time.
#[derive(Default)]
struct Reference {
    /// The minute of each attempt, and its value.
    attempts: Vec<(i64, Option<u8>)>,
    is_firing: bool,
    fired: Vec<(i64, i64)>,
}

impl Reference {
    fn sample(&mut self, minute: i64, value: Option<u8>, lasting: i64) {
        self.attempts.push((minute, value));
        let begin = self.attempts[0].0 - 1;
        let known = |attempts: &[(i64, Option<u8>)]| -> Vec<(i64, u8)> {
            attempts
                .iter()
                .filter_map(|(minute, value)| Some((*minute, (*value)?)))
                .collect()
        };
        let known = known(&self.attempts);
        let before: Vec<_> = known.iter().filter(|(at, _)| *at < minute).collect();
        let last = before.last().map_or(begin, |(at, _)| *at);
        if minute - last > 60 {
            self.is_firing = false;
        }
        let Some(value) = value else { return };
        if value < 80 {
            self.is_firing = false;
        }
        // The longest run of samples above the threshold that ends here, without a gap that is too long.
        let mut first = minute;
        for (at, value) in known.iter().rev() {
            if *value <= 90 || first - at - 1 > MAX_MISSED {
                break;
            }
            first = *at;
        }
        if value > 90 && minute - first >= lasting && !self.is_firing {
            self.is_firing = true;
            self.fired.push((minute, first));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn alerts_fire_and_end_as_the_reference_says(
        steps in prop::collection::vec(step(), 1..120),
        lasting in 1_u64..8,
    ) {
        let mut world = World::new(&rules(lasting));
        let mut reference = Reference::default();
        for step in steps {
            world.minute += 1;
            match step {
                Step::Known(value) => {
                    world.run.get_or_insert(world.minute);
                    world.sample(Some(value.into()));
                    reference.sample(world.minute, Some(value), i64::try_from(lasting).unwrap());
                }
                Step::Failed(intervals) => {
                    world.run.get_or_insert(world.minute);
                    world.minute -= 1;
                    for _ in 0..intervals {
                        world.minute += 1;
                        world.sample(None);
                        reference.sample(world.minute, None, i64::try_from(lasting).unwrap());
                    }
                }
                Step::Suspended(intervals) => world.minute += i64::from(intervals) - 1,
                Step::Restart => {
                    world.evaluation = Evaluation::default();
                    reference.attempts.clear();
                }
                Step::ClockSet(minutes) => world.off = SignedDuration::from_mins(minutes.into()),
                Step::PowerCycle => {
                    if world.run.is_some() {
                        world.run = Some(world.minute);
                    }
                    reference.attempts.clear();
                    // The samples of the previous run mean nothing.
                    world.reconcile();
                }
                Step::Off => {
                    world.run = None;
                    world.sample(Some(100.0));
                    reference.attempts.clear();
                    reference.is_firing = false;
                }
            }
            prop_assert_eq!(world.is_firing(), reference.is_firing, "{:?} in minute {}", step, world.minute);
            // Nothing changes by looking again.
            let before = world.alerts.clone();
            world.reconcile();
            prop_assert_eq!(&before, &world.alerts);
            prop_assert!(world.alerts.len() <= 4);
        }
        let fired: Vec<i64> = world.fired.iter().map(|(minute, _)| *minute).collect();
        let expected: Vec<i64> = reference.fired.iter().map(|(minute, _)| *minute).collect();
        prop_assert_eq!(fired, expected);
        let ids: HashSet<&str> = world.fired.iter().map(|(_, alert)| alert.id.as_str()).collect();
        prop_assert_eq!(ids.len(), world.fired.len());
        for ((minute, alert), (_, first)) in world.fired.iter().zip(&reference.fired) {
            let lasted = alert.fired_at.duration_since(alert.since);
            prop_assert_eq!(lasted, SignedDuration::from_mins(minute - first));
        }
    }
}

#[test]
fn an_alert_that_was_sent_is_not_sent_again_after_a_restart() {
    let mut world = World::new(&rules(5));
    for _ in 0..20 {
        world.minute += 1;
        world.sample(Some(95.0));
    }
    assert_eq!((world.fired.len(), world.fired[0].0, world.writes), (1, 6, 1));
    for pause in [1, 100] {
        // However long the gap was, this process has not missed a sample.
        world.minute += pause;
        world.evaluation = Evaluation::default();
        for _ in 0..20 {
            world.minute += 1;
            world.sample(Some(95.0));
        }
    }
    assert_eq!((world.fired.len(), world.writes), (1, 1));
    // It fires again once it has been below the value that re-arms it.
    for value in [85.0, 95.0, 79.9, 95.0, 95.0, 95.0, 95.0, 95.0, 95.0] {
        world.minute += 1;
        world.sample(Some(value));
    }
    assert_eq!((world.fired.len(), world.writes), (2, 3));
}

#[test]
fn an_alert_holds_through_a_gap_of_an_hour_without_being_sent_again_and_ends_after_that() {
    let mut world = World::new(&rules(5));
    let gap = i64::try_from(MAX_GAP.as_secs() / 60).unwrap();
    for (is_suspended, missing, fired) in [
        (false, 4, 1),
        (true, 4, 1),
        (false, gap - 1, 1),
        (true, gap - 1, 1),
        (true, gap, 2),
    ] {
        world.sample_all(&[Some(95.0); 10]);
        if is_suspended {
            world.minute += missing;
        } else {
            world.sample_all(&vec![None; usize::try_from(missing).unwrap()]);
        }
        world.sample_all(&[Some(95.0); 6]);
        assert_eq!(world.fired.len(), fired, "after {missing} minutes");
    }
    assert_eq!(world.writes, 3, "it fired, ended and fired");
    // Nor does a gap fire: the five minutes begin anew.
    world.sample_all(&[
        Some(10.0),
        Some(95.0),
        Some(95.0),
        None,
        None,
        None,
        None,
        Some(95.0),
        Some(95.0),
    ]);
    assert!(!world.is_firing());
    // No sample for more than an hour, although the provider is asked.
    world.sample_all(&[Some(95.0); 10]);
    assert!(world.is_firing());
    world.sample_all(&vec![None; usize::try_from(gap).unwrap()]);
    assert!(world.is_firing());
    world.sample_all(&[None]);
    assert!(!world.is_firing());
}

#[test]
fn an_end_that_could_not_be_written_at_once_is_written_later() {
    let mut world = World::new(&rules(5));
    world.sample_all(&[Some(95.0); 6]);
    assert!(world.is_firing());
    for value in [79.0, 85.0, 95.0] {
        world.minute += 1;
        assert!(world.take(Some(value)));
    }
    world.reconcile();
    assert!(!world.is_firing());
}

#[test]
fn a_metric_that_flaps_around_the_threshold_fires_once() {
    let mut world = World::new(&rules(5));
    for minute in 0..1_000 {
        world.minute += 1;
        world.sample(Some(if minute % 7 == 6 { 89.0 } else { 91.0 }));
    }
    assert_eq!((world.fired.len(), world.writes), (1, 1));
}

#[test]
fn changed_rules_hold_at_once_and_an_alert_without_a_rule_ends() {
    let mut world = World::new(&rules(5));
    for _ in 0..10 {
        world.minute += 1;
        world.sample(Some(95.0));
    }
    assert!(world.is_firing());
    let old = world.rules.clone();
    let mut renamed = (*old).clone();
    renamed.rules[0].name = "other".into();
    world.rules = Arc::new(renamed);
    world.minute += 1;
    world.sample(Some(95.0));
    assert!(!world.is_firing(), "{:?}", world.alerts);
    // What was known about rules that have not changed stays.
    let mut more = (*world.rules).clone();
    more.rules.push(old.rules[0].clone());
    world.rules = Arc::new(more);
    for _ in 0..5 {
        world.minute += 1;
        world.sample(Some(95.0));
    }
    let firing: Vec<&str> = world
        .alerts
        .iter()
        .filter(|alert| alert.is_firing())
        .map(|alert| alert.rule.as_str())
        .collect();
    assert_eq!(
        firing,
        ["other"],
        "it has been above for five minutes since its first sample"
    );
    world.minute += 1;
    world.sample(Some(95.0));
    assert_eq!(world.alerts.iter().filter(|alert| alert.is_firing()).count(), 2);
    let mut none = (*world.rules).clone();
    none.rules.clear();
    world.rules = Arc::new(none);
    world.minute += 1;
    world.sample(Some(95.0));
    assert!(!world.is_firing());
}

#[test]
fn ended_alerts_stay_for_a_day_and_at_most_three_of_a_rule() {
    let mut world = World::new(&rules(1));
    for _ in 0..10 {
        for value in [95.0, 95.0, 10.0] {
            world.minute += 1;
            world.sample(Some(value));
        }
    }
    assert_eq!(world.fired.len(), 10);
    let ids: Vec<&str> = world.alerts.iter().map(|alert| alert.id.as_str()).collect();
    let newest: Vec<&str> = world.fired[6..]
        .iter()
        .map(|(_, alert)| alert.id.as_str())
        .collect();
    assert_eq!(ids, newest);
    world.minute += 24 * 60 - 4;
    let mut left = world.alerts.clone();
    alerts::purge(&mut left, world.now());
    assert_eq!(left.len(), 2, "of ends three minutes apart");
    world.minute += 10;
    alerts::purge(&mut left, world.now());
    assert!(left.is_empty());
}
