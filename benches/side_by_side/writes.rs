//! Counts what the API server was asked to write, from its own metrics: no audit log slows down what is measured.

use std::ops::Sub;

use crate::{Result, wire::Target};

/// Writes since the API server's start.
#[derive(Clone, Copy, Default)]
pub struct Writes {
    /// Writes of Instances and their status that were done.
    pub instances: u64,
    /// Of Instances and their status, refused (conflicts, mostly).
    pub refused: u64,
    /// Kubernetes Events that were written.
    pub events: u64,
    /// Deliveries that were created.
    pub deliveries: u64,
    /// Deliveries that were changed or deleted.
    pub delivery_changes: u64,
    /// Webhooks and their status, written.
    pub webhooks: u64,
}

impl Writes {
    /// Reads the counters.
    pub async fn count(admin: &Target) -> Result<Self> {
        let page = admin.call("GET", "/metrics", None).await?.body;
        let mut writes = Self::default();
        for line in String::from_utf8_lossy(&page).lines() {
            let Some((labels, value)) = line
                .strip_prefix("apiserver_request_total{")
                .and_then(|line| line.split_once("} "))
            else {
                continue;
            };
            let has = |label: &str| labels.split(',').any(|pair| pair == label);
            let is_write = ["POST", "PUT", "PATCH", "APPLY", "DELETE"]
                .iter()
                .any(|verb| has(&format!("verb=\"{verb}\"")));
            if !is_write {
                continue;
            }
            let value = value.parse::<u64>()?;
            let done = labels.contains("code=\"2");
            if has("group=\"stellage.dev\"") && has("resource=\"instances\"") {
                *(if done {
                    &mut writes.instances
                } else {
                    &mut writes.refused
                }) += value;
            } else if has("resource=\"deliveries\"") && done {
                *(if has("verb=\"POST\"") {
                    &mut writes.deliveries
                } else {
                    &mut writes.delivery_changes
                }) += value;
            } else if has("resource=\"webhooks\"") && done {
                writes.webhooks += value;
            } else if has("resource=\"events\"") && done {
                writes.events += value;
            }
        }
        Ok(writes)
    }
}

impl Sub for Writes {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            instances: self.instances - before.instances,
            refused: self.refused - before.refused,
            events: self.events - before.events,
            deliveries: self.deliveries - before.deliveries,
            delivery_changes: self.delivery_changes - before.delivery_changes,
            webhooks: self.webhooks - before.webhooks,
        }
    }
}
