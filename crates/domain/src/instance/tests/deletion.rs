//! Deletion.

use std::time::Duration;

use super::{
    cloud::Fault,
    world::{World, spec},
};
use crate::{
    instance::{Audience, Gate, Next, Seen, decide},
    provider::{Observation, OffCause, Power, Progress, Timings},
};
use resources::{InstanceState, Refusal};

#[test]
fn deletion_ends_once_the_server_is_gone_and_not_before() {
    let mut world = World::running();
    world.delete();
    world.fault(Fault::Unreachable);
    world.pass();
    world.wait(Duration::from_secs(3600));
    world.pass();
    assert_eq!(
        (world.gone, world.state()),
        (false, Some(InstanceState::Deleting))
    );
    world.fault(Fault::None);
    world.settle();
    assert!(world.gone && world.cloud.servers.is_empty());
}

#[test]
fn an_instance_deleted_before_it_was_seen_records_created_and_deleted() {
    let (mut world, mut since) = (World::new(spec()), 0);
    world.delete();
    world.settle();
    assert!(world.gone && world.cloud.servers.is_empty());
    assert_eq!(world.new_events(&mut since), ["created", "deleted"]);
}

#[test]
fn an_instance_that_was_refused_and_is_deleted_records_nothing() {
    let mut world = World::new(spec());
    world.set_gate(Gate::InvalidSpec(Refusal::invalid(
        "spec.image x is not available",
    )));
    world.pass();
    world.delete();
    world.settle();
    assert!(world.gone && world.events.is_empty(), "{:?}", world.events);
}

#[test]
fn an_instance_whose_account_is_gone_is_deleted_although_nobody_can_be_told() {
    let mut world = World::running();
    let mut since = world.events.len();
    world.set_gate(Gate::NoAccount("namespace x belongs to no Account".into()));
    world.delete();
    world.settle();
    assert!(world.gone && world.cloud.servers.is_empty());
    assert!(world.new_events(&mut since).is_empty());
}

#[test]
fn a_server_that_crashed_and_is_deleted_before_it_runs_again_records_deleted_alone() {
    let mut world = World::running();
    let mut since = world.events.len();
    world.exit(OffCause::Crashed);
    world.pass();
    world.delete();
    world.settle();
    assert!(world.gone);
    assert_eq!(world.new_events(&mut since), ["deleted"]);
}

#[test]
fn a_server_that_is_still_there_after_its_deletion_is_deleted_again_after_a_backoff() {
    let mut world = World::running();
    world.delete();
    world.pass();
    let observation = Observation {
        power: Some(Power::On),
        progress: Progress::Done,
        ..Observation::default()
    };
    let decision = decide(
        &world.instance,
        &Gate::Open,
        Seen::Observed(&observation),
        Audience {
            user: Some(&world.user),
            is_settled: &|_| true,
            is_backed_up_now: false,
            may_wait: false,
            findings: None,
            is_billed: true,
        },
        world.now(),
        &Timings::default().deadlines(),
    );
    assert!(!decision.finished);
    assert_eq!(decision.next(false), Next::AfterBackoff);
}
