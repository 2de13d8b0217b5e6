//! The signing secrets of webhooks. They are read from the API server when they are needed and looked at again every few
//! seconds, so that a change with `kubectl` is noticed within ten: the operator may not watch Secrets outside of the
//! accounts' namespaces.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::{
    delivery::{dispatch::LaneKey, signature::SigningKeys},
    resources::{
        SecretReference, Webhook,
        webhook::{
            MAX_SECRET_CHARACTERS, PREVIOUS_EXPIRES_KEY, PREVIOUS_SECRET_KEY, SECRET_CHANGED_ANNOTATION,
        },
    },
    runtime::client::bounded,
};

/// From this age on a secret is read again.
const FRESH: Duration = Duration::from_secs(4);
/// A secret older than this is not used before it was read again, if it can be.
const USABLE: Duration = Duration::from_secs(9);
/// After a read failed, what is known is used for so long before another is tried.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// How often it is looked for secrets that nobody has used lately.
const POLL_EVERY: Duration = Duration::from_secs(4);
/// Secrets that the poll reads at the same time.
const POLL_CONCURRENCY: usize = 4;
/// Each of them takes at least this long, so that there are at most fifty a second.
const POLL_PACE: Duration = Duration::from_millis(80);

/// Why a webhook's secret cannot be used, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The Secret or its key is not there.
    Missing(String),
    /// It is there, but no signing secret.
    Unusable(String),
}

impl Problem {
    /// The reason as conditions spell it, and what to do.
    pub(super) fn told(self) -> (&'static str, String) {
        match self {
            Self::Missing(message) => ("SecretMissing", message),
            Self::Unusable(message) => ("SecretUnusable", message),
        }
    }
}

/// Why there are no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoKeys {
    /// There is something to be mended.
    Problem(Problem),
    /// The API server does not answer, and nothing is known.
    Unavailable,
}

/// What is known of the secrets.
#[derive(Default)]
pub(super) struct Secrets {
    known: Mutex<HashMap<LaneKey, Known>>,
}

/// What is known of one.
#[derive(Clone, Default)]
pub(super) struct Known {
    /// What it was read for.
    of: Option<Of>,
    /// When that was, and what it said.
    read: Option<(Instant, Result<Usable, Problem>)>,
    /// When it could not be read last.
    failed_at: Option<Instant>,
    /// Held by whoever is reading it: one reader is enough.
    reader: Arc<tokio::sync::Mutex<()>>,
}

/// A Webhook, the Secret that it names, and the change of that Secret that is known of.
#[derive(Clone, PartialEq, Eq)]
struct Of {
    uid: Option<String>,
    reference: SecretReference,
    changed: Option<String>,
}

impl Of {
    fn this(webhook: &Webhook) -> Self {
        let annotations = webhook.metadata.annotations.as_ref();
        Self {
            uid: webhook.metadata.uid.clone(),
            reference: webhook.spec.secret_ref.clone(),
            changed: annotations.and_then(|all| all.get(SECRET_CHANGED_ANNOTATION).cloned()),
        }
    }
}

impl Known {
    fn age(&self) -> Duration {
        self.read.as_ref().map_or(Duration::MAX, |(at, _)| at.elapsed())
    }

    fn has_just_failed(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() < AFTER_FAILURE)
    }

    fn result(&self) -> Option<&Result<Usable, Problem>> {
        self.read.as_ref().map(|(_, result)| result)
    }

    /// Whether it has been read; until then nothing can be said of it.
    pub(super) fn was_read(&self) -> bool {
        self.read.is_some()
    }

    /// Whether nobody has tried to read it yet.
    pub(super) fn is_unread(&self) -> bool {
        self.read.is_none() && self.failed_at.is_none()
    }

    /// What is wrong with it, as far as that is known.
    pub(super) fn problem(&self) -> Option<Problem> {
        self.result()?.as_ref().err().cloned()
    }

    /// Up to when the previous secret signs too.
    pub(super) fn overlap(&self) -> Option<Timestamp> {
        let usable = self.result()?.as_ref().ok()?;
        usable.alone.as_ref().map(|(until, _)| *until)
    }
}

#[derive(Clone)]
struct Usable {
    both: Arc<SigningKeys>,
    /// With the current secret alone, and from when on that is right.
    alone: Option<(Timestamp, Arc<SigningKeys>)>,
}

impl Usable {
    fn at(&self, now: Timestamp) -> Arc<SigningKeys> {
        match &self.alone {
            Some((from, keys)) if *from <= now => keys.clone(),
            _ => self.both.clone(),
        }
    }
}

impl Secrets {
    pub(super) fn forget(&self, lane: &LaneKey) {
        self.known.lock().remove(lane);
    }

