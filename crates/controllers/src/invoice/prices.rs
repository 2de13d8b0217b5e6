//! The past, present and announced prices and taxes, in a ConfigMap of the operator's namespace, written only when those of the
//! catalogue change. They apply from then on, or from the time for which they are announced; what a past hour costs never changes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client};
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use domain::invoice::{PriceHistory, stored_prices};
use resources::tracking::CONTROLLER_MANAGER;
use runtime::{
    client::{CallError, bounded, written_by},
    shared_catalogue::SharedCatalogue,
};

/// How often to compare the catalogue with what is stored.
const EVERY: Duration = Duration::from_secs(5);

/// The stored prices.
pub(super) struct KeptPrices {
    client: Client,
    namespace: String,
    catalogue: SharedCatalogue,
    history: RwLock<Option<Arc<PriceHistory>>>,
}

impl KeptPrices {
    pub(super) fn new(client: Client, namespace: &str, catalogue: SharedCatalogue) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            catalogue,
            history: RwLock::default(),
        }
    }

    /// The stored prices; `None` before they have been read.
    pub(super) fn current(&self) -> Option<Arc<PriceHistory>> {
        self.history.read().clone()
    }

    /// Records price changes until shutdown, and reports each one. `now` is the API server's time, once it is known: with the clock of
    /// a machine that is days behind, a change would hold for hours that are past. Prices from before `needed_since` are no longer needed.
    pub(super) async fn keep(
        &self,
        now: impl Fn() -> Option<Timestamp>,
        needed_since: impl Fn() -> Timestamp,
        changed: impl Fn(),
        shutdown: CancellationToken,
    ) {
        let mut complained = String::new();
        // If that clock is set back, what has changed since stays.
        let mut latest = Timestamp::MIN;
        loop {
            let before = self.current();
            let recorded = match now() {
                Some(now) => {
                    latest = latest.max(now);
                    self.record(latest, needed_since()).await
                }
                None => Ok(None),
            };
            if self.current() != before {
                changed();
            }
            match recorded {
                Ok(None) => complained.clear(),
                Ok(Some(complaint)) => {
                    if complained != complaint {
                        tracing::warn!("{complaint}");
                        complained = complaint;
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot keep the prices; will retry"),
            }
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    /// Stores the catalogue's prices if they are new. Returns why that is not possible, if so.
    pub(super) async fn record(
        &self,
        now: Timestamp,
        needed_since: Timestamp,
    ) -> Result<Option<String>, CallError> {
        let catalogue = self.catalogue.current();
        let updated = |history: &PriceHistory| {
            let mut updated = history.clone();
            updated.record(&catalogue, now);
            updated
        };
        if self
            .current()
            .is_some_and(|history| updated(&history) == *history)
        {
            return Ok(None);
        }
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = written_by(CONTROLLER_MANAGER);
        let Some(mut object) = bounded(api.get_opt(stored_prices::NAME)).await? else {
            let history = updated(&PriceHistory::new(catalogue.prices_at(now).clone()));
            let new = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(stored_prices::NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(data(&history)),
                ..ConfigMap::default()
            };
            bounded(api.create(&params, &new)).await?;
            *self.history.write() = Some(Arc::new(history));
            return Ok(None);
        };
        let Some(stored) = stored_prices::read(&object) else {
            return Ok(Some(format!(
                "the ConfigMap {} is unreadable, so nothing is invoiced; repair or delete it",
                stored_prices::NAME
            )));
        };
        *self.history.write() = Some(Arc::new(stored.clone()));
        let currency = &catalogue.prices.currency;
        if stored.currency() != currency {
            return Ok(Some(format!(
                "the catalogue's currency is {currency}, but invoices are in {}: the prices of invoices stay as they were; see docs/operations.md",
                stored.currency()
            )));
        }
        let mut history = updated(&stored);
        if history == stored {
            return Ok(None);
        }
        history.forget(needed_since);
        if history.is_too_long() {
            return Ok(Some(
                "prices have changed more than 20 times in two months: the last change holds once the oldest is forgotten, at the beginning of a month"
                    .to_owned(),
            ));
        }
        object.data = Some(data(&history));
        bounded(api.replace(stored_prices::NAME, &params, &object)).await?;
        *self.history.write() = Some(Arc::new(history));
        tracing::info!(
            "the prices have changed, from each instance's next hour on, or will change as announced"
        );
        Ok(None)
    }
}

fn data(history: &PriceHistory) -> BTreeMap<String, String> {
    BTreeMap::from([(stored_prices::ENTRY.to_owned(), history.stored())])
}
