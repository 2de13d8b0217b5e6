//! The quotas of an account, and how much of them is used.

use super::{Service, credentials::Tenant};

/// A quota: the number in use, and the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Number in use.
    pub used: usize,
    /// Maximum; `None` means unlimited.
    pub limit: Option<usize>,
}

/// The quotas of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Instances that are not being deleted.
    pub instances: Quota,
    /// Webhooks.
    pub webhooks: Quota,
    /// API keys that have not expired.
    pub api_keys: Quota,
    /// Manual backups.
    pub backups: Quota,
}

impl Service {
    /// The quotas of an account.
    pub fn quotas(&self, tenant: &Tenant) -> Quotas {
        let limit = |limit: u32| usize::try_from(limit).ok();
        Quotas {
            instances: Quota {
                used: self.instances.index().count(&tenant.namespace),
                limit: limit(tenant.instance_quota),
            },
            webhooks: Quota {
                used: self.webhooks.index().count(&tenant.namespace),
                limit: limit(tenant.webhook_quota),
            },
            api_keys: Quota {
                used: self.credentials.count(&tenant.namespace, self.clock.now()),
                limit: Some(self.key_quota),
            },
            backups: Quota {
                used: self.manual_backups(&tenant.namespace),
                limit: Some(self.backup_limits.per_account),
            },
        }
    }
}