    /// What is known for this very webhook and reference.
    pub(super) fn get(&self, lane: &LaneKey, webhook: &Webhook) -> Known {
        let mut all = self.known.lock();
        let known = all.entry(lane.clone()).or_default();
        let of = Some(Of::this(webhook));
        if known.of != of {
            *known = Known {
                of,
                ..Known::default()
            };
        }
        known.clone()
    }
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
    let told = |known: &Known| (known.was_read(), known.problem(), known.overlap());
    let changed = told(&before) != told(&after);
    {
        let mut all = hub.secrets.known.lock();
        // The webhook may name another by now, or be another; and who asked later may have been answered sooner.
        let is_newer = |known: &Known| known.read.as_ref().is_some_and(|(at, _)| at > asked_at);
        match all.get_mut(lane) {
            Some(known) if known.of == after.of && !is_newer(known) => *known = after,
            _ => return,
        }
    }
    if changed {
        let now = hub.now();
        let mut state = hub.state.lock();
        hub.look_again(&mut state, lane, now);
    }
}

fn parse(secret: Option<&Secret>, name: &str, key: &str) -> Result<Usable, Problem> {
    let Some(secret) = secret else {
        return Err(Problem::Missing(format!(
            "there is no Secret {name} in this namespace; create it with the signing secret under the key {key}, or name another in spec.secretRef"
        )));
    };
    let value = |key: &str| secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice());
    let Some(current) = value(key) else {
        return Err(Problem::Missing(format!(
            "Secret {name} has no key {key}; put the signing secret there, or name another key in spec.secretRef"
        )));
    };
    let usable = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).ok()?;
        (1..=MAX_SECRET_CHARACTERS)
            .contains(&text.chars().count())
            .then(|| text.to_owned())
    };
    let Some(current) = usable(current) else {
        return Err(Problem::Unusable(format!(
            "key {key} of Secret {name} is no signing secret: it must be 1 to {MAX_SECRET_CHARACTERS} characters of UTF-8"
        )));
    };
    let previous = value(PREVIOUS_SECRET_KEY).and_then(usable);
    let expires: Option<Timestamp> = value(PREVIOUS_EXPIRES_KEY)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .and_then(|text| text.trim().parse().ok());
    // A previous secret that nobody says how long to use is not used.
    let overlap = previous.as_deref().zip(expires);
    Ok(Usable {
        both: Arc::new(SigningKeys::new(&current, overlap.map(|(previous, _)| previous))),
        alone: overlap.map(|(_, until)| (until, Arc::new(SigningKeys::new(&current, None)))),
    })
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
    hub.secrets
        .known
        .lock()
        .retain(|lane, _| state.webhooks.contains_key(lane));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::ByteString;

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        Secret {
            data: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect::<BTreeMap<_, _>>(),
            ),
            ..Secret::default()
        }
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_with_the_fix() {
        let complaint = |secret: Option<&Secret>| match parse(secret, "hook", "secret") {
            Err(Problem::Missing(message) | Problem::Unusable(message)) => message,
            Ok(_) => String::new(),
        };
        assert!(complaint(None).contains("no Secret hook"));
        assert!(complaint(Some(&secret(&[("other", "x")]))).contains("no key secret"));
        assert!(complaint(Some(&secret(&[("secret", "")]))).contains("1 to 255"));
        assert!(complaint(Some(&secret(&[("secret", &"x".repeat(256))]))).contains("1 to 255"));
        assert_eq!(complaint(Some(&secret(&[("secret", &"é".repeat(255))]))), "");
    }

    #[test]
    fn the_previous_secret_signs_until_it_expires() {
        let both = secret(&[
            ("secret", "new"),
            ("previous-secret", "old"),
            ("previous-expires-at", "2026-11-21T10:00:00Z"),
        ]);
        let usable = parse(Some(&both), "hook", "secret").ok().unwrap();
        let signatures = |at: &str| {
            let keys = usable.at(at.parse().unwrap());
            let now = Timestamp::UNIX_EPOCH;
            let headers =
                crate::delivery::signature::headers(&keys, "evt_1", "instance.created", now, now, b"{}");
            headers["webhook-signature"].to_str().unwrap().split(' ').count()
        };
        assert_eq!(signatures("2026-11-21T09:59:59Z"), 2);
        assert_eq!(signatures("2026-11-21T10:00:00Z"), 1);
        let endless = secret(&[("secret", "new"), ("previous-secret", "old")]);
        assert!(
            parse(Some(&endless), "hook", "secret")
                .ok()
                .unwrap()
                .alone
                .is_none()
        );
    }
}
