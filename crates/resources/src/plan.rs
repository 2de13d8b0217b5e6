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
    strum::Display,
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

/// The size of a [`Plan`] (specification, section 2.3; disks from the decisions, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanSize {
    /// Virtual CPUs.
    pub vcpu: i32,
    /// Memory in GB.
    pub memory_gb: i32,
    /// Disk in GB.
    pub disk_gb: i32,
}

impl Plan {
    /// Every plan, smallest first.
    pub const ALL: [Self; 4] = [Self::Starter, Self::Business, Self::Performance, Self::Enterprise];

    /// The plan as REST and `spec.plan` spell it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The size of the plan.
    pub const fn size(self) -> PlanSize {
        let (vcpu, memory_gb, disk_gb) = match self {
            Self::Starter => (1, 2, 40),
            Self::Business => (2, 4, 80),
            Self::Performance => (4, 8, 160),
            Self::Enterprise => (8, 16, 320),
        };
        PlanSize {
            vcpu,
            memory_gb,
            disk_gb,
        }
    }
}

impl std::str::FromStr for Plan {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|plan| plan.as_str() == text).ok_or(())
    }
}
