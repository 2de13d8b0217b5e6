//! What a region of the catalogue does not offer, and instances whose region is missing.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    api_server::ApiServer,
    operator::{Operator, Surroundings},
};
use domain::{catalogue::testing::catalogue, provider::Timings};
use resources::{
    Instance,
    conditions::{self, READY},
};
use runtime::shared_catalogue::SharedCatalogue;

/// Reason and message of the condition Ready of an instance, once it has been reconciled.
async fn ready(spec: Value, status: Value) -> (String, String) {
    let start: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    let server = ApiServer::new(1, start);
    server.create_account("ada");
    server.create_instance("ada", "web");
    server.edit("instances", "ada", "web", |instance| {
        for (field, value) in spec.as_object().unwrap() {
            instance["spec"][field] = value.clone();
        }
        if !status.is_null() {
            instance["status"] = status.clone();
        }
    });
    let around = Surroundings::new(server, start, Timings::for_provisioning(0.0));
    let mut operator = Operator::start(&around, SharedCatalogue::new(catalogue()), 1);
    for _ in 0..100 {
        let next = operator.next().unwrap();
        around.set_time(next.max(start));
        operator.set_time(next.max(start));
        operator.step().await;
        let writes: Vec<_> = around.server.take_writes().into();
        operator.saw(&writes);
        let instance: Instance = around.server.get("instances", "ada", "web").unwrap();
        let conditions = instance.status.unwrap_or_default().conditions;
        if let Some(ready) = conditions::find(&conditions, READY) {
            return (ready.reason.clone(), ready.message.clone());
        }
    }
    panic!("it was not reconciled");
}

#[tokio::test]
async fn what_a_region_does_not_offer_is_refused_with_kubectl_before_anything_is_made() {
    for (spec, message) in [
        (
            json!({ "region": "xx-abc-1" }),
            "spec.region xx-abc-1 is not available; choose one of fr-par-1, nl-ams-1, de-fra-1",
        ),
        (
            json!({ "region": "de-fra-1", "image": "beos-5" }),
            "spec.image beos-5 is not available in region de-fra-1; choose one of debian-13",
        ),
        (
            json!({ "region": "de-fra-1", "backupEnabled": true }),
            "spec.backupEnabled: backups are not available in region de-fra-1; set it to false",
        ),
        (
            json!({ "region": "de-fra-1", "privateNetwork": "pn-a" }),
            "spec.privateNetwork: private networks are not available in region de-fra-1; it is immutable, so delete this instance and create another",
        ),
    ] {
        let refused = ready(spec, Value::Null).await;
        assert_eq!(refused, ("InvalidSpec".to_owned(), message.to_owned()));
    }
    let without_network = json!({ "region": "fr-par-1", "privateNetwork": "pn-a" });
    let (reason, message) = ready(without_network, Value::Null).await;
    assert_eq!(reason, "PrivateNetworkUnavailable", "{message}");
    let simulated = json!({ "region": "fr-par-1", "image": "beos-5", "backupEnabled": true });
    let (reason, message) = ready(simulated, Value::Null).await;
    assert_eq!(reason, "Running", "{message}");
}

#[tokio::test]
async fn an_instance_whose_region_is_missing_or_has_become_another_is_left_as_it_is() {
    let status = |provider_state: Value| {
        json!({
            "state": "running", "power": "Running", "powerState": "Running", "plan": "starter", "image": "debian-13",
            "provisionedAt": "2026-12-01T00:00:00Z", "providerState": provider_state,
        })
    };
    let real = || json!({ "provider": "kubevirt" });
    for (region, state) in [
        ("xx-gone-1", json!({})),
        ("xx-gone-1", real()),
        ("fr-par-1", real()),
    ] {
        let (reason, message) = ready(json!({ "region": region }), status(state)).await;
        assert_eq!(reason, "RegionNotAvailable");
        let expected = format!("region {region} is not available at the moment; the server is left as it is");
        assert_eq!(message, expected);
    }
    let (reason, _) = ready(json!({}), status(json!({}))).await;
    assert_eq!(reason, "Running");
}
