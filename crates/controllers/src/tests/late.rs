//! A provider that takes its time to answer.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    api_server::ApiServer,
    operator::{Operator, Surroundings},
};
use domain::provider::Timings;
use runtime::{Clock as _, shared_catalogue::SharedCatalogue};

/// State and operation in each status version that is written until an instance runs.
async fn written(waits_for_write: bool) -> Vec<(Value, Value)> {
    let start: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let server = ApiServer::new(1, start);
    server.create_account("ada");
    server.create_instance("ada", "web");
    server.take_writes();
    let around = Surroundings {
        waits_for_write,
        ..Surroundings::new(server, start, Timings::for_provisioning(0.0))
    };
    let mut operator = Operator::start(&around, SharedCatalogue::new(crate::tests::with_seller()), 1);
    let (mut seen, mut told) = (Vec::new(), Vec::new());
    while seen.last().is_none_or(|(state, _)| *state != "running") {
        let next = operator.next().unwrap();
        if next > around.clock.now() {
            around.set_time(next);
            operator.set_time(next);
        }
        operator.step().await;
        let writes: Vec<_> = around.server.take_writes().into();
        operator.saw(&writes);
        for instance in writes.iter().filter(|write| write.plural == "instances") {
            let status = &instance.after.as_ref().unwrap()["status"];
            for entry in status["outbox"].as_array().into_iter().flatten() {
                if !told.contains(&entry["type"]) {
                    told.push(entry["type"].clone());
                }
            }
            seen.push((status["state"].clone(), status["operation"]["kind"].clone()));
        }
    }
    assert_eq!(told, ["instance.created", "instance.started"]);
    seen
}

/// Decisions, section 4: whatever the provider does immediately takes one write.
#[tokio::test]
async fn what_is_done_at_once_is_written_once_and_what_takes_longer_when_it_begins_too() {
    let running = || (json!("running"), Value::Null);
    assert_eq!(written(false).await, [running()]);
    let begun = (json!("provisioning"), json!("Create"));
    assert_eq!(written(true).await, [begun, running()]);
}
