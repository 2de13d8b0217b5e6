//! Finished Deliveries, as shown by lists of their metadata.

use std::collections::HashMap;

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{Api, Client, api::ListParams, core::ObjectMeta};

use crate::webhook::shared::Shared;
use domain::delivery::key;
use resources::{
    Delivery,
    delivery::{self, FINISHED_LABEL, is_unowned},
    origin,
};
use runtime::client::{CallError, Pages, bounded, only};

/// Maximum number of concurrent deletions in a namespace.
const CONCURRENCY: usize = 4;
/// Maximum number of Deliveries in [`All::unowned`].
const MAX_UNOWNED: usize = 10_000;

/// A finished Delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// When it finished, but not before the creation time set by the API server.
    pub(crate) at: Timestamp,
    /// Its approximate size as stored.
    pub(crate) bytes: u64,
    pub(crate) name: String,
    uid: Option<String>,
    version: Option<String>,
}

impl Finished {
    pub(crate) fn of(metadata: ObjectMeta) -> Option<Self> {
        let created = origin::created_at(&metadata);
        let at = delivery::finished_at(&metadata).max(created);
        Some(Self {
            at: at.unwrap_or(Timestamp::MAX),
            bytes: delivery::finished_bytes(&metadata),
            name: metadata.name?,
            uid: metadata.uid,
            version: metadata.resource_version,
        })
    }
}

/// The finished Deliveries of a namespace, or only those with the additional labels; newest first.
pub(crate) async fn list(
    client: &Client,
    namespace: &str,
    more_labels: &str,
) -> Result<Vec<Finished>, CallError> {
    let mut finished = Vec::new();
    let api = Api::namespaced(client.clone(), namespace);
    let selector = format!("{FINISHED_LABEL}{more_labels}");
    each(api, &selector, |metadata| {
        finished.extend(Finished::of(metadata));
    })
    .await?;
    finished.sort_unstable_by(|a, b| (b.at, &b.name).cmp(&(a.at, &a.name)));
    Ok(finished)
}

/// All finished Deliveries, by namespace.
#[derive(Default)]
pub(crate) struct All {
    /// The total size.
    pub(crate) sizes: HashMap<String, u64>,
    /// Deliveries without an owner, which are not pruned with any webhook; or some of them.
    pub(crate) unowned: HashMap<String, Vec<Finished>>,
}

/// Lists all finished Deliveries.
pub(crate) async fn all(client: &Client) -> Result<All, CallError> {
    let mut all = All::default();
    let mut unowned = 0;
    let api = Api::all(client.clone());
    each(api, FINISHED_LABEL, |metadata| {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        if is_unowned(&metadata) && unowned < MAX_UNOWNED {
            unowned += 1;
            let of_namespace = all.unowned.entry(namespace).or_default();
            of_namespace.extend(Finished::of(metadata));
        } else {
            *all.sizes.entry(namespace).or_default() += delivery::finished_bytes(&metadata);
        }
    })
    .await?;
    Ok(all)
}

async fn each(api: Api<Delivery>, selector: &str, mut see: impl FnMut(ObjectMeta)) -> Result<(), CallError> {
    let mut pages = Pages::of(api, ListParams::default().labels(selector));
    while let Some(page) = pages.next_metadata().await? {
        page.items.into_iter().for_each(|object| see(object.metadata));
    }
    Ok(())
}

/// Deletes Deliveries, except those of events that are still in an outbox: without these records, a new leader would send the
/// events again. Returns how many were deleted.
pub(crate) async fn delete(shared: &Shared, namespace: &str, mut surplus: Vec<Finished>) -> usize {
    surplus.retain(|delivery| {
        let key = key(namespace, &delivery.name);
        !shared.state.lock().dispatcher.is_in_outbox(&key)
    });
    let count = surplus.len();
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    futures::stream::iter(surplus)
        .for_each_concurrent(CONCURRENCY, async |delivery| {
            // Delete only the listed version: the delivery may have been sent again since.
            let params = only(delivery.uid, delivery.version);
            // A failed deletion is retried in the next round.
            if let Err(error) = bounded(api.delete(&delivery.name, &params)).await
                && !error.is_not_found()
                && !error.is_conflict()
            {
                tracing::debug!(delivery = delivery.name, %error, "cannot delete a finished delivery");
            }
        })
        .await;
    count
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use resources::delivery::FINISHED_AT_ANNOTATION;

    #[test]
    fn a_delivery_is_no_older_than_its_object_although_the_clock_that_wrote_it_was_wrong() {
        let finished = |at: Option<&str>| {
            let mut metadata = ObjectMeta {
                name: Some("dlv".to_owned()),
                creation_timestamp: Some(Time("2026-11-22T10:00:00Z".parse().unwrap())),
                ..ObjectMeta::default()
            };
            let at = at.map(|at| (FINISHED_AT_ANNOTATION.to_owned(), at.to_owned()));
            metadata.annotations = Some(at.into_iter().collect());
            Finished::of(metadata).unwrap().at.to_string()
        };
        assert_eq!(finished(Some("2026-11-22T18:00:00Z")), "2026-11-22T18:00:00Z");
        for wrong in [Some("2026-11-20T10:00:00Z"), Some("now"), None] {
            assert_eq!(finished(wrong), "2026-11-22T10:00:00Z");
        }
    }
}
