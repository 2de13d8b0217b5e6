//! The cost of deliveries for the API server, in writes.

use std::time::Instant;

use control_plane::{ControlPlane, Identity, audit::Request};
use resources::{Attempt, Delivery, InstanceState};
use serde_json::json;

use crate::support::{
    Operator, PATIENCE, Tenant, own_plane, receiver_arguments,
    receivers::{Answer, Receiver},
};

const INSTANCES: usize = 10;
const ROUNDS: usize = 5;

/// Whether a busy API server refused a request, or carried out an earlier one that it was late to answer.
fn is_forgiven(request: &Request) -> bool {
    matches!(request.code, 409 | 429 | 500..)
}

/// The operator's writes since the first `skip`.
fn writes(plane: &ControlPlane, skip: usize) -> Vec<Request> {
    let user = Identity::Operator.user();
    let all = plane.requests().unwrap().into_iter().skip(skip);
    all.filter(|request| request.user == user && request.is_write() && !is_forgiven(request))
        .collect()
}

fn count(writes: &[Request], resource: &str) -> usize {
    writes
        .iter()
        .filter(|request| request.resource == resource)
        .count()
}

/// Number of Deliveries of successes that took a second or more. These are recorded after that second.
async fn late(tenant: &Tenant) -> usize {
    let took_long = |delivery: &Delivery| {
        let attempts = delivery.status.iter().flat_map(|status| &status.attempts);
        let age = |attempt: &Attempt| {
            attempt
                .at
                .duration_since(delivery.spec.event_created_at)
                .as_millis()
        };
        let took = attempts.map(|attempt| age(attempt) + i128::from(attempt.duration_ms));
        // The two times are from different clocks, with a precision of a millisecond.
        took.max().is_none_or(|took| took >= 990)
    };
    let all = tenant.deliveries_of("hook").await;
    all.iter().filter(|delivery| took_long(delivery)).count()
}

/// Stops and starts every instance repeatedly, waits until all events are delivered, and returns the writes and the number of
/// events.
async fn churn(plane: &ControlPlane, tenant: &Tenant, receiver: &Receiver) -> (Vec<Request>, usize) {
    let before = plane.requests().unwrap().len();
    let told = receiver.count();
    let mut events = 0;
    for round in 0..ROUNDS {
        for (power, state) in [
            ("Stopped", InstanceState::Stopped),
            ("Running", InstanceState::Running),
        ] {
            for number in 0..INSTANCES {
                let patch = json!({ "spec": { "powerState": power } });
                let name = format!("web-{number}");
                tenant.merge(&name, &patch).await;
            }
            for number in 0..INSTANCES {
                tenant.wait_for_state(&format!("web-{number}"), state).await;
            }
            events += INSTANCES;
        }
        receiver.wait_for(told + (round + 1) * 2 * INSTANCES).await;
    }
    tenant.wait_for_clear_outboxes().await;
    assert_eq!(receiver.count(), told + events, "sent more than once");
    (writes(plane, before), events)
}

#[tokio::test]
async fn a_healthy_webhook_costs_no_writes_with_failures_and_one_a_second_with_all() {
    let plane = own_plane().await;
    let receiver = Receiver::start(|_| Answer::ok()).await;
    let mut arguments = vec!["run".to_owned(), "--provisioning-seconds=0".to_owned()];
    arguments.extend(receiver_arguments(&plane));
    let with_log = |log: &str| {
        let log = format!("--delivery-log={log}");
        arguments.iter().cloned().chain([log]).collect::<Vec<_>>()
    };
    let start = async |log: &str| {
        let arguments = with_log(log);
        Operator::start(&plane, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let mut operator = start("failures").await;
    let tenant = Tenant::on(&plane, &operator, "hooks-writes").await;
    tenant
        .webhook(
            "hook",
            &receiver.url("/hook"),
            &["instance.started", "instance.stopped"],
        )
        .await;
    for number in 0..INSTANCES {
        tenant.apply(&format!("web-{number}"), |_| {}).await;
    }
    receiver.wait_for(INSTANCES).await;
    let before = plane.requests().unwrap().len();
    let begun = Instant::now();
    let (failures, events) = churn(&plane, &tenant, &receiver).await;
    // The longer it takes, the more is written and read again.
    let slack = INSTANCES * usize::try_from(begun.elapsed().as_secs() / 10).unwrap();
    // If the machine stalled, some successes took longer.
    let late = late(&tenant).await;
    assert_eq!(
        tenant.deliveries_of("hook").await.len(),
        late,
        "a success at once is not written down"
    );
    assert!(count(&failures, "deliveries") <= 2 * late);
    assert_eq!(count(&failures, "eventlogs"), 0, "nothing is logged");
    // Each transition takes one write; clearing the outbox takes one more, only for the last event.
    let most = events + INSTANCES * 2 + late + slack;
    let instances = count(&failures, "instances");
    println!(
        "failures: {events} events, {instances} writes of instances, {} of webhooks",
        count(&failures, "webhooks")
    );
    assert!(
        instances <= most,
        "{instances} writes for {events} events; at most {most}"
    );
    assert!(count(&failures, "webhooks") <= 2 + usize::try_from(PATIENCE.as_secs() / 10).unwrap());
    // After an event, the webhooks of the account are looked up unless the watch is ahead; those of the whole cluster
    // never are.
    let user = Identity::Operator.user();
    let requests = plane.requests().unwrap().into_iter().skip(before);
    let lists: Vec<_> = requests
        .filter(|request| request.user == user && request.verb == "list" && request.resource == "webhooks")
        .collect();
    assert!(
        lists.len() <= events + slack,
        "{} lists for {events} events",
        lists.len()
    );
    assert!(
        lists.iter().all(|list| list.namespace == tenant.namespace),
        "{lists:?}"
    );
    operator.stop().await;

    let mut operator = start("all").await;
    let begun = Instant::now();
    let (all, events) = churn(&plane, &tenant, &receiver).await;
    let (deliveries, pages) = (count(&all, "deliveries"), count(&all, "eventlogs"));
    println!("all: {events} events, {deliveries} writes of deliveries, {pages} of event logs");
    assert!(deliveries <= 2 * (self::late(&tenant).await - late), "{all:?}");
    // A page is started no sooner than a second after the previous one.
    let most = usize::try_from(begun.elapsed().as_secs()).unwrap() + 2;
    assert!(pages <= most, "{pages} pages in {:?}", begun.elapsed());
    let logged: u32 = tenant.pages().await.iter().map(|page| page.spec.count).sum();
    assert_eq!(usize::try_from(logged).unwrap(), events, "each event once");
    operator.stop().await;
}
