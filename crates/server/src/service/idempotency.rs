//! Idempotency: a repeated request is carried out once. The name of a created object is derived from the key, so that a
//! repetition finds it. An action stores its key in an annotation, written together with its change.

use serde::{Deserialize, Serialize};

use super::{
    error::{Detail, Error, ErrorCode},
    index::Object,
};
use resources::{ids, instance::IDEMPOTENCY_ANNOTATION};

/// Annotation with the digest of the body of the create, if the create had an idempotency key.
pub const REQUEST_HASH_ANNOTATION: &str = "stellage.dev/request-hash";

/// Maximum number of actions remembered per object; the oldest are forgotten first. Few, because each write of the object carries them all.
pub const MAX_REMEMBERED: usize = 16;

/// A request with an idempotency key, to be carried out once however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotentRequest {
    /// The operation. The same key for another operation counts as another key.
    scope: String,
    key: String,
    body_hash: String,
    visible_hash: String,
}

impl IdempotentRequest {
    /// A request for `scope` (such as the path of a POST) with this key. `body` is the canonical body; `visible_body` is the
    /// same without the values of secrets.
    pub fn new(scope: &str, key: &str, body: &[u8], visible_body: &[u8]) -> Self {
        Self {
            scope: scope.to_owned(),
            key: key.to_owned(),
            // Whoever can read this digest of a former secret has to guess the key, too.
            body_hash: ids::derived_suffix(&[key.as_bytes(), b"\n", body].concat()),
            visible_hash: ids::derived_suffix(visible_body),
        }
    }

    /// Suffix of the name of the object that this request creates. It depends on the account, because keys are per account.
    pub fn name_suffix(&self, account_uid: &str) -> String {
        // None of the parts can contain a line feed.
        ids::derived_suffix(format!("{account_uid}\n{}\n{}", self.scope, self.key).as_bytes())
    }

    /// Digest of the body, secrets included. Only for the Secret: whoever reads that knows its content.
    pub fn body_hash(&self) -> &str {
        &self.body_hash
    }

    /// This request, to be looked up and remembered with its secrets. Only for the Secret.
    #[must_use]
    pub fn with_secrets(&self) -> Self {
        Self {
            visible_hash: self.body_hash.clone(),
            ..self.clone()
        }
    }

    /// Digest of the body without the values of secrets, for annotations that tenants can read.
    pub fn visible_hash(&self) -> &str {
        &self.visible_hash
    }

    /// Whether this request was already carried out on the object; `idempotency_key_reused` if the key was used with another
    /// request.
    pub fn was_done(&self, object: &impl Object) -> Result<bool, Error> {
        Ok(self.note(object)?.is_some())
    }

    /// The note stored with this request, if it was already carried out; `idempotency_key_reused` if the key was used with
    /// another request.
    pub fn note(&self, object: &impl Object) -> Result<Option<String>, Error> {
        let key_hash = self.key_hash();
        match remembered(object).into_iter().find(|done| done.k == key_hash) {
            Some(done) if done.b == self.visible_hash => Ok(Some(done.n)),
            Some(_) => Err(reused()),
            None => Ok(None),
        }
    }

    /// The value of the annotation with this request added.
    pub fn remember(&self, object: &impl Object, note: &str) -> String {
        let mut list = remembered(object);
        list.push(Remembered {
            k: self.key_hash(),
            b: self.visible_hash.clone(),
            n: note.to_owned(),
        });
        let forgotten = list.len().saturating_sub(MAX_REMEMBERED);
        serde_json::to_string(&list[forgotten..]).unwrap_or_default()
    }

    fn key_hash(&self) -> String {
        ids::derived_suffix(format!("{}\n{}", self.scope, self.key).as_bytes())
    }
}

/// The error for a key that was already used with another body.
pub fn reused() -> Error {
    Error {
        details: vec![Detail::new(
            "Idempotency-Key",
            "invalid_value",
            "was already used with another body; use a new key for a new request",
        )],
        ..Error::new(
            ErrorCode::IdempotencyKeyReused,
            "the Idempotency-Key was already used with another body",
        )
    }
}

/// A completed action, as stored in the annotation.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Remembered {
    /// Digest of scope and key.
    k: String,
    /// Digest of the body, without the values of secrets.
    b: String,
    /// A note needed to answer a repetition, such as the nonce.
    n: String,
}

/// The completed actions. An annotation that does not parse counts as empty.
fn remembered(object: &impl Object) -> Vec<Remembered> {
    object
        .annotation_of(IDEMPOTENCY_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::{Instance, testing};

    fn instance(annotation: &str) -> Instance {
        testing::instance(json!({ "metadata": { "annotations": { IDEMPOTENCY_ANNOTATION: annotation } } }))
    }

    fn request(scope: &str, key: &str, body: &[u8]) -> IdempotentRequest {
        IdempotentRequest::new(scope, key, body, body)
    }

    #[test]
    fn the_name_of_a_created_object_depends_on_account_path_and_key() {
        let suffix = |uid: &str, path: &str, key: &str| request(path, key, b"{}").name_suffix(uid);
        let name = suffix("uid-a", "/v1/instances", "k");
        assert!(ids::is_instance_id(&format!("i-{name}")));
        assert_eq!(name, suffix("uid-a", "/v1/instances", "k"));
        assert_ne!(name, suffix("uid-b", "/v1/instances", "k"));
        assert_ne!(name, suffix("uid-a", "/v1/webhooks", "k"));
        assert_ne!(name, suffix("uid-a", "/v1/instances", "l"));
    }

    #[test]
    fn what_tenants_can_read_does_not_depend_on_secrets() {
        let of =
            |secret: &[u8]| IdempotentRequest::new("/v1/webhooks/wh_1/rotate-secret", "k", secret, b"[]");
        let (one, other) = (of(b"[1]"), of(b"[2]"));
        let object = instance(&one.remember(&instance(""), "n"));
        assert_eq!(
            other.remember(&instance(""), "n"),
            one.remember(&instance(""), "n")
        );
        assert_eq!(other.was_done(&object), Ok(true));
        let beside = instance(&one.with_secrets().remember(&instance(""), "n"));
        assert_eq!(one.with_secrets().was_done(&beside), Ok(true));
        let refusal = other.with_secrets().was_done(&beside).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::IdempotencyKeyReused);
    }

    #[test]
    fn actions_are_remembered_until_newer_ones_displace_them() {
        let path = "/v1/instances/i-1/reboot";
        let first = request(path, "first", b"[]");
        let mut object = instance("nonsense");
        assert_eq!(first.was_done(&object), Ok(false));
        object = instance(&first.remember(&object, "n"));
        assert_eq!(first.was_done(&object), Ok(true));
        assert_eq!(
            request("/v1/instances/i-1/start", "first", b"[]").was_done(&object),
            Ok(false)
        );
        let other_body = request(path, "first", b"[1]").was_done(&object).unwrap_err();
        assert_eq!(other_body.code, ErrorCode::IdempotencyKeyReused);
        for number in 0..MAX_REMEMBERED {
            let next = request(path, &format!("k{number}"), b"[]");
            object = instance(&next.remember(&object, "n"));
            assert_eq!(next.was_done(&object), Ok(true));
        }
        assert_eq!(first.was_done(&object), Ok(false));
        assert_eq!(remembered(&object).len(), MAX_REMEMBERED);
        let annotation = object.annotation_of(IDEMPOTENCY_ANNOTATION).unwrap();
        assert!(annotation.len() < 2048, "{} bytes", annotation.len());
    }
}
