//! The webhooks whose secrets have never been read.

use std::{collections::BTreeSet, ops::Bound};

use domain::delivery::WebhookKey;

/// Keys of webhooks, popped so that accounts take turns.
#[derive(Default)]
pub(super) struct UnreadSecrets {
    keys: BTreeSet<WebhookKey>,
    /// Sorts after all keys of the namespace that had the last turn.
    after: String,
}

impl UnreadSecrets {
    pub(super) fn insert(&mut self, key: WebhookKey) {
        self.keys.insert(key);
    }

    pub(super) fn contains(&self, key: &WebhookKey) -> bool {
        self.keys.contains(key)
    }

    pub(super) fn remove(&mut self, key: &WebhookKey) {
        self.keys.remove(key);
    }

    /// Removes and returns the next key: the first one of the next namespace.
    pub(super) fn pop(&mut self) -> Option<WebhookKey> {
        let rest = (Bound::Included(self.after.as_str()), Bound::Unbounded);
        let next = self
            .keys
            .range::<str, _>(rest)
            .next()
            .or_else(|| self.keys.first());
        let next = next?.clone();
        self.keys.remove(&next);
        let namespace = next.split('/').next().unwrap_or_default();
        // `0` comes after `/`.
        self.after = format!("{namespace}0");
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_whose_secrets_change_all_the_time_does_not_keep_others_waiting() {
        let mut unread = UnreadSecrets::default();
        for key in ["a/1", "a/2", "a-b/1", "a0/1", "b/1", "b/2"] {
            unread.insert(key.into());
        }
        let mut order = Vec::new();
        while let Some(key) = unread.pop() {
            if key.starts_with("a/") && order.len() < 6 {
                unread.insert(key.clone());
            }
            order.push(key);
        }
        let order: Vec<&str> = order.iter().map(|key| &**key).collect();
        assert_eq!(order, ["a-b/1", "a/1", "a0/1", "b/1", "a/1", "b/2", "a/1", "a/2"]);
    }
}
