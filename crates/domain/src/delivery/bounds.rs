//! Counts of waiting and held deliveries: per webhook, per account and in total, and who has the most of those that can
//! give way. Each change costs a few steps in ordered sets, however many webhooks there are.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::WebhookKey;

/// The maximum number of deliveries of one kind (decisions, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Per webhook.
    pub webhook: usize,
    /// Per account.
    pub account: usize,
    pub total: usize,
}

/// The level at which a bound is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Webhook,
    Account,
    Total,
}

/// The deliveries of one kind, and their bound.
#[derive(Debug)]
pub(super) struct Counts {
    bound: Bound,
    total: usize,
    accounts: HashMap<Arc<str>, AccountCounts>,
    /// Accounts with a webhook in [`AccountCounts::ranking`], ordered by count.
    ranking: BTreeSet<(usize, Arc<str>)>,
    /// Accounts below their bound with a webhook in [`AccountCounts::expecting`], ordered by count.
    expecting: BTreeSet<(usize, Arc<str>)>,
}

#[derive(Debug, Default)]
struct AccountCounts {
    count: usize,
    webhooks: BTreeMap<WebhookKey, WebhookCounts>,
    /// Webhooks with deliveries that can give way, ordered by count.
    ranking: BTreeSet<(usize, WebhookKey)>,
    /// Webhooks below their bound that wait for room, ordered by count.
    expecting: BTreeSet<(usize, WebhookKey)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct WebhookCounts {
    count: usize,
    /// Whether some of them can give way.
    can_yield: bool,
    /// Whether it has more deliveries, which wait for room.
    expects_room: bool,
}

impl Counts {
    pub(super) fn new(bound: Bound) -> Self {
        Self {
            bound,
            total: 0,
            accounts: HashMap::new(),
            ranking: BTreeSet::new(),
            expecting: BTreeSet::new(),
        }
    }

    /// Counts one more delivery.
    pub(super) fn add(&mut self, account: &Arc<str>, webhook: &WebhookKey) {
        self.change(account, webhook, |it| it.count += 1);
    }

    /// Counts one delivery fewer.
    pub(super) fn remove(&mut self, account: &Arc<str>, webhook: &WebhookKey) {
        self.change(account, webhook, |it| it.count -= 1);
    }

    /// Records whether some deliveries of a webhook can give way.
    pub(super) fn can_yield(&mut self, account: &Arc<str>, webhook: &WebhookKey, can_yield: bool) {
        let counts = self.accounts.get(account);
        let counts = counts.and_then(|account| account.webhooks.get(webhook));
        if counts.is_some_and(|counts| counts.can_yield) != can_yield {
            self.change(account, webhook, |it| it.can_yield = can_yield);
        }
    }

    /// Records whether a webhook has more deliveries, which wait for room.
    pub(super) fn expect_room(&mut self, account: &Arc<str>, webhook: &WebhookKey, expects_room: bool) {
        self.change(account, webhook, |it| it.expects_room = expects_room);
    }

    /// Forgets a webhook and its deliveries.
    pub(super) fn forget(&mut self, account: &Arc<str>, webhook: &WebhookKey) {
        self.change(account, webhook, |it| *it = WebhookCounts::default());
    }

    /// The total number.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The number of an account's deliveries.
    pub(super) fn of_account(&self, account: &str) -> usize {
        self.accounts.get(account).map_or(0, |account| account.count)
    }

    /// The number of a webhook's deliveries.
    pub(super) fn of_webhook(&self, account: &str, webhook: &WebhookKey) -> usize {
        let account = self.accounts.get(account);
        let webhook = account.and_then(|account| account.webhooks.get(webhook));
        webhook.map_or(0, |webhook| webhook.count)
    }

    /// The narrowest bound that leaves no room for one more delivery of a webhook.
    pub(super) fn full(&self, account: &str, webhook: &WebhookKey) -> Option<Scope> {
        self.reached(account, webhook, 0)
    }

    /// The narrowest bound that the deliveries of a webhook exceed.
    pub(super) fn exceeded(&self, account: &str, webhook: &WebhookKey) -> Option<Scope> {
        self.reached(account, webhook, 1)
    }

    fn reached(&self, account: &str, webhook: &WebhookKey, beyond: usize) -> Option<Scope> {
        let Bound {
            webhook: of_webhook,
            account: of_account,
            total,
        } = self.bound;
        if self.of_webhook(account, webhook) >= of_webhook.saturating_add(beyond) {
            Some(Scope::Webhook)
        } else if self.of_account(account) >= of_account.saturating_add(beyond) {
            Some(Scope::Account)
        } else if self.total >= total.saturating_add(beyond) {
            Some(Scope::Total)
        } else {
            None
        }
    }

    /// The account with the most deliveries, among those with some that can give way.
    pub(super) fn largest_account(&self) -> Option<&Arc<str>> {
        self.ranking.last().map(|(_, account)| account)
    }

    /// The webhook with the most deliveries in an account, among those with some that can give way.
    pub(super) fn largest_webhook(&self, account: &str) -> Option<&WebhookKey> {
        let account = self.accounts.get(account)?;
        account.ranking.last().map(|(_, webhook)| webhook)
    }

    /// The webhook that gets room next: among those with room for more, the one with the fewest deliveries in the
    /// account with the fewest.
    pub(super) fn next_expecting(&self) -> Option<WebhookKey> {
        if self.total >= self.bound.total {
            return None;
        }
        let (_, account) = self.expecting.first()?;
        let (_, webhook) = self.accounts.get(account)?.expecting.first()?;
        Some(webhook.clone())
    }

