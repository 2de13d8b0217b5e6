//! Slots that are assigned to accounts round-robin.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

/// Whose slot it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlotKey {
    pub(crate) account: Arc<str>,
    /// The region whose cluster it concerns.
    pub(crate) region: Option<Arc<str>>,
}

/// A number of slots, of which one account and one region get only so many at a time, and the items that wait for them.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    free: usize,
    per_account: usize,
    per_region: usize,
    /// What waits. Each key is also in `ready`, or held back by its account or its region.
    waiting: HashMap<SlotKey, VecDeque<T>>,
    accounts: HashMap<Arc<str>, Share>,
    regions: HashMap<Arc<str>, Share>,
    /// In the order in which they get a slot.
    ready: VecDeque<SlotKey>,
}

/// What an account or a region has of the slots.
#[derive(Debug, Default)]
struct Share {
    taken: usize,
    /// Those that wait until it has fewer.
    held_back: VecDeque<SlotKey>,
}

impl<T> Slots<T> {
    pub(crate) fn new(slots: usize, per_account: usize, per_region: usize) -> Self {
        Self {
            free: slots.max(1),
            per_account: per_account.max(1),
            per_region: per_region.max(1),
            waiting: HashMap::new(),
            accounts: HashMap::new(),
            regions: HashMap::new(),
            ready: VecDeque::new(),
        }
    }

    /// Puts an item at the end of its queue.
    pub(crate) fn push(&mut self, key: &SlotKey, item: T) {
        match self.waiting.entry(key.clone()) {
            Entry::Occupied(mut waiting) => waiting.get_mut().push_back(item),
            Entry::Vacant(none) => {
                none.insert(VecDeque::from([item]));
                self.ready.push_back(key.clone());
            }
        }
    }

    /// Takes the next item, and a slot for it, if one is free.
    pub(super) fn pop(&mut self) -> Option<(SlotKey, T)> {
        self.pop_wanted(|_| true)
    }

    /// The same, but drops the items that are not wanted any more.
    pub(crate) fn pop_wanted(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<(SlotKey, T)> {
        if self.free == 0 {
            return None;
        }
        while let Some(key) = self.ready.pop_front() {
            let has_room = |share: Option<&Share>, limit| share.is_none_or(|share| share.taken < limit);
            let account_has_room = has_room(self.accounts.get(&key.account), self.per_account);
            let region = key.region.as_ref();
            let region_has_room = has_room(
                region.and_then(|region| self.regions.get(region)),
                self.per_region,
            );
            // Whoever is held back leaves the room to another that waits for it.
            if !account_has_room {
                if region_has_room {
                    self.wake_region(&key);
                }
                let account = self.accounts.entry(key.account.clone()).or_default();
                account.held_back.push_back(key);
                continue;
            }
            if let Some(region) = region.filter(|_| !region_has_room) {
                self.wake_account(&key);
                let region = self.regions.entry(region.clone()).or_default();
                region.held_back.push_back(key);
                continue;
            }
            let Entry::Occupied(mut waiting) = self.waiting.entry(key.clone()) else {
                continue;
            };
            let item = std::iter::from_fn(|| waiting.get_mut().pop_front()).find(&is_wanted);
            if waiting.get().is_empty() {
                waiting.remove();
            } else {
                self.ready.push_back(key.clone());
            }
            // Whoever has nothing left that is wanted does, too.
            let Some(item) = item else {
                self.wake_account(&key);
                self.wake_region(&key);
                continue;
            };
            self.accounts.entry(key.account.clone()).or_default().taken += 1;
            if let Some(region) = &key.region {
                self.regions.entry(region.clone()).or_default().taken += 1;
            }
            self.free -= 1;
            return Some((key, item));
        }
        None
    }

    /// Gives back a slot.
    pub(crate) fn give_back(&mut self, key: &SlotKey) {
        self.free += 1;
        if let Some(account) = self.accounts.get_mut(&key.account) {
            account.taken -= 1;
        }
        self.wake_account(key);
        if let Some(region) = key
            .region
            .as_ref()
            .and_then(|region| self.regions.get_mut(region))
        {
            region.taken -= 1;
        }
        self.wake_region(key);
    }

    #[cfg(test)]
    pub(crate) fn assert_unused(&self, slots: usize) {
        assert!(self.waiting.is_empty() && self.ready.is_empty());
        assert!(self.accounts.is_empty() && self.regions.is_empty());
        assert_eq!(self.free, slots);
    }

    /// Lets the next that its account has held back take its turn.
    fn wake_account(&mut self, key: &SlotKey) {
        if let Entry::Occupied(mut account) = self.accounts.entry(key.account.clone()) {
            self.ready.extend(account.get_mut().held_back.pop_front());
            if account.get().is_unused() {
                account.remove();
            }
        }
    }

    /// Lets the next that its region has held back, which has had its turn, go first.
    fn wake_region(&mut self, key: &SlotKey) {
        let Some(region) = &key.region else { return };
        if let Entry::Occupied(mut region) = self.regions.entry(region.clone()) {
            if let Some(next) = region.get_mut().held_back.pop_front() {
                self.ready.push_front(next);
            }
            if region.get().is_unused() {
                region.remove();
            }
        }
    }
}

impl Share {
    fn is_unused(&self) -> bool {
        self.taken == 0 && self.held_back.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(account: &str, region: Option<&str>) -> SlotKey {
        SlotKey {
            account: account.into(),
            region: region.map(Into::into),
        }
    }

    fn popped<'a>(slots: &mut Slots<&'a str>, count: usize) -> Vec<&'a str> {
        std::iter::from_fn(|| slots.pop())
            .take(count)
            .map(|(_, item)| item)
            .collect()
    }

