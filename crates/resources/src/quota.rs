//! What an account may have. Its ResourceQuota counts objects, and the API server rejects requests because of it. What the instances have
//! together, the ResourceQuota cannot add up: [`SizeQuotas`], for the facade and the controllers.

use std::fmt::{Display, Formatter};

use kube::core::{Status, response::StatusDetails};

use super::plan::Plan;

/// The account's Instances.
pub const INSTANCES: &str = "count/instances.stellage.dev";
/// Its Webhooks.
pub const WEBHOOKS: &str = "count/webhooks.stellage.dev";
/// Its `ApiKeys`.
pub const KEYS: &str = "count/apikeys.stellage.dev";
/// Its Deliveries.
pub const DELIVERIES: &str = "count/deliveries.stellage.dev";
/// Its Backups.
pub const BACKUPS: &str = "count/backups.stellage.dev";
/// Its `PrivateNetworks`.
pub const NETWORKS: &str = "count/privatenetworks.stellage.dev";
/// Everything that is counted.
pub const ALL: [&str; 6] = [INSTANCES, WEBHOOKS, KEYS, DELIVERIES, BACKUPS, NETWORKS];

/// Whether a request is refused because a quota is used up, as far as Kubernetes has counted.
pub fn is_exceeded(refusal: &Status) -> bool {
    refusal.code == 403 && refusal.message.contains("forbidden: exceeded quota")
}

/// Whether a request is refused only because Kubernetes has not computed the quota yet.
pub fn is_pending(refusal: &Status) -> bool {
    refusal.code == 403 && refusal.message.contains("forbidden: status unknown for quota")
}

/// Whether a create is refused only because the API server could not count it: other writers, such as the controller manager, kept
/// changing the quota meanwhile. Nothing has been counted.
pub fn is_contended(refusal: &Status) -> bool {
    let is_of_quota = |details: &StatusDetails| details.kind == "resourcequotas";
    refusal.code == 409 && refusal.details.as_ref().is_some_and(is_of_quota)
}

/// Virtual CPUs, memory and disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Virtual CPUs.
    pub vcpu: u64,
    /// Memory in GB.
    pub memory_gb: u64,
    /// Disk in GB.
    pub disk_gb: u64,
}

impl Sizes {
    /// What an instance with this plan has.
    pub fn of(plan: Plan) -> Self {
        let size = plan.size();
        let of = |size: i32| u64::try_from(size).unwrap_or_default();
        Self {
            vcpu: of(size.vcpu),
            memory_gb: of(size.memory_gb),
            disk_gb: of(size.disk_gb),
        }
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            vcpu: self.vcpu.max(other.vcpu),
            memory_gb: self.memory_gb.max(other.memory_gb),
            disk_gb: self.disk_gb.max(other.disk_gb),
        }
    }
}

impl std::iter::Sum for Sizes {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            vcpu: sum.vcpu + one.vcpu,
            memory_gb: sum.memory_gb + one.memory_gb,
            disk_gb: sum.disk_gb + one.disk_gb,
        })
    }
}

/// What the instances of an account may have together. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SizeQuotas {
    /// Virtual CPUs.
    pub vcpu: Option<u64>,
    /// Memory in GB.
    pub memory_gb: Option<u64>,
    /// Disk in GB.
    pub disk_gb: Option<u64>,
}

impl SizeQuotas {
    /// Whether there is no limit at all.
    pub fn is_unlimited(self) -> bool {
        self == Self::default()
    }

    /// The most instances that there is room for: each has at least the smallest plan. `None` is no limit.
    pub fn most_instances(self) -> Option<u64> {
        let least = Sizes::of(Plan::ALL[0]);
        [
            self.vcpu.map(|limit| limit / least.vcpu),
            self.memory_gb.map(|limit| limit / least.memory_gb),
            self.disk_gb.map(|limit| limit / least.disk_gb),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// The quotas that have no room for one instance that `has` something and is to have what is `wanted`, beside what all `others`
    /// have together; `None` if all have room. What does not grow needs no room.
    pub fn exceeded(self, others: Sizes, has: Sizes, wanted: Sizes) -> Option<Exceeded> {
        let one = |what, unit, limit: Option<u64>, others: u64, has: u64, wanted: u64| {
            let limit = limit.filter(|limit| wanted > has && others + wanted > *limit)?;
            let used = others + has;
            let more = wanted - has;
            Some(format!(
                "the account's quota of {what} is {limit}{unit}: {used}{unit} are used, and this needs {more}{unit} more"
            ))
        };
        let all = [
            one("vCPUs", "", self.vcpu, others.vcpu, has.vcpu, wanted.vcpu),
            one(
                "memory",
                " GB",
                self.memory_gb,
                others.memory_gb,
                has.memory_gb,
                wanted.memory_gb,
            ),
            one(
                "disk",
                " GB",
                self.disk_gb,
                others.disk_gb,
                has.disk_gb,
                wanted.disk_gb,
            ),
        ];
        let all: Vec<_> = all.into_iter().flatten().collect();
        (!all.is_empty()).then(|| Exceeded(all.join("; ")))
    }
}

/// Which quotas have no room, what is used of each, and what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded(String);

impl Display for Exceeded {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}; choose a smaller plan, delete an instance or ask for a higher quota",
            self.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Sizes = Sizes {
        vcpu: 0,
        memory_gb: 0,
        disk_gb: 0,
    };

    #[test]
    fn a_refusal_names_each_quota_without_room_with_what_is_used_and_what_is_needed() {
        let quotas = SizeQuotas {
            vcpu: Some(8),
            memory_gb: Some(17),
            disk_gb: Some(1000),
        };
        let others: Sizes = [Plan::Performance, Plan::Business, Plan::Starter]
            .into_iter()
            .map(Sizes::of)
            .sum();
        let exceeded = |has, wanted| {
            let exceeded = quotas.exceeded(others, has, Sizes::of(wanted));
            exceeded.map(|exceeded| exceeded.to_string())
        };
        assert_eq!(exceeded(NONE, Plan::Starter), None);
        assert_eq!(
            exceeded(Sizes::of(Plan::Starter), Plan::Business).unwrap(),
            "the account's quota of vCPUs is 8: 8 are used, and this needs 1 more; the account's quota of memory is 17 GB: 16 GB are used, and this needs 2 GB more; choose a smaller plan, delete an instance or ask for a higher quota"
        );
    }

    #[test]
    fn what_does_not_grow_needs_no_room_even_if_the_quota_is_exceeded_already() {
        let quotas = SizeQuotas {
            disk_gb: Some(100),
            ..SizeQuotas::default()
        };
        // A disk never shrinks.
        let has = Sizes {
            disk_gb: 320,
            ..Sizes::of(Plan::Starter)
        };
        let wanted = has.max(Sizes::of(Plan::Business));
        assert_eq!(quotas.exceeded(Sizes::of(Plan::Enterprise), has, wanted), None);
    }

    #[test]
    fn the_smallest_plan_says_how_many_instances_there_can_be_at_most() {
        let quotas = |vcpu, memory_gb, disk_gb| SizeQuotas {
            vcpu,
            memory_gb,
            disk_gb,
        };
        assert_eq!(quotas(None, None, None).most_instances(), None);
        assert_eq!(quotas(Some(8), Some(9), None).most_instances(), Some(4));
        assert_eq!(quotas(None, None, Some(39)).most_instances(), Some(0));
    }
}
