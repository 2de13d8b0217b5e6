//! Instances, plans, regions and images as `/v1` shows them.

use serde::Deserialize;

use crate::console::text::{Moment, Money, bytes, percent};
use domain::{instance::Action, provider::Usage};
use resources::InstanceState;

/// The statuses that REST shows, in the order of an instance's life.
pub fn statuses() -> Vec<&'static str> {
    let shown = InstanceState::ALL
        .into_iter()
        .filter(|state| *state != InstanceState::Deleting);
    shown.map(InstanceState::as_str).collect()
}

/// Whether a status ends by itself.
fn is_under_way(status: &str) -> bool {
    !["running", "stopped", "error"].contains(&status)
}

/// The colour of a status.
fn tone(status: &str) -> &'static str {
    match status {
        "running" => "good",
        "stopped" => "quiet",
        "error" => "bad",
        _ => "busy",
    }
}

/// An instance in a list.
#[derive(Debug, Deserialize)]
pub struct ListItem {
    /// Identifier.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Status.
    pub status: String,
    /// Plan in effect.
    pub plan: String,
    /// Region.
    pub region: String,
    /// IPv4 address.
    pub ip_address: Option<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// When it was created.
    pub created_at: Moment,
}

impl ListItem {
    /// Whether its status ends by itself.
    pub fn is_under_way(&self) -> bool {
        is_under_way(&self.status)
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        tone(&self.status)
    }
}

/// An instance with all its fields.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Identifier.
    pub id: String,
    /// Display name.
    pub name: String,
    /// Status.
    pub status: String,
    /// Why it is not in the requested state.
    pub status_message: Option<String>,
    /// Plan in effect.
    pub plan: String,
    /// Plan that takes effect with the next reboot.
    pub pending_plan: Option<String>,
    /// Region.
    pub region: String,
    /// Installed image.
    pub image: String,
    /// IPv4 address.
    pub ip_address: Option<String>,
    /// IPv6 address.
    pub ipv6_address: Option<String>,
    /// Disk in GB.
    pub disk_size: i32,
    /// Memory in GB.
    pub memory: i32,
    /// Virtual CPUs.
    pub vcpu: i32,
    /// Whether it is backed up daily.
    pub backup_enabled: bool,
    /// Whether alerts are requested.
    pub monitoring_enabled: bool,
    /// Whether deletion is refused.
    pub deletion_protection: bool,
    /// Tags.
    pub tags: Vec<String>,
    /// When it was created.
    pub created_at: Moment,
    /// Current usage.
    metrics: Option<Usage>,
}

impl Instance {
    /// Current usage, in words.
    pub fn usage(&self) -> Vec<(&'static str, String)> {
        self.metrics.map_or_else(Vec::new, |usage| {
            vec![
                ("CPU", percent(usage.cpu_usage)),
                ("Memory", percent(usage.memory_usage)),
                ("Disk", percent(usage.disk_usage)),
                ("Received", bytes(usage.network_in)),
                ("Sent", bytes(usage.network_out)),
            ]
        })
    }

    /// Whether its status ends by itself.
    pub fn is_under_way(&self) -> bool {
        is_under_way(&self.status)
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        tone(&self.status)
    }

    /// Whether a pending plan takes effect with the operation in progress.
    pub fn is_changing_plan(&self) -> bool {
        self.pending_plan.is_some() && ["resizing", "rebooting"].contains(&self.status.as_str())
    }

    /// Whether `/v1` would carry out an action now.
    pub fn allows(&self, action: Action) -> bool {
        let states = action.allowed_from();
        states.iter().any(|state| state.as_str() == self.status)
    }

    /// Whether `/v1` would start a backup now.
    pub fn may_be_backed_up(&self) -> bool {
        ["running", "stopped"].contains(&self.status.as_str())
    }

    /// Its tags, in the form in which they are entered.
    pub fn tags_text(&self) -> String {
        self.tags.join(", ")
    }
}

/// A plan that can be ordered.
#[derive(Debug, Deserialize)]
pub struct Plan {
    /// Identifier.
    pub id: String,
    /// Virtual CPUs.
    pub vcpu: i32,
    /// Memory in GB.
    pub memory: i32,
    /// Disk in GB.
    pub disk_size: i32,
    /// Price per month.
    pub price_monthly: Money,
    /// Price per hour.
    pub price_hourly: Money,
}

/// A region.
#[derive(Debug, Deserialize)]
pub struct Region {
    /// Region code.
    pub id: String,
}

/// An image.
#[derive(Debug, Deserialize)]
pub struct Image {
    /// Identifier.
    pub id: String,
    /// The distribution.
    pub distribution: String,
    /// Its version.
    pub version: Option<String>,
}

/// The newest version of the first distribution on offer.
pub fn newest_of_the_first(images: &[Image]) -> Option<&Image> {
    let version = |image: &&Image| -> Vec<u64> {
        let parts = image.version.as_deref().unwrap_or_default().split('.');
        parts.map_while(|part| part.parse().ok()).collect()
    };
    let first = &images.first()?.distribution;
    let of_the_first = images.iter().filter(|image| image.distribution == *first);
    of_the_first.max_by_key(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_ends_by_itself_and_an_error_does_not() {
        assert!(is_under_way("rebooting") && !is_under_way("error"));
    }

    #[test]
    fn the_newest_version_is_offered() {
        let images: Vec<Image> = serde_json::from_value(serde_json::json!([
            { "id": "debian-9", "distribution": "debian", "version": "9" },
            { "id": "debian-13", "distribution": "debian", "version": "13" },
            { "id": "debian-12", "distribution": "debian", "version": "12" },
            { "id": "ubuntu-24.04", "distribution": "ubuntu", "version": "24.04" },
        ]))
        .unwrap();
        assert_eq!(newest_of_the_first(&images).unwrap().id, "debian-13");
        assert!(newest_of_the_first(&[]).is_none());
    }
}
