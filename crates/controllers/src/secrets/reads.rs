//! Reads the signing secrets of webhooks from the API server when they are needed, unless they were read in the last ten seconds,
//! and again from time to time, so that problems show before an event needs them. They are not watched, because the operator may
//! not watch Secrets outside the accounts' namespaces.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{GetParams, Patch, PatchParams},
};
use tokio_util::sync::CancellationToken;

use super::cache::{CachedSecret, FRESH, SecretProblem, parse, removal};
use crate::webhook::{
    FIELD_MANAGER,
    shared::{AT_ONCE, Shared, State},
};
use domain::delivery::WebhookKey;
use resources::{Webhook, ids, revision};
use runtime::client::bounded;
use sender::signature::SigningKeys;

/// Age at which a secret is read again before it is used, if possible.
const USABLE: Duration = Duration::from_secs(9);
/// How often to check for secrets that have not been used recently.
const POLL_EVERY: Duration = Duration::from_secs(4);
/// Number of secrets that the poll reads concurrently.
const POLL_CONCURRENCY: usize = 4;
/// Minimum time per read of the poll. With [`POLL_CONCURRENCY`], it limits the poll to fifty reads a second.
const POLL_PACE: Duration = Duration::from_millis(80);

/// Why there are no signing keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoKeys {
    /// The secret is missing or invalid.
    Problem(SecretProblem),
    /// The secret has never been read, and the API server does not answer.
    Unavailable,
}

/// The keys to sign with now.
pub(crate) async fn keys(
    shared: &Arc<Shared>,
    key: &WebhookKey,
    webhook: &Webhook,
) -> Result<Arc<SigningKeys>, NoKeys> {
    let mut cached = shared.secrets.get(key, webhook);
    if cached.age() >= FRESH && !cached.has_just_failed() {
        let is_usable = cached.age() < USABLE && cached.result().is_some_and(Result::is_ok);
        if !is_usable {
            let _reader = cached.reader.clone().lock_owned().await;
            cached = shared.secrets.get(key, webhook);
            if cached.age() >= FRESH && !cached.has_just_failed() {
                read(shared, key, webhook).await;
                cached = shared.secrets.get(key, webhook);
            }
        } else if let Ok(reader) = cached.reader.clone().try_lock_owned() {
            let (shared, key, webhook) = (shared.clone(), key.clone(), webhook.clone());
            tokio::spawn(async move {
                read(&shared, &key, &webhook).await;
                drop(reader);
            });
        }
    }
    match cached.read {
        Some((_, Ok(usable))) => Ok(usable.at(shared.deps.clock.now())),
        Some((_, Err(problem))) => Err(NoKeys::Problem(problem)),
        None => Err(NoKeys::Unavailable),
    }
}

/// Reads a secret again.
async fn read(shared: &Arc<Shared>, key: &WebhookKey, webhook: &Webhook) {
    let answer = fetch(shared, webhook, newest(shared, key, webhook)).await;
    learn(shared, key, webhook, &answer);
    remove_expired(shared, key, webhook, &answer).await;
}

/// Removes a previous secret that no longer signs. Does so at most once an hour for each webhook, in case somebody keeps
/// putting it back.
async fn remove_expired(shared: &Shared, key: &WebhookKey, webhook: &Webhook, (_, secret): &Answer) {
    let Ok(Some(secret)) = secret else { return };
    let Some(patch) = removal(secret, webhook, shared.deps.clock.now()) else {
        return;
    };
    if !shared.leads() || !shared.secrets.may_remove(key) {
        return;
    }
    let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
    let name = &webhook.spec.secret_ref.name;
    let api: Api<Secret> = Api::namespaced(shared.deps.client.clone(), namespace);
    let params = PatchParams::apply(FIELD_MANAGER);
    if let Err(error) = bounded(api.patch(name, &params, &Patch::Merge(&patch))).await {
        tracing::warn!(namespace, name, %error, "cannot remove an expired signing secret; will retry in an hour");
    }
}

/// When a read of a Secret began, and its result: the Secret, `None` if it does not exist, or an error if the read failed.
type Answer = (Instant, Result<Option<Secret>, ()>);

/// The newest version of a webhook's Secret that is known to exist, because it was announced by REST or has
/// been read.
fn newest(shared: &Shared, key: &WebhookKey, webhook: &Webhook) -> Option<u64> {
    webhook
        .announced_secret()
        .max(shared.secrets.get(key, webhook).version)
}

/// The Secret that a webhook names, from the API server's cache, but no older than this version.
async fn fetch(shared: &Shared, webhook: &Webhook, newest: Option<u64>) -> Answer {
    let asked_at = Instant::now();
    let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
    let name = &webhook.spec.secret_ref.name;
    // The account holder has written it, perhaps before the schema knew this rule.
    if !ids::is_object_name(name) {
        return (asked_at, Ok(None));
    }
    let api: Api<Secret> = Api::namespaced(shared.deps.client.clone(), namespace);
    let params = newest.map_or_else(GetParams::any, |version| GetParams::at(&version.to_string()));
    let secret = match bounded(api.get_with(name, &params)).await {
        Ok(secret) => Ok(Some(secret)),
        // The API server's cache may not have that version yet, or may never get it if etcd was restored from
        // an older backup.
        Err(_) => bounded(api.get_opt(name)).await,
    };
    let secret = secret.map_err(|error| {
        tracing::warn!(namespace, name, %error, "cannot read a signing secret");
    });
    (asked_at, secret)
}

