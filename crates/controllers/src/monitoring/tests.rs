//! What the monitor knows, and its limits.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::json;

use crate::monitoring::{Monitor, monitor::Due};
use domain::{alert::evaluation::Verdict, catalogue::Alerts, provider::Usage};
use resources::Instance;
use runtime::watch::{Change, Listener};

const MINUTE: Duration = Duration::from_mins(1);

fn start() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn instance(namespace: &str, name: &str, change: impl FnOnce(&mut serde_json::Value)) -> Arc<Instance> {
    let mut object = json!({
        "metadata": { "name": name, "namespace": namespace, "uid": format!("{namespace}-{name}") },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "monitoringEnabled": true },
        "status": {
            "state": "running", "power": "Running", "provisionedAt": "2026-11-21T10:00:00Z",
            "startedAt": "2026-11-21T10:00:00Z",
        },
    });
    change(&mut object);
    Arc::new(serde_json::from_value(object).unwrap())
}

fn usage(cpu: f64) -> Usage {
    Usage {
        cpu_usage: Some(cpu),
        ..Usage::default()
    }
}

struct World {
    monitor: Arc<Monitor>,
    listener: Box<dyn Listener<Instance>>,
    rules: Arc<Alerts>,
}

impl World {
    fn new() -> Self {
        let monitor = Monitor::new(start());
        Self {
            listener: monitor.listener(),
            monitor,
            rules: Arc::default(),
        }
    }

    fn apply(&mut self, instance: &Arc<Instance>) {
        self.listener.changed(&Change::Applied(instance.clone()));
    }

    /// Everything that is due in a minute.
    fn due(&self) -> Vec<Due> {
        let now = self.monitor.moment();
        self.monitor.due(MINUTE, now - 60_000, now)
    }

    fn sample_all(&self, cpu: f64) -> Vec<Arc<Instance>> {
        let samples = self.due().into_iter();
        samples
            .filter_map(|due| self.monitor.record(&due, &self.rules, Some(&usage(cpu))))
            .collect()
    }

    /// The CPU usage in the newest samples.
    fn newest(&self) -> Vec<Option<f64>> {
        let (current, _) = self.monitor.current(10, MINUTE);
        current.iter().map(|one| one.usage.cpu_usage).collect()
    }
}

#[test]
fn only_monitored_servers_are_sampled_and_one_at_a_time() {
    let mut world = World::new();
    for (name, patch) in [
        ("unmonitored", ("/spec/monitoringEnabled", json!(false))),
        ("unmade", ("/status/provisionedAt", json!(null))),
        (
            "deleted",
            ("/metadata/deletionTimestamp", json!("2026-11-21T11:00:00Z")),
        ),
    ] {
        world.apply(&instance("a", name, |object| {
            let (path, value) = patch;
            let (parent, field) = path.rsplit_once('/').unwrap();
            object.pointer_mut(parent).unwrap()[field] = value;
        }));
    }
    assert_eq!(world.monitor.count(), 0);
    let web = instance("a", "web", |_| {});
    world.apply(&web);
    let due = world.due();
    assert_eq!(due.len(), 1);
    assert!(world.due().is_empty(), "the first sample has not come back");
    world.monitor.record(&due[0], &world.rules, None);
    let again = world.due();
    assert!(again[0].is_suspect && !due[0].is_suspect);
    // It is deleted while it is being sampled.
    world.listener.changed(&Change::Deleted(web.clone()));
    assert!(
        world
            .monitor
            .record(&again[0], &world.rules, Some(&usage(99.0)))
            .is_none()
    );
    assert_eq!(world.monitor.count(), 0);
    world.listener.changed(&Change::Replaced(vec![web]));
    assert_eq!(world.monitor.count(), 1);
    world.listener.changed(&Change::Replaced(Vec::new()));
    assert!(world.due().is_empty());
}

#[test]
fn the_newest_sample_is_known_until_it_is_outdated() {
    let mut world = World::new();
    let web = instance("a", "web", |_| {});
    world.apply(&web);
    assert!(world.newest().is_empty());
    world.sample_all(42.0);
    assert_eq!(world.newest(), [Some(42.0)]);
    world.monitor.skip(Duration::from_secs(170));
    assert_eq!(world.newest(), [Some(42.0)]);
    let stopped = instance("a", "web", |object| object["status"]["power"] = json!("Stopped"));
    let restarted = instance("a", "web", |object| {
        object["status"]["startedAt"] = json!("2026-11-21T11:00:00Z");
    });
    for changed in [&stopped, &restarted] {
        world.apply(changed);
        assert!(world.newest().is_empty());
    }
    world.apply(&web);
    assert_eq!(world.newest(), [Some(42.0)]);
    world.monitor.skip(Duration::from_secs(90));
    assert!(world.newest().is_empty());
}

#[test]
fn what_was_asked_about_another_run_of_the_server_says_nothing_of_this_one() {
    let mut world = World::new();
    let web = instance("a", "web", |_| {});
    world.apply(&web);
    let due = world.due();
    let restarted = instance("a", "web", |object| {
        object["status"]["startedAt"] = json!("2026-11-21T11:00:00Z");
    });
    world.apply(&restarted);
    world.monitor.record(&due[0], &world.rules, Some(&usage(99.0)));
    assert!(world.newest().is_empty());
    assert!(world.monitor.findings(&web).is_none());
}

#[test]
fn an_instance_is_reconciled_when_its_alert_fires_and_only_then() {
    let mut world = World::new();
    let web = instance("a", "web", |_| {});
    world.apply(&web);
    for minute in 0..20 {
        let called = world.sample_all(if minute < 8 { 50.0 } else { 95.0 });
        assert_eq!(called.len(), usize::from(minute >= 13), "{minute}");
        world.monitor.skip(MINUTE);
    }
    let findings = world.monitor.findings(&web).unwrap();
    let Some(Verdict::Fires { since, value }) = findings.rules[0].verdict else {
        panic!("{findings:?}")
    };
    assert_eq!(value.to_string(), "95");
    let lasted = Duration::from_millis(u64::try_from(findings.moment - since).unwrap());
    assert!((11 * 60..=13 * 60).contains(&lasted.as_secs()), "{lasted:?}");
    // Its status says so: it is left alone.
    let firing = instance("a", "web", |object| {
        object["status"]["alerts"] = json!([{
            "id": "alr_1", "rule": "cpu_usage_high", "phase": "Firing", "metric": "cpu_usage", "threshold": 90.0,
            "value": 95.0, "since": "2026-11-21T10:00:00Z", "firedAt": "2026-11-21T10:05:00Z",
        }]);
    });
    world.apply(&firing);
    assert!(world.sample_all(95.0).is_empty());
}

#[test]
fn metrics_show_as_many_of_each_account_and_say_what_is_left_out() {
    let mut world = World::new();
    for number in 0..5 {
        world.apply(&instance("big", &format!("i{number}"), |_| {}));
    }
    world.apply(&instance("small", "s", |_| {}));
    world.sample_all(50.0);
    let (shown, left_out) = world.monitor.current(3, MINUTE);
    let names: Vec<_> = shown
        .iter()
        .map(|one| one.instance.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!((names, left_out), (vec!["i0", "s", "i1"], 3));
}
