//! Alerts: list.

use std::{cmp::Reverse, sync::Arc};

use super::{Service, index::items_before, instances::IndexedInstance};
use api::AlertStatus;
use domain::alert::alerts::is_shown;
use resources::Alert;

/// An alert, and the instance that it is about.
#[derive(Clone, Debug)]
pub struct ShownAlert {
    pub item: Arc<IndexedInstance>,
    index: usize,
}

impl ShownAlert {
    /// The first alert of an instance, for examples.
    pub const fn first_of(item: Arc<IndexedInstance>) -> Self {
        Self { item, index: 0 }
    }

    pub fn alert(&self) -> Option<&Alert> {
        self.item.instance.status.as_ref()?.alerts.get(self.index)
    }
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
    /// `page` counts from 1.
    pub fn list_alerts(
        &self,
        namespace: &str,
        filter: AlertFilter<'_>,
        page: u64,
        limit: usize,
    ) -> (Vec<ShownAlert>, usize) {
        let now = self.clock.now();
        let matches = |alert: &Alert| {
            is_shown(alert, now)
                && filter
                    .status
                    .is_none_or(|wanted| AlertStatus::from(alert.phase).as_ref() == wanted)
        };
        let mut shown = Vec::new();
        for item in self.instances.index().alerting(namespace) {
            let id = item.id.to_string();
            if filter.instance_id.is_some_and(|wanted| wanted != id) {
                continue;
            }
            let alerts = item.instance.status.iter().flat_map(|status| &status.alerts);
            let matching = alerts.enumerate().filter(|(_, alert)| matches(alert));
            shown.extend(matching.map(|(index, alert)| {
                let key = (Reverse(alert.fired_at), alert.id.clone());
                let item = item.clone();
                (key, ShownAlert { item, index })
            }));
        }
        shown.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let total = shown.len();
        let skip = items_before(page, limit);
        let page = shown.into_iter().skip(skip).take(limit);
        (page.map(|(_, alert)| alert).collect(), total)
    }
}
