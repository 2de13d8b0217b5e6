//! Adds to every operation what follows from its method, from whether it needs a key, and from the ids in its path: errors, headers,
//! parameters. Adds to its bodies the examples that follow from their schemas.

use serde_json::{Map, Value, json};

use super::{
    super::response::error::{ErrorCode as E, status},
    examples, schema_reference,
};

pub(super) fn complete(document: &mut Value) {
    let schemas = document["components"]["schemas"].clone();
    // A body may be left out if an object without fields would do.
    let needs_fields = |schema: &Value| schema["required"].is_array() || schema["minProperties"].is_u64();
    let operations = object(&mut document["paths"]).flat_map(|(_, operations)| object(operations));
    for (method, operation) in operations {
        if let Some(body) = operation.get_mut("requestBody") {
            let name = name_of(&body["content"]["application/json"]["schema"]);
            body["required"] = json!(name.is_some_and(|name| needs_fields(&schemas[name])));
            add_example(body, &schemas);
        }
        for (status, response) in object(&mut operation["responses"]) {
            if status.starts_with('2') {
                add_example(response, &schemas);
            }
        }
        let needs_key = operation.get("security").is_none();
        add_errors(operation, method, needs_key);
        add_headers(operation, method, needs_key);
        add_parameters(operation, method, needs_key);
    }
}

fn object(value: &mut Value) -> impl Iterator<Item = (&String, &mut Value)> {
    value.as_object_mut().into_iter().flatten()
}

pub(super) fn parameters<'a>(
    operation: &'a Value,
    place: &'static str,
) -> impl DoubleEndedIterator<Item = &'a Value> {
    let all = operation["parameters"].as_array().into_iter().flatten();
    all.filter(move |parameter| parameter["in"] == place)
}

/// The name of a schema that is referred to.
fn name_of(reference: &Value) -> Option<&str> {
    reference["$ref"].as_str()?.rsplit('/').next()
}

/// Gives a body an example that has what the operation says of it.
fn add_example(body: &mut Value, schemas: &Value) {
    if let Some(json) = body.pointer_mut("/content/application~1json")
        && name_of(&json["schema"]).is_some()
    {
        json["example"] = sample(&json["schema"], json.get("example"), schemas);
    }
}

/// An example of what a schema describes: what is given of it, and for the rest the examples in the schemas. An optional field is left
/// out unless something of it is given, if only `{}`.
fn sample(schema: &Value, given: Option<&Value>, schemas: &Value) -> Value {
    if let Some(name) = name_of(schema) {
        return sample(&schemas[name], given, schemas);
    }
    let own = schema.get("example").or_else(|| schema["examples"].get(0));
    if let (None, Some(own)) = (given, own) {
        return own.clone();
    }
    if given.is_none_or(Value::is_object)
        && let Some(properties) = schema["properties"].as_object()
    {
        let of = |name: &str| given.and_then(|given| given.get(name));
        let required = schema["required"].as_array();
        let is_required = |name: &str| required.is_some_and(|all| all.iter().any(|one| one == name));
        let shown = properties
            .iter()
            .filter(|(name, _)| is_required(name) || of(name).is_some());
        let fields = shown.map(|(name, field)| (name.clone(), sample(field, of(name), schemas)));
        return Value::Object(fields.collect());
    }
    match (given, schema.get("items")) {
        (None, Some(items)) => json!([sample(items, None, schemas)]),
        (Some(Value::Array(all)), Some(items)) => {
            all.iter().map(|one| sample(items, Some(one), schemas)).collect()
        }
        (Some(given), _) => given.clone(),
        (None, None) => {
            let values = schema.get("enum").or_else(|| schema.get("x-extensible-enum"));
            let first = values.and_then(|values| values.get(0)).cloned();
            // What has no example is `false` or `null` in most answers.
            let unset = (schema["type"] == "boolean").then_some(false);
            first.unwrap_or_else(|| json!(unset))
        }
    }
}

/// What the path of an operation names, such as `instance`.
fn kind(operation: &Value) -> Option<String> {
    let id = name_of(&parameters(operation, "path").next_back()?["schema"])?;
    Some(id.trim_end_matches("Id").to_lowercase())
}

