//! Caches and validates the signing secrets.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

use super::unread::UnreadSecrets;
use domain::delivery::{WebhookKey, keys_after};
use resources::{
    SecretReference, Webhook,
    webhook::{
        MAX_SECRET_CHARACTERS, SECRET_CHANGED_ANNOTATION, WEBHOOK_SECRET_LABEL, has_outer_white_space,
    },
};
use sender::signature::SigningKeys;

/// How long to use the cached secret after a failed read, before the next one.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Age at which a secret is read again in the background.
pub(super) const FRESH: Duration = Duration::from_secs(4);
/// Maximum time between two reads of a secret that is not being used.
const LONGEST: Duration = Duration::from_mins(30);
/// The same for an unusable secret: its webhook sends nothing until a read finds a usable one.
const LONGEST_WITH_PROBLEM: Duration = Duration::from_mins(1);
/// Minimum time between two removals of an expired previous secret.
const BETWEEN_REMOVALS: Duration = Duration::from_hours(1);

/// Why a webhook's secret cannot be used, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretProblem {
    /// The Secret or its key does not exist.
    Missing(String),
    /// It exists, but is not a valid signing secret.
    Unusable(String),
}

impl SecretProblem {
    /// Reason and message of the condition.
    pub(crate) fn reason_and_message(self) -> (&'static str, String) {
        match self {
            Self::Missing(message) => ("SecretMissing", message),
            Self::Unusable(message) => ("SecretUnusable", message),
        }
    }
}

/// The latest known secrets, by webhook.
#[derive(Default)]
pub(crate) struct Secrets {
    cached: Mutex<BTreeMap<WebhookKey, CachedSecret>>,
    /// Webhooks whose secrets have never been read.
    unread: Mutex<UnreadSecrets>,
    /// Wakes the poll: there is an unread one.
    pub(super) has_unread: Notify,
}

/// The latest known secret of a webhook.
#[derive(Clone, Default)]
pub(crate) struct CachedSecret {
    /// What this entry is valid for.
    source: Option<Source>,
    /// When the secret was last read, and the result.
    pub(super) read: Option<(Instant, Result<Usable, SecretProblem>)>,
    /// Since when every read has had the same result.
    pub(super) unchanged_since: Option<Instant>,
    /// The resourceVersion of the last read Secret; the API server's cache may have older versions.
    pub(super) version: Option<u64>,
    /// When a read last failed.
    pub(super) failed_at: Option<Instant>,
    /// When the removal of an expired previous secret was last tried.
    removal_tried_at: Option<Instant>,
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

    /// Whether it must be read again although it is not being used: after an eighth of the time since it last
    /// changed.
    pub(super) fn is_due(&self) -> bool {
        let unchanged = self
            .unchanged_since
            .map_or(Duration::ZERO, |since| since.elapsed());
        let longest = if self.problem().is_some() {
            LONGEST_WITH_PROBLEM
        } else {
            LONGEST
        };
        self.age() >= (unchanged / 8).clamp(FRESH, longest)
    }

    pub(super) fn has_just_failed(&self) -> bool {
        self.failed_at.is_some_and(|at| at.elapsed() < AFTER_FAILURE)
    }

    pub(super) fn result(&self) -> Option<&Result<Usable, SecretProblem>> {
        self.read.as_ref().map(|(_, result)| result)
    }

    /// Whether it has ever been read.
    pub(crate) fn was_read(&self) -> bool {
        self.read.is_some()
    }

    /// Whether no read has been tried yet.
    pub(crate) fn is_unread(&self) -> bool {
        self.read.is_none() && self.failed_at.is_none()
    }

    /// The problem found by the last read, if any.
    pub(crate) fn problem(&self) -> Option<SecretProblem> {
        self.result()?.as_ref().err().cloned()
    }

    /// What the account holder should know about a usable secret, if anything.
    pub(crate) fn remark(&self) -> Option<String> {
        self.result()?.as_ref().ok()?.remark.clone()
    }

    /// Until when deliveries are signed with the previous secret too.
    pub(crate) fn overlap(&self) -> Option<Timestamp> {
        let usable = self.result()?.as_ref().ok()?;
        usable.alone.as_ref().map(|(until, _)| *until)
    }
}

