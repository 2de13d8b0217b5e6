//! A semaphore in which accounts take turns.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::work_queue::{SlotKey, Slots};

/// A number of permits that are given to accounts round-robin. One account gets only so many at a time.
pub struct FairPermits {
    slots: Mutex<Slots<oneshot::Sender<Permit>>>,
}

/// A permit, given back when dropped.
pub struct Permit {
    slot: SlotKey,
    /// `None` once it has been given back.
    permits: Option<Arc<FairPermits>>,
}

impl FairPermits {
    /// This number of permits, of which one account gets at most `per_account` at a time.
    pub fn new(permits: usize, per_account: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: Mutex::new(Slots::new(permits, per_account, usize::MAX)),
        })
    }

    /// Waits for a permit; hold it for as long as it is needed. A caller that stops waiting loses its place.
    pub async fn acquire(self: &Arc<Self>, account: &str) -> Permit {
        let (answer, permit) = oneshot::channel();
        let slot = SlotKey {
            account: account.into(),
            region: None,
        };
        {
            let mut slots = self.slots.lock();
            slots.push(&slot, answer);
            self.give(&mut slots);
        }
        // The sender is dropped only after it has sent.
        permit.await.unwrap_or(Permit { slot, permits: None })
    }

    /// Gives the free permits to the next requests.
    fn give(self: &Arc<Self>, slots: &mut Slots<oneshot::Sender<Permit>>) {
        while let Some((slot, answer)) = slots.pop_wanted(|answer| !answer.is_closed()) {
            let permit = Permit {
                slot,
                permits: Some(self.clone()),
            };
            if let Err(mut unwanted) = answer.send(permit) {
                unwanted.permits = None;
                slots.give_back(&unwanted.slot);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permits) = self.permits.take() {
            let mut slots = permits.slots.lock();
            slots.give_back(&self.slot);
            permits.give(&mut slots);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit of {}", self.slot.account)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::Pin};

    use futures::FutureExt as _;

    use super::*;

    type Acquiring = Pin<Box<dyn Future<Output = Permit>>>;

    /// Begins to wait for a permit.
    fn ask(permits: &Arc<FairPermits>, account: &'static str) -> Acquiring {
        let permits = permits.clone();
        let mut acquiring: Acquiring = Box::pin(async move { permits.acquire(account).await });
        assert!(acquiring.as_mut().now_or_never().is_none());
        acquiring
    }

    fn at_once(permits: &Arc<FairPermits>, account: &'static str) -> Permit {
        permits.acquire(account).now_or_never().expect("a free permit")
    }

    #[test]
    fn accounts_take_turns_however_many_requests_they_have() {
        let permits = FairPermits::new(1, 10);
        let mut held = at_once(&permits, "big");
        let mut waiting: Vec<_> = ["big", "big", "big", "small"]
            .map(|who| ask(&permits, who))
            .into();
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held);
            let ready: Vec<_> = waiting
                .iter_mut()
                .map(|one| one.as_mut().now_or_never())
                .collect();
            let next = ready.iter().position(Option::is_some).unwrap();
            held = ready.into_iter().flatten().next().unwrap();
            order.push(held.slot.account.clone());
            drop(waiting.remove(next));
        }
        assert_eq!(
            order.iter().map(|who| &**who).collect::<Vec<_>>(),
            ["big", "small", "big", "big"]
        );
    }

    #[test]
    fn one_account_leaves_permits_to_others() {
        let permits = FairPermits::new(4, 2);
        let held = [at_once(&permits, "big"), at_once(&permits, "big")];
        let mut third = ask(&permits, "big");
        let _other = at_once(&permits, "small");
        assert!(third.as_mut().now_or_never().is_none());
        drop(held);
        assert!(third.as_mut().now_or_never().is_some());
    }

    #[test]
    fn who_stops_waiting_keeps_nothing() {
        let permits = FairPermits::new(2, 2);
        let held = [at_once(&permits, "a"), at_once(&permits, "a")];
        let behind = [ask(&permits, "a"), ask(&permits, "a")];
        let mut queued = ask(&permits, "b");
        let gone = ask(&permits, "c");
        drop(behind);
        drop(gone);
        drop(held);
        let queued = queued.as_mut().now_or_never().expect("a free permit");
        let another = at_once(&permits, "a");
        drop((queued, another));
        permits.slots.lock().assert_unused(2);
    }

    #[test]
    fn a_permit_that_arrives_too_late_is_given_on() {
        let permits = FairPermits::new(1, 1);
        let held = at_once(&permits, "a");
        let late = ask(&permits, "b");
        drop(held);
        // The permit has been sent, but not received.
        drop(late);
        drop(at_once(&permits, "c"));
        permits.slots.lock().assert_unused(1);
    }
}
