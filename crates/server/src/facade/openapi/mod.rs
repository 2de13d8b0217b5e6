//! The routes, and the OpenAPI 3.1 document that is generated from them, so that the two cannot diverge.
//!
//! Each handler describes its path, parameters, body, success, and the errors that others do not have, with the errors in `examples`.
//! `operations` adds what follows from an operation's method, key, ids and schemas, and refers to the parameters and headers in `components`.
//! `schemas` tidies the schemas, and `receivers` describes what is sent to webhooks.

mod components;
pub(super) mod examples;
mod operations;
mod receivers;
mod schemas;

use std::sync::{Arc, LazyLock};

use axum::{Router, extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header::CACHE_CONTROL};
use serde_json::{Value, json};
use utoipa::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    App, account, backups, catalogue, deliveries, events,
    extract::query::Known,
    instances::{self, actions, console},
    invoices, keys, monitoring, networks, response,
    webhooks::{self, actions as webhook_actions},
};

use crate::public_url::PublicUrl;

/// `Cache-Control` of the document, which is the same for everybody.
const DOCUMENT_MAY_BE_CACHED: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// A served path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// The path, with placeholders.
    pub path: String,
    /// The methods that it supports, and the query parameters of each.
    pub methods: Vec<(Method, Vec<Known>)>,
    /// Whether they need an API key.
    pub needs_key: bool,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Stellage",
        description = "Cloud instances: create, read, change, operate and delete virtual servers, and receive events about them through webhooks.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    tags(
        (name = "instances", description = "Virtual servers."),
        (name = "actions", description = "Operations on a virtual server. Requests that repeat an `Idempotency-Key` are carried out once."),
        (name = "networks", description = "Private networks, which servers of the account share with nobody else."),
        (name = "backups", description = "Backups of virtual servers. `POST /v1/instances/{id}/rebuild` and `POST /v1/instances` restore them."),
        (name = "monitoring", description = "The usage of monitored servers over time, and the alerts that follow from it."),
        (name = "webhooks", description = "Receivers of the account's events."),
        (name = "receivers", description = "The requests that receivers get: the section `webhooks`."),
        (name = "deliveries", description = "Events sent to a webhook, waiting to be sent, or held."),
        (name = "events", description = "What has happened to the account's resources in the last 24 hours."),
        (name = "invoices", description = "What the account is billed. The prices are in `GET /v1/plans`."),
        (name = "account", description = "The account itself, and its API keys."),
        (name = "catalogue", description = "Plans, regions and images that can be ordered."),
        (name = "document", description = "This document."),
    ),
    security(("bearer" = [])),
    components(schemas(api::ErrorAnswer, api::Pagination)),
)]
struct Described;

fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(instances::list, instances::create))
        .routes(routes!(instances::detail, instances::change, instances::delete))
        .routes(routes!(actions::start))
        .routes(routes!(actions::stop))
        .routes(routes!(actions::poweroff))
        .routes(routes!(actions::reboot))
        .routes(routes!(actions::rebuild))
        .routes(routes!(console::open))
        .routes(routes!(networks::list, networks::create))
        .routes(routes!(networks::detail, networks::change, networks::delete))
        .routes(routes!(backups::list_of_instance, backups::create))
        .routes(routes!(backups::list))
        .routes(routes!(backups::detail, backups::delete))
        .routes(routes!(monitoring::series))
        .routes(routes!(monitoring::list))
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(webhooks::detail, webhooks::change, webhooks::delete))
        .routes(routes!(webhook_actions::test))
        .routes(routes!(webhook_actions::rotate_secret))
        .routes(routes!(webhook_actions::recover))
        .routes(routes!(deliveries::list))
        .routes(routes!(deliveries::detail))
        .routes(routes!(deliveries::redeliver))
        .routes(routes!(deliveries::retry))
        .routes(routes!(events::list))
        .routes(routes!(events::detail))
        .routes(routes!(invoices::list))
        .routes(routes!(invoices::current))
        .routes(routes!(invoices::detail))
        .routes(routes!(account::show))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::detail, keys::revoke))
        .routes(routes!(catalogue::plans))
        .routes(routes!(catalogue::regions))
        .routes(routes!(catalogue::images))
        .routes(routes!(document))
}