/// The signing keys of a valid secret.
#[derive(Clone)]
pub(super) struct Usable {
    both: Arc<SigningKeys>,
    /// The keys of the current secret alone, and the time from which to use them.
    alone: Option<(Timestamp, Arc<SigningKeys>)>,
    /// What the account holder should know although the secret is usable.
    remark: Option<String>,
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

impl Secrets {
    pub(crate) fn forget(&self, key: &WebhookKey) {
        self.unread.lock().remove(key);
        self.cached.lock().remove(key);
    }

    /// Has the secret of a webhook read soon if no read has been tried yet.
    pub(crate) fn read_first(&self, key: &WebhookKey, webhook: &Webhook) {
        if self.get(key, webhook).is_unread() {
            self.unread.lock().insert(key.clone());
            self.has_unread.notify_one();
        }
    }

    /// Removes and returns some of the webhooks whose secrets have never been read.
    pub(super) fn take_unread(&self, limit: usize) -> Vec<WebhookKey> {
        let mut unread = self.unread.lock();
        std::iter::from_fn(|| unread.pop()).take(limit).collect()
    }

    /// Whether the secret of a webhook is about to be read for the first time.
    pub(super) fn awaits_first_read(&self, key: &WebhookKey) -> bool {
        self.unread.lock().contains(key)
    }

    /// At most `limit` webhooks with cached secrets after `last`, in key order.
    pub(super) fn keys_after(&self, last: Option<&WebhookKey>, limit: usize) -> Vec<WebhookKey> {
        keys_after(&self.cached.lock(), last, limit)
    }

