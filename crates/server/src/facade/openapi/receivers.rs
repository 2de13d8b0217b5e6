//! The document's `webhooks` section: the requests that receivers get (specification, section 6), one operation for each
//! event type.

use serde_json::{Map, Value, json};

use super::schema_reference;
use domain::event::{EventType, catalogue};

/// The schemas of events, by name: one for each type (`InstanceCreatedEvent`), one for each resource in them
/// (`EventInstance`), and `Event`, which is any event.
pub(super) fn schemas() -> Value {
    let mut schemas = Map::new();
    let mut mapping = Map::new();
    for event_type in EventType::ALL {
        let mut event = catalogue::schema(event_type);
        for (key, held) in event["properties"]["data"]["properties"]
            .as_object_mut()
            .into_iter()
            .flatten()
        {
            let name = format!("Event{}", pascal_case(key));
            let schema = std::mem::replace(held, schema_reference(&name));
            schemas.insert(name, schema);
        }
        event["description"] = json!(format!("{}.", summary(event_type)));
        let name = event_name(event_type);
        mapping.insert(
            event_type.as_str().to_owned(),
            json!(format!("#/components/schemas/{name}")),
        );
        schemas.insert(name, event);
    }
    if let Some(instance) = schemas.get_mut("EventInstance") {
        instance["properties"]["plan"] = schema_reference("Plan");
    }
    let each: Vec<Value> = EventType::ALL
        .map(|event_type| schema_reference(&event_name(event_type)))
        .into();
    schemas.insert(
        "Event".to_owned(),
        json!({
            "oneOf": each, "discriminator": { "propertyName": "type", "mapping": mapping },
            "description": "An event of any type, as a receiver gets it. More types may be added.",
            "example": catalogue::example(EventType::InstanceCreated),
        }),
    );
    Value::Object(schemas)
}

/// The name of a type's schema, such as `InstanceCreatedEvent`.
fn event_name(event_type: EventType) -> String {
    let words: String = event_type.as_str().split('.').map(pascal_case).collect();
    format!("{words}Event")
}

fn pascal_case(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    first.to_ascii_uppercase() + rest
}

/// The `webhooks` section.
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
        "operationId": format!("receive{}", event_name(event_type)),
        // Not that of the operations on webhooks: generators make one file of a tag.
        "tags": ["receivers"],
        "summary": summary(event_type),
        "description": "POSTed to every active webhook that subscribes to this type. An event is delivered at least once, with the same id and the same bytes each time. Verify the signature over the raw body, in constant time; deduplicate by the event id; answer first, then process the event.",
        "security": [],
        "parameters": parameters(event_type, &example["id"]),
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": schema_reference(&event_name(event_type)), "example": example } },
        },
        "responses": {
            "2XX": { "description": "Success, if it arrives within 30 seconds (or the time that the operator is configured with). The body is optional; its beginning is kept in the delivery log." },
            "401": { "description": "What a receiver should answer if the signature does not match. Every status but 2xx and 410, redirects included, is a failure: the delivery is retried, by default after 1 m, 5 m, 30 m, 2 h and 6 h. If the last retry fails, the webhook is disabled." },
            "410": { "description": "The receiver wants no more events. This disables the webhook at once." },
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
            "Lower-case hexadecimal HMAC-SHA256 of the raw body, keyed with the characters of the webhook's current secret.",
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
            "Identifier of the event, for Standard Webhooks libraries.",
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
            "`v1,` and the base64 of the HMAC-SHA256 of `<webhook-id>.<webhook-timestamp>.<raw body>`. The HMAC key of a secret `whsec_<base64>` is the decoded base64; that of any other secret is its own bytes. During the overlap after a rotation, the previous secret's signature follows after a space.",
            json!({ "type": "string", "pattern": "^v1,[A-Za-z0-9+/=]+( v1,[A-Za-z0-9+/=]+)*$" }),
            json!("v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4="),
        ),
        {
            "name": "traceparent", "in": "header", "required": false, "schema": text(),
            "description": "W3C Trace Context, where the service traces the request that caused the event. It is not signed.",
            "example": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        },
    ])
}
