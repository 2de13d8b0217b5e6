//! Adds to every operation what follows from its path, method and body: parameters, headers, errors, examples.

use serde_json::{Map, Value, json};

use super::{
    super::{
        backups, deliveries, events, instances, invoices, keys, monitoring, response::error::ErrorCode,
        webhooks,
    },
    DOCUMENT_PATH, examples, receivers, schema_reference,
};

/// The path of the list of events.
const EVENTS_PATH: &str = "/v1/events";

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

/// Completes the generated document.
pub(super) fn complete(document: &mut Value) {
    name_generics(document);
    refer_to_data(document);
    clean_descriptions(document);
    let shared_by_errors = json!({
        "DetailCode": { "type": "string", "enum": DETAIL_CODES, "description": "What is wrong with a field: a code for programs." },
    });
    document["components"]["schemas"]["Detail"]["properties"]["code"] = schema_reference("DetailCode");
    for shared in [
        instances::view::shared_schemas(),
        backups::view::shared_schemas(),
        monitoring::view::shared_schemas(),
        webhooks::view::shared_schemas(),
        deliveries::view::shared_schemas(),
        events::shared_schemas(),
        keys::view::shared_schemas(),
        invoices::view::shared_schemas(),
        receivers::schemas(),
        shared_by_errors,
    ] {
        if let (Some(schemas), Value::Object(shared)) =
            (document["components"]["schemas"].as_object_mut(), shared)
        {
            schemas.extend(shared);
        }
    }
    document["components"]["schemas"]["EventType"]["description"] = json!("Type of an event.");
    // The program's version. The API's version is in its paths (specification, section 9).
    document["info"]["version"] = json!(env!("CARGO_PKG_VERSION"));
    // A relative URL, so that the document is the same for every installation.
    document["servers"] = json!([{ "url": "/", "description": "The server that serves this document." }]);
    if let Some(components) = document["components"].as_object_mut() {
        components.insert("securitySchemes".to_owned(), security_schemes());
        components.insert("parameters".to_owned(), parameters());
        components.insert("headers".to_owned(), headers());
    }
    for request in [
        "CreateInstance",
        "ChangeInstance",
        "RebuildInstance",
        "CreateBackup",
        "CreateWebhook",
        "ChangeWebhook",
        "TestWebhook",
        "RotateSecret",
        "RecoverWebhook",
        "CreateKey",
    ] {
        if let Some(schema) = document.pointer_mut(&format!("/components/schemas/{request}")) {
            // Responses may gain fields; requests with unknown fields are refused.
            schema["additionalProperties"] = json!(false);
        }
    }
    for request in ["ChangeInstance", "ChangeWebhook"] {
        if let Some(change) = document.pointer_mut(&format!("/components/schemas/{request}")) {
            change["minProperties"] = json!(1);
        }
    }
    document["security"] = json!([{ "key": [] }]);
    for (path, operations) in object(&mut document["paths"]) {
        for (method, operation) in object(operations) {
            Operation { path, method }.complete(operation);
        }
    }
    document["webhooks"] = receivers::section();
}

/// Renames `Single_Instance` to `InstanceAnswer`, and `List_Plan` to `PlanList`.
fn name_generics(document: &mut Value) {
    let rename = |name: &str| match name.split_once('_') {
        Some(("Single", of)) => format!("{of}Answer"),
        Some(("List", of)) => format!("{of}List"),
        _ => name.to_owned(),
    };
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        *schemas = std::mem::take(schemas)
            .into_iter()
            .map(|(name, schema)| (rename(&name), schema))
            .collect();
    }
    walk(document, &mut |node| {
        if let Some(Value::String(reference)) = node.get_mut("$ref")
            && let Some(name) = reference.strip_prefix("#/components/schemas/")
        {
            *reference = format!("#/components/schemas/{}", rename(name));
        }
    });
}

/// Makes answers and lists refer to the schema of their data. utoipa copies it into each, and generators would create a type
/// for each copy.
fn refer_to_data(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else {
        return;
    };
    let names: Vec<String> = schemas.keys().cloned().collect();
    let is_schema = |of: &str| names.iter().any(|name| name == of);
    for (name, schema) in schemas {
        if let Some(of) = name.strip_suffix("Answer").filter(|of| is_schema(of)) {
            schema["properties"]["data"] = schema_reference(of);
        } else if let Some(of) = name.strip_suffix("List").filter(|of| is_schema(of)) {
            schema["properties"]["data"]["items"] = schema_reference(of);
        }
    }
}

