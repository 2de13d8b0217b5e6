//! The webhooks that the controller knows: the latest version of each.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{
    shared::{AT_ONCE, Shared, State},
    status_queue::LastWrites,
};
use domain::delivery::{Disablement, Now, WebhookKey, key, keys_after, namespace_of};
use resources::{Webhook, WebhookStatus, origin, revision};
use runtime::watch::Change;

/// The known webhooks.
#[derive(Default)]
pub(crate) struct Webhooks {
    pub(crate) by_key: BTreeMap<WebhookKey, CachedWebhook>,
    /// resourceVersion up to which the watch has shown all changes of webhooks.
    pub(crate) shown: u64,
    /// Webhooks that are copies of older ones.
    copies: HashSet<WebhookKey>,
    pub(super) disabled: Disabled,
}

/// The disabled webhooks.
#[derive(Default)]
pub(super) struct Disabled {
    all: HashSet<WebhookKey>,
    /// How many each account has, by namespace.
    by_account: HashMap<String, usize>,
}

impl Disabled {
    fn insert(&mut self, key: &WebhookKey) {
        if self.all.insert(key.clone()) {
            *self.by_account.entry(namespace_of(key).to_owned()).or_default() += 1;
        }
    }

    fn remove(&mut self, key: &WebhookKey) {
        if self.all.remove(key)
            && let Some(number) = self.by_account.get_mut(namespace_of(key))
        {
            *number -= 1;
            if *number == 0 {
                self.by_account.remove(namespace_of(key));
            }
        }
    }

    /// How many there are, and how many accounts they belong to.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.all.len(), self.by_account.len())
    }
}

/// The latest version of a webhook, and what still has to be written to its status.
pub(crate) struct CachedWebhook {
    /// The latest version.
    pub(crate) webhook: Arc<Webhook>,
    /// Its status when this replica first saw it as leader; the counts since then are added to it.
    pub(super) base: WebhookStatus,
    /// Whether the watch has shown it. A webhook from a lookup may be newer than the watch's list.
    shown: bool,
    /// A disablement to write to its status.
    pub(super) disablement: Option<Disablement>,
    /// When its status was last written.
    pub(super) last_writes: LastWrites,
}

impl Webhooks {
    /// The latest version of a webhook.
    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Webhook>> {
        self.by_key.get(key).map(|cached| &cached.webhook)
    }

    /// The name of an older webhook of the account with the same origin: this one is a copy of it.
    pub(super) fn older_twin(&self, webhook: &Webhook) -> Option<String> {
        let metadata = &webhook.metadata;
        if !origin::is_restored(metadata) {
            return None;
        }
        let first: WebhookKey = key(metadata.namespace.as_deref().unwrap_or_default(), "");
        let others = self.by_key.range(first..);
        let others = others.map(|(_, cached)| &cached.webhook.metadata);
        origin::older_twin(
            metadata,
            others.take_while(|other| other.namespace == metadata.namespace),
        )
    }
}

impl Shared {
    /// Handles a change that the watch has shown.
    pub(crate) fn webhook_changed(&self, change: &Change<Webhook>) {
        match change {
            Change::Replaced(all) => self.webhooks_listed(all),
            Change::Applied(webhook) => self.webhook_shown(&mut self.state.lock(), webhook, self.now()),
            Change::Deleted(webhook) => {
                self.webhook_gone(&mut self.state.lock(), &key_of(webhook), webhook);
            }
            Change::Unreadable(_) => {}
        }
        let shown = &mut self.state.lock().webhooks.shown;
        match change {
            // Not the highest version ever seen: versions start over when etcd is restored.
            Change::Replaced(all) => {
                *shown = all.iter().map(|webhook| revision(&**webhook)).max().unwrap_or(0);
            }
            Change::Applied(webhook) | Change::Deleted(webhook) => *shown = revision(&**webhook).max(*shown),
            Change::Unreadable(_) => {}
        }
    }

    /// Handles a new list of all webhooks.
    fn webhooks_listed(&self, all: &[Arc<Webhook>]) {
        let listed: HashSet<WebhookKey> = all.iter().map(|webhook| key_of(webhook)).collect();
        self.for_each_webhook(|state, key| {
            let is_gone = |cached: &&CachedWebhook| cached.shown && !listed.contains(key);
            let gone = state.webhooks.by_key.get(key).filter(is_gone);
            if let Some(webhook) = gone.map(|cached| cached.webhook.clone()) {
                self.webhook_gone(state, key, &webhook);
            }
        });
        for webhook in all {
            self.webhook_shown(&mut self.state.lock(), webhook, self.now());
        }
    }

