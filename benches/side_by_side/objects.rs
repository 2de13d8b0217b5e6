//! Manifests of the measured objects, and requests for them.

use serde_json::{Value, json};

use crate::{load::NUMBER, wire::Target};

/// The manifest of an instance.
pub fn manifest(name: &str) -> String {
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance", "metadata": { "name": name },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:bench"] },
    });
    manifest.to_string()
}

/// Name of the n-th instance.
pub fn name(prefix: &str, n: u64) -> String {
    let width = NUMBER.len();
    format!("{prefix}-{n:0width$}")
}

/// Path of the instances of a namespace.
pub fn collection(namespace: &str) -> String {
    format!("/apis/stellage.dev/v1/namespaces/{namespace}/instances")
}

/// Path of the n-th instance.
pub fn path(namespace: &str, prefix: &str, n: u64) -> String {
    format!("{}/{}", collection(namespace), name(prefix, n))
}

/// A request to create the n-th instance.
pub fn create(target: &Target, namespace: &str, prefix: &str) -> String {
    let path = format!("{}?fieldManager=bench", collection(namespace));
    let body = manifest(&format!("{prefix}-{NUMBER}"));
    target.request("POST", &path, Some(("application/json", &body)))
}

/// The annotations of an object with this name that has its origin from the start, as the operator makes it.
pub fn origin(name: &str) -> Value {
    json!({ "stellage.dev/origin": format!("{name} {}", jiff::Timestamp::now()) })
}

/// A request to create the n-th instance with finalizer and origin, as instances created through REST have them from the start.
pub fn create_marked(target: &Target, namespace: &str, prefix: &str) -> String {
    let path = format!("{}?fieldManager=bench", collection(namespace));
    let name = format!("{prefix}-{NUMBER}");
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": { "name": name, "finalizers": ["stellage.dev/server"], "annotations": origin(&name) },
        "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:bench"] },
    });
    target.request("POST", &path, Some(("application/json", &manifest.to_string())))
}

/// Path of the webhooks of a namespace.
pub fn webhooks(namespace: &str) -> String {
    format!("/apis/stellage.dev/v1/namespaces/{namespace}/webhooks")
}

/// The manifest of a webhook for `instance.started` and `instance.stopped`.
pub fn webhook(name: &str, url: &str) -> String {
    let manifest = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook", "metadata": { "name": name },
        "spec": {
            "url": url, "events": ["instance.started", "instance.stopped"], "secretRef": { "name": SECRET },
        },
    });
    manifest.to_string()
}

/// Name of the Secret that all webhooks use.
pub const SECRET: &str = "signing";

/// The manifest of that Secret.
pub fn secret() -> String {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": { "name": SECRET, "labels": { "stellage.dev/webhook-secret": "true" } },
        "stringData": { "secret": SIGNING_SECRET },
    });
    manifest.to_string()
}

/// The signing secret.
pub const SIGNING_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The patch that changes the power state of an instance.
pub fn power(running: bool) -> String {
    let wanted = if running { "Running" } else { "Stopped" };
    json!({ "spec": { "powerState": wanted } }).to_string()
}
