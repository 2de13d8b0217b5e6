//! The slots for attempts in flight, and how accounts share them.
//!
//! An attempt can neither be interrupted nor known in advance to be slow, so slots must be left for others before it
//! turns out to be. Therefore an account gets another slot only while it has fewer than are free: one alone gets half, two get a
//! third each, and one that has none gets one while there is any. Many accounts could still take all of them, and keep them for as long
//! as an attempt may last; so accounts with an attempt that has lately been slow leave some to those without.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// The part of the slots that is kept for accounts without slow attempts.
const KEPT: usize = 8;
/// How long an attempt that has turned out to be slow is remembered against its account.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The slots in use.
#[derive(Debug)]
pub(super) struct Slots {
    all: Share,
    /// Those of suspects' attempts, and of attempts that have turned out to be slow: half of all.
    suspects: Share,
    /// When an attempt of each account last turned out to be slow.
    slow: HashMap<Arc<str>, Instant>,
}

impl Slots {
    pub(super) fn new(limit: usize) -> Self {
        let half = (limit / 2).max(1);
        Self {
            slow: HashMap::new(),
            all: Share::new(limit, half),
            // An account may have more that turned out to be slow after they had begun. They do not count, so that suspects of
            // other accounts do not wait for them.
            suspects: Share::new(half, (half / 4).max(1)),
        }
    }

    /// Whether no account can have another slot.
    pub(super) fn are_taken(&self) -> bool {
        self.all.is_full()
    }

    /// Whether no account can have another slot for a suspect.
    pub(super) fn are_taken_by_suspects(&self) -> bool {
        self.suspects.is_full()
    }

    /// Whether this account can have another slot.
    pub(super) fn has_room(&self, account: &str, now: Instant) -> bool {
        let is_remembered = |at: &Instant| now.duration_since(*at) < REMEMBERED;
        let kept = if self.slow.get(account).is_some_and(is_remembered) {
            self.all.limit / KEPT
        } else {
            0
        };
        self.all.has_room(account, kept)
    }

    /// Whether this account can have another slot for a suspect.
    pub(super) fn has_room_for_suspect(&self, account: &str, now: Instant) -> bool {
        self.has_room(account, now) && self.suspects.has_room(account, 0)
    }

    /// Takes a slot.
    pub(super) fn take(&mut self, account: &Arc<str>, is_suspect: bool) {
        self.all.take(account);
        if is_suspect {
            self.suspects.take(account);
        }
    }

    /// An attempt of this account turns out to be slow.
    pub(super) fn slow(&mut self, account: &Arc<str>, now: Instant) {
        self.slow.retain(|_, at| now.duration_since(*at) < REMEMBERED);
        self.slow.insert(account.clone(), now);
    }

    /// The attempt in one of this account's slots is one of a suspect after all.
    pub(super) fn suspect(&mut self, account: &Arc<str>) {
        self.suspects.take(account);
    }

    /// Gives a slot back.
    pub(super) fn give_back(&mut self, account: &str, is_suspect: bool) {
        self.all.give_back(account);
        if is_suspect {
            self.suspects.give_back(account);
        }
    }

    /// Slots in use by each account: all of them, and those of suspects.
    #[cfg(test)]
    pub(super) fn taken(&self) -> [&HashMap<Arc<str>, usize>; 2] {
        [&self.all.taken, &self.suspects.taken]
    }
}

#[derive(Debug)]
struct Share {
    limit: usize,
    /// The most of one account that count.
    per_account: usize,
    /// How many are in use, as far as they count.
    counted: usize,
    taken: HashMap<Arc<str>, usize>,
}

impl Share {
    fn new(limit: usize, per_account: usize) -> Self {
        Self {
            limit,
            per_account,
            counted: 0,
            taken: HashMap::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.counted >= self.limit
    }

    /// Whether this account can have one more if so many are kept for others.
    fn has_room(&self, account: &str, kept: usize) -> bool {
        let taken = self.taken.get(account).copied().unwrap_or(0);
        taken
            < self
                .per_account
                .min(self.limit.saturating_sub(self.counted + kept))
    }

    fn take(&mut self, account: &Arc<str>) {
        let taken = self.taken.entry(account.clone()).or_default();
        *taken += 1;
        self.counted += usize::from(*taken <= self.per_account);
    }

    fn give_back(&mut self, account: &str) {
        if let Some(taken) = self.taken.get_mut(account) {
            self.counted -= usize::from(*taken <= self.per_account);
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many slots these accounts get if each takes all that it can, one after another.
    fn greedy<const N: usize>(slots: &mut Slots, is_suspect: bool) -> [usize; N] {
        let now = Instant::now();
        std::array::from_fn(|number| {
            let account = Arc::from(format!("account-{number}"));
            let mut taken = 0;
            while if is_suspect {
                slots.has_room_for_suspect(&account, now)
            } else {
                slots.has_room(&account, now)
            } {
                slots.take(&account, is_suspect);
                taken += 1;
            }
            taken
        })
    }

    #[test]
    fn no_account_gets_more_than_half_and_some_are_left_for_others() {
        assert_eq!(greedy(&mut Slots::new(512), false), [256, 128, 64, 32]);
        assert_eq!(greedy(&mut Slots::new(51), false), [25, 13, 7, 3]);
        assert_eq!(greedy(&mut Slots::new(2), false), [1, 1, 0]);
        assert_eq!(greedy(&mut Slots::new(1), false), [1, 0]);
    }

    #[test]
    fn suspects_get_half_of_the_slots_and_those_of_one_account_an_eighth() {
        assert_eq!(greedy(&mut Slots::new(512), true), [64, 64, 64, 32, 16, 8]);
        assert_eq!(greedy(&mut Slots::new(2), true), [1, 0]);
    }

    #[test]
    fn accounts_that_were_slow_leave_an_eighth_to_those_that_were_not_for_ten_minutes() {
        let mut slots = Slots::new(512);
        let now = Instant::now();
        for number in 0..20 {
            slots.slow(&Arc::from(format!("account-{number}")), now);
        }
        assert_eq!(greedy::<20>(&mut slots, false).iter().sum::<usize>(), 448);
        assert!(slots.has_room("healthy", now));
        assert!(!slots.has_room("account-19", now));
        assert!(slots.has_room("account-19", now + REMEMBERED));
        slots.slow(&Arc::from("another"), now + REMEMBERED);
        assert_eq!(slots.slow.len(), 1, "what is old is forgotten");
    }

    #[test]
    fn suspects_of_others_do_not_wait_for_attempts_that_turned_out_to_be_slow() {
        let mut slots = Slots::new(512);
        let accounts = ["a", "b"].map(Arc::<str>::from);
        for (account, taken) in accounts.iter().zip(greedy::<2>(&mut Slots::new(512), false)) {
            for _ in 0..taken {
                slots.take(account, false);
                slots.suspect(account);
            }
            assert!(!slots.has_room_for_suspect(account, Instant::now()));
        }
        assert_eq!(greedy(&mut slots, true), [64, 32]);
        for (account, taken) in accounts.iter().zip([256, 128]) {
            for _ in 0..taken {
                slots.give_back(account, true);
            }
        }
        assert_eq!((slots.all.counted, slots.suspects.counted), (96, 96));
        for (account, taken) in [("account-0", 64), ("account-1", 32)] {
            for _ in 0..taken {
                slots.give_back(account, true);
            }
        }
        assert_eq!((slots.all.counted, slots.suspects.counted), (0, 0));
        assert!(slots.taken().iter().all(|taken| taken.is_empty()));
    }
}
