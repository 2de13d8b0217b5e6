//! Alerts: list.

use std::sync::Arc;

use super::{Service, index::Paging, instances::IndexedInstance};
use api::AlertStatus;
use domain::alert::alerts::is_shown;
use resources::Alert;

/// An alert, and the instance that it is about.
#[derive(Clone, Debug)]
pub struct ShownAlert {
    pub item: Arc<IndexedInstance>,
    pub alert: Alert,
}

/// The filters of a list. Values that match nothing give an empty list.
#[derive(Clone, Copy, Debug, Default)]
pub struct AlertFilter<'a> {
    /// Identifier of the instance.
    pub instance_id: Option<&'a str>,
    /// The status as REST spells it.
    pub status: Option<&'a str>,
}

impl Service {
    /// One page of an account's alerts that are firing or ended within the last day, newest first, then by id, and their total number.
    pub fn list_alerts(
        &self,
        namespace: &str,
        filter: AlertFilter<'_>,
        paging: Paging,
    ) -> (Vec<ShownAlert>, usize) {
        let now = self.clock.now();
        let matches = |item: &IndexedInstance, alert: &Alert| {
            is_shown(alert, now)
                && filter
                    .status
                    .is_none_or(|wanted| AlertStatus::from(alert.phase).as_ref() == wanted)
                && filter
                    .instance_id
                    .is_none_or(|wanted| wanted == item.id.to_string())
        };
        let mut shown = Vec::new();
        for item in self.instances.index().all(namespace) {
            for alert in item.instance.status.iter().flat_map(|status| &status.alerts) {
                if matches(&item, alert) {
                    shown.push(ShownAlert {
                        item: item.clone(),
                        alert: alert.clone(),
                    });
                }
            }
        }
        shown.sort_unstable_by(|ShownAlert { alert: a, .. }, ShownAlert { alert: b, .. }| {
            (b.fired_at, &a.id).cmp(&(a.fired_at, &b.id))
        });
        paging.cut(shown.into_iter())
    }
}
