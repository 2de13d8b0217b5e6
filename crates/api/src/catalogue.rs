//! What can be ordered: `/v1/plans`, `/v1/regions`, `/v1/images`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::console::ConsoleType;
use crate::money::{Money, UnitMoney};
use resources::Plan;

/// A plan that can be ordered.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct PlanOffer {
    /// Identifier of the plan, as used in requests.
    pub id: Plan,
    /// Virtual CPUs.
    #[schema(minimum = 1, example = 1)]
    pub vcpu: i32,
    /// Memory in GB.
    #[schema(minimum = 1, example = 2)]
    pub memory: i32,
    /// Disk in GB.
    #[schema(minimum = 1, example = 40)]
    pub disk_size: i32,
    /// Price per month.
    pub price_monthly: Money,
    /// Price per hour: a 672nd of the month's, rounded up to a thousandth of a cent.
    pub price_hourly: UnitMoney,
}

/// A region in which instances can be created.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct RegionOffer {
    /// Region code, as used in requests: `<country>-<city>-<n>`.
    #[schema(pattern = "^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$", example = "fr-par-1")]
    pub id: String,
    /// Country, as an ISO 3166 code in lower case.
    #[schema(pattern = "^[a-z]{2}$", example = "fr")]
    pub country: String,
    /// City code.
    #[schema(pattern = "^[a-z]{3,}$", example = "par")]
    pub city: String,
    /// Whether its servers are simulated. They cost nothing but memory, and nobody can log in to them.
    pub simulated: bool,
    /// Whether its instances can be backed up.
    #[schema(example = true)]
    pub backups: bool,
    /// Whether its instances can be attached to private networks.
    #[schema(example = true)]
    pub private_networks: bool,
    /// The consoles of its instances that can be opened.
    #[schema(example = json!(["serial", "vnc"]))]
    pub consoles: Vec<ConsoleType>,
}

/// An image that can be installed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct ImageOffer {
    /// Identifier of the image, as used in requests.
    #[schema(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", example = "debian-13")]
    pub id: String,
    /// The distribution.
    #[schema(example = "debian")]
    pub distribution: String,
    /// Version of the distribution; `null` if the identifier contains none.
    #[schema(required, example = "13")]
    pub version: Option<String>,
    /// The login user, who gets the SSH keys; `null` where it is not known, or not the same in all regions.
    #[schema(required, example = "debian")]
    pub user: Option<String>,
}
