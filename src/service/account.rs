//! The account of a request: what it is, may use and does use.

use super::{Service, credentials::Tenant, keys::MAX_KEYS};

/// How much of something an account uses, and how much it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// What is there now.
    pub used: usize,
    /// What may be there; `None`: any number.
    pub limit: Option<usize>,
}

/// What an account uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Instances that are not being deleted.
    pub instances: Quota,
    /// Webhooks.
    pub webhooks: Quota,
    /// API keys.
    pub api_keys: Quota,
}

impl Service {
    /// What an account may use, and uses.
    pub fn quotas(&self, tenant: &Tenant) -> Quotas {
        let limit = |limit: u32| usize::try_from(limit).ok();
        Quotas {
            instances: Quota {
                used: self.instances.index().count(&tenant.namespace),
                limit: tenant.instance_quota.and_then(limit),
            },
            webhooks: Quota {
                used: self.webhooks.index().count(&tenant.namespace),
                limit: limit(tenant.webhook_quota),
            },
            api_keys: Quota {
                used: self.credentials.count(&tenant.namespace),
                limit: Some(MAX_KEYS),
            },
        }
    }
}
