//! Any history of requests, faults, crashes and clock jumps, with deletion at any moment.

use std::time::Duration;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::{
    cloud::Fault,
    world::{World, cannot_install, kept_off, no_room, spec},
};
use crate::{
    instance::{Action, Gate},
    provider::OffCause,
};
use resources::{
    InstanceState, Plan, PowerState, Refusal,
    conditions::{self, READY},
};

/// What may happen, in any order.
#[derive(Clone, Debug)]
enum Happening {
    Act(Action),
    Plan(Plan, Option<Plan>),
    Image(&'static str),
    Power(PowerState),
    PowerOffNonce,
    Delete,
    GuestExit(OffCause),
    ServerLost,
    Fault(Fault),
    Gate(Gate),
    ReceiversTakeEvents(bool),
    Reconcile { stale: bool, crash: bool },
    Wait(u64),
    Outage(u64),
    SetClock(i64),
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    let action = prop_oneof![
        Just(Action::Start),
        Just(Action::Stop),
        Just(Action::PowerOff),
        Just(Action::Reboot),
        Just(Action::Rebuild)
    ];
    let plan = || prop_oneof![Just(Plan::Starter), Just(Plan::Business), Just(Plan::Enterprise)];
    let change = (plan(), prop::option::of(plan()), any::<bool>())
        .prop_map(|(plan, other, is_pending)| H::Plan(plan, if is_pending { Some(plan) } else { other }));
    let fault = prop_oneof![
        3 => Just(Fault::None),
        1 => Just(Fault::Unreachable),
        1 => Just(Fault::Nonsense),
        1 => Just(Fault::Fails),
        1 => Just(Fault::HangsSoftStop),
        1 => Just(Fault::Stuck),
        1 => Just(Fault::ForgetsAddresses),
    ];
    let gate = prop_oneof![
        3 => Just(Gate::Open),
        1 => Just(Gate::NoAccount("no account".into())),
        1 => Just(Gate::InvalidSpec(Refusal::invalid("spec.image"))),
        1 => Just(cannot_install()),
        1 => Just(kept_off()),
        1 => Just(no_room()),
    ];
    let exit = prop_oneof![Just(OffCause::Crashed), Just(OffCause::GuestShutdown)];
    let seconds = || prop_oneof![6 => 0..200_u64, 1 => 600..1200_u64];
    prop_oneof![
        12 => action.prop_map(H::Act),
        4 => change,
        4 => prop_oneof![Just("debian-12"), Just("debian-13")].prop_map(H::Image),
        4 => prop_oneof![Just(PowerState::Running), Just(PowerState::Stopped)].prop_map(H::Power),
        4 => Just(H::PowerOffNonce),
        1 => Just(H::Delete),
        4 => exit.prop_map(H::GuestExit),
        1 => Just(H::ServerLost),
        8 => fault.prop_map(H::Fault),
        3 => gate.prop_map(H::Gate),
        2 => any::<bool>().prop_map(H::ReceiversTakeEvents),
        16 => (any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(stale, crash)| H::Reconcile { stale, crash }),
        20 => seconds().prop_map(H::Wait),
        3 => prop_oneof![seconds(), Just(86_400)].prop_map(H::Outage),
        2 => prop_oneof![Just(86_400), Just(-30), Just(-3_600)].prop_map(H::SetClock),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_history_of_requests_faults_restarts_and_clock_jumps_converges_and_loses_no_request(
        history in prop::collection::vec(happening(), 0..60),
        is_at_once: bool,
    ) {
        let mut world = World::new(spec());
        if is_at_once {
            world.provisioning = 0.0;
        }
        let (mut step, mut lost, mut last_rebuild, mut last_reboot) = (0_u32, 0, None, None);
        for event in history {
            // Distinct nonces, whatever the clock does.
            step += 1;
            let nonce = format!("2026-11-21T10:00:00.{step:03}Z");
            match event {
                Happening::Act(action) => {
                    world.edit(|spec| action.request(spec, &nonce));
                    match action {
                        // Creating the server satisfies a request made before that.
                        _ if world.state().is_none() => {}
                        Action::Rebuild => last_rebuild = Some(world.cloud.rebuilds),
                        Action::Reboot => last_reboot = Some(world.cloud.boots + world.cloud.power_cuts),
                        _ => {}
                    }
                }
                Happening::Plan(plan, on_reboot) => world.edit(|spec| (spec.plan, spec.plan_on_reboot) = (plan, on_reboot)),
                Happening::Image(image) => world.edit(|spec| spec.image = image.to_owned()),
                Happening::Power(power) => world.edit(|spec| spec.power_state = power),
                Happening::PowerOffNonce => world.edit(|spec| spec.power_off_requested_at = Some(nonce)),
                Happening::Delete => world.delete(),
                Happening::GuestExit(cause) => world.exit(cause),
                Happening::ServerLost => {
                    lost += world.cloud.servers.len();
                    world.lose_server();
                }
                Happening::Fault(fault) => world.fault(fault),
                Happening::Gate(gate) => world.set_gate(gate),
                Happening::ReceiversTakeEvents(takes) => world.set_settles(takes),
                Happening::Reconcile { stale, crash } => world.reconcile(stale, crash),
                Happening::Wait(seconds) => world.wait(Duration::from_secs(seconds)),
                Happening::Outage(seconds) => world.outage(Duration::from_secs(seconds)),
                // Never back to the very millisecond in which an operation began.
                Happening::SetClock(seconds) => {
                    world.set_clock(SignedDuration::new(seconds, i32::try_from(step).unwrap() * 1_000_000));
                }
            }
            prop_assert!(world.cloud.servers.len() <= 1, "a second server was made");
        }
        // Nobody tells the controller that the provider has recovered: it must have scheduled
        // another look.
        world.fault(Fault::None);
        world.set_gate(Gate::Open);
        world.set_settles(true);
        world.settle();
        prop_assert!(world.cloud.made <= 1 + lost, "a second server was made");
        if world.instance.metadata.deletion_timestamp.is_some() {
            prop_assert!(world.gone && world.cloud.servers.is_empty());
            let told: Vec<_> = world.events.iter().map(|event| event.event_type.as_str()).collect();
            let deleted = told.last() == Some(&"instance.deleted");
            prop_assert!(deleted || told.is_empty() || world.gone_without_account, "{told:?}");
            return Ok(());
        }
        prop_assert!(!world.gone);
        if world.state() == Some(InstanceState::Error) {
            // A server lost against the account holder's wish is made again when they ask for it.
            prop_assert!(lost > 0 && world.cloud.servers.is_empty(), "{:#?}", world.instance);
            world.edit(|spec| Action::Start.request(spec, "2026-11-21T10:00:01Z"));
            world.settle();
            prop_assert_eq!(world.state(), Some(InstanceState::Running));
        }
        let (spec, status) = (world.instance.spec.clone(), world.status());
        let power = if world.cloud.is_on() { PowerState::Running } else { PowerState::Stopped };
        let shut_itself_down = world.cloud.shut_itself_down;
        prop_assert!(power == spec.power_state || shut_itself_down, "{power:?} {:#?}", world.instance);
        prop_assert_eq!(status.power, Some(power));
        prop_assert_eq!(status.image.as_ref(), Some(&spec.image));
        if let Some(server) = world.cloud.server() {
            prop_assert_eq!(Some(server.plan), status.plan);
            prop_assert_eq!(Some(&server.image), status.image.as_ref());
        }
        prop_assert!(status.plan == Some(spec.plan) || spec.plan_on_reboot == Some(spec.plan));
        for (asked, handled) in [
            (&spec.start_requested_at, &status.start_requested_at),
            (&spec.power_off_requested_at, &status.power_off_requested_at),
            (&spec.reboot_requested_at, &status.reboot_requested_at),
            (&spec.rebuild_requested_at, &status.rebuild_requested_at),
        ] {
            prop_assert!(asked.is_none() || asked == handled, "{asked:?} {handled:?}");
        }
        if let Some(before) = last_rebuild {
            prop_assert!(world.cloud.rebuilds > before, "a rebuild was lost");
        }
        if let Some(before) = last_reboot && world.cloud.is_on() {
            prop_assert!(world.cloud.boots + world.cloud.power_cuts > before, "a reboot was lost");
        }
        prop_assert!(status.outbox.is_empty(), "settled events are left");
        prop_assert_eq!(status.observed_generation, world.instance.metadata.generation);
        prop_assert!(conditions::is_true(&status.conditions, READY) || shut_itself_down, "{status:#?}");
    }
}
