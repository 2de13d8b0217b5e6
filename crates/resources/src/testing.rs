//! For the tests of this crate and, with the feature `testing`, of others: objects with all that they must have.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "tests fail by panicking"
)]

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Account, Instance, Webhook};

/// An Account that was created at this second and has not been reconciled yet.
pub fn account(name: &str, namespace: &str, second: i64) -> Account {
    let created = Timestamp::from_second(second).unwrap();
    let metadata =
        json!({ "name": name, "uid": format!("uid-{name}"), "generation": 1, "creationTimestamp": created });
    let spec = json!({ "email": "ada@example.com", "namespace": namespace });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// The Instance `web` in the namespace `demo`, without a status, changed by this merge patch.
pub fn instance(patch: Value) -> Instance {
    let spec = json!({ "plan": "starter", "region": "fr-par-1", "image": "debian-13" });
    object("web", spec, patch)
}

/// The Webhook `orders` in the namespace `demo`, without a status, changed by this merge patch.
pub fn webhook(patch: Value) -> Webhook {
    let url = "https://example.com";
    let spec = json!({ "url": url, "events": ["instance.created"], "secretRef": { "name": "s" } });
    object("orders", spec, patch)
}

/// The status of a webhook that answered 410 at its generation 3.
pub fn disabled() -> Value {
    json!({ "disabled": {
        "at": "2026-11-21T09:00:00Z", "reason": "Gone", "message": "m", "delivery": "d", "eventId": "e",
        "eventType": "instance.created", "attempts": 1, "error": "no", "generation": 3,
    }})
}

fn object<K: DeserializeOwned>(name: &str, spec: Value, patch: Value) -> K {
    let metadata = json!({ "name": name, "namespace": "demo", "uid": "u" });
    let mut object = json!({ "metadata": metadata, "spec": spec });
    merge(&mut object, patch);
    serde_json::from_value(object).unwrap()
}

fn merge(value: &mut Value, patch: Value) {
    match (value, patch) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (field, change) in changes {
                merge(fields.entry(field).or_insert(Value::Null), change);
            }
        }
        (value, patch) => *value = patch,
    }
}
