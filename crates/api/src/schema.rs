//! What the OpenAPI document has besides the schemas of the types: schemas that several of them share, by name.

use serde_json::{Value, json};
use strum::VariantArray as _;
use utoipa::{
    PartialSchema as _,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::delivery::DeliveryStatus;
use resources::{InstanceState, validation};

/// The codes that a detail of an error can have.
const DETAIL_CODES: [&str; 8] = [
    "missing",
    "null",
    "invalid_type",
    "invalid_value",
    "unknown_field",
    "duplicate_field",
    "immutable",
    "invalid_state",
];

/// The shared schemas, by name.
pub fn shared() -> Value {
    // REST never shows `deleting`.
    let states = InstanceState::VARIANTS
        .iter()
        .filter(|state| **state != InstanceState::Deleting);
    let id = |prefix: &str, of: &str, example: &str| {
        json!({
            "type": "string", "pattern": format!("^{prefix}[a-z0-9]{{16}}$"), "description": format!("Identifier of {of}."),
            "examples": [format!("{prefix}{example}")],
        })
    };
    json!({
        "InstanceId": id("i-", "an instance", "4q7hz0c9k2m8x1ta"),
        "NetworkId": id("pn-", "a private network", "hz0c9k2m8x1ta4q7"),
        "BackupId": id("bkp_", "a backup", "9c2m8x1ta4q7hz0k"),
        "WebhookId": id("wh_", "a webhook", "4q7hz0c9k2m8x1ta"),
        "DeliveryId": id("dlv_", "a delivery", "4q7hz0c9k2m8x1ta"),
        "EventId": id("evt_", "an event", "5m2k8x1ta4q7hz0c"),
        "InvoiceId": id("inv_", "an invoice", "1ta4q7hz0c9k2m8x"),
        "KeyId": {
            "type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253,
            "description": "Identifier of an API key.", "examples": ["key-ta4q7hz0c9k2m8x1"],
        },
        "InstanceStatus": {
            "type": "string", "enum": states.collect::<Vec<_>>(), "description": "Status of an instance in its lifecycle.",
            "examples": ["running"],
        },
        "DeliveryStatus": DeliveryStatus::schema(),
        "KeyScope": {
            "type": "string", "enum": ["read", "write"], "description": "`read`: GET requests only. `write`: all requests.",
        },
        "DetailCode": { "type": "string", "enum": DETAIL_CODES, "description": "What is wrong with a field: a code for programs." },
        "SeriesPoints": {
            "type": "array", "description": "Pairs of a time and the value at that time, oldest first. A value is `null` where it is unknown.",
            "items": {
                "type": "array", "minItems": 2, "maxItems": 2, "items": {},
                "prefixItems": [
                    { "type": "string", "format": "date-time", "description": "The time." },
                    { "type": ["number", "null"], "description": "The value." },
                ],
            },
            "examples": [[["2026-11-21T10:00:00Z", 12.5], ["2026-11-21T10:01:00Z", null]]],
        },
    })
}

/// What no Rust type says, by the name of the schema. Code generators pass over these keywords, and validators follow them.
pub fn rules() -> Value {
    json!({
        "CreateInstance": {
            "if": { "required": ["image"] }, "then": { "not": { "required": ["backup"] } }, "else": { "required": ["backup"] },
        },
    })
}

/// Defines functions that refer to shared schemas.
macro_rules! references {
    ($($function:ident: $name:literal),* $(,)?) => {
        $(pub(crate) fn $function() -> RefOr<Schema> {
            Ref::from_schema_name($name).into()
        })*
    };
}

references! {
    instance_id: "InstanceId", network_id: "NetworkId", backup_id: "BackupId", webhook_id: "WebhookId", delivery_id: "DeliveryId", key_id: "KeyId",
    instance_status: "InstanceStatus", delivery_status: "DeliveryStatus", key_scope: "KeyScope", detail_code: "DetailCode",
    series_points: "SeriesPoints",
}

pub(crate) fn tags() -> RefOr<Schema> {
    of(json!({
        "type": "array", "maxItems": validation::MAX_TAGS, "description": "Labels of your choice, for finding instances.",
        "items": { "type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,63}$" }, "examples": [["env:prod"]]
    }))
}

pub(crate) fn nullable_invoice_id() -> RefOr<Schema> {
    of(json!({
        "type": ["string", "null"], "pattern": "^inv_[a-z0-9]{16}$",
        "description": "Identifier; `null` if there is nothing to bill in this month yet.",
    }))
}

/// A schema written as JSON. An invalid one becomes the empty schema; the tests of the document would notice.
fn of(json: Value) -> RefOr<Schema> {
    serde_json::from_value(json).unwrap_or_else(|_| Value::schema())
}
