//! An example and a JSON Schema of every event type (specification, sections 2.5, 6.1 and 6.2; decisions, section 7).
//! `examples/events/` has the examples as files, and the OpenAPI document has the schemas.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    EventType,
    payload::{
        self, AlertObject, AmountObject, BackupObject, ErrorObject, InstanceObject, InvoiceObject,
        MetricObject, PeriodObject, User,
    },
};
use resources::{DeliverySpec, InstanceState, Plan};

/// Event time of the examples.
const EXAMPLE_TIME: &str = "2026-11-21T10:02:31.250Z";
/// Event id of the examples.
const EXAMPLE_ID: &str = "evt_5m2k8x1ta4q7hz0c";

/// The possible keys of `data`, in the order in which they are serialised.
#[derive(Default, Serialize)]
struct Data {
    #[serde(skip_serializing_if = "Option::is_none")]
    backup: Option<BackupObject<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alert: Option<AlertObject<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<InstanceObject<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric: Option<MetricObject>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invoice: Option<InvoiceObject<'static>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    amount: Option<AmountObject>,
}

/// The keys of `data` (specification, section 6.1).
pub const fn data_keys(event_type: EventType) -> &'static [&'static str] {
    match event_type {
        EventType::InstanceCreated | EventType::InstanceDeleted => &["instance", "user"],
        EventType::InstanceStarted | EventType::InstanceStopped => &["instance"],
        EventType::BackupCompleted => &["backup", "instance"],
        EventType::BackupFailed => &["backup", "instance", "error"],
        EventType::AlertTriggered => &["alert", "instance", "metric"],
        EventType::InvoiceCreated => &["invoice", "amount"],
    }
}

fn data(event_type: EventType) -> Data {
    let has = |key: &str| data_keys(event_type).contains(&key);
    let failed = event_type == EventType::BackupFailed;
    Data {
        backup: has("backup").then_some(BackupObject {
            id: "bkp_9c2m8x1ta4q7hz0k".to_owned(),
            instance_id: "i-4q7hz0c9k2m8x1ta",
            instance_name: "web-1",
            instance_deleted: false,
            name: "before-upgrade",
            status: if failed { "failed" } else { "completed" },
            scheduled: false,
            size_gb: (!failed).then_some(12.4),
            disk_size: 40,
            image: "debian-13",
            created_at: "2026-11-21T10:00:00Z".to_owned(),
            completed_at: "2026-11-21T10:02:31Z".to_owned(),
        }),
        alert: has("alert").then_some(AlertObject {
            id: "alr_2m8x1ta4q7hz0c9k",
            rule: "cpu_usage_high",
            threshold: 90.0,
            since: "2026-11-21T09:57:31Z".to_owned(),
        }),
        instance: has("instance").then(|| InstanceObject {
            id: "i-4q7hz0c9k2m8x1ta".to_owned(),
            name: "web-1",
            status: match event_type {
                EventType::InstanceCreated => InstanceState::Provisioning,
                EventType::InstanceStopped => InstanceState::Stopped,
                EventType::InstanceDeleted => InstanceState::Deleting,
                _ => InstanceState::Running,
            },
            plan: Plan::Starter,
            region: "fr-par-1",
            ip_address: Some("198.18.0.7"),
        }),
        user: has("user").then(|| User {
            id: "usr_8x1ta4q7hz0c9k2m".to_owned(),
            email: "ada@example.com".to_owned(),
        }),
        error: has("error").then_some(ErrorObject {
            code: "storage_unavailable",
            message: "the backup storage did not answer",
        }),
        metric: has("metric").then_some(MetricObject {
            name: "cpu_usage",
            value: 96.4,
            unit: MetricObject::UNIT,
        }),
        invoice: has("invoice").then_some(InvoiceObject {
            id: "inv_1ta4q7hz0c9k2m8x",
            number: "2026-000042",
            invoice_type: "invoice",
            status: "issued",
            period: PeriodObject {
                from: "2026-11-01T00:00:00Z".to_owned(),
                to: "2026-12-01T00:00:00Z".to_owned(),
            },
            issued_at: "2026-12-01T00:00:05Z".to_owned(),
            due_date: "2026-12-15",
            lines_count: 3,
        }),
        amount: has("amount").then_some(AmountObject {
            value: "15.00".to_owned(),
            currency: "EUR".to_owned(),
        }),
    }
}

