//! The signing secrets of webhooks. They are read from the API server when they are needed and looked at again every few
//! seconds, so that a change with `kubectl` is noticed within ten: the operator may not watch Secrets outside of the
//! accounts' namespaces.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use tokio_util::sync::CancellationToken;

use super::{
    secret_cache::{CachedSecret, Problem, parse},
    shared::Shared,
};
use crate::{
    delivery::{dispatch::WebhookKey, signature::SigningKeys},
    resources::Webhook,
    runtime::client::bounded,
};

/// From this age on a secret is read again.
const FRESH: Duration = Duration::from_secs(4);
/// A secret older than this is not used before it was read again, if it can be.
const USABLE: Duration = Duration::from_secs(9);
/// How often it is looked for secrets that nobody has used lately.
const POLL_EVERY: Duration = Duration::from_secs(4);
/// Secrets that the poll reads at the same time.
const POLL_CONCURRENCY: usize = 4;
/// Each of them takes at least this long, so that there are at most fifty a second.
const POLL_PACE: Duration = Duration::from_millis(80);

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoKeys {
    /// There is something to be mended.
    Problem(Problem),
    /// The API server does not answer, and nothing is known.
    Unavailable,
}

/// The keys to sign with now.
pub(super) async fn keys(
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

/// Reads a secret anew.
async fn read(shared: &Arc<Shared>, key: &WebhookKey, webhook: &Webhook) {
    learn(shared, key, webhook, &fetch(shared, webhook).await);
}

/// When a Secret was asked for, and what it was then or later: the Secret, or none; an error if the API server did not say.
type Answer = (Instant, Result<Option<Secret>, ()>);

/// The Secret that a webhook names.
async fn fetch(shared: &Shared, webhook: &Webhook) -> Answer {
    let asked_at = Instant::now();
    let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
    let name = &webhook.spec.secret_ref.name;
    let api: Api<Secret> = Api::namespaced(shared.deps.client.clone(), namespace);
    let secret = bounded(api.get_opt(name)).await.map_err(|error| {
        tracing::warn!(namespace, name, %error, "a signing secret cannot be read");
    });
    (asked_at, secret)
}

/// Takes in what was answered about a webhook's Secret.
fn learn(shared: &Shared, key: &WebhookKey, webhook: &Webhook, (asked_at, secret): &Answer) {
    let reference = &webhook.spec.secret_ref;
    let before = shared.secrets.get(key, webhook);
    let mut after = before.clone();
    match secret {
        Ok(secret) => {
            after.failed_at = None;
            let parsed = parse(secret.as_ref(), &reference.name, &reference.key);
            after.read = Some((*asked_at, parsed));
        }
        Err(()) => after.failed_at = Some(Instant::now()),
    }
    let told = |secret: &CachedSecret| (secret.was_read(), secret.problem(), secret.overlap());
    let changed = told(&before) != told(&after);
    if shared.secrets.put(key, after, *asked_at) && changed {
        let now = shared.now();
        let mut state = shared.state.lock();
        shared.look_again(&mut state, key, now);
    }
}

/// Reads the secrets that nobody has used lately, so that what is wrong with them shows before an event needs them. With more
/// than some two hundred Secrets a round takes longer than [`POLL_EVERY`]; those that are in use are read again all the same.
pub(super) async fn poll(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut next_round = Instant::now();
    loop {
        // A round does not wait for those who want to be read at once: they may be many.
        let only_unread = Instant::now() < next_round;
        if !only_unread {
            next_round = Instant::now() + POLL_EVERY;
        }
        let reads = futures::stream::iter(due(&shared, only_unread)).for_each_concurrent(
            POLL_CONCURRENCY,
            |webhooks| {
                let shared = shared.clone();
                async move { tokio::join!(read_for(&shared, webhooks), tokio::time::sleep(POLL_PACE)).0 }
            },
        );
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = reads => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = shared.unread.notified() => {}
            () = tokio::time::sleep_until(next_round.into()) => {}
        }
    }
}

type Webhooks = Vec<(WebhookKey, Arc<Webhook>)>;

/// Webhooks whose secrets are to be read again, those of one Secret together.
fn due(shared: &Shared, only_unread: bool) -> Vec<Webhooks> {
    let state = shared.state.lock();
    // An attempt that was under way to one that is gone has asked for it again.
    shared.secrets.retain(|key| state.webhooks.contains_key(key));
    let mut due: BTreeMap<(&str, &str), Webhooks> = BTreeMap::new();
    for (key, cached) in &state.webhooks {
        let webhook = &cached.webhook;
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        let secret = shared.secrets.get(key, webhook);
        let is_due = if only_unread {
            secret.is_unread()
        } else {
            secret.age() >= FRESH
        };
        if is_due && shared.deps.directory.account_of(namespace).is_some() {
            let of_secret = due.entry((namespace, &webhook.spec.secret_ref.name)).or_default();
            of_secret.push((key.clone(), webhook.clone()));
        }
    }
    due.into_values().collect()
}

/// Reads one Secret for all webhooks that name it.
async fn read_for(shared: &Arc<Shared>, webhooks: Webhooks) {
    let Some((_, webhook)) = webhooks.first() else {
        return;
    };
    let answer = fetch(shared, webhook).await;
    for (key, webhook) in &webhooks {
        learn(shared, key, webhook, &answer);
    }
}
