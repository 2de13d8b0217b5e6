//! How the prices are stored, for the code that writes and the code that reads them.

use k8s_openapi::api::core::v1::ConfigMap;

use super::PriceHistory;

/// Name of the ConfigMap in the operator's namespace.
pub const NAME: &str = "stellage-prices";
/// Its only entry.
pub const ENTRY: &str = "prices";

/// The prices in the ConfigMap; `None` if it is unreadable.
pub fn read(object: &ConfigMap) -> Option<PriceHistory> {
    PriceHistory::read(object.data.as_ref()?.get(ENTRY)?)
}
