//! The Secret with the signing secret of a webhook: a new one, and a change that is guarded by the version that was read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource as _;
use serde_json::{Map, Value, json};

use resources::{MANAGED_BY, Webhook};

/// A change of a webhook's Secret.
pub struct SecretChange<'a> {
    /// The webhook, whose spec names the Secret and the key in it.
    pub webhook: &'a Webhook,
    /// The new signing secret.
    pub secret: &'a str,
    /// Until when the current secret also signs.
    pub previous_until: Option<Timestamp>,
    /// Annotations to set.
    pub annotations: Vec<(&'static str, String)>,
}

impl SecretChange<'_> {
    /// The keys to change in `data`; `None` removes a key.
    fn data(&self, before: Option<&Secret>) -> BTreeMap<String, Option<ByteString>> {
        let reference = &self.webhook.spec.secret_ref;
        let key = &reference.key;
        let old = before
            .and_then(|secret| secret.data.as_ref()?.get(key))
            .filter(|old| !old.0.is_empty() && old.0 != self.secret.as_bytes());
        let overlap = self.previous_until.zip(old);
        let bytes = |text: String| ByteString(text.into_bytes());
        BTreeMap::from([
            (reference.previous_key(), overlap.map(|(_, old)| old.clone())),
            (
                reference.previous_expires_key(),
                overlap.map(|(until, _)| bytes(format!("{until:.0}"))),
            ),
            (key.clone(), Some(bytes(self.secret.to_owned()))),
        ])
    }

    /// Whether the current secret also signs for a while.
    pub fn overlaps(&self, before: Option<&Secret>) -> bool {
        self.data(before)
            .get(&self.webhook.spec.secret_ref.previous_key())
            .is_some_and(Option::is_some)
    }

    /// A new Secret, owned by the webhook.
    pub fn object(&self) -> Secret {
        let owner = self.webhook.controller_owner_ref(&());
        let annotations = self.annotations.iter();
        Secret {
            metadata: ObjectMeta {
                name: Some(self.webhook.spec.secret_ref.name.clone()),
                namespace: self.webhook.metadata.namespace.clone(),
                labels: Some(BTreeMap::from([(
                    MANAGED_BY.0.to_owned(),
                    MANAGED_BY.1.to_owned(),
                )])),
                annotations: Some(
                    annotations
                        .map(|(key, value)| ((*key).to_owned(), value.clone()))
                        .collect(),
                ),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            type_: Some("Opaque".to_owned()),
            data: Some(
                self.data(None)
                    .into_iter()
                    .filter_map(|(key, value)| Some((key, value?)))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    /// A merge patch that is valid only for this version of the Secret.
    pub fn patch(&self, before: &Secret) -> Value {
        let annotations: Map<String, Value> = self
            .annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        json!({
            "metadata": { "resourceVersion": before.metadata.resource_version, "annotations": annotations },
            "data": self.data(Some(before)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(key: &str) -> Webhook {
        serde_json::from_value(json!({
            "apiVersion": "stellage.dev/v1", "kind": "Webhook",
            "metadata": { "name": "wh-1", "namespace": "demo", "uid": "u" },
            "spec": { "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s", "key": key } },
        }))
        .unwrap()
    }

    fn secret(data: &[(&str, &str)]) -> Secret {
        let data = data.iter();
        Secret {
            data: Some(
                data.map(|(key, text)| ((*key).to_owned(), ByteString((*text).into())))
                    .collect(),
            ),
            ..Secret::default()
        }
    }

    fn after(before: &Secret, change: &SecretChange<'_>) -> BTreeMap<String, String> {
        let mut data = before.data.clone().unwrap_or_default();
        for (key, value) in change.data(Some(before)) {
            match value {
                Some(value) => data.insert(key, value),
                None => data.remove(&key),
            };
        }
        let data = data.into_iter();
        data.map(|(key, value)| (key, String::from_utf8(value.0).unwrap()))
            .collect()
    }

    #[test]
    fn a_rotation_keeps_the_previous_secret_and_leaves_other_keys_alone() {
        let webhook = webhook("signing");
        let mut change = SecretChange {
            webhook: &webhook,
            secret: "new",
            previous_until: Some("2026-11-22T10:00:00.5Z".parse().unwrap()),
            annotations: Vec::new(),
        };
        let before = secret(&[("signing", "old"), ("other", "x"), ("signing.previous", "older")]);
        let rotated = after(&before, &change);
        let expected = [
            ("other", "x"),
            ("signing", "new"),
            ("signing.previous", "old"),
            ("signing.previous-expires-at", "2026-11-22T10:00:00Z"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(rotated, expected.clone().into());
        // Guarded by the version that was read: a concurrent rotation has answered with another secret.
        let mut versioned = before.clone();
        versioned.metadata.resource_version = Some("7".to_owned());
        assert_eq!(change.patch(&versioned)["metadata"]["resourceVersion"], "7");
        change.previous_until = None;
        let at_once = after(&before, &change);
        assert_eq!(at_once.len(), 2);
        // An unchanged secret has no previous one.
        change.previous_until = Some(Timestamp::UNIX_EPOCH);
        assert_eq!(after(&secret(&[("signing", "new")]), &change).len(), 1);
    }

    #[test]
    fn webhooks_with_two_keys_of_one_secret_do_not_share_the_previous_secret() {
        let (first, second) = (webhook("secret"), webhook("signing"));
        let until = "2026-11-22T10:00:00Z".parse().unwrap();
        let mut both = secret(&[("secret", "a"), ("signing", "b")]);
        for (webhook, secret) in [(&first, "a2"), (&second, "b2")] {
            let change = SecretChange {
                webhook,
                secret,
                previous_until: Some(until),
                annotations: Vec::new(),
            };
            let data = after(&both, &change);
            both.data = Some(
                data.into_iter()
                    .map(|(key, text)| (key, ByteString(text.into())))
                    .collect(),
            );
        }
        let data = both.data.unwrap();
        assert_eq!(data["previous-secret"].0, b"a");
        assert_eq!(data["signing.previous"].0, b"b");
    }
}