    #[test]
    fn slots_are_given_round_robin_and_one_account_alone_never_takes_all() {
        let mut slots = Slots::new(4, 2, 4);
        let (big, small) = (key("big", None), key("small", None));
        for item in ["big/1", "big/2", "big/3", "big/4"] {
            slots.push(&big, item);
        }
        assert_eq!(popped(&mut slots, 3), ["big/1", "big/2"]);
        slots.push(&small, "small/1");
        slots.give_back(&big);
        assert_eq!(popped(&mut slots, 3), ["small/1", "big/3"]);
        for account in [&small, &big, &big] {
            slots.give_back(account);
        }
        assert_eq!(popped(&mut slots, 2), ["big/4"]);
        slots.give_back(&big);
        slots.assert_unused(4);
    }

    #[test]
    fn one_region_never_takes_all_slots_and_its_accounts_take_turns_in_it() {
        let mut slots = Slots::new(4, 3, 2);
        let keys = ["a", "b", "c"].map(|account| key(account, Some("slow")));
        let [a, b, c] = &keys;
        for (key, item) in [(a, "a/1"), (a, "a/2"), (a, "a/3"), (b, "b/1"), (c, "c/1")] {
            slots.push(key, item);
        }
        let other = key("a", Some("fast"));
        assert_eq!(popped(&mut slots, 3), ["a/1", "b/1"]);
        for item in ["a/fast/1", "a/fast/2"] {
            slots.push(&other, item);
        }
        assert_eq!(popped(&mut slots, 3), ["a/fast/1", "a/fast/2"]);
        // Account and region are both full for what is left of `a`; `c` gets the room of the region.
        slots.give_back(b);
        assert_eq!(popped(&mut slots, 3), ["c/1"]);
        slots.give_back(&other);
        slots.give_back(c);
        assert_eq!(popped(&mut slots, 3), ["a/2"]);
        slots.give_back(a);
        assert_eq!(popped(&mut slots, 3), ["a/3"]);
        for key in [a, a, &other] {
            slots.give_back(key);
        }
        slots.assert_unused(4);
    }

    #[test]
    fn nothing_is_forgotten_however_slots_are_taken_and_given_back() {
        let keys: Vec<SlotKey> = ["a", "b", "c", "d"]
            .into_iter()
            .flat_map(|account| [None, Some("x"), Some("y")].map(|region| key(account, region)))
            .collect();
        // A linear congruential generator, so that a failure repeats itself.
        let mut seed = 1_u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let mut slots = Slots::new(6, 3, 3);
        let (mut pushed, mut running, mut done) = (0, Vec::new(), 0);
        while pushed < 5_000 || done < pushed {
            if pushed < 5_000 && random(2) == 0 {
                slots.push(&keys[random(keys.len())], pushed);
                pushed += 1;
            }
            while let Some((key, _)) = slots.pop() {
                running.push(key);
            }
            for account in ["a", "b", "c", "d"] {
                let its = running.iter().filter(|key| &*key.account == account);
                assert!(its.count() <= 3);
            }
            for region in ["x", "y"] {
                let its = running.iter().filter(|key| key.region.as_deref() == Some(region));
                assert!(its.count() <= 3);
            }
            assert!(
                !running.is_empty() || done == pushed,
                "something waits, and nothing runs"
            );
            if !running.is_empty() {
                slots.give_back(&running.swap_remove(random(running.len())));
                done += 1;
            }
        }
        slots.assert_unused(6);
    }
}
