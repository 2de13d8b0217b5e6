//! Spreads writes of statuses over time, and lets accounts take turns. No I/O.

use std::{
    collections::HashSet,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{delivery::dispatch::WebhookKey, runtime::FairQueue};

/// Minimum time between two writes of counters, across all webhooks: five a second in all (decisions, section
/// 5).
const COUNTERS_PACE: Duration = Duration::from_millis(200);
/// Minimum time between two writes of changed health, across all webhooks: twenty a second in all, so that 200 webhooks
/// whose receivers fail together are shown as failing within ten seconds.
const HEALTH_PACE: Duration = Duration::from_millis(50);
/// How far turns that were given late catch up, so that the pace is kept although turns are only given now and then.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A write rate shared by all webhooks. Each write takes a turn; webhooks wait for theirs in a queue in which accounts alternate,
/// so that an account's webhooks, however many and however unsteady, delay those of another account by one write each.
#[derive(Debug)]
pub(super) struct WriteBudget {
    /// Time between two turns.
    pace: Duration,
    /// When the next turn may be given.
    next: Option<Instant>,
    queue: FairQueue<WebhookKey>,
    /// The webhooks in the queue. A webhook keeps its one place even if it has nothing to write for a while.
    waiting: HashSet<WebhookKey>,
    /// Webhooks whose turn it is.
    admitted: HashSet<WebhookKey>,
}

impl WriteBudget {
    /// The budget for counters and times.
    pub(super) fn of_counters() -> Self {
        Self::new(COUNTERS_PACE)
    }

    /// The budget for changes of health.
    pub(super) fn of_health() -> Self {
        Self::new(HEALTH_PACE)
    }

    fn new(pace: Duration) -> Self {
        Self {
            pace,
            next: None,
            queue: FairQueue::default(),
            waiting: HashSet::new(),
            admitted: HashSet::new(),
        }
    }

    /// Whether it is a webhook's turn to be written.
    pub(super) fn is_turn_of(&self, webhook: &WebhookKey) -> bool {
        self.admitted.contains(webhook)
    }

    /// Whether a webhook may be written at once, because nobody else waits. Otherwise it gets a place in the queue for
    /// [`Self::admit`]. Time in which nobody wanted to write is lost: it allows no burst later.
    pub(super) fn ask(&mut self, webhook: &WebhookKey, now: Instant) -> bool {
        if self.queue.is_empty() && self.next.is_none_or(|next| next <= now) {
            self.next = Some(now + self.pace);
            return true;
        }
        if self.waiting.insert(webhook.clone()) {
            let account = webhook.split_once('/').map_or(&**webhook, |(account, _)| account);
            self.queue.push(&Arc::from(account), webhook.clone());
        }
        false
    }

    /// Gives the next waiting webhook its turn, if it is time to, and returns it. Call [`Self::end_turn`] when it has been
    /// written or has nothing to write.
    pub(super) fn admit(&mut self, now: Instant) -> Option<WebhookKey> {
        let next = self.next.unwrap_or(now);
        if next > now {
            return None;
        }
        let webhook = self.queue.pop()?;
        let at = now
            .checked_sub(CATCH_UP)
            .map_or(next, |earliest| next.max(earliest));
        self.next = Some(at + self.pace);
        self.waiting.remove(&webhook);
        self.admitted.insert(webhook.clone());
        Some(webhook)
    }

    /// Ends a webhook's turn, if it has one.
    pub(super) fn end_turn(&mut self, webhook: &WebhookKey) {
        self.admitted.remove(webhook);
    }

    /// Empties the queue, and returns the webhooks that were in it.
    pub(super) fn close(&mut self) -> HashSet<WebhookKey> {
        self.queue = FairQueue::default();
        mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(account: &str, number: usize) -> WebhookKey {
        format!("{account}/{number}").into()
    }

    /// Who is admitted up to a time, if turns are given once a second and used at once.
    fn admitted(budget: &mut WriteBudget, from: Instant, seconds: u64) -> Vec<String> {
        let mut order = Vec::new();
        for second in 0..=seconds {
            while let Some(webhook) = budget.admit(from + Duration::from_secs(second)) {
                assert!(budget.is_turn_of(&webhook));
                budget.end_turn(&webhook);
                assert!(!budget.is_turn_of(&webhook));
                order.push(webhook.to_string());
            }
        }
        order
    }

    #[test]
    fn turns_are_a_pace_apart_and_time_that_nobody_used_is_lost() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        assert!(budget.ask(&webhook("a", 0), now));
        for number in 1..20 {
            assert!(!budget.ask(&webhook("a", number), now));
        }
        assert_eq!(admitted(&mut budget, now, 0).len(), 0);
        // Turns at 0.2, 0.4, 0.6, 0.8 and 1 s, and then five each second.
        assert_eq!(admitted(&mut budget, now, 1).len(), 5);
        assert_eq!(admitted(&mut budget, now, 2).len(), 5);
        let much_later = now + Duration::from_mins(1);
        assert_eq!(
            admitted(&mut budget, much_later, 0).len(),
            9,
            "those that are left, for the time that they waited"
        );
        let later = much_later + Duration::from_mins(1);
        assert!(budget.ask(&webhook("a", 30), later));
        assert!(!budget.ask(&webhook("a", 31), later));
    }

    #[test]
    fn a_writer_that_was_stuck_for_long_makes_up_for_two_seconds_only() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        for number in 0..100 {
            budget.ask(&webhook("a", number), now);
        }
        assert_eq!(admitted(&mut budget, now + Duration::from_mins(1), 0).len(), 11);
    }

    #[test]
    fn accounts_take_turns_however_many_webhooks_wait_and_however_often_they_ask() {
        let mut budget = WriteBudget::of_health();
        let now = Instant::now();
        for _ in 0..3 {
            for number in 0..500 {
                budget.ask(&webhook("big", number), now);
            }
        }
        for number in 0..2 {
            assert!(!budget.ask(&webhook("small", number), now));
        }
        let order = admitted(&mut budget, now, 60);
        assert_eq!(order[..4], ["big/1", "small/0", "big/2", "small/1"]);
        assert_eq!(order.len(), 502, "each once, and the first once more");
    }

    #[test]
    fn at_the_end_all_that_wait_are_returned() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        for number in 0..3 {
            budget.ask(&webhook("a", number), now);
        }
        assert_eq!(budget.close(), [webhook("a", 1), webhook("a", 2)].into());
        assert_eq!(budget.admit(now + Duration::from_secs(9)), None);
    }
}
