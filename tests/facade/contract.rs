//! Checks every response in a test against the OpenAPI document.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use server::facade::openapi;

use crate::support::{Answer, PATIENCE, Tenant};

/// An operation of the document.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub method: Method,
    /// The path, with placeholders.
    pub path: String,
    /// The example of its body, if it has one.
    pub body: Option<Value>,
    /// The status of its success.
    pub success: u16,
}

/// The OpenAPI document.
fn document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(openapi::value);
    &DOCUMENT
}

/// Every operation that needs a key.
pub fn endpoints() -> Vec<Endpoint> {
    let paths = document()["paths"].as_object().unwrap();
    let mut endpoints = Vec::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().unwrap() {
            if operation.get("security").is_none() {
                let example = operation.pointer("/requestBody/content/application~1json/example");
                let statuses = operation["responses"].as_object().unwrap().keys();
                let successes: Vec<_> = statuses.filter(|status| status.starts_with('2')).collect();
                let [success] = successes[..] else {
                    panic!("{method} {path} has not one success: {successes:?}");
                };
                endpoints.push(Endpoint {
                    method: method.to_ascii_uppercase().parse().unwrap(),
                    path: path.clone(),
                    body: example.cloned(),
                    success: success.parse().unwrap(),
                });
            }
        }
    }
    assert!(endpoints.len() > 25, "{endpoints:#?}");
    endpoints
}

/// Sends a request, and fails if the document does not describe the answer exactly. Unknown fields are errors here, although
/// clients have to tolerate them.
pub async fn call(
    tenant: &Tenant,
    method: Method,
    path: &str,
    body: Option<&Value>,
    headers: &[(&str, &str)],
) -> Answer {
    let answer = tenant.call_with(method.clone(), path, body, headers).await;
    check(&method, path, &answer);
    answer
}

/// Like [`call`], but also fails unless the answer has this status. While a busy cluster lags behind, requests that change
/// nothing are repeated.
pub async fn expect(
    tenant: &Tenant,
    status: u16,
    method: Method,
    path: &str,
    body: Option<&Value>,
    headers: &[(&str, &str)],
) -> Answer {
    let begun = Instant::now();
    loop {
        let answer = call(tenant, method.clone(), path, body, headers).await;
        let found = answer.status.as_u16();
        let is_late = matches!(found, 503 | 504) && found != status;
        if !is_late || method != Method::GET || begun.elapsed() > PATIENCE {
            assert_eq!(found, status, "{path}: {answer:#?}");
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

impl Tenant {
    /// Reads something.
    pub async fn get(&self, path: &str) -> Answer {
        expect(self, 200, Method::GET, path, None, &[]).await
    }

    pub async fn post(&self, status: u16, path: &str, body: &Value) -> Answer {
        expect(self, status, Method::POST, path, Some(body), &[]).await
    }

    /// Posts nothing, as actions are asked for.
    pub async fn act(&self, status: u16, path: &str) -> Answer {
        expect(self, status, Method::POST, path, None, &[]).await
    }

    pub async fn patch(&self, status: u16, path: &str, body: &Value) -> Answer {
        expect(self, status, Method::PATCH, path, Some(body), &[]).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        expect(self, 204, Method::DELETE, path, None, &[]).await
    }
}

/// The code of an error.
pub fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// The fields that an error's details name.
pub fn fields(answer: &Answer) -> Vec<String> {
    answer.json()["error"]["details"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|detail| detail["field"].as_str().unwrap_or_default().to_owned())
        .collect()
}

/// Fails if the document does not describe an answer.
pub fn check(method: &Method, path: &str, answer: &Answer) {
    let document = document();
    let path = path.split('?').next().unwrap_or_default();
    let matches = |template: &str| {
        template.split('/').count() == path.split('/').count()
            && template
                .split('/')
                .zip(path.split('/'))
                .all(|(expected, found)| expected.starts_with('{') || expected == found)
    };
    let paths = document["paths"].as_object().unwrap();
    // `…/deliveries/retry` is not a delivery.
    let exact = paths
        .iter()
        .filter(|(template, _)| matches(template))
        .min_by_key(|(template, _)| template.matches('{').count());
    let (template, operations) = exact.unwrap();
    let operation = &operations[method.as_str().to_ascii_lowercase()];
    let response = &operation["responses"][answer.status.as_str()];
    let what = format!("{method} {template} {}", answer.status);
    assert!(!response.is_null(), "{what} is not described: {answer:#?}");
    for (name, header) in response["headers"].as_object().unwrap() {
        let header = resolve(header, document);
        let is_there = answer.headers.contains_key(name.as_str());
        assert!(
            is_there || header["required"] != true,
            "{what} has no {name}: {answer:#?}"
        );
        if header["schema"]["type"] == "integer" && is_there {
            assert!(
                answer.header(name).parse::<u64>().is_ok(),
                "{what}: {name} is no integer"
            );
        }
    }
    for told in [
        "etag",
        "location",
        "retry-after",
        "www-authenticate",
        "idempotency-replayed",
    ] {
        let described = response["headers"]
            .as_object()
            .unwrap()
            .keys()
            .any(|name| name.eq_ignore_ascii_case(told));
        assert!(
            described || !answer.headers.contains_key(told),
            "{what} has an undescribed {told}"
        );
    }
    let Some(content) = response.get("content") else {
        assert!(
            answer.text.is_empty() && answer.status == StatusCode::NO_CONTENT,
            "{what}"
        );
        return;
    };
    let media_type = answer
        .header("content-type")
        .split(';')
        .next()
        .unwrap_or_default();
    assert!(content.get(media_type).is_some(), "{what} is no {media_type}");
    if media_type != "application/json" {
        return;
    }
    let mut schema = content["application/json"]["schema"].clone();
    schema["components"] = document["components"].clone();
    close(&mut schema);
    let validator = jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(&schema)
        .unwrap();
    let body = answer.json();
    let errors: Vec<_> = validator
        .iter_errors(&body)
        .map(|e| format!("{}: {e}", e.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{what}: {errors:#?} in {body:#}");
    if !answer.status.is_success() {
        assert_eq!(
            body["error"]["request_id"],
            answer.header("x-request-id"),
            "{what}"
        );
        let examples = content["application/json"]["examples"].as_object().unwrap();
        let code = body["error"]["code"].as_str().unwrap();
        assert!(
            examples.contains_key(code),
            "{what}: the code {code} is not described"
        );
    }
}

fn resolve<'a>(node: &'a Value, document: &'a Value) -> &'a Value {
    match node.get("$ref").and_then(Value::as_str) {
        Some(reference) => document.pointer(&reference[1..]).unwrap(),
        None => node,
    }
}

fn close(node: &mut Value) {
    if node["type"] == "object"
        && node.get("properties").is_some()
        && node.get("additionalProperties").is_none()
    {
        node["additionalProperties"] = json!(false);
    }
    match node {
        Value::Object(map) => map.values_mut().for_each(close),
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
