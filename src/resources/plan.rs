//! The plans.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Size and price class of an instance (specification, section 2.3).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    utoipa::ToSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Plan {
    /// 1 vCPU, 2 GB of memory, 40 GB of disk.
    Starter,
    /// 2 vCPU, 4 GB of memory, 80 GB of disk.
    Business,
    /// 4 vCPU, 8 GB of memory, 160 GB of disk.
    Performance,
    /// 8 vCPU, 16 GB of memory, 320 GB of disk.
    Enterprise,
}