/// The routes of the API, and the paths that they serve.
pub(super) fn router() -> (Router<Arc<App>>, Vec<Served>) {
    static SERVED: LazyLock<Vec<Served>> = LazyLock::new(|| served(&value()));
    (routes().split_for_parts().0, SERVED.clone())
}

/// The OpenAPI document of the service that clients see at this URL.
pub(super) fn text(public_url: Option<&PublicUrl>) -> Bytes {
    let mut document = value();
    let url = public_url.map_or("/", PublicUrl::as_str);
    document["servers"] = json!([{ "url": url, "description": "The server that serves this document." }]);
    serde_json::to_vec(&document).unwrap_or_default().into()
}

/// Builds the OpenAPI document. Nothing is cached: each call builds it again.
pub fn value() -> Value {
    let (_, described) = routes().split_for_parts();
    let mut document = serde_json::to_value(described).unwrap_or_default();
    schemas::complete(&mut document);
    operations::complete(&mut document);
    document["components"]["securitySchemes"] = components::security_schemes();
    document["components"]["parameters"] = components::parameters();
    document["components"]["headers"] = components::headers();
    document["webhooks"] = receivers::section();
    document
}

/// Gets this document
#[utoipa::path(
    get, path = "/v1/openapi.json", operation_id = "getOpenApi", tag = "document",
    responses((status = 200, description = "The OpenAPI 3.1 document", body = Object)),
    security(()),
)]
async fn document(State(app): State<Arc<App>>) -> Response {
    let mut response = response::rendered(StatusCode::OK, app.document.clone());
    response
        .headers_mut()
        .insert(CACHE_CONTROL, DOCUMENT_MAY_BE_CACHED);
    response
}

/// A reference to a schema of the document.
fn schema_reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The query parameters of an operation; those that are arrays may be repeated.
fn queries(operation: &Value) -> Vec<Known> {
    operations::parameters(operation, "query")
        .map(|parameter| Known {
            name: parameter["name"].as_str().unwrap_or_default().to_owned(),
            repeats: parameter["schema"]["items"].is_object(),
        })
        .collect()
}

