//! What invoices need to know about an instance, kept in its status.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{plan::Plan, times};

/// Most entries of [`Metering::changes`]: one for every hour of two months.
pub const MAX_CHANGES: usize = 1488;

/// The hours for which an instance is billed. They are counted from the moment at which its server first ran; from then on it
/// is billed until its deletion, whatever its power state (decisions, section 7).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metering {
    /// When the server first ran. Hour 0 begins here.
    #[schemars(schema_with = "times::time")]
    pub since: Timestamp,
    /// The plans, as one entry for hour 0 and one for each later hour in which the plan changed, in order.
    #[schemars(length(min = 1, max = MAX_CHANGES))]
    pub changes: Vec<MeteredHour>,
}

/// An hour in which the plan changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeteredHour {
    /// Number of the hour.
    #[schemars(extend("format" = "int64"))]
    pub hour: i64,
    /// The dearest plan in effect in it, for which it is billed.
    pub plan: Plan,
    /// The plan from the next hour on.
    pub then: Plan,
}
