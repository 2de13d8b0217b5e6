//! Whose instances are reconciled next: accounts take turns, and instances whose provider does not answer have slots of their
//! own.

use std::sync::Arc;

use crate::runtime::{FairPermits, fair_permits::Permit};

/// Slots for reconciles at the same time. However many instances one account has, and however many of them hang, others get
/// slots.
pub(super) struct Turns {
    all: Arc<FairPermits>,
    /// For instances whose last provider call failed.
    suspects: Arc<FairPermits>,
}

/// A slot, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: Permit,
    /// Whether the provider may be asked about an instance whose last call failed.
    pub(super) for_suspects: bool,
}

impl Turns {
    /// `concurrency` slots in all, a quarter of them for suspects. One account gets at most half of the slots, and half of
    /// those for suspects.
    pub(super) fn new(concurrency: u16) -> Self {
        let concurrency = usize::from(concurrency);
        let suspects = concurrency / 4;
        Self {
            all: FairPermits::new(concurrency - suspects, concurrency / 2),
            suspects: FairPermits::new(suspects, suspects / 2),
        }
    }

    /// Waits for a slot.
    pub(super) async fn wait(&self, account: &str, for_suspects: bool) -> Slot {
        let permits = if for_suspects { &self.suspects } else { &self.all };
        Slot {
            _permit: permits.acquire(account).await,
            for_suspects,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn an_account_that_takes_all_it_can_leaves_slots_to_others_whether_suspect_or_not() {
        for concurrency in [4, 32, 256] {
            let turns = Turns::new(concurrency);
            for for_suspects in [false, true] {
                let take = |account| turns.wait(account, for_suspects).now_or_never();
                let hostile: Vec<_> = std::iter::from_fn(|| take("hostile")).collect();
                assert!(hostile.len() <= usize::from(concurrency / 2));
                // With one slot for suspects there is nothing to share.
                assert!(take("other").is_some() || (for_suspects && concurrency == 4));
            }
        }
    }
}
