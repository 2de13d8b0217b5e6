//! Which Accounts claim which namespace. No I/O: fed by the watch.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::children::{self, DefaultQuotas, QuotaLimits};
use domain::account::Claimant;
use resources::{Account, origin};
use runtime::watch::Change;

/// All claims, by namespace.
#[derive(Debug)]
pub(super) struct Claims {
    defaults: DefaultQuotas,
    /// The limits of the Accounts, by name.
    limits: HashMap<String, QuotaLimits>,
    by_namespace: HashMap<String, BTreeSet<Claimant>>,
    /// The Accounts with the same origin, by its UID: age and name, oldest first. Almost always one.
    by_origin: HashMap<String, BTreeSet<(Age, String)>>,
    by_account: BTreeMap<String, (String, Claimant, Age)>,
}

/// When an Account itself was created, and its UID.
type Age = (Option<Timestamp>, String);

fn age(account: &Account) -> Age {
    let (created, uid) = origin::age(&account.metadata);
    (created, uid.to_owned())
}

impl Claims {
    /// No claims. `defaults` are the limits of Accounts that set none.
    pub(super) fn new(defaults: DefaultQuotas) -> Self {
        Self {
            defaults,
            limits: HashMap::new(),
            by_namespace: HashMap::new(),
            by_origin: HashMap::new(),
            by_account: BTreeMap::new(),
        }
    }

    /// Records a change, and returns the names of the Accounts that it may affect: the changed one, and those that claim the
    /// same namespace.
    pub(super) fn changed(&mut self, change: &Change<Account>) -> BTreeSet<String> {
        match change {
            Change::Replaced(all) => {
                *self = Self::new(self.defaults);
                for account in all {
                    self.insert(account);
                }
                self.by_account.keys().cloned().collect()
            }
            Change::Applied(account) => {
                let name = account.metadata.name.clone().unwrap_or_default();
                let known = self
                    .by_account
                    .get(&name)
                    .is_some_and(|(_, claimant, _)| claimant.uid == origin::uid(&account.metadata));
                let mut affected = if known {
                    BTreeSet::new()
                } else {
                    self.remove(&name)
                };
                if known {
                    self.remove(&name);
                }
                self.insert(account);
                if !known {
                    affected.extend(self.names(account.wanted_namespace()));
                }
                affected.insert(name);
                affected
            }
            Change::Deleted(account) => self.remove(account.metadata.name.as_deref().unwrap_or_default()),
            Change::Unreadable(_) => BTreeSet::new(),
        }
    }

    /// The Accounts that claim `namespace`, oldest first.
    pub(super) fn of(&self, namespace: &str) -> Vec<Claimant> {
        self.by_namespace
            .get(namespace)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// The names of the Accounts that claim `namespace`.
    pub(super) fn names(&self, namespace: &str) -> BTreeSet<String> {
        let claimants = self.by_namespace.get(namespace).into_iter().flatten();
        claimants.map(|claimant| claimant.name.clone()).collect()
    }

    /// The name of an older Account with the same origin: this one is a copy of it.
    pub(super) fn older_twin(&self, account: &Account) -> Option<String> {
        let twins = self.by_origin.get(origin::uid(&account.metadata))?;
        let (oldest, name) = twins.first()?;
        (*oldest < age(account)).then(|| name.clone())
    }

    /// The limits of the Accounts that claim `namespace`.
    pub(super) fn limits(&self, namespace: &str) -> impl Iterator<Item = &QuotaLimits> {
        let claimants = self.by_namespace.get(namespace).into_iter().flatten();
        claimants.filter_map(|claimant| self.limits.get(&claimant.name))
    }

    fn insert(&mut self, account: &Account) {
        let claimant = Claimant::of(account);
        let namespace = account.wanted_namespace().to_owned();
        self.by_namespace
            .entry(namespace.clone())
            .or_default()
            .insert(claimant.clone());
        let limits = children::limits(account, self.defaults);
        self.limits.insert(claimant.name.clone(), limits);
        let age = age(account);
        self.by_origin
            .entry(claimant.uid.clone())
            .or_default()
            .insert((age.clone(), claimant.name.clone()));
        self.by_account
            .insert(claimant.name.clone(), (namespace, claimant, age));
    }

    /// Removes a claim. Returns the names of the remaining claimants of its namespace.
    fn remove(&mut self, name: &str) -> BTreeSet<String> {
        let Some((namespace, claimant, age)) = self.by_account.remove(name) else {
            return BTreeSet::new();
        };
        self.limits.remove(name);
        if let Some(twins) = self.by_origin.get_mut(&claimant.uid) {
            twins.remove(&(age, name.to_owned()));
            if twins.is_empty() {
                self.by_origin.remove(&claimant.uid);
            }
        }
        if let Some(claimants) = self.by_namespace.get_mut(&namespace) {
            claimants.remove(&claimant);
            if claimants.is_empty() {
                self.by_namespace.remove(&namespace);
            }
        }
        self.names(&namespace)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::children::tests::DEFAULTS;
    use super::*;
    use resources::testing::account;

    fn names(set: &BTreeSet<String>) -> Vec<&str> {
        set.iter().map(String::as_str).collect()
    }

    #[test]
    fn the_older_comes_first_and_its_deletion_wakes_the_other() {
        let mut known = Claims::new(DEFAULTS);
        let (older, younger) = (
            Arc::new(account("z", "shop", 1)),
            Arc::new(account("a", "shop", 2)),
        );
        assert_eq!(names(&known.changed(&Change::Applied(younger.clone()))), ["a"]);
        assert_eq!(names(&known.changed(&Change::Applied(older.clone()))), ["a", "z"]);
        let ranked: Vec<_> = known.of("shop").into_iter().map(|c| c.name).collect();
        assert_eq!(ranked, ["z", "a"]);
        assert_eq!(
            names(&known.changed(&Change::Applied(older.clone()))),
            ["z"],
            "a change of one does not concern the other"
        );
        assert_eq!(names(&known.changed(&Change::Deleted(older))), ["a"]);
        assert!(known.changed(&Change::Deleted(younger)).is_empty());
        assert!(known.by_namespace.is_empty() && known.by_account.is_empty());
        assert!(known.by_origin.is_empty());
    }

    #[test]
    fn of_two_accounts_with_one_origin_the_older_has_it_until_it_goes() {
        let mut known = Claims::new(DEFAULTS);
        let copied = |name: &str, second| {
            let mut account = account(name, name, second);
            let origin = "first 2026-11-21T10:00:00Z".to_owned();
            account.metadata.annotations = Some([(origin::ORIGIN_ANNOTATION.to_owned(), origin)].into());
            Arc::new(account)
        };
        let (older, younger) = (copied("z", 1), copied("a", 2));
        for account in [&older, &younger] {
            known.changed(&Change::Applied(account.clone()));
        }
        assert_eq!(known.older_twin(&older), None);
        assert_eq!(known.older_twin(&younger), Some("z".to_owned()));
        known.changed(&Change::Deleted(older));
        assert_eq!(known.older_twin(&younger), None);
    }

    #[test]
    fn a_new_list_replaces_all_that_was_known() {
        let mut known = Claims::new(DEFAULTS);
        known.changed(&Change::Applied(Arc::new(account("gone", "shop", 1))));
        known.changed(&Change::Replaced(vec![Arc::new(account("new", "shop", 2))]));
        assert_eq!(known.of("shop").len(), 1);
    }
}
