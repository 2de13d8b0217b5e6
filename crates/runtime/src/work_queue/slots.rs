//! Slots that are assigned to accounts round-robin.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A number of slots, of which one account gets only so many at a time, and the items that wait for
/// them.
#[derive(Debug)]
pub(super) struct Slots<T> {
    free: usize,
    per_account: usize,
    accounts: HashMap<Arc<str>, AccountSlots<T>>,
    /// Accounts with something waiting that may get another slot, in the order in which they get one.
    ready: VecDeque<Arc<str>>,
}

#[derive(Debug)]
struct AccountSlots<T> {
    taken: usize,
    waiting: VecDeque<T>,
    /// Whether it is in [`Slots::ready`].
    is_ready: bool,
}

impl<T> Slots<T> {
    pub(super) fn new(slots: usize, per_account: usize) -> Self {
        Self {
            free: slots.max(1),
            per_account: per_account.max(1),
            accounts: HashMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// Puts an item at the end of its account's queue.
    pub(super) fn push(&mut self, account: &Arc<str>, item: T) {
        let of_account = self
            .accounts
            .entry(account.clone())
            .or_insert_with(|| AccountSlots {
                taken: 0,
                waiting: VecDeque::new(),
                is_ready: false,
            });
        of_account.waiting.push_back(item);
        self.make_ready(account);
    }

    /// Takes the next item, and a slot for it, if one is free.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.free == 0 {
            return None;
        }
        let account = self.ready.pop_front()?;
        let of_account = self.accounts.get_mut(&account)?;
        of_account.is_ready = false;
        let item = of_account.waiting.pop_front()?;
        of_account.taken += 1;
        self.free -= 1;
        self.make_ready(&account);
        Some(item)
    }

    /// Gives back a slot of an account.
    pub(super) fn give_back(&mut self, account: &Arc<str>) {
        let Some(of_account) = self.accounts.get_mut(account) else {
            return;
        };
        of_account.taken -= 1;
        self.free += 1;
        if of_account.taken == 0 && of_account.waiting.is_empty() {
            self.accounts.remove(account);
        } else {
            self.make_ready(account);
        }
    }

    fn make_ready(&mut self, account: &Arc<str>) {
        if let Some(of_account) = self.accounts.get_mut(account)
            && !of_account.is_ready
            && !of_account.waiting.is_empty()
            && of_account.taken < self.per_account
        {
            of_account.is_ready = true;
            self.ready.push_back(account.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_round_robin_and_one_account_alone_never_takes_all() {
        let mut slots = Slots::new(4, 2);
        let (big, small): (Arc<str>, Arc<str>) = ("big".into(), "small".into());
        for item in ["big/1", "big/2", "big/3", "big/4"] {
            slots.push(&big, item);
        }
        assert_eq!(
            [slots.pop(), slots.pop(), slots.pop()],
            [Some("big/1"), Some("big/2"), None]
        );
        slots.push(&small, "small/1");
        slots.give_back(&big);
        assert_eq!([slots.pop(), slots.pop()], [Some("small/1"), Some("big/3")]);
        assert_eq!(slots.pop(), None);
        for account in [&small, &big, &big] {
            slots.give_back(account);
        }
        assert_eq!(slots.pop(), Some("big/4"));
        slots.give_back(&big);
        assert!(slots.accounts.is_empty() && slots.ready.is_empty());
        assert_eq!(slots.free, 4);
    }
}
