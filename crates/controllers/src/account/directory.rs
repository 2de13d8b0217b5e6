//! Which Account owns which namespace, for the other controllers. No I/O: fed by the watch.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use parking_lot::RwLock;

use domain::account::Claimant;
use domain::event::payload::User;
use resources::{Account, ids, origin, quota::SizeQuotas};
use runtime::watch::{Change, Listener};

/// The owners of namespaces. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct AccountDirectory {
    index: Arc<RwLock<Index>>,
}

/// The owner's origin UID, why its servers are kept off, and its quotas.
type Terms = (String, Option<String>, SizeQuotas);

#[derive(Debug, Default)]
struct Index {
    /// Almost always one Account. There are two while the end of an old claim has not been seen yet; then the
    /// older one wins.
    by_namespace: HashMap<String, BTreeMap<Claimant, Arc<Account>>>,
    by_account: HashMap<String, (String, Claimant)>,
}

impl AccountDirectory {
    /// The Account that owns `namespace`, even if the Account is being deleted.
    pub fn account_of(&self, namespace: &str) -> Option<Arc<Account>> {
        self.index.read().owner(namespace).cloned()
    }

    /// The holder of the Account that owns `namespace`, as shown in events.
    pub fn holder_of(&self, namespace: &str) -> Option<User> {
        let account = self.account_of(namespace)?;
        Some(User {
            id: ids::account_id(origin::uid(&account.metadata)),
            email: account.spec.email.clone(),
        })
    }

    /// The listener for the watch of Accounts. It must receive every change. After updating the directory, it calls
    /// `owner_changed` with every namespace that has gained, changed or lost its owner, or whose owner's servers are kept off, or
    /// no longer are, or whose owner has other quotas. The callback must not block.
    pub fn listener(
        &self,
        mut owner_changed: impl FnMut(&str) + Send + 'static,
    ) -> Box<dyn Listener<Account>> {
        let index = self.index.clone();
        Box::new(move |change: &Change<Account>| {
            // Release the lock before calling back: the callback reads the directory.
            let affected = index.write().changed(change);
            for namespace in affected {
                owner_changed(&namespace);
            }
        })
    }
}

impl Index {
    fn owner(&self, namespace: &str) -> Option<&Arc<Account>> {
        self.by_namespace.get(namespace)?.values().next()
    }

    /// The owner of a namespace, and what the other controllers go by.
    fn terms(&self, namespace: &str) -> Option<Terms> {
        let (claimant, account) = self.by_namespace.get(namespace)?.first_key_value()?;
        Some((
            claimant.uid.clone(),
            account.keeps_servers_off().map(str::to_owned),
            account.size_quotas(),
        ))
    }

    /// Records a change and returns the namespaces whose owner, or its terms, have changed.
    fn changed(&mut self, change: &Change<Account>) -> Vec<String> {
        let touched: HashSet<String> = match change {
            Change::Replaced(all) => {
                let now = all.iter().filter_map(|account| account.owned_namespace());
                self.by_namespace
                    .keys()
                    .cloned()
                    .chain(now.map(str::to_owned))
                    .collect()
            }
            Change::Applied(account) => {
                let name = account.metadata.name.as_deref().unwrap_or_default();
                let before = self.by_account.get(name).map(|(namespace, _)| namespace.clone());
                before
                    .into_iter()
                    .chain(account.owned_namespace().map(str::to_owned))
                    .collect()
            }
            Change::Deleted(account) => {
                let name = account.metadata.name.as_deref().unwrap_or_default();
                let before = self.by_account.get(name).map(|(namespace, _)| namespace.clone());
                before.into_iter().collect()
            }
            Change::Unreadable(_) => return Vec::new(),
        };
        let before: Vec<(String, Option<Terms>)> = touched
            .into_iter()
            .map(|namespace| {
                let terms = self.terms(&namespace);
                (namespace, terms)
            })
            .collect();
        match change {
            Change::Replaced(all) => {
                *self = Self::default();
                for account in all {
                    self.insert(account);
                }
            }
            Change::Applied(account) => {
                self.remove(account);
                self.insert(account);
            }
            Change::Deleted(account) => self.remove(account),
            Change::Unreadable(_) => {}
        }
        before
            .into_iter()
            .filter(|(namespace, terms)| self.terms(namespace) != *terms)
            .map(|(namespace, _)| namespace)
            .collect()
    }

    fn insert(&mut self, account: &Arc<Account>) {
        let Some(namespace) = account.owned_namespace() else {
            return;
        };
        let claimant = Claimant::of(account);
        self.by_account
            .insert(claimant.name.clone(), (namespace.to_owned(), claimant.clone()));
        self.by_namespace
            .entry(namespace.to_owned())
            .or_default()
            .insert(claimant, account.clone());
    }

    fn remove(&mut self, account: &Account) {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let Some((namespace, claimant)) = self.by_account.remove(name) else {
            return;
        };
        if let Some(owners) = self.by_namespace.get_mut(&namespace) {
            owners.remove(&claimant);
            if owners.is_empty() {
                self.by_namespace.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::account::{Outcome, status};
    use resources::testing::account;

    use super::*;

    /// An Account that owns its namespace.
    fn owning(name: &str, namespace: &str, second: i64) -> Account {
        let mut account = account(name, namespace, second);
        let now = jiff::Timestamp::from_second(second).unwrap();
        account.status = Some(status(&account, &Outcome::Ready { adopted: false }, now));
        account
    }

    fn name_of(directory: &AccountDirectory, namespace: &str) -> Option<String> {
        directory.account_of(namespace)?.metadata.name.clone()
    }

    #[test]
    fn it_knows_the_owner_of_a_namespace_and_reports_changes() {
        let directory = AccountDirectory::default();
        let reported = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut listener = directory.listener({
            let (reported, directory) = (reported.clone(), directory.clone());
            move |namespace: &str| {
                let owner = name_of(&directory, namespace);
                reported.lock().push((namespace.to_owned(), owner));
            }
        });
        let take = || std::mem::take(&mut *reported.lock());

        listener.changed(&Change::Applied(Arc::new(account("ada", "shop", 1))));
        assert_eq!(
            (name_of(&directory, "shop"), take().len()),
            (None, 0),
            "claiming is not owning"
        );

        listener.changed(&Change::Applied(Arc::new(owning("ada", "shop", 1))));
        assert_eq!(name_of(&directory, "shop").as_deref(), Some("ada"));
        assert_eq!(take(), [("shop".to_owned(), Some("ada".to_owned()))]);

        listener.changed(&Change::Applied(Arc::new(owning("ada", "shop", 1))));
        listener.changed(&Change::Applied(Arc::new(owning("bob", "shop", 2))));
        assert_eq!(
            name_of(&directory, "shop").as_deref(),
            Some("ada"),
            "the older wins"
        );
        assert!(take().is_empty());

        let mut limited = owning("ada", "shop", 1);
        limited.spec.vcpu_quota = Some(8);
        listener.changed(&Change::Applied(Arc::new(limited)));
        assert_eq!(take().len(), 1, "it has another quota");

        listener.changed(&Change::Deleted(Arc::new(owning("ada", "shop", 1))));
        assert_eq!(take(), [("shop".to_owned(), Some("bob".to_owned()))]);

        listener.changed(&Change::Replaced(Vec::new()));
        assert_eq!(take(), [("shop".to_owned(), None)]);
    }
}
