//! Which account holders have to be notified, and from when on. No I/O.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::delivery::dispatch::{WebhookKey, after};

/// How long a mail waits for others that can be combined with it: what happens to one webhook of an account often happens
/// to others.
pub(super) const GATHER: SignedDuration = SignedDuration::from_secs(2);

/// The webhooks that have something to report to their account holder, by namespace.
#[derive(Debug, Default)]
pub(super) struct MailQueue {
    namespaces: HashMap<Arc<str>, Waiting>,
    /// When to handle each namespace for which no mail is being sent.
    due: BTreeSet<(Timestamp, Arc<str>)>,
}

#[derive(Debug, Default)]
struct Waiting {
    webhooks: BTreeSet<WebhookKey>,
    /// Its time in [`MailQueue::due`]; `None` while a mail is being sent.
    at: Option<Timestamp>,
    /// Whether a webhook was added while a mail was being sent.
    has_new: bool,
}

impl MailQueue {
    /// Adds a webhook. Does nothing if it is already in the queue.
    pub(super) fn add(&mut self, namespace: &str, webhook: &WebhookKey, now: Timestamp) {
        let is_new = !self.namespaces.contains_key(namespace);
        let waiting = self.namespaces.entry(namespace.into()).or_default();
        if !waiting.webhooks.insert(webhook.clone()) {
            return;
        }
        let soon = now + GATHER;
        match waiting.at {
            // This webhook may be reported sooner than those already waiting.
            Some(at) if at > soon => self.schedule(namespace, soon),
            Some(_) => {}
            None if is_new => self.schedule(namespace, soon),
            None => waiting.has_new = true,
        }
    }

    /// Removes a webhook that has nothing to report any more.
    pub(super) fn remove(&mut self, namespace: &str, webhook: &WebhookKey) {
        let Some(waiting) = self.namespaces.get_mut(namespace) else {
            return;
        };
        waiting.webhooks.remove(webhook);
        // If a mail is being sent, its end cleans up.
        if waiting.webhooks.is_empty()
            && let Some(at) = waiting.at
        {
            self.due.remove(&(at, namespace.into()));
            self.namespaces.remove(namespace);
        }
    }

    /// The next namespace to handle. It is not returned again until [`wait`](Self::wait) is called.
    pub(super) fn next_due(&mut self, now: Timestamp) -> Option<Arc<str>> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, namespace) = self.due.pop_first()?;
        if let Some(waiting) = self.namespaces.get_mut(&namespace) {
            waiting.at = None;
            waiting.has_new = false;
        }
        Some(namespace)
    }

    /// At most `limit` webhooks of a namespace after `last`, in key order.
    pub(super) fn after(&self, namespace: &str, last: Option<&WebhookKey>, limit: usize) -> Vec<WebhookKey> {
        let waiting = self.namespaces.get(namespace).into_iter();
        let webhooks = waiting.flat_map(|waiting| waiting.webhooks.range::<WebhookKey, _>(after(last)));
        webhooks.take(limit).cloned().collect()
    }

    /// Makes the remaining webhooks of a namespace wait until then; those added in the meantime may wait
    /// less.
    pub(super) fn wait(&mut self, namespace: &str, until: Option<Timestamp>, now: Timestamp) {
        let Some(waiting) = self.namespaces.get(namespace) else {
            return;
        };
        if waiting.webhooks.is_empty() {
            self.namespaces.remove(namespace);
            return;
        }
        let soon = now + GATHER;
        let until = until.filter(|_| !waiting.has_new).unwrap_or(soon);
        self.schedule(namespace, until);
    }

    /// Forgets all webhooks of a namespace.
    pub(super) fn forget(&mut self, namespace: &str) {
        let waiting = self.namespaces.remove(namespace);
        if let Some(at) = waiting.and_then(|waiting| waiting.at) {
            self.due.remove(&(at, namespace.into()));
        }
    }

    fn schedule(&mut self, namespace: &str, at: Timestamp) {
        let Some(waiting) = self.namespaces.get_mut(namespace) else {
            return;
        };
        let namespace: Arc<str> = namespace.into();
        if let Some(before) = waiting.at.replace(at) {
            self.due.remove(&(before, namespace.clone()));
        }
        self.due.insert((at, namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    fn queue(webhooks: &[&str]) -> MailQueue {
        let mut queue = MailQueue::default();
        for webhook in webhooks {
            let (namespace, _) = webhook.split_once('/').unwrap();
            queue.add(namespace, &(*webhook).into(), at(0));
        }
        queue
    }

    #[test]
    fn what_happens_within_two_seconds_waits_for_one_mail_of_its_account() {
        let mut queue = queue(&["a/1", "a/2", "b/1"]);
        assert_eq!(queue.next_due(at(1)), None);
        assert_eq!(queue.next_due(at(2)).as_deref(), Some("a"));
        assert_eq!(queue.after("a", None, 64).len(), 2);
        assert_eq!(queue.next_due(at(2)).as_deref(), Some("b"));
        assert_eq!(queue.next_due(at(2)), None);
    }

    #[test]
    fn what_waits_for_a_limit_collects_more_and_lets_the_new_one_try() {
        let mut queue = queue(&["a/1"]);
        queue.next_due(at(2)).unwrap();
        queue.wait("a", Some(at(3600)), at(2));
        queue.add("a", &"a/1".into(), at(10));
        assert_eq!(queue.next_due(at(20)), None, "nothing is new");
        queue.add("a", &"a/2".into(), at(20));
        assert_eq!(queue.next_due(at(22)).as_deref(), Some("a"));
        queue.wait("a", Some(at(3600)), at(22));
        assert_eq!(queue.next_due(at(3599)), None);
        assert_eq!(queue.next_due(at(3600)).as_deref(), Some("a"));
        assert_eq!(queue.after("a", None, 64).len(), 2);
        assert_eq!(queue.after("a", Some(&"a/1".into()), 64).len(), 1);
        assert_eq!(queue.after("a", None, 1).len(), 1);
    }

    #[test]
    fn what_happens_while_a_mail_is_sent_comes_soon_after_it() {
        let mut queue = queue(&["a/1"]);
        queue.next_due(at(2)).unwrap();
        queue.add("a", &"a/2".into(), at(3));
        queue.remove("a", &"a/1".into());
        assert_eq!(queue.next_due(at(100)), None, "one mail at a time");
        queue.wait("a", Some(at(3600)), at(100));
        assert_eq!(queue.next_due(at(102)).as_deref(), Some("a"));
        queue.remove("a", &"a/2".into());
        queue.wait("a", None, at(102));
        assert!(queue.namespaces.is_empty() && queue.due.is_empty());
    }

    #[test]
    fn nothing_is_left_of_what_is_removed() {
        let mut queue = queue(&["a/1", "a/2"]);
        queue.remove("a", &"a/1".into());
        queue.remove("a", &"a/2".into());
        assert!(queue.namespaces.is_empty() && queue.due.is_empty());
    }
}
