//! The quotas of an account, and how much of them is used.

use std::sync::Arc;

use super::{
    Service,
    credentials::Tenant,
    error::{Error, no_room},
    instances::IndexedInstance,
    store::KeyedLock,
};
use api::{AccountQuotas, Quota};
use domain::instance::{has_size, will_have_size};
use resources::{Instance, Plan, quota::Sizes};

impl Service {
    /// The quotas of an account.
    pub fn quotas(&self, tenant: &Tenant) -> AccountQuotas {
        let limit = |limit: u32| usize::try_from(limit).ok();
        let (sizes, limits) = (self.sizes(tenant, None), tenant.size_quotas);
        let size = |used: u64, limit: Option<u64>| Quota {
            used: usize::try_from(used).unwrap_or(usize::MAX),
            limit: limit.and_then(|limit| usize::try_from(limit).ok()),
        };
        AccountQuotas {
            vcpu: size(sizes.vcpu, limits.vcpu),
            memory_gb: size(sizes.memory_gb, limits.memory_gb),
            disk_gb: size(sizes.disk_gb, limits.disk_gb),
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
                limit: Some(self.settings.key_quota),
            },
            private_networks: Quota {
                used: self.networks.index().count(&tenant.namespace),
                limit: limit(self.settings.network_quota),
            },
            backups: Quota {
                used: self.counted_backups(&tenant.namespace),
                limit: Some(self.settings.backup_limits.per_account),
            },
        }
    }

    /// What the instances of an account have together, and will have; but for one.
    fn sizes(&self, tenant: &Tenant, except: Option<&Instance>) -> Sizes {
        let all = self.instances.index().all(&tenant.namespace);
        let is_another = |item: &&Arc<IndexedInstance>| {
            except.is_none_or(|except| except.metadata.uid != item.instance.metadata.uid)
        };
        all.iter()
            .filter(is_another)
            .map(|item| will_have_size(&item.instance))
            .sum()
    }

    /// Serialises what an account orders, if it has quotas of vCPUs, memory or disk, so that concurrent requests do not exceed them. That
    /// is for this replica; the controllers see to all of them.
    pub(super) async fn size_lock(&self, tenant: &Tenant) -> Result<Option<KeyedLock>, Error> {
        if tenant.size_quotas.is_unlimited() {
            return Ok(None);
        }
        Ok(Some(self.size_locks.lock(&tenant.namespace).await?))
    }

    /// `resource_limit_exceeded` if the account's quotas have no room for an instance with this plan, which may exist.
    pub(super) fn check_sizes(
        &self,
        tenant: &Tenant,
        instance: Option<&Instance>,
        plan: Plan,
    ) -> Result<(), Error> {
        if tenant.size_quotas.is_unlimited() {
            return Ok(());
        }
        let has = instance.map_or_else(Sizes::default, has_size);
        let wanted = has.max(Sizes::of(plan));
        let exceeded = tenant
            .size_quotas
            .exceeded(self.sizes(tenant, instance), has, wanted);
        exceeded.map_or(Ok(()), |exceeded| Err(no_room(plan, &exceeded)))
    }
}
