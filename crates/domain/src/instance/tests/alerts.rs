//! Alerts fire and end in the status write that reports them, or in one that happens anyway.

use std::time::Duration;

use super::world::{World, spec};
use crate::{
    alert::evaluation::{Finding, Findings, Verdict},
    catalogue::Alerts,
    instance::Action,
};
use resources::{Alert, InstanceState};

const SOON: Duration = Duration::from_mins(10);

fn monitored() -> World {
    let mut wanted = spec();
    wanted.monitoring_enabled = true;
    let mut world = World::new(wanted);
    world.settle();
    assert_eq!(world.state(), Some(InstanceState::Running));
    world
}

/// What the samples say after five minutes above the threshold of the first rule.
fn crossed(world: &World) -> Findings {
    let rules = Alerts::default().rules;
    Findings {
        started_at: world.status().started_at,
        moment: 300_000,
        rules: rules
            .into_iter()
            .enumerate()
            .map(|(index, rule)| Finding {
                rule,
                verdict: (index == 0).then_some(Verdict::Fires {
                    since: 0,
                    value: 96.4,
                }),
            })
            .collect(),
    }
}

fn firing(world: &World) -> Vec<Alert> {
    let alerts = world.status().alerts;
    alerts.into_iter().filter(Alert::is_firing).collect()
}

#[test]
fn an_alert_is_one_write_with_its_event_and_is_not_told_again() {
    let mut world = monitored();
    let (mut since, writes) = (world.events.len(), world.writes);
    world.findings = Some(crossed(&world));
    world.pass();
    assert_eq!(world.new_events(&mut since), ["alert.triggered"]);
    assert_eq!(world.writes - writes, 1);
    let alerts = firing(&world);
    let [alert] = alerts.as_slice() else {
        panic!("{alerts:?}")
    };
    assert_eq!(alert.fired_at.duration_since(alert.since).as_secs(), 300);
    let event: serde_json::Value = serde_json::from_str(&world.events.last().unwrap().body).unwrap();
    assert_eq!(event["data"]["alert"]["id"], alert.id.as_str());
    assert_eq!(event["data"]["alert"]["threshold"], 90.0);
    assert_eq!(
        event["data"]["metric"],
        serde_json::json!({ "name": "cpu_usage", "value": 96.4, "unit": "percent" })
    );
    assert_eq!(event["data"]["instance"]["status"], "running");
    assert_eq!(world.notes.last().map(|note| note.reason), Some("AlertTriggered"));
    world.wait(SOON);
    assert!(world.new_events(&mut since).is_empty());
    assert!(world.writes - writes <= 2, "the second one clears the outbox");
}

#[test]
fn a_crash_before_the_write_loses_no_alert_and_forks_none() {
    let mut world = monitored();
    let mut since = world.events.len();
    world.findings = Some(crossed(&world));
    for _ in 0..3 {
        world.reconcile(false, true);
    }
    world.pass();
    assert_eq!(world.new_events(&mut since), ["alert.triggered"]);
    // Another leader knows only the status.
    world.findings = None;
    world.pass();
    world.findings = Some(crossed(&world));
    world.pass();
    world.wait(SOON);
    assert!(world.new_events(&mut since).is_empty());
}

#[test]
fn a_stop_ends_an_alert_silently_and_costs_no_write_for_it() {
    let count = |is_firing: bool| {
        let mut world = monitored();
        if is_firing {
            world.findings = Some(crossed(&world));
        }
        world.pass();
        world.wait(SOON);
        world.findings = None;
        let (mut since, writes) = (world.events.len(), world.writes);
        world.act(Action::Stop);
        world.settle();
        assert_eq!(world.new_events(&mut since), ["stopped"]);
        assert!(firing(&world).is_empty());
        (world.status().alerts.len(), world.writes - writes)
    };
    let ((none, usual), (one, writes)) = (count(false), count(true));
    assert_eq!((none, one, writes), (0, 1, usual));
}

#[test]
fn what_was_known_before_a_restart_of_the_server_fires_nothing() {
    let mut world = monitored();
    let findings = crossed(&world);
    world.act(Action::Stop);
    world.settle();
    world.act(Action::Start);
    world.settle();
    let mut since = world.events.len();
    world.findings = Some(findings);
    world.pass();
    world.wait(SOON);
    assert!(world.new_events(&mut since).is_empty() && world.status().alerts.is_empty());
    world.findings = Some(crossed(&world));
    world.pass();
    assert_eq!(world.new_events(&mut since), ["alert.triggered"]);
}

#[test]
fn monitoring_that_is_switched_off_ends_an_alert_and_a_day_later_it_is_gone_with_another_write() {
    let mut world = monitored();
    world.findings = Some(crossed(&world));
    world.pass();
    world.wait(SOON);
    let mut since = world.events.len();
    world.edit(|spec| spec.monitoring_enabled = false);
    world.wait(SOON);
    assert!(firing(&world).is_empty() && world.new_events(&mut since).is_empty());
    let writes = world.writes;
    world.wait(Duration::from_hours(48));
    assert_eq!(
        (world.status().alerts.len(), world.writes),
        (1, writes),
        "no write of its own"
    );
    world.act(Action::Reboot);
    world.settle();
    assert!(world.status().alerts.is_empty());
}