/// Removes line breaks and references to the specification from descriptions, which come from doc comments.
fn clean_descriptions(document: &mut Value) {
    walk(document, &mut |node| {
        if let Some(Value::String(text)) = node.get_mut("description") {
            let mut cleaned = text.replace('\n', " ");
            for source in [" (specification, section ", " (decisions, section "] {
                if let Some(start) = cleaned.find(source)
                    && let Some(length) = cleaned[start..].find(')')
                {
                    cleaned.replace_range(start..=start + length, "");
                }
            }
            *text = cleaned;
        }
    });
}

fn walk(node: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match node {
        Value::Object(map) => {
            visit(map);
            map.values_mut().for_each(|child| walk(child, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|child| walk(child, visit)),
        _ => {}
    }
}

fn object(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

#[derive(Clone, Copy)]
struct Operation<'a> {
    path: &'a str,
    method: &'a str,
}

impl Operation<'_> {
    fn needs_key(self) -> bool {
        self.path != DOCUMENT_PATH
    }

    fn has_id(self) -> bool {
        self.path.contains("{id}")
    }

    fn is_action(self) -> bool {
        self.method == "post" && self.has_id()
    }

    fn is_list(self) -> bool {
        self.method == "get"
            && !self.path.ends_with('}')
            && self.needs_key()
            && self.path != "/v1/account"
            && !self.is_series()
    }

    /// Whether it shows the usage of an instance over time.
    fn is_series(self) -> bool {
        self.path.ends_with("/metrics")
    }

    /// The word for what its path names.
    fn word(self) -> &'static str {
        if self.path.contains("{delivery_id}") {
            "delivery"
        } else if self.path.starts_with("/v1/webhooks") {
            "webhook"
        } else if self.path.starts_with("/v1/backups") {
            "backup"
        } else if self.path.starts_with("/v1/alerts") {
            "alert"
        } else if self.path.starts_with("/v1/keys") {
            "key"
        } else if self.path.starts_with("/v1/invoices") {
            "invoice"
        } else if self.path == EVENTS_PATH {
            "events"
        } else if self.path.starts_with(EVENTS_PATH) {
            "event"
        } else {
            "instance"
        }
    }

    /// The word for what an error is about.
    fn word_of(self, code: ErrorCode) -> &'static str {
        match code {
            ErrorCode::ResourceLimitExceeded | ErrorCode::InvalidState | ErrorCode::InvalidInput
                if self.creates_backup() =>
            {
                "new backup"
            }
            ErrorCode::InvalidState | ErrorCode::InvalidInput if self.is_series() => "series",
            _ => self.word(),
        }
    }

    /// Whether the body is optional, although it has fields.
    fn has_optional_body(self) -> bool {
        ["/test", "/rotate-secret", "/recover", "/v1/keys", "/backups"]
            .iter()
            .any(|end| self.path.ends_with(end))
    }

    /// Whether it is refused in an unsuitable status.
    fn depends_on_status(self) -> bool {
        match self.word() {
            "instance" => matches!(self.method, "post" | "patch") || self.is_series(),
            "backup" => self.method == "delete",
            _ => self.path.ends_with("/test") || self.path.ends_with("/retry"),
        }
    }

    /// Whether it is an action that may create a Delivery.
    fn creates_delivery(self) -> bool {
        self.path.ends_with("/test") || self.path.ends_with("/redeliver")
    }

    fn creates_backup(self) -> bool {
        self.method == "post" && self.path.ends_with("/backups")
    }

    fn takes_if_match(self) -> bool {
        self.has_id() && self.method != "get"
    }

    /// Whether the answer shows one object, and so has an `ETag`.
    fn shows_one(self) -> bool {
        let is_about_many = self.path.ends_with("/recover") || self.path.ends_with("/retry");
        (self.has_id() || self.method == "post") && !self.is_list() && !self.is_series() && !is_about_many
    }

    fn complete(self, operation: &mut Value) {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        let takes_body = operation.get("requestBody").is_some();
        let has_query = self.is_list() || operation.get("parameters").is_some();
        self.add_parameters(operation);
        if takes_body && self.has_optional_body() {
            operation["requestBody"]["required"] = json!(false);
        }
        if let Some(json) = operation.pointer_mut("/requestBody/content/application~1json")
            && let Some(example) = examples::request(&id)
        {
            json["example"] = example;
        }
        for (status, response) in object(&mut operation["responses"]) {
            response["headers"] = self.success_headers(status);
            if let Some(json) = response.pointer_mut("/content/application~1json")
                && let Some(example) = examples::success(&id)
            {
                json["example"] = example;
            }
        }
        let mut codes = self.errors();
        if takes_body {
            codes.push(ErrorCode::JsonError);
        }
        if takes_body || self.is_action() {
            codes.extend([ErrorCode::PayloadTooLarge, ErrorCode::UnsupportedMediaType]);
        }
        if self.is_action() && !takes_body {
            codes.push(ErrorCode::JsonError);
        }
        if takes_body || has_query || self.is_action() {
            codes.push(ErrorCode::InvalidInput);
        }
        self.add_errors(operation, &codes);
    }

    fn errors(self) -> Vec<ErrorCode> {
        use ErrorCode as E;
        let mut codes = vec![E::ServerError];
        if self.needs_key() {
            codes.extend([E::Unauthorized, E::RateLimitExceeded, E::ServiceUnavailable]);
        }
        if self.method != "get" {
            codes.extend([E::TokenReadonly, E::Forbidden, E::Conflict]);
        }
        if self.has_id() || self.path == EVENTS_PATH {
            codes.push(E::NotFound);
        }
        if self.takes_if_match() {
            codes.push(E::PreconditionFailed);
        }
        match self.method {
            "post" if self.has_id() && !self.creates_delivery() && !self.creates_backup() => {
                codes.push(E::IdempotencyKeyReused);
            }
            "post" => codes.extend([E::ResourceLimitExceeded, E::IdempotencyKeyReused]),
            "delete" if self.word() == "instance" => codes.push(E::Protected),
            _ => {}
        }
        if self.depends_on_status() {
            codes.push(E::InvalidState);
        }
        codes
    }

    fn add_parameters(self, operation: &mut Value) {
        let mut names = Vec::new();
        if self.has_id() {
            names.push(match self.word() {
                "instance" => "InstanceIdParameter",
                "backup" => "BackupIdParameter",
                "key" => "KeyIdParameter",
                "event" => "EventIdParameter",
                "invoice" => "InvoiceIdParameter",
                _ => "WebhookIdParameter",
            });
        }
        if self.word() == "delivery" {
            names.push("DeliveryIdParameter");
        }
        if self.is_list() || self.word() == "invoice" {
            names.extend(["Page", "Limit"]);
        }
        if self.method == "post" {
            names.push("IdempotencyKey");
        }
        if self.takes_if_match() {
            names.push("IfMatch");
        }
        if self.needs_key() {
            names.push("RequestId");
        }
        let mut parameters: Vec<Value> = operation["parameters"].as_array().cloned().unwrap_or_default();
        // Replace the paging parameters with references, because they are the same for all lists.
        parameters.retain(|own| own["name"] != "page" && own["name"] != "limit");
        parameters.extend(
            names
                .into_iter()
                .map(|name| json!({ "$ref": format!("#/components/parameters/{name}") })),
        );
        if let Some(operation) = operation.as_object_mut() {
            operation.remove("parameters");
            if !parameters.is_empty() {
                operation.insert("parameters".to_owned(), Value::Array(parameters));
            }
        }
    }

    fn success_headers(self, status: &str) -> Value {
        let mut names = vec!["X-Request-Id", "Cache-Control"];
        if self.needs_key() {
            names.extend(["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
        }
        if self.shows_one() && status != "204" {
            names.push("ETag");
        }
        if status == "201" {
            names.push("Location");
        }
        if self.method == "post" {
            names.extend(["Idempotency-Replayed", "Idempotency-Retention"]);
        }
        header_references(&names)
    }

    fn add_errors(self, operation: &mut Value, codes: &[ErrorCode]) {
        let responses = &mut operation["responses"];
        for code in ErrorCode::ALL.into_iter().filter(|code| codes.contains(code)) {
            let status = code.status();
            let response = &mut responses[status.as_str()];
            if response.is_null() {
                let mut names = vec!["X-Request-Id", "Cache-Control"];
                if self.needs_key() && code != ErrorCode::Unauthorized {
                    names.extend(["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]);
                }
                match code {
                    ErrorCode::Unauthorized => names.push("WWW-Authenticate"),
                    ErrorCode::RateLimitExceeded | ErrorCode::ServiceUnavailable => names.push("Retry-After"),
                    _ => {}
                }
                *response = json!({
                    "description": status.canonical_reason().unwrap_or_default(),
                    "headers": header_references(&names),
                    "content": { "application/json": {
                        "schema": schema_reference("ErrorAnswer"),
                        "examples": {},
                    } },
                });
            }
            response["content"]["application/json"]["examples"][code.as_str()] =
                json!({ "value": examples::error(code, self.word_of(code)) });
        }
    }
}

fn header_references(names: &[&str]) -> Value {
    let references: Map<String, Value> = names
        .iter()
        .map(|name| {
            let reference = json!({ "$ref": format!("#/components/headers/{name}") });
            ((*name).to_owned(), reference)
        })
        .collect();
    Value::Object(references)
}

fn security_schemes() -> Value {
    json!({ "key": {
        "type": "http", "scheme": "bearer",
        "description": "An API key of the account, with the scope `read` or `write`. `POST /v1/keys` or `stellage key create` creates one.",
    } })
}

/// Their names differ from those of all schemas, because some generators put both into one namespace.
fn parameters() -> Value {
    json!({
        "InstanceIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the instance.",
            "schema": schema_reference("InstanceId"), "example": examples::ID,
        },
        "BackupIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the backup.",
            "schema": schema_reference("BackupId"), "example": examples::BACKUP_ID,
        },
        "WebhookIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the webhook.",
            "schema": schema_reference("WebhookId"), "example": examples::WEBHOOK_ID,
        },
        "KeyIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the API key.",
            "schema": schema_reference("KeyId"), "example": examples::KEY_ID,
        },
        "EventIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the event.",
            "schema": schema_reference("EventId"), "example": examples::EVENT_ID,
        },
        "InvoiceIdParameter": {
            "name": "id", "in": "path", "required": true, "description": "Identifier of the invoice.",
            "schema": schema_reference("InvoiceId"), "example": examples::INVOICE_ID,
        },
        "DeliveryIdParameter": {
            "name": "delivery_id", "in": "path", "required": true, "description": "Identifier of the delivery.",
            "schema": schema_reference("DeliveryId"), "example": examples::DELIVERY_ID,
        },
        "Page": {
            "name": "page", "in": "query", "description": "Number of the page, counted from 1. A page past the end is empty. Only the newest 10,000 matching deliveries or events can be paged through; a page beyond them is answered with 422.",
            "schema": { "type": "integer", "format": "int64", "minimum": 1, "maximum": 9_007_199_254_740_991_u64, "default": 1 },
        },
        "Limit": {
            "name": "limit", "in": "query", "description": "Maximum number of items per page.",
            "schema": { "type": "integer", "minimum": 1, "maximum": 100, "default": 20 },
        },
        "IdempotencyKey": {
            "name": "Idempotency-Key", "in": "header",
            "description": "Requests with the same key and body are carried out once, however often they are sent; the answer to a repetition has the header `Idempotency-Replayed: true`. The same key with another body is refused with 422 `idempotency_key_reused`. For actions, each object remembers the last 16 keys; a create is remembered for as long as its object exists.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
            "example": "5f0c2a3e-9f5b-4f5e-8a57-1f9b4ef0e7b1",
        },
        "IfMatch": {
            "name": "If-Match", "in": "header",
            "description": "ETags of the versions that the request applies to, or `*`. If the current version has another ETag, the request is refused with 412.",
            "schema": { "type": "string" }, "example": examples::ETAG,
        },
        "RequestId": {
            "name": "X-Request-Id", "in": "header",
            "description": "An id of the client's choice for the request. By default the service generates one.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[!-~]+$" },
        },
    })
}

