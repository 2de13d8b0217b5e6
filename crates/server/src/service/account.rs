//! The quotas of an account, and how much of them is used.

use super::{Service, credentials::Tenant};
use api::{AccountQuotas, Quota};

impl Service {
    /// The quotas of an account.
    pub fn quotas(&self, tenant: &Tenant) -> AccountQuotas {
        let limit = |limit: u32| usize::try_from(limit).ok();
        AccountQuotas {
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
            private_networks: Quota {
                used: self.networks.index().count(&tenant.namespace),
                limit: limit(self.network_quota),
            },
            backups: Quota {
                used: self.counted_backups(&tenant.namespace),
                limit: Some(self.backup_limits.per_account),
            },
        }
    }
}
