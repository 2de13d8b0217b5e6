//! The daily schedule of backups, and a deletion during a backup.

use std::time::Duration;

use super::world::{World, spec};
use crate::instance::Gate;
use resources::Refusal;

const DAY: Duration = Duration::from_hours(24);
/// Long enough for an operation.
const SOON: Duration = Duration::from_mins(10);

fn backed_up() -> World {
    let mut world = World::running();
    world.edit(|spec| spec.backup_enabled = true);
    world.pass();
    world
}

#[test]
fn a_backup_is_made_every_day_for_one_write_and_none_once_it_is_not_wanted() {
    let mut world = backed_up();
    assert!(world.backups.is_empty(), "first at the next time");
    let writes = world.writes;
    world.wait(30 * DAY);
    assert_eq!((world.backups.len(), world.writes - writes), (30, 30));
    world.edit(|spec| spec.backup_enabled = false);
    world.wait(30 * DAY);
    assert_eq!((world.backups.len(), world.status().next_backup_at), (30, None));
}

#[test]
fn of_the_runs_missed_in_an_outage_one_is_made_up_for() {
    let mut world = backed_up();
    world.wait(DAY);
    assert_eq!(world.backups.len(), 1);
    world.outage(10 * DAY);
    world.pass();
    assert_eq!(world.backups.len(), 2);
    world.wait(5 * DAY);
    assert_eq!(world.backups.len(), 7);
}

#[test]
fn a_crash_between_the_two_writes_makes_no_second_backup() {
    let mut world = backed_up();
    world.outage(DAY);
    for _ in 0..3 {
        world.reconcile(false, true);
        assert_eq!(world.backups.len(), 1);
    }
    world.pass();
    assert_eq!(world.backups.len(), 1);
    world.wait(DAY);
    assert_eq!(world.backups.len(), 2);
}

#[test]
fn nothing_is_due_before_the_server_exists_nor_while_the_gate_is_closed() {
    let mut wanted = spec();
    wanted.backup_enabled = true;
    let mut world = World::new(wanted);
    world.pass();
    assert_eq!(world.status().next_backup_at, None);
    world.wait(SOON);
    assert!(world.status().next_backup_at.is_some());
    world.set_gate(Gate::NoAccount("namespace x belongs to no Account".into()));
    world.wait(5 * DAY);
    assert!(world.backups.is_empty());
    world.set_gate(Gate::Open);
    world.wait(SOON);
    assert_eq!(world.backups.len(), 1);
}

#[test]
fn a_deletion_is_told_once_no_backup_is_under_way() {
    let mut world = World::running();
    let mut since = world.events.len();
    world.is_backed_up_now = true;
    world.delete();
    world.wait(Duration::from_secs(60));
    assert!(!world.gone && world.cloud.servers.is_empty());
    assert!(world.new_events(&mut since).is_empty());
    world.is_backed_up_now = false;
    world.settle();
    assert!(world.gone);
    assert_eq!(world.new_events(&mut since), ["deleted"]);
}

#[test]
fn backups_go_on_while_the_spec_asks_for_what_cannot_be_done() {
    let mut world = backed_up();
    world.set_gate(Gate::InvalidSpec(Refusal::invalid(
        "spec.image x is not available",
    )));
    world.wait(5 * DAY);
    assert_eq!(world.backups.len(), 5);
}