fn headers() -> Value {
    let integer = |description: &str, example: u32| json!({ "description": description, "required": true, "schema": { "type": "integer", "minimum": 0 }, "example": example });
    let text = |description: &str, required: bool, example: &str| json!({ "description": description, "required": required, "schema": { "type": "string" }, "example": example });
    json!({
        "X-Request-Id": text("Identifier of the request; quote it in support requests.", true, examples::REQUEST_ID),
        "Cache-Control": text("`no-store`: the answer belongs to one account, and may contain secrets. Only this document may be cached.", true, "no-store"),
        "RateLimit-Limit": integer("Requests that the key may make per hour.", 3600),
        "RateLimit-Remaining": integer("Requests that the key has left at the moment. The allowance refills evenly over the hour. All keys of the account together have ten times as many: a 429 is possible even if the key has requests left.", 3599),
        "RateLimit-Reset": integer("Seconds until the full allowance is available again.", 1),
        "Retry-After": integer("Seconds to wait before trying again.", 1),
        "ETag": text("Version of the resource. It changes with every change of the settings, not with the status.", true, examples::ETAG),
        "Location": text("Path of the created resource.", true, &format!("/v1/instances/{}", examples::ID)),
        "Idempotency-Replayed": text("`true` if an earlier request with the same `Idempotency-Key` was already carried out.", false, "true"),
        "Idempotency-Retention": text("How long the request's `Idempotency-Key` is remembered: `resource`, as long as the created resource exists, or `actions=16`, until 16 later actions of the same resource have had a key. Sent with every successful answer to a request that has a key.", false, "actions=16"),
        "WWW-Authenticate": text("How to authenticate.", true, "Bearer"),
    })
}
