//! A round-robin queue: accounts take turns, and each account's own queue is first in, first out.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// A queue in which accounts take turns; used for webhooks and for writes.
#[derive(Debug, Default)]
pub struct FairQueue {
    accounts: VecDeque<Arc<str>>,
    waiting: HashMap<Arc<str>, VecDeque<Arc<str>>>,
}

impl FairQueue {
    /// Puts a key at the end of its account's queue.
    pub fn push(&mut self, account: &Arc<str>, key: Arc<str>) {
        let waiting = self.waiting.entry(account.clone()).or_default();
        if waiting.is_empty() {
            self.accounts.push_back(account.clone());
        }
        waiting.push_back(key);
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Takes the next key.
    pub fn pop(&mut self) -> Option<Arc<str>> {
        let account = self.accounts.pop_front()?;
        let waiting = self.waiting.get_mut(&account)?;
        let key = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&account);
        } else {
            self.accounts.push_back(account);
        }
        key
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
            queue.push(&big, webhook.into());
        }
        queue.push(&small, "small/1".into());
        let order: Vec<Arc<str>> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(
            order.iter().map(|key| &**key).collect::<Vec<_>>(),
            ["big/1", "small/1", "big/2", "big/3"]
        );
    }
}
