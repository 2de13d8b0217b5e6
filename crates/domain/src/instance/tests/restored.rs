//! Instances that were saved without their status and written back.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::world::spec;
use crate::{
    event::payload::User,
    instance::{Audience, Decision, Gate, Question, Seen, decide, question},
    provider::{Addresses, Observation, Power, Progress, ProviderError, Timings},
};
use resources::{
    Instance, InstanceState, OperationKind, PowerState,
    origin::{self, ORIGIN_ANNOTATION},
};

const FIRST: &str = "2026-11-20T10:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// An instance of the day before, written back at 10:00.
fn restored() -> Instance {
    let mut instance = Instance::new("web", spec());
    instance.metadata.uid = Some("new".to_owned());
    instance.metadata.generation = Some(1);
    instance.metadata.creation_timestamp = Some(Time(time("2026-11-21T10:00:00Z")));
    let annotation = (ORIGIN_ANNOTATION.to_owned(), origin::annotation("first", FIRST));
    instance.metadata.annotations = Some([annotation].into());
    instance
}

fn seen(power: Option<Power>, progress: Progress) -> Observation {
    Observation {
        power,
        progress,
        addresses: Addresses {
            ipv4: Some("198.18.0.1".to_owned()),
            ..Addresses::default()
        },
        ..Observation::default()
    }
}

fn decided(instance: &Instance, seen: Seen<'_>) -> Decision {
    let user = User {
        id: "usr_1".to_owned(),
        email: "ada@example.com".to_owned(),
    };
    let audience = Audience {
        user: Some(&user),
        is_settled: &|_| false,
        may_wait: false,
        is_backed_up_now: false,
        findings: None,
        is_billed: true,
    };
    let now = time("2026-11-21T10:00:05Z");
    decide(
        instance,
        &Gate::Open,
        seen,
        audience,
        now,
        &Timings::default().deadlines(),
    )
}

#[test]
fn the_provider_is_asked_for_the_server_first() {
    let mut instance = restored();
    let ask = |instance: &Instance| question(instance, &Gate::Open, time("2026-11-21T10:00:05Z"));
    assert_eq!(ask(&instance), Question::Step);
    instance.metadata.annotations = None;
    assert_eq!(ask(&instance), Question::Addresses);
}

#[test]
fn the_server_that_there_is_is_taken_up_without_telling_anything_again() {
    let mut instance = restored();
    let observation = seen(Some(Power::On), Progress::Idle);
    let status = decided(&instance, Seen::Observed(&observation)).status;
    assert_eq!(
        (status.state, status.power, status.operation.clone()),
        (Some(InstanceState::Running), Some(PowerState::Running), None)
    );
    assert_eq!(status.provisioned_at, Some(time(FIRST)));
    assert_eq!(status.ip_address.as_deref(), Some("198.18.0.1"));
    assert_eq!(status.outbox, []);
    // The next event has an id that no earlier one had.
    instance.status = Some(status);
    let off = seen(
        Some(Power::Off(crate::provider::OffCause::GuestShutdown)),
        Progress::Idle,
    );
    let status = decided(&instance, Seen::Observed(&off)).status;
    let sequences: Vec<i64> = status.outbox.iter().map(|entry| entry.sequence).collect();
    assert_eq!(sequences, [time("2026-11-21T10:00:00Z").as_second() + 1]);
}

#[test]
fn a_server_that_there_is_not_is_created_and_only_its_start_is_told() {
    let mut instance = restored();
    let observation = seen(None, Progress::Idle);
    let status = decided(&instance, Seen::Observed(&observation)).status;
    let operation = status.operation.as_ref().map(|operation| operation.kind);
    assert_eq!(operation, Some(OperationKind::Create));
    assert_eq!(status.outbox, []);
    instance.status = Some(status);
    let done = seen(Some(Power::On), Progress::Done);
    let status = decided(&instance, Seen::Observed(&done)).status;
    let types: Vec<&str> = status
        .outbox
        .iter()
        .map(|entry| entry.event_type.as_str())
        .collect();
    assert_eq!(types, ["instance.started"]);
}

#[test]
fn nothing_is_begun_until_the_provider_has_answered() {
    let failure = ProviderError::Timeout(Duration::from_secs(10));
    let decision = decided(&restored(), Seen::Failed(&failure));
    assert_eq!((decision.status.state, decision.status.operation), (None, None));
    assert!(decision.retry);
}
