//! Counts the API server's writes, and lists of webhooks, from its metrics, since an audit log would slow down the measurements.

use std::{
    ops::Sub,
    time::{Duration, Instant},
};

use crate::{Result, say, wire::Target};

/// Longer than the operator holds Kubernetes Events back once it has little else to write.
const EVENTS_GIVE_WAY: Duration = Duration::from_secs(3);
/// Timeout for the Events that it has held back.
const UNTIL_WRITTEN: Duration = Duration::from_mins(2);

/// Interval of the lines of progress of [`until_steady`].
const TELL_EVERY: Duration = Duration::from_mins(1);

/// Waits until the operator has written the Kubernetes Events that it held back while it was busy.
pub async fn until_events_are_written(admin: &Target) -> Result<()> {
    until_steady(admin, EVENTS_GIVE_WAY, UNTIL_WRITTEN, |writes| {
        format!("{} Kubernetes Events", writes.events)
    })
    .await
}

/// Waits until the writes that `shown` shows are the same after this interval as before it. Fails after `patience`.
pub async fn until_steady(
    admin: &Target,
    interval: Duration,
    patience: Duration,
    shown: impl Fn(Writes) -> String,
) -> Result<()> {
    let begun = Instant::now();
    let (mut last, mut told) = (String::new(), begun);
    while begun.elapsed() < patience {
        let now = shown(Writes::count(admin).await?);
        if now == last {
            return Ok(());
        }
        last = now;
        if told.elapsed() >= TELL_EVERY {
            told = Instant::now();
            say(&format!(
                "  still writing after {:.0?}: {last} so far",
                begun.elapsed()
            ));
        }
        tokio::time::sleep(interval).await;
    }
    Err(format!("written for ever: {last} so far").into())
}

/// Numbers of writes, and of one kind of read, since the API server started.
#[derive(Clone, Copy, Default)]
pub struct Writes {
    /// Successful writes of Instances and their status.
    pub instances: u64,
    /// Refused writes of Instances and their status, mostly conflicts.
    pub refused: u64,
    /// Written Kubernetes Events.
    pub events: u64,
    /// Created Deliveries.
    pub deliveries: u64,
    /// Changed or deleted Deliveries.
    pub delivery_changes: u64,
    /// Written pages of the event log.
    pub event_logs: u64,
    /// Writes of Webhooks and their status.
    pub webhooks: u64,
    /// Writes of Invoices, InvoicePages and InvoiceNumbers.
    pub invoices: u64,
    /// LIST requests for Webhooks.
    pub webhook_lists: u64,
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
            if has("resource=\"webhooks\"") && has("verb=\"LIST\"") {
                writes.webhook_lists += value.parse::<u64>()?;
                continue;
            }
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
            } else if has("resource=\"eventlogs\"") && done {
                writes.event_logs += value;
            } else if has("resource=\"webhooks\"") && done {
                writes.webhooks += value;
            } else if ["invoices", "invoicepages", "invoicenumbers"]
                .iter()
                .any(|it| has(&format!("resource=\"{it}\"")))
                && done
            {
                writes.invoices += value;
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
            event_logs: self.event_logs - before.event_logs,
            webhooks: self.webhooks - before.webhooks,
            invoices: self.invoices - before.invoices,
            webhook_lists: self.webhook_lists - before.webhook_lists,
        }
    }
}
