//! Deletion.

use std::time::Duration;

use super::{
    cloud::Fault,
    world::{World, spec},
};
use crate::resources::InstanceState;

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