/// Stores the result of reading a webhook's Secret.
fn learn(shared: &Shared, key: &WebhookKey, webhook: &Webhook, (asked_at, secret): &Answer) {
    let before = shared.secrets.get(key, webhook);
    let mut after = before.clone();
    match secret {
        // Leave it unread, so that the webhook is not shown as blocked while its Secret is being created.
        Ok(None) if webhook.awaits_secret(shared.deps.clock.now()) => return,
        Ok(secret) => {
            after.failed_at = None;
            after.version = secret.as_ref().map(revision).or(after.version);
            after.read = Some((*asked_at, parse(secret.as_ref(), webhook)));
            if after.version != before.version || after.problem() != before.problem() {
                after.unchanged_since = None;
            }
            after.unchanged_since.get_or_insert(*asked_at);
        }
        Err(()) => after.failed_at = Some(Instant::now()),
    }
    let visible = |secret: &CachedSecret| (secret.was_read(), secret.problem(), secret.overlap());
    let changed = visible(&before) != visible(&after);
    if shared.secrets.put(key, after, *asked_at) && changed {
        let now = shared.now();
        let mut state = shared.state.lock();
        shared.update_facts(&mut state, key, now);
    }
}

/// Reads secrets until shutdown, so that problems show up before an event needs them.
pub(crate) async fn poll(shared: Arc<Shared>, shutdown: CancellationToken) {
    let polls = async { tokio::join!(read_new(&shared), read_again(&shared)) };
    tokio::select! {
        () = shutdown.cancelled() => {}
        _ = polls => {}
    }
}

/// Reads the secrets that have never been read. A new webhook is shown as ready once its secret has been read, so it does not
/// wait for a full round.
async fn read_new(shared: &Arc<Shared>) {
    loop {
        match unread(shared) {
            Some(new) => read_all(shared, new).await,
            None => shared.secrets.has_unread.notified().await,
        }
    }
}

/// Reads the secrets that have not been used recently, less often the longer they have not changed. Secrets in use are read
/// again independently of this.
async fn read_again(shared: &Arc<Shared>) {
    loop {
        let next_round = tokio::time::Instant::now() + POLL_EVERY;
        forget_deleted(shared);
        read_all(shared, old(shared)).await;
        tokio::time::sleep_until(next_round).await;
    }
}

async fn read_all(shared: &Arc<Shared>, webhooks: Vec<Webhooks>) {
    futures::stream::iter(webhooks)
        .for_each_concurrent(POLL_CONCURRENCY, |webhooks| async move {
            tokio::join!(read_for(shared, webhooks), tokio::time::sleep(POLL_PACE));
        })
        .await;
}

/// Webhooks that name the same Secret.
type Webhooks = Vec<(WebhookKey, Arc<Webhook>)>;

/// Removes and returns some of the webhooks whose secrets have never been read; `None` if there are no more.
fn unread(shared: &Shared) -> Option<Vec<Webhooks>> {
    let keys = shared.secrets.take_unread(AT_ONCE);
    if keys.is_empty() {
        return None;
    }
    let state = shared.state.lock();
    let webhook = |key: WebhookKey| {
        let webhook = state.webhooks.get(&key)?.clone();
        Some((key, webhook))
    };
    let webhooks: Vec<_> = keys.into_iter().filter_map(webhook).collect();
    drop(state);
    Some(by_secret(shared, webhooks, CachedSecret::is_unread))
}

/// Webhooks whose secrets have not been read recently.
pub(crate) fn old(shared: &Shared) -> Vec<Webhooks> {
    let mut webhooks = Vec::new();
    shared.for_each_webhook(|state, key| {
        if let Some(webhook) = state.webhooks.get(key)
            && !shared.secrets.awaits_first_read(key)
        {
            webhooks.push((key.clone(), webhook.clone()));
        }
    });
    by_secret(shared, webhooks, CachedSecret::is_due)
}

/// The webhooks among these whose secrets are due, grouped by Secret.
fn by_secret(shared: &Shared, webhooks: Webhooks, is_due: impl Fn(&CachedSecret) -> bool) -> Vec<Webhooks> {
    let mut due: BTreeMap<(String, String), Webhooks> = BTreeMap::new();
    for (key, webhook) in webhooks {
        let namespace = webhook.metadata.namespace.clone().unwrap_or_default();
        if is_due(&shared.secrets.get(&key, &webhook))
            && shared.deps.directory.account_of(&namespace).is_some()
        {
            let secret = (namespace, webhook.spec.secret_ref.name.clone());
            due.entry(secret).or_default().push((key, webhook));
        }
    }
    due.into_values().collect()
}

/// Forgets the secrets of deleted webhooks: a read in progress may have put one back.
pub(crate) fn forget_deleted(shared: &Shared) {
    let cached = |_: &State, last: Option<&WebhookKey>| shared.secrets.keys_after(last, AT_ONCE);
    shared.for_each_key(cached, |state, key| {
        if state.webhooks.get(key).is_none() {
            shared.secrets.forget(key);
        }
    });
}

/// Reads one Secret for all webhooks that name it.
async fn read_for(shared: &Arc<Shared>, webhooks: Webhooks) {
    let Some((_, webhook)) = webhooks.first() else {
        return;
    };
    let newest = webhooks.iter().map(|(key, webhook)| newest(shared, key, webhook));
    let answer = fetch(shared, webhook, newest.max().flatten()).await;
    for (key, webhook) in &webhooks {
        learn(shared, key, webhook, &answer);
        remove_expired(shared, key, webhook, &answer).await;
    }
}
