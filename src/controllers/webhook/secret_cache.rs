//! The signing secrets as they were last read, and what is wrong with them.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;

use crate::{
    delivery::{dispatch::WebhookKey, signature::SigningKeys},
    resources::{
        SecretReference, Webhook,
        webhook::{
            MAX_SECRET_CHARACTERS, PREVIOUS_EXPIRES_KEY, PREVIOUS_SECRET_KEY, SECRET_CHANGED_ANNOTATION,
        },
    },
};

/// After a read failed, what is known is used for so long before another is tried.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

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

/// The secrets as they were last read, by webhook.
#[derive(Default)]
pub(super) struct SecretCache {
    secrets: Mutex<HashMap<WebhookKey, CachedSecret>>,
}

/// A secret as it was last read.
#[derive(Clone, Default)]
pub(super) struct CachedSecret {
    /// What it was read for.
    of: Option<Of>,
    /// When that was, and what it said.
    pub(super) read: Option<(Instant, Result<Usable, Problem>)>,
    /// When it could not be read last.
    pub(super) failed_at: Option<Instant>,
    /// Held by whoever is reading it: one reader is enough.
    pub(super) reader: Arc<tokio::sync::Mutex<()>>,
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

impl CachedSecret {
    pub(super) fn age(&self) -> Duration {
        self.read.as_ref().map_or(Duration::MAX, |(at, _)| at.elapsed())
    }

    pub(super) fn has_just_failed(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() < AFTER_FAILURE)
    }

    pub(super) fn result(&self) -> Option<&Result<Usable, Problem>> {
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

/// The keys of a secret that can be used.
#[derive(Clone)]
pub(super) struct Usable {
    both: Arc<SigningKeys>,
    /// With the current secret alone, and from when on that is right.
    alone: Option<(Timestamp, Arc<SigningKeys>)>,
}

impl Usable {
    /// The keys to sign with at this time.
    pub(super) fn at(&self, now: Timestamp) -> Arc<SigningKeys> {
        match &self.alone {
            Some((from, keys)) if *from <= now => keys.clone(),
            _ => self.both.clone(),
        }
    }
}

impl SecretCache {
    pub(super) fn forget(&self, key: &WebhookKey) {
        self.secrets.lock().remove(key);
    }

    /// Forgets all but these.
    pub(super) fn retain(&self, is_kept: impl Fn(&WebhookKey) -> bool) {
        self.secrets.lock().retain(|key, _| is_kept(key));
    }

    /// What is known for this very webhook and reference.
    pub(super) fn get(&self, key: &WebhookKey, webhook: &Webhook) -> CachedSecret {
        let mut all = self.secrets.lock();
        let cached = all.entry(key.clone()).or_default();
        let of = Some(Of::this(webhook));
        if cached.of != of {
            *cached = CachedSecret {
                of,
                ..CachedSecret::default()
            };
        }
        cached.clone()
    }

    /// Replaces what is known by what a read that was asked for at `asked_at` has brought. Returns whether it was right to.
    pub(super) fn put(&self, key: &WebhookKey, after: CachedSecret, asked_at: Instant) -> bool {
        let mut all = self.secrets.lock();
        // The webhook may name another by now, or be another; and who asked later may have been answered sooner.
        let is_newer = |cached: &CachedSecret| cached.read.as_ref().is_some_and(|(at, _)| *at > asked_at);
        match all.get_mut(key) {
            Some(cached) if cached.of == after.of && !is_newer(cached) => {
                *cached = after;
                true
            }
            _ => false,
        }
    }
}

/// The signing keys in a Secret, or what is wrong with it.
pub(super) fn parse(secret: Option<&Secret>, name: &str, key: &str) -> Result<Usable, Problem> {
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
