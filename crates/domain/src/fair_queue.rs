//! A round-robin queue: accounts take turns, and each account's own queue is first in, first out.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A queue in which accounts take turns; used for webhooks and for writes.
#[derive(Debug)]
pub struct FairQueue<T = Arc<str>> {
    accounts: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<T>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            accounts: VecDeque::new(),
            waiting: HashMap::new(),
        }
    }
}

impl<T> FairQueue<T> {
    /// Puts an item at the end of its account's queue.
    pub fn push(&mut self, account: &Arc<str>, item: T) {
        let waiting = self.waiting.entry(account.clone()).or_default();
        if waiting.is_empty() {
            self.accounts.push_back(account.clone());
        }
        waiting.push_back(item);
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Takes the next item.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_of(|_| true)
    }

    /// Takes the next item of an account that may have it. Accounts that are passed over keep their turn.
    pub fn pop_of(&mut self, may_have: impl Fn(&Arc<str>) -> bool) -> Option<T> {
        let turn = self.accounts.iter().position(may_have)?;
        let account = self.accounts.remove(turn)?;
        let waiting = self.waiting.get_mut(&account)?;
        let item = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&account);
        } else {
            self.accounts.push_back(account);
        }
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_take_turns_however_many_webhooks_they_have() {
        let mut queue = FairQueue::default();
        let (big, small): (Arc<str>, Arc<str>) = ("big".into(), "small".into());
        for webhook in ["big/1", "big/2", "big/3"] {
            queue.push(&big, webhook);
        }
        queue.push(&small, "small/1");
        let order: Vec<&str> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["big/1", "small/1", "big/2", "big/3"]);
    }

    #[test]
    fn an_account_that_is_passed_over_keeps_its_turn() {
        let mut queue = FairQueue::default();
        for account in ["a", "b", "b", "c"] {
            queue.push(&account.into(), account);
        }
        assert_eq!(queue.pop_of(|account| &**account != "a"), Some("b"));
        assert_eq!(queue.pop_of(|_| false), None);
        let order: Vec<&str> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["a", "c", "b"]);
    }
}
