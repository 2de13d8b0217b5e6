//! The plans, prices, regions and images that can be ordered.

use serde::Serialize;

use crate::resources::Plan;

/// The size and price of a [`Plan`] (specification, section 2.3; disks from the decisions, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlanSize {
    /// Virtual CPUs.
    pub vcpu: i32,
    /// Memory in GB.
    pub memory_gb: i32,
    /// Disk in GB.
    pub disk_gb: i32,
    /// Price per month in whole EUR.
    pub price_eur: u32,
}

impl Plan {
    /// Every plan, smallest first.
    pub const ALL: [Self; 4] = [Self::Starter, Self::Business, Self::Performance, Self::Enterprise];

    /// The plan as REST and `spec.plan` spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starter => "starter",
            Self::Business => "business",
            Self::Performance => "performance",
            Self::Enterprise => "enterprise",
        }
    }

    /// The size and price of the plan.
    pub const fn size(self) -> PlanSize {
        match self {
            Self::Starter => PlanSize {
                vcpu: 1,
                memory_gb: 2,
                disk_gb: 40,
                price_eur: 5,
            },
            Self::Business => PlanSize {
                vcpu: 2,
                memory_gb: 4,
                disk_gb: 80,
                price_eur: 15,
            },
            Self::Performance => PlanSize {
                vcpu: 4,
                memory_gb: 8,
                disk_gb: 160,
                price_eur: 30,
            },
            Self::Enterprise => PlanSize {
                vcpu: 8,
                memory_gb: 16,
                disk_gb: 320,
                price_eur: 60,
            },
        }
    }
}

impl std::str::FromStr for Plan {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|plan| plan.as_str() == text).ok_or(())
    }
}

/// The available regions and images, and whether others are served too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalogue {
    /// Available region codes, listed by `GET /v1/regions`.
    pub regions: Vec<String>,
    /// Available image identifiers, listed by `GET /v1/images`.
    pub images: Vec<String>,
    /// Whether the provider also serves other well-formed regions and images. The simulator does; a real provider serves
    /// only those that are mapped for it (decisions, section 3).
    pub open: bool,
}

impl Default for Catalogue {
    fn default() -> Self {
        Self {
            regions: ["fr-par-1", "de-fra-1", "nl-ams-1"].map(String::from).to_vec(),
            images: [
                "debian-12",
                "debian-13",
                "ubuntu-22.04",
                "ubuntu-24.04",
                "fedora-42",
            ]
            .map(String::from)
            .to_vec(),
            open: true,
        }
    }
}

impl Catalogue {
    /// Whether instances can be created in `region`, which must be well-formed.
    pub fn serves_region(&self, region: &str) -> bool {
        self.open || self.regions.iter().any(|r| r == region)
    }

    /// Whether `image`, which must be well-formed, can be installed.
    pub fn serves_image(&self, image: &str) -> bool {
        self.open || self.images.iter().any(|i| i == image)
    }
}
