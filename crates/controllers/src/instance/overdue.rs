//! Counts the operations that do not end, by region.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use domain::{catalogue::Catalogue, instance::is_overdue, provider::Deadlines};
use resources::Instance;
use runtime::{Clock, Metrics, Store, metrics::RegionLabels, shared_catalogue::SharedCatalogue};

/// How often they are counted.
const EVERY: Duration = Duration::from_secs(15);
/// The label of all simulated regions.
const SIMULATED: &str = "simulated";

/// Shows them until shutdown.
pub(super) async fn count(
    instances: &Store<Instance>,
    catalogue: &SharedCatalogue,
    deadlines: impl Fn(&str) -> Deadlines,
    clock: &dyn Clock,
    metrics: &Metrics,
    shutdown: &CancellationToken,
) {
    loop {
        let counted = by_region(
            instances.state().iter().map(|instance| &**instance),
            &catalogue.current(),
            &deadlines,
            clock.now(),
        );
        for (region, count) in counted {
            let gauge = &metrics.operations_overdue;
            gauge.get_or_create_owned(&RegionLabels { region }).set(count);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

fn by_region<'a>(
    instances: impl Iterator<Item = &'a Instance>,
    catalogue: &Catalogue,
    deadlines: impl Fn(&str) -> Deadlines,
    now: Timestamp,
) -> BTreeMap<String, i64> {
    let real = catalogue.real_regions();
    let mut counted: BTreeMap<String, i64> = real.map(|(region, _)| (region.to_owned(), 0)).collect();
    counted.insert(SIMULATED.to_owned(), 0);
    for instance in instances {
        let status = instance.status.as_ref();
        let Some(operation) = status.and_then(|status| status.operation.as_ref()) else {
            continue;
        };
        let region = instance.spec.region.as_str();
        if is_overdue(operation, &deadlines(region), now) {
            let label = if counted.contains_key(region) {
                region
            } else {
                SIMULATED
            };
            *counted.entry(label.to_owned()).or_default() += 1;
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use domain::{catalogue::testing::catalogue, provider::Timings};
    use serde_json::json;

    use super::*;

    #[test]
    fn operations_past_their_deadline_are_counted_by_region_and_all_simulated_ones_together() {
        let instance = |region: &str, kind: &str, began: &str| -> Instance {
            serde_json::from_value(json!({
                "metadata": { "name": "web", "namespace": "ada" },
                "spec": { "plan": "starter", "region": region, "image": "debian-13" },
                "status": { "operation": {
                    "kind": kind, "startedAt": began, "endsIn": "Running", "plan": "starter", "image": "debian-13",
                } },
            }))
            .unwrap()
        };
        let all = [
            instance("de-fra-1", "Start", "2026-11-23T12:00:00Z"),
            instance("de-fra-1", "Start", "2026-11-23T12:59:00Z"),
            instance("nl-ams-1", "Delete", "2026-11-23T12:00:00Z"),
            instance("fr-par-1", "Stop", "2026-11-23T12:00:00Z"),
        ];
        let now = "2026-11-23T13:00:00Z".parse().unwrap();
        let deadlines = |_: &str| Timings::default().deadlines();
        let count = |instances: &[Instance]| by_region(instances.iter(), &catalogue(), deadlines, now);
        let shown = |real, simulated| {
            BTreeMap::from([("de-fra-1".to_owned(), real), ("simulated".to_owned(), simulated)])
        };
        assert_eq!(count(&all), shown(1, 2));
        assert_eq!(count(&[]), shown(0, 0));
    }
}