/// The body of an example with this event id and time, as sent by a webhook test.
pub fn example_body(event_type: EventType, id: &str, created_at: Timestamp) -> String {
    payload::body(id, event_type, created_at, data(event_type))
}

/// The body to send for a Delivery. A test event has none of its own: what is signed is always the controller's text.
pub fn body_of(spec: &DeliverySpec) -> Cow<'_, str> {
    if spec.test && spec.body.is_empty() {
        example_body(spec.event_type, &spec.event_id, spec.event_created_at).into()
    } else {
        spec.body.as_str().into()
    }
}

/// The example of a type, as in `examples/events/<type>.json`.
pub fn example(event_type: EventType) -> Value {
    let time = EXAMPLE_TIME.parse().unwrap_or(Timestamp::UNIX_EPOCH);
    serde_json::from_str(&example_body(event_type, EXAMPLE_ID, time)).unwrap_or_default()
}

/// The JSON Schema (draft 2020-12) of a type's bodies. Objects may gain fields; receivers ignore unknown ones.
pub fn schema(event_type: EventType) -> Value {
    let keys = data_keys(event_type);
    let properties: Map<String, Value> = keys
        .iter()
        .map(|key| ((*key).to_owned(), object_schema(key)))
        .collect();
    json!({
        "type": "object",
        "required": ["id", "type", "created_at", "data"],
        "properties": {
            "id": {
                "type": "string", "pattern": "^evt_[a-z0-9_]+$",
                "description": "Identifier of the event, the same in every attempt. Use it to deduplicate.",
            },
            "type": { "type": "string", "const": event_type.as_str(), "description": "Type of the event." },
            "created_at": time("When the event happened."),
            "data": { "type": "object", "required": keys, "properties": properties, "description": "The objects that the event is about." },
        },
    })
}

fn time(description: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": description })
}

fn id(prefix: &str, of: &str) -> Value {
    json!({ "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": format!("Identifier of the {of}.") })
}

