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
    hub::Hub,
    secret_cache::{CachedSecret, Problem, parse},
};
use crate::{
    delivery::{dispatch::LaneKey, signature::SigningKeys},
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
    hub: &Arc<Hub>,
    lane: &LaneKey,
    webhook: &Webhook,
) -> Result<Arc<SigningKeys>, NoKeys> {
    let mut known = hub.secrets.get(lane, webhook);
    if known.age() >= FRESH && !known.has_just_failed() {
        let is_usable = known.age() < USABLE && known.result().is_some_and(Result::is_ok);
        if !is_usable {
            let _reader = known.reader.clone().lock_owned().await;
            known = hub.secrets.get(lane, webhook);
            if known.age() >= FRESH && !known.has_just_failed() {
                read(hub, lane, webhook).await;
                known = hub.secrets.get(lane, webhook);
            }
        } else if let Ok(reader) = known.reader.clone().try_lock_owned() {
            let (hub, lane, webhook) = (hub.clone(), lane.clone(), webhook.clone());
            tokio::spawn(async move {
                read(&hub, &lane, &webhook).await;
                drop(reader);
            });
        }
    }
    match known.read {
        Some((_, Ok(usable))) => Ok(usable.at(hub.deps.clock.now())),
        Some((_, Err(problem))) => Err(NoKeys::Problem(problem)),
        None => Err(NoKeys::Unavailable),
    }
}

/// Reads a secret anew.
async fn read(hub: &Arc<Hub>, lane: &LaneKey, webhook: &Webhook) {
    learn(hub, lane, webhook, &fetch(hub, webhook).await);
}

/// When a Secret was asked for, and what it was then or later: the Secret, or none; an error if the API server did not say.
type Answer = (Instant, Result<Option<Secret>, ()>);

/// The Secret that a webhook names.
async fn fetch(hub: &Hub, webhook: &Webhook) -> Answer {
    let asked_at = Instant::now();
    let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
    let name = &webhook.spec.secret_ref.name;
    let api: Api<Secret> = Api::namespaced(hub.deps.client.clone(), namespace);
    let secret = bounded(api.get_opt(name)).await.map_err(|error| {
        tracing::warn!(namespace, name, %error, "a signing secret cannot be read");
    });
    (asked_at, secret)
}

/// Takes in what was answered about a webhook's Secret.
fn learn(hub: &Hub, lane: &LaneKey, webhook: &Webhook, (asked_at, secret): &Answer) {
    let reference = &webhook.spec.secret_ref;
    let before = hub.secrets.get(lane, webhook);
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
    if hub.secrets.put(lane, after, *asked_at) && changed {
        let now = hub.now();
        let mut state = hub.state.lock();
        hub.look_again(&mut state, lane, now);
    }
}

/// Reads the secrets that nobody has used lately, so that what is wrong with them shows before an event needs them. With more
/// than some two hundred Secrets a round takes longer than [`POLL_EVERY`]; those that are in use are read again all the same.
pub(super) async fn poll(hub: Arc<Hub>, shutdown: CancellationToken) {
    let mut next_round = Instant::now();
    loop {
        // A round does not wait for those who want to be read at once: they may be many.
        let only_unread = Instant::now() < next_round;
        if !only_unread {
            next_round = Instant::now() + POLL_EVERY;
        }
        let reads =
            futures::stream::iter(due(&hub, only_unread)).for_each_concurrent(POLL_CONCURRENCY, |webhooks| {
                let hub = hub.clone();
                async move { tokio::join!(read_for(&hub, webhooks), tokio::time::sleep(POLL_PACE)).0 }
            });
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = reads => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = hub.unread.notified() => {}
            () = tokio::time::sleep_until(next_round.into()) => {}
        }
    }
}

type Webhooks = Vec<(LaneKey, Arc<Webhook>)>;

/// Webhooks whose secrets are to be read again, those of one Secret together.
fn due(hub: &Hub, only_unread: bool) -> Vec<Webhooks> {
    let state = hub.state.lock();
    // An attempt that was under way to one that is gone has asked for it again.
    hub.secrets.retain(|lane| state.webhooks.contains_key(lane));
    let mut due: BTreeMap<(&str, &str), Webhooks> = BTreeMap::new();
    for (lane, known) in &state.webhooks {
        let webhook = &known.webhook;
        let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
        let secret = hub.secrets.get(lane, webhook);
        let is_due = if only_unread {
            secret.is_unread()
        } else {
            secret.age() >= FRESH
        };
        if is_due && hub.deps.directory.account_of(namespace).is_some() {
            let of_secret = due.entry((namespace, &webhook.spec.secret_ref.name)).or_default();
            of_secret.push((lane.clone(), webhook.clone()));
        }
    }
    due.into_values().collect()
}

/// Reads one Secret for all webhooks that name it.
async fn read_for(hub: &Arc<Hub>, webhooks: Webhooks) {
    let Some((_, webhook)) = webhooks.first() else {
        return;
    };
    let answer = fetch(hub, webhook).await;
    for (lane, webhook) in &webhooks {
        learn(hub, lane, webhook, &answer);
    }
}
