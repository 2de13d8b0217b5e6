//! The controller without a cluster.
//!
//! - `locks`: the work done under the lock of the state;
//! - `requests`: what the controller requests from the API server, and how often.

mod locks;
mod requests;

use std::sync::Arc;

use clap::Parser;
use kube::{Client, Config};
use serde_json::json;

use super::Deps;
use crate::account::AccountDirectory;
use domain::delivery::DeliverySettings;
use resources::Webhook;
use runtime::{Metrics, ServerTime, SystemClock};
use sender::{ReceiverClient, TargetRules, client::ClientSettings};

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    delivery: DeliverySettings,
}

/// What a controller with these flags depends on. There is no API server, and no Account.
pub(crate) fn deps(flags: &[&str]) -> Deps {
    let Flags { delivery } = Flags::parse_from([&["test"], flags].concat());
    let nowhere = Config::new("http://127.0.0.1:9".parse().unwrap());
    Deps {
        client: Client::try_from(nowhere).unwrap(),
        receivers: ReceiverClient::new(ClientSettings::default(), TargetRules::default()).unwrap(),
        rules: TargetRules::default(),
        directory: AccountDirectory::default(),
        settings: delivery,
        write_concurrency: 8,
        metrics: Metrics::new(),
        clock: Arc::new(SystemClock),
        server_time: ServerTime::default(),
    }
}

fn webhook(number: usize) -> Webhook {
    serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Webhook",
        "metadata": {
            "namespace": "ns", "name": format!("hook-{number:04}"), "uid": format!("hook-{number}"),
            "resourceVersion": "10", "generation": 1,
            "annotations": { "stellage.dev/origin": format!("hook-{number} 2026-11-20T10:00:00Z") },
        },
        "spec": {
            "url": "https://receiver.example.com", "events": ["instance.stopped"], "secretRef": { "name": "secret" },
        },
    }))
    .unwrap()
}