/// The schema of the value of a key of `data`.
fn object_schema(key: &str) -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let number = |description: &str| json!({ "type": "number", "description": description });
    let properties = match key {
        "instance" => json!({
            "id": id("i-", "instance"),
            "name": text("Display name."),
            "status": { "type": "string", "enum": InstanceState::ALL.map(InstanceState::as_str), "description": "Its status at the time of the event." },
            "plan": { "type": "string", "enum": ["starter", "business", "performance", "enterprise"], "description": "The plan in effect." },
            "region": text("Region code."),
            "ip_address": { "type": ["string", "null"], "format": "ipv4", "description": "IPv4 address; `null` until it is known." },
        }),
        "user" => json!({
            "id": id("usr_", "account holder"),
            "email": { "type": "string", "format": "email", "description": "E-mail address." },
        }),
        "backup" => json!({
            "id": id("bkp_", "backup"),
            "instance_id": id("i-", "instance"),
            "instance_name": text("Display name of the instance when the backup began."),
            "instance_deleted": { "type": "boolean", "description": "Whether the instance has been deleted." },
            "name": text("Display name of the backup."),
            "status": { "type": "string", "enum": ["completed", "failed"], "description": "Outcome of the backup." },
            "scheduled": { "type": "boolean", "description": "Whether the daily schedule made it." },
            "size_gb": { "type": ["number", "null"], "minimum": 0, "description": "Size in GB; `null` if the backup failed." },
            "disk_size": { "type": "integer", "description": "Size of the instance's disk in GB." },
            "image": text("Image of the instance."),
            "created_at": time("When the backup was requested."),
            "completed_at": time("When it was completed, or failed."),
        }),
        "error" => {
            json!({ "code": text("Why the backup failed, for programs: `instance_deleted`, `instance_not_ready`, `backup_deleted`, `resource_limit_exceeded`, `timeout`, or a code of the provider."), "message": text("Why the backup failed, for people.") })
        }
        "alert" => json!({
            "id": id("alr_", "alert"),
            "rule": text("The rule that fired."),
            "threshold": number("Threshold that the metric has crossed."),
            "since": time("When the metric first crossed the threshold."),
        }),
        "metric" => json!({
            "name": { "type": "string", "enum": ["cpu_usage", "memory_usage", "disk_usage"], "description": "Name of the metric." },
            "value": number("Value when the alert fired."),
            "unit": { "type": "string", "const": MetricObject::UNIT, "description": "Unit of value and threshold." },
        }),
        "invoice" => json!({
            "id": id("inv_", "invoice"),
            "number": { "type": "string", "pattern": "^([A-Za-z0-9][A-Za-z0-9-]*)?[0-9]{4}-[0-9]{6,}$", "description": "Its number, without gaps within the year." },
            "type": { "type": "string", "enum": ["invoice", "credit_note"], "description": "Whether it bills something or takes back some of that; the amount is positive in both." },
            "status": { "type": "string", "const": "issued", "description": "Always `issued`: the invoice is final." },
            "period": {
                "type": "object", "required": ["from", "to"], "description": "The time that it covers, half-open.",
                "properties": { "from": time("The first moment."), "to": time("The first moment after it.") },
            },
            "issued_at": time("When the invoice was issued."),
            "due_date": { "type": "string", "format": "date", "description": "The day on which it is due." },
            "lines_count": { "type": "integer", "minimum": 0, "description": "Number of its lines; a credit note has none." },
        }),
        _ => json!({
            "value": { "type": "string", "pattern": r"^[0-9]+\.[0-9]{2}$", "description": "Decimal number with two places." },
            "currency": { "type": "string", "pattern": "^[A-Z]{3}$", "description": "ISO 4217 code." },
        }),
    };
    let required: Vec<&String> = properties.as_object().into_iter().flat_map(Map::keys).collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use resources::{Instance, InstanceStatus};

    fn check(event_type: EventType, body: &Value) {
        let schema = schema(event_type);
        let validator = jsonschema::draft202012::options()
            .should_validate_formats(true)
            .build(&schema)
            .unwrap();
        let errors: Vec<_> = validator
            .iter_errors(body)
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{event_type}: {errors:#?}");
        let keys: Vec<&String> = body["data"].as_object().unwrap().keys().collect();
        let mut expected = data_keys(event_type).to_vec();
        expected.sort_unstable();
        assert_eq!(keys, expected, "{event_type}");
    }

    #[test]
    fn every_example_follows_its_schema() {
        for event_type in EventType::ALL {
            check(event_type, &example(event_type));
        }
    }

    #[test]
    fn a_schema_refuses_what_is_wrong() {
        for (pointer, value) in [
            ("/type", json!("instance.stopped")),
            ("/id", json!("i-1")),
            ("/created_at", json!("yesterday")),
            ("/data/instance/ip_address", json!("here")),
            ("/data/user", json!({})),
        ] {
            let mut body = example(EventType::InstanceCreated);
            *body.pointer_mut(pointer).unwrap() = value;
            let schema = schema(EventType::InstanceCreated);
            let validator = jsonschema::draft202012::options()
                .should_validate_formats(true)
                .build(&schema)
                .unwrap();
            assert!(!validator.is_valid(&body), "{pointer}");
        }
    }

    #[test]
    fn the_bodies_that_are_sent_follow_their_schemas() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        let user = User {
            id: resources::ids::account_id("u"),
            email: "ada@example.com".into(),
        };
        let now: Timestamp = "2026-11-21T10:00:00.123456Z".parse().unwrap();
        for status in [
            json!({ "state": "provisioning", "plan": "starter" }),
            json!({ "state": "running", "plan": "enterprise", "ipAddress": "198.18.0.7" }),
            json!({ "state": "deleting", "plan": "starter", "ipAddress": "198.18.0.7" }),
        ] {
            let status: InstanceStatus = serde_json::from_value(status).unwrap();
            for event_type in EventType::ALL.into_iter().take(4) {
                let entry = payload::instance_event(&instance, &status, event_type, &user, 7, now);
                check(event_type, &serde_json::from_str(&entry.body).unwrap());
            }
        }
    }

    #[test]
    fn the_files_are_these_examples() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/events");
        let mut expected = Vec::new();
        for event_type in EventType::ALL {
            let name = format!("{event_type}.json");
            let text = std::fs::read_to_string(folder.join(&name)).unwrap_or_default();
            let body: Value = serde_json::from_str(&text).unwrap_or_default();
            let wanted = example(event_type);
            assert_eq!(body, wanted, "{name} should be:\n{wanted:#}");
            expected.push(name);
        }
        let mut found: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
}
