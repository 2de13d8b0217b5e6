//! The document's `webhooks` section: what is POSTed to receivers (specification, section 6), one operation for each type of
//! events.

use serde_json::{Map, Value, json};

use crate::events::{EventType, catalogue};

/// The section.
pub(super) fn section() -> Value {
    let operations: Map<String, Value> = EventType::ALL
        .into_iter()
        .map(|event_type| {
            (
                event_type.as_str().to_owned(),
                json!({ "post": operation(event_type) }),
            )
        })
        .collect();
    Value::Object(operations)
}

fn summary(event_type: EventType) -> &'static str {
    match event_type {
        EventType::InstanceCreated => "An instance was created",
        EventType::InstanceDeleted => "An instance was deleted",
        EventType::InstanceStarted => "An instance started",
        EventType::InstanceStopped => "An instance stopped",
        EventType::BackupCompleted => "A backup finished",
        EventType::BackupFailed => "A backup failed",
        EventType::AlertTriggered => "An alert fired",
        EventType::InvoiceCreated => "An invoice was generated",
    }
}

fn operation(event_type: EventType) -> Value {
    let example = catalogue::example(event_type);
    json!({
        "operationId": format!("receive {event_type}"),
        "tags": ["webhooks"],
        "summary": summary(event_type),
        "description": "POSTed to every active webhook that wants this type. An event arrives at least once, with the same id and the same bytes each time. Verify the signature over the raw body, in constant time; deduplicate by the event id; answer at once and work afterwards.",
        "security": [],
        "parameters": parameters(event_type, &example["id"]),
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": catalogue::schema(event_type), "example": example } },
        },
        "responses": {
            "2XX": { "description": "Any of these, within 30 seconds unless the operator is set otherwise, is a success. The body is not needed; its beginning is kept for the log." },
            "401": { "description": "What a receiver answers when the signature does not match. A failure like any other status, redirects included: tried again, by default after 1 m, 5 m, 30 m, 2 h and 6 h; when the last retry has failed, the webhook is disabled." },
            "410": { "description": "Nothing shall be sent here any more: disables the webhook at once." },
        },
    })
}

fn parameters(event_type: EventType, event_id: &Value) -> Value {
    let header = |name: &str, description: &str, schema: Value, example: Value| {
        json!({
            "name": name, "in": "header", "required": true, "description": description, "schema": schema, "example": example,
        })
    };
    let text = || json!({ "type": "string" });
    let seconds = || json!({ "type": "integer", "format": "int64", "minimum": 0 });
    json!([
        header(
            "X-Service-Signature",
            "Lower-case hexadecimal HMAC-SHA256 of the raw body, keyed with the characters of the webhook's present secret.",
            json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
            json!("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
        ),
        header(
            "X-Service-Event-ID",
            "Identifier of the event, the same in every attempt.",
            text(),
            event_id.clone(),
        ),
        header(
            "X-Service-Event-Type",
            "Type of the event.",
            json!({ "type": "string", "const": event_type.as_str() }),
            json!(event_type.as_str()),
        ),
        header(
            "X-Service-Timestamp",
            "When the event happened, in seconds since 1970.",
            seconds(),
            json!(1_795_255_351),
        ),
        header(
            "webhook-id",
            "Identifier of the event, for libraries of Standard Webhooks.",
            text(),
            event_id.clone(),
        ),
        header(
            "webhook-timestamp",
            "When this attempt was made, in seconds since 1970.",
            seconds(),
            json!(1_795_255_351),
        ),
        header(
            "webhook-signature",
            "`v1,` and the base64 of the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<raw body>`, keyed with what follows `whsec_`, base64-decoded, or else with the secret's own bytes. While a rotation overlaps, the previous secret's signature follows after a space.",
            json!({ "type": "string", "pattern": "^v1,[A-Za-z0-9+/=]+( v1,[A-Za-z0-9+/=]+)*$" }),
            json!("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
        ),
    ])
}