    /// The entry for this webhook and its secret reference. Starts a new one if the webhook, its reference or its Secret has
    /// changed.
    pub(crate) fn get(&self, key: &WebhookKey, webhook: &Webhook) -> CachedSecret {
        let mut all = self.cached.lock();
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

    /// Whether an expired previous secret may be removed now. If so, returns `false` for the next hour.
    pub(super) fn may_remove(&self, key: &WebhookKey) -> bool {
        let mut all = self.cached.lock();
        let Some(cached) = all.get_mut(key) else {
            return false;
        };
        let may = cached
            .removal_tried_at
            .is_none_or(|at| at.elapsed() >= BETWEEN_REMOVALS);
        if may {
            cached.removal_tried_at = Some(Instant::now());
        }
        may
    }

    /// Stores the result of a read that began at `asked_at`. Returns `false` if it is outdated and was not stored.
    pub(super) fn put(&self, key: &WebhookKey, after: CachedSecret, asked_at: Instant) -> bool {
        let mut all = self.cached.lock();
        // The webhook or its reference may have changed since, and responses may arrive out of order.
        let is_newer = |cached: &CachedSecret| cached.read.as_ref().is_some_and(|(at, _)| *at > asked_at);
        match all.get_mut(key) {
            Some(cached) if cached.source == after.source && !is_newer(cached) => {
                *cached = CachedSecret {
                    removal_tried_at: cached.removal_tried_at,
                    ..after
                };
                true
            }
            _ => false,
        }
    }
}

/// The signing keys of a webhook in the Secret that it names, or what is wrong with it. A Secret that the webhook may not use is
/// treated as missing, so that the condition does not reveal whether it exists.
pub(super) fn parse(secret: Option<&Secret>, webhook: &Webhook) -> Result<Usable, SecretProblem> {
    let reference = &webhook.spec.secret_ref;
    let SecretReference { name, key } = reference;
    let Some(secret) = secret.filter(|secret| webhook.may_use(secret)) else {
        return Err(SecretProblem::Missing(format!(
            "there is no Secret {name} for webhooks in this namespace; create it with the signing secret under the key {key} and the label {WEBHOOK_SECRET_LABEL}=true, label it if it is there, or name another in spec.secretRef"
        )));
    };
    let value = |key: &str| secret.data.as_ref()?.get(key).map(|bytes| bytes.0.as_slice());
    let Some(current) = value(key) else {
        return Err(SecretProblem::Missing(format!(
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
        return Err(SecretProblem::Unusable(format!(
            "key {key} of Secret {name} is not a valid signing secret: it must be 1 to {MAX_SECRET_CHARACTERS} characters of UTF-8"
        )));
    };
    let previous = value(&reference.previous_key()).and_then(usable);
    let expires: Option<Timestamp> = value(&reference.previous_expires_key())
        .and_then(|bytes| std::str::from_utf8(bytes).ok())
        .and_then(|text| text.trim().parse().ok());
    // A previous secret without an expiry is ignored.
    let overlap = previous.as_deref().zip(expires);
    let is_padded =
        has_outer_white_space(&current) || overlap.is_some_and(|(it, _)| has_outer_white_space(it));
    Ok(Usable {
        remark: is_padded.then(|| format!(
            "a signing secret in Secret {name} begins or ends in white space, such as the line break at the end of a file, and deliveries are signed with it; unless that is meant, write the secret again without it"
        )),
        both: Arc::new(SigningKeys::new(&current, overlap.map(|(previous, _)| previous))),
        alone: overlap.map(|(_, until)| (until, Arc::new(SigningKeys::new(&current, None)))),
    })
}

/// The patch that removes the previous secret of a webhook, valid for this version of the Secret only; `None` unless the
/// previous secret has expired.
pub(super) fn removal(secret: &Secret, webhook: &Webhook, now: Timestamp) -> Option<serde_json::Value> {
    let reference = &webhook.spec.secret_ref;
    let (previous, expires) = (reference.previous_key(), reference.previous_expires_key());
    let until = secret.data.as_ref()?.get(&expires)?;
    let until: Timestamp = std::str::from_utf8(&until.0).ok()?.trim().parse().ok()?;
    let may_write = webhook.may_use(secret) && secret.immutable != Some(true);
    (may_write && until <= now).then(|| {
        json!({
            "metadata": { "resourceVersion": secret.metadata.resource_version },
            "data": { previous: null, expires: null },
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::ObjectMeta};

    use super::*;

    fn secret(pairs: &[(&str, &str)]) -> Secret {
        Secret {
            data: Some(
                pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())))
                    .collect::<BTreeMap<_, _>>(),
            ),
            metadata: ObjectMeta {
                labels: Some(BTreeMap::from([(
                    WEBHOOK_SECRET_LABEL.to_owned(),
                    "true".to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        }
    }

    fn webhook() -> Webhook {
        serde_json::from_value(json!({
            "metadata": { "name": "hook", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "hook" } },
        }))
        .unwrap()
    }

    #[test]
    fn a_secret_that_a_webhook_may_not_use_looks_like_one_that_is_missing() {
        let webhook = webhook();
        let problem = |secret: Option<&Secret>| parse(secret, &webhook).err();
        let missing = problem(None);
        assert!(missing.is_some());
        let mut foreign = secret(&[("secret", "private")]);
        foreign.metadata.labels = None;
        assert_eq!(problem(Some(&foreign)), missing);
        let owned_by = |uid: &str, controller: bool| {
            let mut secret = foreign.clone();
            secret.metadata.owner_references = serde_json::from_value(json!([{
                "apiVersion": "stellage.dev/v1", "kind": "Webhook", "name": "hook", "uid": uid, "controller": controller,
            }]))
            .unwrap();
            secret
        };
        assert_eq!(problem(Some(&owned_by("other", true))), missing);
        assert_eq!(problem(Some(&owned_by("u", false))), missing);
        assert_eq!(problem(Some(&owned_by("u", true))), None);
    }

    #[test]
    fn a_secret_that_nobody_uses_is_read_the_more_rarely_the_longer_it_has_not_changed() {
        let ago = |seconds: u64| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let is_due = |unchanged: u64, age: u64, is_usable: bool| {
            let found = is_usable.then(|| secret(&[("secret", "x")]));
            let cached = CachedSecret {
                read: Some((ago(age), parse(found.as_ref(), &webhook()))),
                unchanged_since: Some(ago(unchanged)),
                ..CachedSecret::default()
            };
            cached.is_due()
        };
        for is_usable in [true, false] {
            assert!(!is_due(0, 3, is_usable) && is_due(0, 4, is_usable) && is_due(32, 4, is_usable));
            assert!(!is_due(80, 9, is_usable) && is_due(80, 10, is_usable));
        }
        assert!(!is_due(3600, 449, true) && is_due(3600, 450, true));
        assert!(!is_due(86_400, 1799, true) && is_due(86_400, 1800, true));
        assert!(!is_due(3600, 59, false) && is_due(3600, 60, false));
        assert!(CachedSecret::default().is_due());
    }

    #[test]
    fn a_problem_with_a_secret_is_described_with_its_fix() {
        let complaint = |secret: Option<&Secret>| match parse(secret, &webhook()) {
            Err(SecretProblem::Missing(message) | SecretProblem::Unusable(message)) => message,
            Ok(_) => String::new(),
        };
        assert!(complaint(None).contains("no Secret hook"));
        assert!(complaint(Some(&secret(&[("other", "x")]))).contains("no key secret"));
        assert!(complaint(Some(&secret(&[("secret", "")]))).contains("1 to 255"));
        assert!(complaint(Some(&secret(&[("secret", &"x".repeat(256))]))).contains("1 to 255"));
        assert_eq!(complaint(Some(&secret(&[("secret", &"é".repeat(255))]))), "");
    }

    #[test]
    fn white_space_around_a_secret_is_part_of_it_and_remarked_on() {
        for (value, is_remarked) in [
            ("s3cret", false),
            ("s3 cret", false),
            ("s3cret\n", true),
            ("s3cret\r\n", true),
            (" s3cret", true),
            ("s3cret\u{a0}", true),
            ("\t", true),
        ] {
            let found = secret(&[("secret", value)]);
            let usable = parse(Some(&found), &webhook()).ok().unwrap();
            assert_eq!(usable.remark.is_some(), is_remarked, "{value:?}");
            let now = Timestamp::UNIX_EPOCH;
            let sent = |keys: &SigningKeys| {
                sender::signature::headers(keys, "evt_1", "instance.created", now, now, b"{}")
            };
            assert_eq!(
                sent(&usable.at(now)),
                sent(&SigningKeys::new(value, None)),
                "{value:?}"
            );
        }
        let previous = |expires| {
            let pairs = [
                ("secret", "new"),
                ("previous-secret", "old\n"),
                ("previous-expires-at", expires),
            ];
            parse(Some(&secret(&pairs)), &webhook()).ok().unwrap().remark
        };
        assert!(previous("2026-11-21T10:00:00Z").unwrap().contains("Secret hook"));
        // It signs nothing.
        assert_eq!(previous("never"), None);
    }

    #[test]
    fn the_previous_secret_signs_until_it_expires() {
        let both = secret(&[
            ("secret", "new"),
            ("previous-secret", "old"),
            ("previous-expires-at", "2026-11-21T10:00:00Z"),
        ]);
        let usable = parse(Some(&both), &webhook()).ok().unwrap();
        let signatures = |at: &str| {
            let keys = usable.at(at.parse().unwrap());
            let now = Timestamp::UNIX_EPOCH;
            let headers = sender::signature::headers(&keys, "evt_1", "instance.created", now, now, b"{}");
            headers["webhook-signature"].to_str().unwrap().split(' ').count()
        };
        assert_eq!(signatures("2026-11-21T09:59:59Z"), 2);
        assert_eq!(signatures("2026-11-21T10:00:00Z"), 1);
        let endless = secret(&[("secret", "new"), ("previous-secret", "old")]);
        assert!(parse(Some(&endless), &webhook()).ok().unwrap().alone.is_none());
    }
    #[test]
    fn a_previous_secret_is_removed_once_it_has_expired() {
        let mut both = secret(&[
            ("secret", "new"),
            ("previous-secret", "old"),
            ("previous-expires-at", "2026-11-21T10:00:00Z"),
        ]);
        both.metadata.resource_version = Some("7".to_owned());
        let removal = |secret: &Secret, now: &str| removal(secret, &webhook(), now.parse().unwrap());
        assert_eq!(removal(&both, "2026-11-21T09:59:59Z"), None);
        assert_eq!(
            removal(&both, "2026-11-21T10:00:00Z"),
            Some(json!({
                "metadata": { "resourceVersion": "7" },
                "data": { "previous-secret": null, "previous-expires-at": null },
            }))
        );
        let mut foreign = both.clone();
        foreign.metadata.labels = None;
        assert_eq!(removal(&foreign, "2026-11-21T10:00:00Z"), None);
        let endless = secret(&[("secret", "new"), ("previous-secret", "old")]);
        assert_eq!(removal(&endless, "2026-11-21T10:00:00Z"), None);
    }
}