    /// Records a webhook from the watch.
    pub(crate) fn webhook_shown(&self, state: &mut State, webhook: &Arc<Webhook>, now: Now) {
        self.webhook_seen(state, webhook.clone(), now);
        if let Some(cached) = state.webhooks.by_key.get_mut(&key_of(webhook)) {
            cached.shown = true;
        }
    }

    /// Records a webhook from a watch, a list or a write. Ignores versions older than the known one.
    pub(crate) fn webhook_seen(&self, state: &mut State, webhook: Arc<Webhook>, now: Now) {
        let key = key_of(&webhook);
        match state.webhooks.by_key.get_mut(&key) {
            Some(cached) if revision(&*cached.webhook) > revision(&*webhook) => return,
            _ if webhook.is_deleting() => {
                self.webhook_gone(state, &key, &webhook);
                return;
            }
            Some(cached) if cached.webhook.metadata.uid == webhook.metadata.uid => {
                if revision(&*cached.webhook) == revision(&*webhook) {
                    return;
                }
                cached.webhook = webhook;
            }
            _ => {
                self.secrets.forget(&key);
                let base = webhook.status.clone().unwrap_or_default();
                let cached = CachedWebhook {
                    webhook,
                    base,
                    shown: false,
                    disablement: None,
                    last_writes: LastWrites::default(),
                };
                state.webhooks.by_key.insert(key.clone(), cached);
            }
        }
        self.update_facts(state, &key, now);
    }

    /// Updates the dispatcher's facts about a webhook, because something that they depend on has changed.
    pub(crate) fn update_facts(&self, state: &mut State, key: &WebhookKey, now: Now) {
        let Some(webhook) = state.webhooks.get(key).cloned() else {
            return;
        };
        let is_copy = state.webhooks.older_twin(&webhook).is_some();
        let facts = self.facts(&state.webhooks, &webhook, key, is_copy);
        if is_copy {
            state.webhooks.copies.insert(key.clone());
        }
        self.secrets.read_first(key, &webhook);
        if webhook.disabled().is_some() {
            state.webhooks.disabled.insert(key);
        } else {
            state.webhooks.disabled.remove(key);
        }
        state.dispatcher.webhook_seen(facts, now);
        self.statuses.lock().touch(key.clone());
        self.wake.worker.notify_one();
        self.wake.statuses.notify_one();
    }

    /// Forgets a deleted webhook, unless another one has taken its name by now.
    pub(super) fn webhook_gone(&self, state: &mut State, key: &WebhookKey, gone: &Webhook) {
        let is_it = |webhook: &Arc<Webhook>| webhook.metadata.uid == gone.metadata.uid;
        if !state.webhooks.get(key).is_some_and(is_it) {
            return;
        }
        let Some(CachedWebhook { webhook, .. }) = state.webhooks.by_key.remove(key) else {
            return;
        };
        self.statuses.lock().forget(key);
        state.webhooks.disabled.remove(key);
        let uid = origin::uid(&webhook.metadata);
        state.dispatcher.webhook_gone(key, uid, revision(&*webhook));
        // One of them may have its origin now.
        for copy in std::mem::take(&mut state.webhooks.copies) {
            self.update_facts(state, &copy, self.now());
        }
        self.secrets.forget(key);
        self.wake.worker.notify_one();
    }

    pub(super) fn owner_changed(&self, namespace: &str) {
        let keys = self.state.lock().dispatcher.webhooks_in(namespace);
        for key in keys {
            self.update_facts(&mut self.state.lock(), &key, self.now());
        }
    }

    /// Calls `each` for every webhook, without holding the lock for all of them at once.
    pub(crate) fn for_each_webhook(&self, each: impl FnMut(&mut State, &WebhookKey)) {
        let some_after = |state: &State, last: Option<&_>| keys_after(&state.webhooks.by_key, last, AT_ONCE);
        self.for_each_key(some_after, each);
    }
}

/// The key of a webhook.
pub(super) fn key_of(webhook: &Webhook) -> WebhookKey {
    let metadata = &webhook.metadata;
    key(
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}
