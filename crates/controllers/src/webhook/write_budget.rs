//! Spreads writes of statuses over time, fairly among accounts. No I/O.

use std::{
    collections::HashSet,
    mem,
    time::{Duration, Instant},
};

use domain::{
    FairQueue,
    delivery::{WebhookKey, namespace_of},
};

/// Minimum time between two writes of counters, across all webhooks: five a second in all (decisions, section
/// 5).
const COUNTERS_PACE: Duration = Duration::from_millis(200);
/// Minimum time between two writes of changed health, across all webhooks: twenty a second in all, so that 200 webhooks
/// whose receivers fail together are shown as failing within ten seconds.
const HEALTH_PACE: Duration = Duration::from_millis(50);
/// How much lost time the writer may make up for, because it looks only now and then.
const CATCH_UP: Duration = Duration::from_secs(2);

/// A write rate shared by all webhooks. Webhooks that must wait do so in a queue in which accounts alternate, so that an account
/// with many webhooks, or with webhooks whose health keeps changing, delays a write of another account by one write at most.
#[derive(Debug)]
pub(super) struct WriteBudget {
    /// Time between two writes.
    pace: Duration,
    /// When the next webhook may be admitted.
    next: Option<Instant>,
    /// May contain webhooks that have been forgotten since.
    queue: FairQueue<WebhookKey>,
    /// The webhooks in the queue. Each keeps its one place, even if it has nothing to write for a while.
    waiting: HashSet<WebhookKey>,
    /// Webhooks that may be written now.
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

    /// Whether a webhook may be written now. Otherwise it waits in the queue for [`Self::admit_next`]. Time in which nobody
    /// wanted to write is lost: it allows no burst later. Call [`Self::done`] after the write.
    pub(super) fn admit(&mut self, webhook: &WebhookKey, now: Instant) -> bool {
        if self.admitted.contains(webhook) {
            return true;
        }
        if self.waiting.is_empty() && self.next.is_none_or(|next| next <= now) {
            self.next = Some(now + self.pace);
            self.admitted.insert(webhook.clone());
            return true;
        }
        if self.waiting.insert(webhook.clone()) {
            self.queue.push(&namespace_of(webhook).into(), webhook.clone());
        }
        false
    }

    /// Admits the next waiting webhook, if it is time to, and returns it.
    pub(super) fn admit_next(&mut self, now: Instant) -> Option<WebhookKey> {
        let next = self.next.unwrap_or(now);
        if next > now {
            return None;
        }
        let webhook = loop {
            let webhook = self.queue.pop()?;
            if self.waiting.remove(&webhook) {
                break webhook;
            }
        };
        let at = now
            .checked_sub(CATCH_UP)
            .map_or(next, |earliest| next.max(earliest));
        self.next = Some(at + self.pace);
        self.admitted.insert(webhook.clone());
        Some(webhook)
    }

    /// Notes that a webhook has been written, or has nothing to write.
    pub(super) fn done(&mut self, webhook: &WebhookKey) {
        self.admitted.remove(webhook);
    }

    /// Forgets a deleted webhook.
    pub(super) fn forget(&mut self, webhook: &WebhookKey) {
        self.admitted.remove(webhook);
        self.waiting.remove(webhook);
    }

    /// Empties the queue, and returns the webhooks that were in it.
    pub(super) fn close(&mut self) -> HashSet<WebhookKey> {
        self.queue = FairQueue::default();
        mem::take(&mut self.waiting)
    }

    /// Whether no webhook waits or has been admitted.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.admitted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(account: &str, number: usize) -> WebhookKey {
        format!("{account}/{number}").into()
    }

    fn account(name: &str, webhooks: usize) -> Vec<WebhookKey> {
        (0..webhooks).map(|number| webhook(name, number)).collect()
    }

    /// The waiting webhooks that are admitted if the writer looks once a second up to then, and writes each at once.
    fn admitted(budget: &mut WriteBudget, from: Instant, seconds: u64) -> Vec<String> {
        let mut order = Vec::new();
        for second in 0..=seconds {
            let now = from + Duration::from_secs(second);
            while let Some(webhook) = budget.admit_next(now) {
                assert!(budget.admit(&webhook, now));
                budget.done(&webhook);
                order.push(webhook.to_string());
            }
        }
        order
    }

    #[test]
    fn writes_are_a_pace_apart_and_time_that_nobody_used_is_lost() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        assert!(budget.admit(&webhook("a", 0), now));
        budget.done(&webhook("a", 0));
        for webhook in &account("a", 20) {
            assert!(!budget.admit(webhook, now));
        }
        assert_eq!(admitted(&mut budget, now, 0).len(), 0);
        // At 0.2, 0.4, 0.6, 0.8 and 1 s, and then five each second.
        assert_eq!(admitted(&mut budget, now, 1).len(), 5);
        assert_eq!(admitted(&mut budget, now, 5).len(), 15);
        let later = now + Duration::from_mins(1);
        assert!(budget.admit(&webhook("a", 0), later));
        assert!(!budget.admit(&webhook("a", 1), later));
    }

    #[test]
    fn a_writer_that_was_stuck_for_long_makes_up_for_two_seconds_only() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        for webhook in &account("a", 100) {
            budget.admit(webhook, now);
        }
        assert_eq!(admitted(&mut budget, now + Duration::from_mins(1), 0).len(), 11);
    }

    #[test]
    fn accounts_alternate_however_many_webhooks_wait_and_however_often_they_ask() {
        let mut budget = WriteBudget::of_health();
        let now = Instant::now();
        assert!(budget.admit(&webhook("other", 0), now));
        for webhook in account("big", 500).iter().cycle().take(1500) {
            assert!(!budget.admit(webhook, now));
        }
        for webhook in &account("small", 2) {
            assert!(!budget.admit(webhook, now));
        }
        let order = admitted(&mut budget, now, 60);
        assert_eq!(order[..4], ["big/0", "small/0", "big/1", "small/1"]);
        assert_eq!(order.len(), 502, "each once");
    }

    #[test]
    fn deleted_webhooks_take_no_time() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        assert!(budget.admit(&webhook("other", 0), now));
        for webhook in &account("a", 100) {
            budget.admit(webhook, now);
            budget.forget(webhook);
        }
        // One of them is created again.
        budget.admit(&webhook("a", 0), now);
        budget.admit(&webhook("a", 100), now);
        assert_eq!(admitted(&mut budget, now, 1), ["a/0", "a/100"]);
        budget.forget(&webhook("other", 0));
        assert!(budget.is_idle());
    }

    #[test]
    fn at_the_end_all_that_wait_are_returned() {
        let mut budget = WriteBudget::of_counters();
        let now = Instant::now();
        for webhook in &account("a", 3) {
            budget.admit(webhook, now);
        }
        assert_eq!(budget.close(), [webhook("a", 1), webhook("a", 2)].into());
        assert_eq!(budget.admit_next(now + Duration::from_secs(9)), None);
    }
}