fn served(document: &Value) -> Vec<Served> {
    let paths = document["paths"].as_object().into_iter().flatten();
    paths
        .map(|(path, operations)| {
            let operations = || operations.as_object().into_iter().flatten();
            let mut methods: Vec<(Method, Vec<Known>)> = operations()
                .filter_map(|(method, operation)| {
                    Some((method.to_ascii_uppercase().parse().ok()?, queries(operation)))
                })
                .collect();
            if let Some((_, get)) = methods.iter().find(|(method, _)| *method == Method::GET) {
                methods.push((Method::HEAD, get.clone()));
            }
            methods.sort_by(|(a, _), (b, _)| a.as_str().cmp(b.as_str()));
            Served {
                path: path.clone(),
                methods,
                needs_key: operations().any(|(_, operation)| operation.get("security").is_none()),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::ErrorCode;
    use strum::VariantArray as _;

    use super::*;
    use domain::event::EventType;

    /// One for all tests, since it takes a while.
    fn document() -> &'static Value {
        static VALUE: LazyLock<Value> = LazyLock::new(value);
        &VALUE
    }

    /// What each operation takes and answers, in brief: its parameters, whether its body is required, and the headers and error
    /// codes of each status.
    fn operations() -> Vec<String> {
        let keys = |value: &Value| {
            let keys = value.as_object().into_iter().flatten();
            keys.map(|(name, _)| name.clone()).collect::<Vec<_>>().join(" ")
        };
        let mut lines = Vec::new();
        for (path, item) in document()["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                lines.push(format!("{} {path}", method.to_uppercase()));
                let parameters = operation["parameters"].as_array().into_iter().flatten();
                let names = parameters.filter_map(|of| match &of["$ref"] {
                    Value::String(reference) => reference.rsplit('/').next(),
                    _ => of["name"].as_str(),
                });
                lines.push(format!("  takes {}", names.collect::<Vec<_>>().join(" ")));
                if let Some(body) = operation.get("requestBody") {
                    let is_required = body["required"] == true;
                    lines.push(format!("  body required: {is_required}"));
                }
                for (status, response) in operation["responses"].as_object().unwrap() {
                    let codes = keys(&response["content"]["application/json"]["examples"]);
                    lines.push(format!("  {status} {codes}: {}", keys(&response["headers"])));
                }
            }
        }
        lines
    }

    #[test]
    fn what_each_operation_takes_and_answers_changes_on_purpose_only() {
        let expected: Vec<&str> = include_str!("operations.txt").lines().collect();
        let found = operations();
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(
                found,
                expected,
                "if that is meant, change operations.txt to:\n{}",
                operations().join("\n")
            );
        }
        assert_eq!(found.len(), expected.len(), "{}", found.join("\n"));
        assert_eq!(
            document()["components"]["securitySchemes"]["bearer"]["scheme"],
            "bearer"
        );
    }

    #[test]
    fn every_error_code_is_described_with_an_example() {
        let text = document().to_string();
        for code in ErrorCode::VARIANTS {
            // Responses to requests that belong to no operation.
            let is_general = matches!(
                code,
                ErrorCode::BadRequest
                    | ErrorCode::MethodNotAllowed
                    | ErrorCode::RequestTimeout
                    | ErrorCode::HeadersTooLarge
            );
            let described = is_general || text.contains(&format!("\"{}\":{{", code.as_str()));
            assert!(described, "{}", code.as_str());
        }
    }

    #[test]
    fn every_reference_resolves() {
        fn walk(node: &Value, document: &Value) {
            match node {
                Value::Object(map) => {
                    if let Some(Value::String(reference)) = map.get("$ref") {
                        let pointer = reference.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{reference}");
                    }
                    map.values().for_each(|child| walk(child, document));
                }
                Value::Array(items) => items.iter().for_each(|child| walk(child, document)),
                _ => {}
            }
        }
        walk(document(), document());
    }

    #[test]
    fn names_are_unique_and_fit_for_generators() {
        let components = document()["components"].as_object().unwrap();
        let (schemas, parameters) = (&components["schemas"], &components["parameters"]);
        for name in parameters.as_object().unwrap().keys() {
            assert!(schemas.get(name).is_none(), "{name} is a schema too");
        }
        for (name, schema) in schemas.as_object().unwrap() {
            assert!(!name.contains('_'), "{name}");
            if name.ends_with("List") || (name.ends_with("Answer") && name != "ErrorAnswer") {
                let data = &schema["properties"]["data"];
                let held = data.get("items").unwrap_or(data);
                assert!(
                    held.get("$ref").is_some(),
                    "{name} does not refer to the schema of its data"
                );
            }
        }
        let sections = ["paths", "webhooks"].map(|section| document()[section].as_object().unwrap());
        let operations = sections
            .into_iter()
            .flatten()
            .flat_map(|(_, item)| item.as_object().unwrap());
        let mut ids = BTreeSet::new();
        for (method, operation) in operations {
            let id = operation["operationId"].as_str().unwrap();
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
            assert!(ids.insert(id), "{id} is not unique");
            assert!(
                operation["summary"].is_string() && operation["tags"][0].is_string(),
                "{method} {id}"
            );
        }
    }

    #[test]
    fn only_what_requests_can_ask_for_is_limited_to_the_values_of_today() {
        fn walk(node: &Value, path: &str, found: &mut BTreeSet<String>) {
            match node {
                Value::Object(map) => {
                    if map.contains_key("enum") {
                        found.insert(path.to_owned());
                    }
                    map.iter()
                        .for_each(|(key, child)| walk(child, &format!("{path}/{key}"), found));
                }
                Value::Array(items) => items.iter().for_each(|child| walk(child, path, found)),
                _ => {}
            }
        }
        let mut closed = BTreeSet::new();
        walk(&document()["components"]["schemas"], "", &mut closed);
        assert_eq!(
            closed,
            ["/EventType", "/KeyScope", "/Plan", "/WantedPower"]
                .map(str::to_owned)
                .into()
        );
        let status = &document()["components"]["schemas"]["InstanceStatus"];
        assert_eq!(status["type"], "string");
        assert!(
            status["x-extensible-enum"]
                .as_array()
                .unwrap()
                .contains(&json!("running"))
        );
    }

    #[test]
    fn an_instance_is_created_and_rebuilt_from_an_image_or_from_a_backup() {
        let image = ("image", "debian-13");
        let backup = ("backup", "bkp_9c2m8x1ta4q7hz0k");
        let rest = json!({ "name": "web", "plan": "starter", "region": "fr-par-1" });
        for (schema, rest) in [("CreateInstance", rest), ("RebuildInstance", json!({}))] {
            let mut of = document()["components"]["schemas"][schema].clone();
            of["components"] = document()["components"].clone();
            let validator = jsonschema::draft202012::new(&of).unwrap();
            for (given, is_valid) in [
                (&[image][..], true),
                (&[backup], true),
                (&[], false),
                (&[image, backup], false),
            ] {
                let mut body = rest.clone();
                for (field, value) in given {
                    body[field] = json!(value);
                }
                assert_eq!(validator.is_valid(&body), is_valid, "{schema} {body}");
            }
        }
    }

    #[test]
    fn generators_make_a_file_of_each_tag_and_a_type_of_each_name_without_losing_any() {
        let document = document();
        let tags = |section: &str| -> BTreeSet<&str> {
            let items = document[section].as_object().unwrap().values();
            let operations = items.flat_map(|item| item.as_object().unwrap().values());
            operations
                .map(|operation| operation["tags"][0].as_str().unwrap())
                .collect()
        };
        assert!(tags("paths").is_disjoint(&tags("webhooks")));
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for scheme in document["components"]["securitySchemes"]
            .as_object()
            .unwrap()
            .keys()
        {
            let is_taken = schemas.keys().any(|name| name.eq_ignore_ascii_case(scheme));
            assert!(!is_taken, "{scheme} is a schema, too");
        }
    }

    #[test]
    fn every_type_of_event_is_described_with_a_valid_example() {
        let webhooks = document()["webhooks"].as_object().unwrap();
        let described: BTreeSet<&str> = webhooks.keys().map(String::as_str).collect();
        assert_eq!(described, EventType::ALL.map(EventType::as_str).into());
        for (name, item) in webhooks {
            let body = &item["post"]["requestBody"]["content"]["application/json"];
            let mut schema = body["schema"].clone();
            schema["components"] = document()["components"].clone();
            let validator = jsonschema::draft202012::new(&schema).unwrap();
            assert!(validator.is_valid(&body["example"]), "{name}");
            for header in [
                "X-Service-Signature",
                "X-Service-Event-ID",
                "X-Service-Event-Type",
                "X-Service-Timestamp",
                "webhook-id",
                "webhook-timestamp",
                "webhook-signature",
            ] {
                let parameters = item["post"]["parameters"].as_array().unwrap();
                assert!(
                    parameters
                        .iter()
                        .any(|p| p["name"] == header && p["required"] == true),
                    "{name} {header}"
                );
            }
            let parameters = item["post"]["parameters"].as_array().unwrap();
            let optional = parameters.iter().filter(|p| p["required"] == false);
            assert_eq!(optional.map(|p| &p["name"]).collect::<Vec<_>>(), ["traceparent"]);
        }
    }

    #[test]
    fn examples_are_valid() {
        let document = document();
        let mut checked = 0;
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                let bodies = responses
                    .iter()
                    .map(|(status, response)| (status.as_str(), response))
                    .chain(operation.get("requestBody").map(|body| ("request", body)));
                for (what, body) in bodies {
                    let Some(json) = body.pointer("/content/application~1json") else {
                        assert_eq!(what, "204", "{method} {path}");
                        continue;
                    };
                    let mut schema = json["schema"].clone();
                    schema["components"] = document["components"].clone();
                    let validator = jsonschema::draft202012::new(&schema).unwrap();
                    let examples = json.get("example").into_iter().chain(
                        json.get("examples")
                            .and_then(Value::as_object)
                            .into_iter()
                            .flatten()
                            .map(|(_, example)| &example["value"]),
                    );
                    let mut any = path == "/v1/openapi.json";
                    for example in examples {
                        any = true;
                        checked += 1;
                        if let Err(error) = validator.validate(example) {
                            panic!("{method} {path} {what}: {error}");
                        }
                    }
                    assert!(any, "{method} {path} {what} has no example");
                }
            }
        }
        assert!(checked > 80, "{checked}");
    }
}