fn add_errors(operation: &mut Value, method: &str, needs_key: bool) {
    let kind = kind(operation);
    let has_query = parameters(operation, "query").next().is_some();
    let (writes, has_id) = (method != "get", kind.is_some());
    let takes_body = method == "post" || method == "patch";
    let responses = &mut operation["responses"];
    let own = object(responses).filter(|(status, _)| !status.starts_with('2'));
    let mut errors: Vec<(String, Value)> = own
        .filter_map(|(status, response)| {
            let content = response["content"]["application/json"].as_object_mut()?;
            Some((status.clone(), content.remove("example")?))
        })
        .collect();
    for (code, applies) in [
        (E::JsonError, takes_body),
        (E::Unauthorized, needs_key),
        (E::Forbidden, writes),
        (E::TokenReadonly, writes),
        (E::AccountSuspended, writes),
        (E::NotFound, has_id),
        (E::Conflict, writes),
        (E::PreconditionFailed, writes && has_id),
        (E::PayloadTooLarge, takes_body),
        (E::UnsupportedMediaType, takes_body),
        (E::InvalidInput, true),
        (E::IdempotencyKeyReused, method == "post"),
        (E::RateLimitExceeded, needs_key),
        (E::ServerError, true),
        (E::ServiceUnavailable, needs_key),
    ] {
        if applies {
            let example =
                examples::general_error(code, kind.as_deref().unwrap_or_default(), takes_body, has_query);
            let status = status(code);
            errors.push((status.as_str().to_owned(), examples::error(example)));
            let reason = status.canonical_reason().unwrap_or_default();
            let response = &mut responses[status.as_str()];
            response["description"] = json!(reason);
            response["content"]["application/json"]["schema"] = schema_reference("ErrorAnswer");
        }
    }
    for (status, example) in errors {
        let code = example["error"]["code"].as_str().unwrap_or_default().to_owned();
        let examples = &mut responses[status]["content"]["application/json"]["examples"];
        // The first is the operation's own.
        if examples.get(&code).is_none() {
            examples[code] = json!({ "value": example });
        }
    }
}

/// Refers to the shared headers. An operation names those that it has besides.
fn add_headers(operation: &mut Value, method: &str, needs_key: bool) {
    for (status, response) in object(&mut operation["responses"]) {
        let own = response["headers"].as_object().cloned().unwrap_or_default();
        let is_limited = needs_key && status != "401";
        // Without a version it is no resource, and nothing is remembered.
        let makes_resource = status == "201" && own.contains_key("ETag");
        let is_repeatable =
            method == "post" && status.starts_with('2') && (status != "201" || makes_resource);
        let shared = [
            ("X-Request-Id", true),
            ("Cache-Control", true),
            ("RateLimit-Limit", is_limited),
            ("RateLimit-Remaining", is_limited),
            ("RateLimit-Reset", is_limited),
            ("Retry-After", status == "429" || status == "503"),
            ("WWW-Authenticate", status == "401"),
            ("Location", makes_resource),
            ("Idempotency-Replayed", is_repeatable),
            ("Idempotency-Retention", is_repeatable),
        ];
        let shared = shared.into_iter().filter(|(_, applies)| *applies);
        let names = shared
            .map(|(name, _)| name.to_owned())
            .chain(own.into_iter().map(|(name, _)| name));
        let references = names.map(|name| {
            let reference = json!({ "$ref": format!("#/components/headers/{name}") });
            (name, reference)
        });
        response["headers"] = Value::Object(references.collect::<Map<_, _>>());
    }
}

fn add_parameters(operation: &mut Value, method: &str, needs_key: bool) {
    let takes_version = method != "get" && parameters(operation, "path").next().is_some();
    for (name, applies) in [
        ("IdempotencyKey", method == "post"),
        ("IfMatch", takes_version),
        ("RequestId", needs_key),
    ] {
        if applies {
            let reference = json!({ "$ref": format!("#/components/parameters/{name}") });
            match &mut operation["parameters"] {
                Value::Array(all) => all.push(reference),
                none => *none = json!([reference]),
            }
        }
    }
}
