//! A semaphore in which accounts take turns.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use domain::FairQueue;

/// A number of permits that are given to accounts round-robin. One account gets only so many at a time.
pub struct FairPermits {
    per_account: usize,
    state: Mutex<State>,
}

/// A permit, given back when dropped.
pub struct Permit {
    account: Arc<str>,
    /// `None` once it has been given back.
    permits: Option<Arc<FairPermits>>,
}

struct State {
    free: usize,
    /// Permits of each account, including those that it waits for in `queue`: at most `per_account`.
    taken: HashMap<Arc<str>, usize>,
    /// Requests that wait for a free permit.
    queue: FairQueue<Waiting>,
    /// Requests that wait for another permit of the same account.
    behind: HashMap<Arc<str>, VecDeque<Waiting>>,
}

struct Waiting {
    account: Arc<str>,
    answer: oneshot::Sender<Permit>,
}

impl FairPermits {
    /// This number of permits, of which one account gets at most `per_account` at a time.
    pub fn new(permits: usize, per_account: usize) -> Arc<Self> {
        Arc::new(Self {
            per_account: per_account.max(1),
            state: Mutex::new(State {
                free: permits.max(1),
                taken: HashMap::new(),
                queue: FairQueue::default(),
                behind: HashMap::new(),
            }),
        })
    }

    /// Waits for a permit; hold it for as long as it is needed. A caller that stops waiting loses its place.
    pub async fn acquire(self: &Arc<Self>, account: &str) -> Permit {
        let (account, (answer, permit)) = (Arc::<str>::from(account), oneshot::channel());
        {
            let mut state = self.state.lock();
            let waiting = Waiting {
                account: account.clone(),
                answer,
            };
            let taken = state.taken.entry(account.clone()).or_default();
            if *taken < self.per_account {
                *taken += 1;
                state.queue.push(&account, waiting);
            } else {
                state
                    .behind
                    .entry(account.clone())
                    .or_default()
                    .push_back(waiting);
            }
            self.give(&mut state);
        }
        // The sender is dropped only after it has sent.
        permit.await.unwrap_or(Permit {
            account,
            permits: None,
        })
    }

    /// Gives the free permits to the next requests.
    fn give(self: &Arc<Self>, state: &mut State) {
        while state.free > 0 {
            let Some(Waiting { account, answer }) = state.queue.pop() else {
                return;
            };
            let permit = Permit {
                account,
                permits: Some(self.clone()),
            };
            match answer.send(permit) {
                Ok(()) => state.free -= 1,
                Err(mut unwanted) => {
                    unwanted.permits = None;
                    state.next_of_account(&unwanted.account);
                }
            }
        }
    }
}

impl State {
    /// The account has one permit fewer, so its next request may wait for a free one.
    fn next_of_account(&mut self, account: &Arc<str>) {
        if let Some(behind) = self.behind.get_mut(account) {
            // Skip requests that have stopped waiting.
            let next = std::iter::from_fn(|| behind.pop_front()).find(|next| !next.answer.is_closed());
            if behind.is_empty() {
                self.behind.remove(account);
            }
            if let Some(next) = next {
                self.queue.push(account, next);
                return;
            }
        }
        if let Some(taken) = self.taken.get_mut(account) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(account);
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else {
            return;
        };
        let mut state = permits.state.lock();
        state.free += 1;
        state.next_of_account(&self.account);
        permits.give(&mut state);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permit of {}", self.account)
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
            order.push(held.account.clone());
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
        let state = permits.state.lock();
        assert!(state.taken.is_empty() && state.behind.is_empty() && state.queue.is_empty());
        assert_eq!(state.free, 2);
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
        assert_eq!(permits.state.lock().free, 1);
    }
}
