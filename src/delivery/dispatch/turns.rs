//! Whose turn it is: accounts take turns, and within an account its webhooks.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::LaneKey;

#[derive(Debug, Default)]
pub(super) struct Turns {
    accounts: VecDeque<Arc<str>>,
    lanes: HashMap<Arc<str>, VecDeque<LaneKey>>,
}

impl Turns {
    /// Puts a lane at the end of its account's queue.
    pub(super) fn offer(&mut self, account: &Arc<str>, lane: LaneKey) {
        let lanes = self.lanes.entry(account.clone()).or_default();
        if lanes.is_empty() {
            self.accounts.push_back(account.clone());
        }
        lanes.push_back(lane);
    }

    /// The next lane; it is no longer in a queue.
    pub(super) fn take(&mut self) -> Option<LaneKey> {
        let account = self.accounts.pop_front()?;
        let lanes = self.lanes.get_mut(&account)?;
        let lane = lanes.pop_front();
        if lanes.is_empty() {
            self.lanes.remove(&account);
        } else {
            self.accounts.push_back(account);
        }
        lane
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_take_turns_however_many_webhooks_they_have() {
        let mut turns = Turns::default();
        let (big, small): (Arc<str>, Arc<str>) = ("big".into(), "small".into());
        for lane in ["big/1", "big/2", "big/3"] {
            turns.offer(&big, lane.into());
        }
        turns.offer(&small, "small/1".into());
        let order: Vec<LaneKey> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(
            order.iter().map(|lane| &**lane).collect::<Vec<_>>(),
            ["big/1", "small/1", "big/2", "big/3"]
        );
    }
}