    fn change(&mut self, name: &Arc<str>, webhook: &WebhookKey, change: impl FnOnce(&mut WebhookCounts)) {
        let account = self.accounts.entry(name.clone()).or_default();
        let rank = (account.count, name.clone());
        self.ranking.remove(&rank);
        self.expecting.remove(&rank);
        let mut counts = account.webhooks.remove(webhook).unwrap_or_default();
        let before = counts.count;
        let rank = (before, webhook.clone());
        account.ranking.remove(&rank);
        account.expecting.remove(&rank);
        change(&mut counts);
        account.count = account.count - before + counts.count;
        self.total = self.total - before + counts.count;
        if counts.count > 0 || counts.expects_room || counts.can_yield {
            let rank = (counts.count, webhook.clone());
            if counts.expects_room && counts.count < self.bound.webhook {
                account.expecting.insert(rank.clone());
            }
            if counts.can_yield {
                account.ranking.insert(rank);
            }
            account.webhooks.insert(webhook.clone(), counts);
        }
        if account.webhooks.is_empty() {
            self.accounts.remove(name);
            return;
        }
        let rank = (account.count, name.clone());
        if !account.expecting.is_empty() && account.count < self.bound.account {
            self.expecting.insert(rank.clone());
        }
        if !account.ranking.is_empty() {
            self.ranking.insert(rank);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.accounts.is_empty() && self.total == 0 && self.ranking.is_empty() && self.expecting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound = Bound {
        webhook: 3,
        account: 5,
        total: 8,
    };

    fn add(counts: &mut Counts, webhook: &str, times: usize) {
        let (account, _) = webhook.split_once('/').unwrap();
        for _ in 0..times {
            counts.add(&account.into(), &webhook.into());
        }
        counts.can_yield(&account.into(), &webhook.into(), true);
    }

    #[test]
    fn the_narrowest_bound_is_named() {
        let mut counts = Counts::new(BOUND);
        add(&mut counts, "a/1", 3);
        assert_eq!(counts.full("a", &"a/1".into()), Some(Scope::Webhook));
        assert_eq!(counts.full("a", &"a/2".into()), None);
        add(&mut counts, "a/2", 2);
        assert_eq!(counts.full("a", &"a/2".into()), Some(Scope::Account));
        add(&mut counts, "b/1", 2);
        assert_eq!(counts.full("c", &"c/1".into()), None);
        add(&mut counts, "b/1", 1);
        assert_eq!(counts.full("c", &"c/1".into()), Some(Scope::Total));
        assert_eq!(counts.exceeded("b", &"b/1".into()), None);
        add(&mut counts, "b/1", 1);
        assert_eq!(counts.exceeded("b", &"b/1".into()), Some(Scope::Webhook));
        assert_eq!(counts.largest_account().unwrap().as_ref(), "a");
        assert_eq!(counts.largest_webhook("a").unwrap().as_ref(), "a/1");
    }

    #[test]
    fn who_has_most_is_asked_of_those_that_can_give_way() {
        let mut counts = Counts::new(BOUND);
        add(&mut counts, "a/1", 3);
        add(&mut counts, "a/2", 2);
        add(&mut counts, "b/1", 1);
        counts.can_yield(&"a".into(), &"a/1".into(), false);
        assert_eq!(counts.largest_account().unwrap().as_ref(), "a");
        assert_eq!(counts.largest_webhook("a").unwrap().as_ref(), "a/2");
        counts.can_yield(&"a".into(), &"a/2".into(), false);
        assert_eq!(counts.largest_account().unwrap().as_ref(), "b");
        assert_eq!(counts.largest_webhook("a"), None);
        assert_eq!(counts.of_account("a"), 5, "they count nevertheless");
    }

    #[test]
    fn room_goes_to_the_account_that_has_fewest() {
        let mut counts = Counts::new(BOUND);
        add(&mut counts, "a/1", 3);
        add(&mut counts, "a/2", 2);
        add(&mut counts, "b/1", 3);
        for (account, webhook) in [("a", "a/2"), ("b", "b/1"), ("c", "c/1")] {
            counts.expect_room(&account.into(), &webhook.into(), true);
        }
        assert_eq!(counts.next_expecting(), None, "the total is reached");
        counts.remove(&"a".into(), &"a/1".into());
        assert_eq!(counts.next_expecting().unwrap().as_ref(), "c/1");
        counts.expect_room(&"c".into(), &"c/1".into(), false);
        assert_eq!(
            counts.next_expecting().unwrap().as_ref(),
            "a/2",
            "b/1 has reached its own bound"
        );
        for webhook in ["a/1", "a/2", "b/1"] {
            let (account, _) = webhook.split_once('/').unwrap();
            counts.forget(&account.into(), &webhook.into());
        }
        assert!(counts.is_empty());
    }

    #[test]
    fn room_goes_to_no_account_that_has_reached_its_bound() {
        let mut counts = Counts::new(BOUND);
        add(&mut counts, "a/1", 3);
        add(&mut counts, "a/2", 2);
        add(&mut counts, "b/1", 2);
        for (account, webhook) in [("a", "a/2"), ("b", "b/1")] {
            counts.expect_room(&account.into(), &webhook.into(), true);
        }
        assert_eq!(counts.next_expecting().unwrap().as_ref(), "b/1");
        counts.expect_room(&"b".into(), &"b/1".into(), false);
        assert_eq!(counts.next_expecting(), None);
    }
}
