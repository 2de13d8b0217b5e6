//! New, changed and deleted webhooks, and the effect on their jobs.

use std::sync::Arc;

use jiff::Timestamp;

use super::{
    Dispatcher, Dropped, JobKey, Now, WebhookKey,
    job::Counted,
    key,
    webhook_queue::{Tally, WebhookFacts, WebhookGate, WebhookQueue},
};

/// Number of deleted webhooks that are remembered: as many as may be deleted during a list call.
const GONE_KEPT: usize = 1024;

impl Dispatcher {
    /// Records the facts about a webhook, from the watch or a list. Ignores facts older than the known ones. If the
    /// gate changes for a reason outside the Webhook, such as its Secret, the revision stays the same.
    pub fn webhook_seen(&mut self, facts: WebhookFacts, now: Now) {
        let webhook = key(&facts.namespace, &facts.name);
        match self.queues.get(&webhook).map(|queue| &queue.facts) {
            Some(known) if known.revision > facts.revision => return,
            Some(known) if known.uid != facts.uid => {
                let (uid, revision) = (known.uid.clone(), known.revision);
                self.webhook_gone(&webhook, &uid, revision);
            }
            None if self.is_gone(&facts) => return,
            _ => {}
        }
        let Some(queue) = self.queues.get_mut(&webhook) else {
            let siblings = self.by_namespace.entry(facts.namespace.clone()).or_default();
            siblings.push(webhook.clone());
            self.queues.insert(webhook.clone(), WebhookQueue::new(facts));
            self.adopt_orphans(&webhook, now);
            return;
        };
        let before = queue.gate();
        queue.disabling = queue
            .disabling
            .filter(|generation| *generation == facts.generation);
        queue.facts = facts;
        match (before, queue.gate()) {
            (before, after) if before == after => {}
            (_, WebhookGate::Open) => self.release_all(&webhook, now),
            // For a disabled webhook, only requested deliveries are sent.
            (WebhookGate::Open | WebhookGate::Disabled, _) => self.hold_all(&webhook),
            (_, WebhookGate::Disabled) => self.attempt_requested(&webhook),
            _ => {}
        }
        if let Some(queue) = self.queues.get_mut(&webhook) {
            queue.expect_room(&mut self.totals);
        }
        self.fill_up(now);
        self.make_ready(&webhook);
    }

    /// Whether these facts predate the webhook's deletion. A webhook that was unreadable for a while comes back with a newer
    /// revision.
    fn is_gone(&self, facts: &WebhookFacts) -> bool {
        let is_it = |(uid, revision): &(Arc<str>, u64)| *uid == facts.uid && facts.revision <= *revision;
        self.gone.iter().any(is_it)
    }

    /// Records that the watch no longer has the webhook with this UID after this revision, and forgets everything that
    /// was still to be sent to it. Do not call it for a webhook that the watch has never shown: a list may be ahead of
    /// the watch.
    pub fn webhook_gone(&mut self, webhook: &WebhookKey, uid: &str, revision: u64) {
        self.gone.retain(|(gone, _)| **gone != *uid);
        self.gone.push_back((uid.into(), revision));
        if self.gone.len() > GONE_KEPT {
            self.gone.pop_front();
        }
        let is_it = self
            .queues
            .get(webhook)
            .is_some_and(|queue| *queue.facts.uid == *uid);
        let Some(queue) = is_it.then(|| self.queues.remove(webhook)).flatten() else {
            return;
        };
        queue.uncount(&mut self.totals);
        if let Some(siblings) = self.by_namespace.get_mut(&queue.facts.namespace) {
            siblings.retain(|sibling| sibling != webhook);
            if siblings.is_empty() {
                self.by_namespace.remove(&queue.facts.namespace);
            }
        }
        // Attempts in flight to this webhook do not count for another one of the same name.
        let flights = self.flights.values_mut();
        for flight in flights.filter(|flight| flight.webhook.as_ref() == Some(webhook)) {
            flight.webhook = None;
        }
        for job_key in queue.jobs {
            if let Some(job) = self.jobs.get(&job_key)
                && job.counted == Some(Counted::Owed)
            {
                self.totals.owe_no_more(job.order.created_at);
            }
            self.orphan(&job_key);
            self.forget(&job_key);
        }
    }

    pub(super) fn webhooks_of(&self, namespace: &str) -> impl Iterator<Item = (&WebhookKey, &WebhookFacts)> {
        let webhooks = self.by_namespace.get(namespace).into_iter().flatten();
        webhooks.filter_map(|key| Some((key, &self.queues.get(key)?.facts)))
    }

    /// Whether a webhook of a namespace that can be sent to has events for which no attempt has ended.
    pub fn has_unattempted(&self, namespace: &str) -> bool {
        let mut webhooks = self.by_namespace.get(namespace).into_iter().flatten();
        webhooks.any(|key| self.queues.get(key).is_some_and(WebhookQueue::has_unattempted))
    }

    /// The known webhooks of a namespace.
    pub fn webhooks_in(&self, namespace: &str) -> Vec<WebhookKey> {
        self.by_namespace.get(namespace).cloned().unwrap_or_default()
    }

    /// The known webhooks.
    #[cfg(test)]
    pub fn webhooks(&self) -> impl Iterator<Item = (&WebhookKey, &WebhookFacts)> {
        self.queues.iter().map(|(key, queue)| (key, &queue.facts))
    }

    /// The webhook of a job.
    pub fn webhook_of(&self, job: &JobKey) -> Option<&WebhookKey> {
        self.jobs.get(job).map(|job| &job.webhook)
    }

    /// The counters of a webhook, and the numbers of its pending and held deliveries.
    pub fn tally(&self, webhook: &WebhookKey) -> Option<(Tally, i64, i64)> {
        let queue = self.queues.get(webhook)?;
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        Some((queue.tally.clone(), count(queue.pending), count(queue.held.len())))
    }

    /// The numbers of pending and held deliveries of all webhooks, and of those dropped since the start.
    pub fn totals(&self) -> (usize, usize, u64) {
        let totals = &self.totals;
        (totals.pending, totals.held.total(), totals.dropped.sum())
    }

    /// The numbers of deliveries dropped since the start.
    pub fn dropped(&self) -> Dropped {
        self.totals.dropped
    }

    /// When the oldest event happened that is owed to a webhook, if any is: it waits for an attempt, or one is in flight.
    pub fn oldest_owed(&self) -> Option<Timestamp> {
        self.totals.owed_since.keys().next().copied()
    }

    /// Resets [`Tally::finished`], because the webhook's finished records are being counted again.
    pub fn finished_counted(&mut self, webhook: &WebhookKey) {
        if let Some(queue) = self.queues.get_mut(webhook) {
            queue.tally.finished = 0;
        }
    }

    /// Resumes the writes that waited for a disablement, which has been written or has become obsolete because the
    /// webhook was changed.
    pub fn disablement_written(&mut self, webhook: &WebhookKey) {
        for key in self.jobs_of(webhook) {
            if let Some(job) = self.jobs.get_mut(&key)
                && std::mem::take(&mut job.awaits_disablement)
            {
                self.write(&key);
            }
        }
    }

    pub(super) fn jobs_of(&self, webhook: &WebhookKey) -> Vec<JobKey> {
        let queue = self.queues.get(webhook);
        queue
            .map(|queue| queue.jobs.iter().cloned().collect())
            .unwrap_or_default()
    }
}
