//! Caches and validates the signing secrets.

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

/// How long to use the cached secret after a failed read, before the next one.
const AFTER_FAILURE: Duration = Duration::from_secs(2);

/// Why a webhook's secret cannot be used, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The Secret or its key does not exist.
    Missing(String),
    /// It exists, but is not a valid signing secret.
    Unusable(String),
}

impl Problem {
    /// Reason and message of the condition.
    pub(super) fn reason_and_message(self) -> (&'static str, String) {
        match self {
            Self::Missing(message) => ("SecretMissing", message),
            Self::Unusable(message) => ("SecretUnusable", message),
        }
    }
}

/// The latest known secrets, by webhook.
#[derive(Default)]
pub(super) struct SecretCache {
    secrets: Mutex<HashMap<WebhookKey, CachedSecret>>,
}

/// The latest known secret of a webhook.
#[derive(Clone, Default)]
pub(super) struct CachedSecret {
    /// What this entry is valid for.
    source: Option<Source>,
    /// When the secret was last read, and the result.
    pub(super) read: Option<(Instant, Result<Usable, Problem>)>,
    /// When a read last failed.
    pub(super) failed_at: Option<Instant>,
    /// Held while reading, so that only one task reads.
    pub(super) reader: Arc<tokio::sync::Mutex<()>>,
}

/// A Webhook, the Secret that it names, and the last change of that Secret that REST announced.
#[derive(Clone, PartialEq, Eq)]
struct Source {
    uid: Option<String>,
    reference: SecretReference,
    changed: Option<String>,
}

impl Source {
    fn of(webhook: &Webhook) -> Self {
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

    /// Whether it has ever been read.
    pub(super) fn was_read(&self) -> bool {
        self.read.is_some()
    }

    /// Whether no read has been tried yet.
    pub(super) fn is_unread(&self) -> bool {
        self.read.is_none() && self.failed_at.is_none()
    }

    /// The problem found by the last read, if any.
    pub(super) fn problem(&self) -> Option<Problem> {
        self.result()?.as_ref().err().cloned()
    }

    /// Until when deliveries are signed with the previous secret too.
    pub(super) fn overlap(&self) -> Option<Timestamp> {
        let usable = self.result()?.as_ref().ok()?;
        usable.alone.as_ref().map(|(until, _)| *until)
    }
}

/// The signing keys of a valid secret.
#[derive(Clone)]
pub(super) struct Usable {
    both: Arc<SigningKeys>,
    /// The keys of the current secret alone, and from when on to use them.
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

    /// Forgets all secrets except those to keep.
    pub(super) fn retain(&self, is_kept: impl Fn(&WebhookKey) -> bool) {
        self.secrets.lock().retain(|key, _| is_kept(key));
    }

    /// The entry for this webhook and its reference. Starts a new one if the webhook, its reference or its Secret has changed.
    pub(super) fn get(&self, key: &WebhookKey, webhook: &Webhook) -> CachedSecret {
        let mut all = self.secrets.lock();
        let cached = all.entry(key.clone()).or_default();
        let source = Some(Source::of(webhook));
        if cached.source != source {
            *cached = CachedSecret {
                source,
                ..CachedSecret::default()
            };
        }
        cached.clone()
    }

    /// Stores the result of a read that began at `asked_at`. Returns `false` if it is outdated and was not stored.
    pub(super) fn put(&self, key: &WebhookKey, after: CachedSecret, asked_at: Instant) -> bool {
        let mut all = self.secrets.lock();
        // The webhook or its reference may have changed since, and responses may arrive out of order.
        let is_newer = |cached: &CachedSecret| cached.read.as_ref().is_some_and(|(at, _)| *at > asked_at);
        match all.get_mut(key) {
            Some(cached) if cached.source == after.source && !is_newer(cached) => {
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
            "key {key} of Secret {name} is not a valid signing secret: it must be 1 to {MAX_SECRET_CHARACTERS} characters of UTF-8"
        )));
    };
    let previous = value(PREVIOUS_SECRET_KEY).and_then(usable);
    let expires: Option<Timestamp> = value(PREVIOUS_EXPIRES_KEY)
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .and_then(|text| text.trim().parse().ok());
    // A previous secret without an expiry is ignored.
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
    fn a_problem_with_a_secret_is_described_with_its_fix() {
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
