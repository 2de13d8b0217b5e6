//! Instances and images as pages show them.

use crate::console::{
    page::Shown,
    text::{bytes, percent},
};
use api::{ImageOffer, InstanceSummary};
use domain::instance::{Action, has_console};
use resources::{InstanceState, PowerState};

/// The statuses that REST shows, in the order of an instance's life.
pub fn statuses() -> Vec<&'static str> {
    let shown = InstanceState::ALL
        .into_iter()
        .filter(|state| *state != InstanceState::Deleting);
    shown.map(InstanceState::as_str).collect()
}

/// Whether a status ends by itself.
fn is_under_way(status: InstanceState) -> bool {
    !matches!(
        status,
        InstanceState::Running | InstanceState::Stopped | InstanceState::Error
    )
}

/// The colour of a status.
fn tone(status: InstanceState) -> &'static str {
    match status {
        InstanceState::Running => "good",
        InstanceState::Stopped => "quiet",
        InstanceState::Error => "bad",
        _ => "busy",
    }
}

/// An instance in a list.
pub type ListItem = Shown<InstanceSummary>;

impl ListItem {
    /// Whether its status ends by itself.
    pub fn is_under_way(&self) -> bool {
        is_under_way(self.status)
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        tone(self.status)
    }
}

/// An instance with all its fields.
pub type Instance = Shown<api::Instance>;

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
        is_under_way(self.status)
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        tone(self.status)
    }

    /// Whether its console may be open; in an error, that depends on its power.
    pub fn may_have_console(&self) -> bool {
        has_console(self.status, Some(PowerState::Running))
    }

    /// Whether a pending plan takes effect with the operation in progress.
    pub fn is_changing_plan(&self) -> bool {
        self.pending_plan.is_some()
            && matches!(self.status, InstanceState::Resizing | InstanceState::Rebooting)
    }

    /// Whether `/v1` would carry out an action now.
    pub fn allows(&self, action: Action) -> bool {
        action.allowed_from().contains(&self.status)
    }

    /// Whether `/v1` would start a backup now.
    pub fn may_be_backed_up(&self) -> bool {
        matches!(self.status, InstanceState::Running | InstanceState::Stopped)
    }

    /// Its tags, in the form in which they are entered.
    pub fn tags_text(&self) -> String {
        self.tags.join(", ")
    }
}

/// The newest version of the first distribution on offer.
pub fn newest_of_the_first(images: &[ImageOffer]) -> Option<&ImageOffer> {
    let version = |image: &&ImageOffer| -> Vec<u64> {
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
        assert!(is_under_way(InstanceState::Rebooting) && !is_under_way(InstanceState::Error));
    }

    #[test]
    fn the_newest_version_is_offered() {
        let images: Vec<ImageOffer> = serde_json::from_value(serde_json::json!([
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
