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
use kube::{Api, api::ListParams};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::hub::Hub;
use crate::{
    delivery::{dispatch::LaneKey, signature::SigningKeys},
    resources::{
        Webhook,
        webhook::{MAX_SECRET_CHARACTERS, PREVIOUS_EXPIRES_KEY, PREVIOUS_SECRET_KEY},
    },
    runtime::client::bounded,
};

/// From this age on a secret is read again.
const FRESH: Duration = Duration::from_secs(4);
/// A secret older than this is not used before it was read again, if it can be.
const USABLE: Duration = Duration::from_secs(9);
/// How often it is looked for secrets that nobody has used lately.
const POLL_EVERY: Duration = Duration::from_secs(4);
/// Namespaces that the poll reads at the same time.
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

#[derive(Clone)]
struct Known {
    read_at: Instant,
    result: Result<Usable, Problem>,
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
    /// What is wrong with a webhook's secret, as far as that is known.
    pub(super) fn problem(&self, lane: &LaneKey) -> Option<Problem> {
        self.known.lock().get(lane)?.result.as_ref().err().cloned()
    }

    /// Up to when the previous secret signs too.
    pub(super) fn overlap(&self, lane: &LaneKey) -> Option<Timestamp> {
        let known = self.known.lock();
        let usable = known.get(lane)?.result.as_ref().ok()?;
        usable.alone.as_ref().map(|(until, _)| *until)
    }

    pub(super) fn forget(&self, lane: &LaneKey) {
        self.known.lock().remove(lane);
    }

    fn get(&self, lane: &LaneKey) -> Option<Known> {
        self.known.lock().get(lane).cloned()
    }
}

/// The keys to sign with now.
pub(super) async fn keys(
    hub: &Arc<Hub>,
    lane: &LaneKey,
    webhook: &Webhook,
) -> Result<Arc<SigningKeys>, NoKeys> {
    let now = hub.now();
    let known = hub.secrets.get(lane);
    let age = known.as_ref().map(|known| now.mono.duration_since(known.read_at));
    let known = match (known, age) {
        (Some(known), Some(age)) if age < FRESH => known,
        (Some(known), Some(age)) if age < USABLE && known.result.is_ok() => {
            // Marked as fresh, so that one reader is enough.
            if let Some(entry) = hub.secrets.known.lock().get_mut(lane) {
                entry.read_at = now.mono.checked_sub(FRESH / 2).unwrap_or(now.mono);
            }
            let (hub, lane, webhook) = (hub.clone(), lane.clone(), webhook.clone());
            tokio::spawn(async move { read(&hub, &lane, &webhook).await });
            known
        }
        (known, _) => match read(hub, lane, webhook).await.or(known) {
            Some(known) => known,
            None => return Err(NoKeys::Unavailable),
        },
    };
    known
        .result
        .map(|usable| usable.at(now.wall))
        .map_err(NoKeys::Problem)
}

/// Reads a secret anew. None: the API server does not answer.
async fn read(hub: &Arc<Hub>, lane: &LaneKey, webhook: &Webhook) -> Option<Known> {
    let namespace = webhook.metadata.namespace.as_deref().unwrap_or_default();
    let reference = &webhook.spec.secret_ref;
    let api: Api<Secret> = Api::namespaced(hub.deps.client.clone(), namespace);
    let secret = match bounded(api.get_opt(&reference.name)).await {
        Ok(secret) => secret,
        Err(error) => {
            tracing::warn!(webhook = %lane, %error, "the signing secret cannot be read");
            return None;
        }
    };
    Some(learn(hub, lane, webhook, secret.as_ref()))
}

/// Takes in what a webhook's Secret says by now.
fn learn(hub: &Hub, lane: &LaneKey, webhook: &Webhook, secret: Option<&Secret>) -> Known {
    let reference = &webhook.spec.secret_ref;
    let known = Known {
        read_at: Instant::now(),
        result: parse(secret, &reference.name, &reference.key),
    };
    let before = hub.secrets.known.lock().insert(lane.clone(), known.clone());
    let told = |known: &Known| (known.result.as_ref().err().cloned(), until(known));
    let changed = before.as_ref().map_or((None, None), told) != told(&known);
    if changed {
        let now = hub.now();
        let mut state = hub.state.lock();
        hub.look_again(&mut state, lane, now);
    }
    known
}

fn until(known: &Known) -> Option<Timestamp> {
    let usable = known.result.as_ref().ok()?;
    usable.alone.as_ref().map(|(until, _)| *until)
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

/// Reads the secrets that nobody has used lately, so that what is wrong with them shows before an event needs them. With
/// webhooks in more than some two hundred namespaces a round takes longer than [`POLL_EVERY`]; secrets that are in use are
/// read again all the same.
pub(super) async fn poll(hub: Arc<Hub>, shutdown: CancellationToken) {
    loop {
        let namespaces = due(&hub);
        let reads =
            futures::stream::iter(namespaces).for_each_concurrent(POLL_CONCURRENCY, |(namespace, due)| {
                let hub = hub.clone();
                async move { tokio::join!(read_all(&hub, &namespace, due), tokio::time::sleep(POLL_PACE)).0 }
            });
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = reads => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(POLL_EVERY) => {}
        }
    }
}

/// Webhooks whose secrets are to be read again, by namespace.
fn due(hub: &Hub) -> BTreeMap<String, Vec<(LaneKey, Arc<Webhook>)>> {
    let state = hub.state.lock();
    let mut due: BTreeMap<String, Vec<(LaneKey, Arc<Webhook>)>> = BTreeMap::new();
    for (lane, known) in &state.webhooks {
        let is_fresh = |known: Known| known.read_at.elapsed() < FRESH;
        let namespace = known.webhook.metadata.namespace.as_deref().unwrap_or_default();
        if hub.deps.directory.account_of(namespace).is_some() && !hub.secrets.get(lane).is_some_and(is_fresh)
        {
            let of_namespace = due.entry(namespace.to_owned()).or_default();
            of_namespace.push((lane.clone(), known.webhook.clone()));
        }
    }
    due
}

/// Reads the secrets of these webhooks of one namespace, several with one list.
async fn read_all(hub: &Arc<Hub>, namespace: &str, due: Vec<(LaneKey, Arc<Webhook>)>) {
    if let [(lane, webhook)] = due.as_slice() {
        read(hub, lane, webhook).await;
        return;
    }
    let api: Api<Secret> = Api::namespaced(hub.deps.client.clone(), namespace);
    let secrets: HashMap<String, Secret> = match bounded(api.list(&ListParams::default())).await {
        Ok(list) => {
            let named = list.items.into_iter();
            named
                .filter_map(|secret| Some((secret.metadata.name.clone()?, secret)))
                .collect()
        }
        Err(error) => {
            tracing::warn!(namespace, %error, "signing secrets cannot be read");
            return;
        }
    };
    for (lane, webhook) in due {
        learn(hub, &lane, &webhook, secrets.get(&webhook.spec.secret_ref.name));
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
