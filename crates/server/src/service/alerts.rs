//! Alerts: list.

use std::sync::Arc;

use super::{
    Service,
    id::{InstanceId, PublicId as _},
    index::{Index as _, Paging},
    instances::IndexedInstance,
};
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
        let matches = |alert: &Alert| {
            is_shown(alert, now)
                && filter
                    .status
                    .is_none_or(|wanted| AlertStatus::from(alert.phase).as_ref() == wanted)
        };
        let index = self.instances.index();
        let items = match filter.instance_id {
            Some(id) => InstanceId::parse(id)
                .and_then(|id| index.get(namespace, id))
                .into_iter()
                .collect(),
            None => index.all(namespace),
        };
        let mut shown = Vec::new();
        for item in items {
            for alert in item.instance.status.iter().flat_map(|status| &status.alerts) {
                if matches(alert) {
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
