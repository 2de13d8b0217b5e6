//! The Helm charts, with the real Helm, which is built once if it is not there.
//!
//! - `alerts`: alerts, their runbooks and the dashboard, with the real promtool;
//! - `clusters`: what differs between clusters, and an operator with other names;
//! - `elsewhere`: pods in one cluster, accounts in another;
//! - `files`: what is generated, and what has to agree with the program;
//! - `optional`: what is in the chart only if values ask for it;
//! - `priority`: what an API server that has too much to do serves first;
//! - `region`: the chart of a region, and what its token grants;
//! - `rendered`: several sets of values, with a real API server;
//! - `installed`: the chart installed, run, upgraded, rolled back and uninstalled;
//! - `stolen`: what the operator's tokens grant in the wrong hands;
//! - `tenants`: what the roles for tenants allow;
//! - `thief`: what the two about stolen tokens share.

mod alerts;
mod clusters;
mod elsewhere;
mod files;
mod installed;
mod optional;
mod priority;
mod region;
mod rendered;
mod stolen;
mod tenants;
mod thief;

use std::path::PathBuf;

use control_plane::{ControlPlane, Identity};
use serde_json::{Value, json};

use crate::support;

/// The objects in a text of YAML documents.
pub fn objects(text: &str) -> Vec<Value> {
    let documents = format!("\n{text}");
    let documents = documents.split("\n---");
    documents
        .map(|document| {
            serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{error}: {document}"))
        })
        .filter(|object| !object.is_null())
        .collect()
}

/// A kubeconfig with a token of a service account, as its pods have it.
pub fn kubeconfig_of(plane: &ControlPlane, namespace: &str, service_account: &str) -> PathBuf {
    let token = format!("create token {service_account} --namespace {namespace} --duration=2h");
    let token = support::kubectl(plane, &token, None).unwrap();
    let text = std::fs::read_to_string(plane.kubeconfig(Identity::Admin)).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"] = json!({ "token": token.trim() });
    let path = plane.folder().join(format!("{service_account}.kubeconfig"));
    control_plane::write_private(&path, &config.to_string()).unwrap();
    path
}
