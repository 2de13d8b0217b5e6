//! How old the last good backup of the installation is, as `stellage installation backup` notes it in a ConfigMap.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio_util::sync::CancellationToken;

use crate::{Clock, Metrics, client::bounded};

/// The ConfigMap in the operator's namespace. The chart creates it, empty, where backups are planned.
pub const CONFIG_MAP: &str = "stellage-backup";
/// Its entry with the time of the state that the last good backup has.
pub const LAST_AT: &str = "last-backup-at";
/// Its entry with the time at which a backup had nothing to do, because the installation had no accounts yet.
pub const EMPTY_AT: &str = "last-empty-at";
/// How often it is read.
const EVERY: Duration = Duration::from_secs(60);

/// Shows the age of the last backup in the metrics, until shutdown.
pub async fn show_age(
    client: &Client,
    namespace: &str,
    clock: &dyn Clock,
    metrics: &Metrics,
    shutdown: &CancellationToken,
) {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    loop {
        match bounded(api.get_opt(CONFIG_MAP)).await {
            Ok(found) => {
                let since = found.as_ref().and_then(last);
                metrics.backup_age(since.map(|since| clock.now().duration_since(since)));
            }
            // What was shown last gets no younger, and is right again soon.
            Err(error) => tracing::warn!(%error, "cannot read when the installation was last backed up"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// When the last backup was made, or if there is none yet, since when there should be one.
fn last(noted: &ConfigMap) -> Option<Timestamp> {
    let at = |entry| noted.data.as_ref()?.get(entry)?.parse().ok();
    let created = noted.metadata.creation_timestamp.as_ref();
    at(LAST_AT).max(at(EMPTY_AT)).or(created.map(|created| created.0))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn last_of(noted: Value) -> Option<String> {
        let noted = serde_json::from_value(noted).unwrap();
        last(&noted).map(|at| at.to_string())
    }

    #[test]
    fn without_a_backup_the_age_counts_from_when_backups_were_set_up() {
        let metadata = json!({ "creationTimestamp": "2026-11-01T00:00:00Z" });
        let noted = |data: Value| last_of(json!({ "metadata": metadata, "data": data }));
        assert_eq!(noted(json!({})).unwrap(), "2026-11-01T00:00:00Z");
        assert_eq!(
            noted(json!({ LAST_AT: "2026-11-28T03:23:00Z" })).unwrap(),
            "2026-11-28T03:23:00Z"
        );
        assert_eq!(
            noted(json!({ LAST_AT: "today" })).unwrap(),
            "2026-11-01T00:00:00Z"
        );
        // There were no accounts until then.
        assert_eq!(
            noted(json!({ EMPTY_AT: "2026-11-20T03:23:00Z" })).unwrap(),
            "2026-11-20T03:23:00Z"
        );
    }
}
