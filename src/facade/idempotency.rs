//! `Idempotency-Key`: the same request twice is done once. A create finds its own object again by name; an action finds its
//! key in an annotation that was written together with what it asked for.

use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use super::{
    entry::Kept,
    error::{ApiError, Detail, ErrorCode},
};
use crate::resources::{ids, instance::IDEMPOTENCY_ANNOTATION};

/// The request header.
pub static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The response header of an answer to a request that was done before.
pub static IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Annotation with the digest of the body that an object was created with, if it came with a key.
pub const REQUEST_HASH_ANNOTATION: &str = "stellage.dev/request-hash";

/// Longest key.
const MAX_KEY: usize = 255;
/// Actions remembered for each object; the oldest are forgotten first.
const MAX_REMEMBERED: usize = 256;

/// The key of a request, if it has one: 1 to 255 visible ASCII characters, else 422.
pub fn key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    value
        .to_str()
        .ok()
        .filter(|text| (1..=MAX_KEY).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()))
        .filter(|_| values.next().is_none())
        .map(Some)
        .ok_or_else(|| {
            ApiError::invalid(vec![Detail::new(
                "Idempotency-Key",
                "invalid_value",
                "must be a header with 1 to 255 visible ASCII characters",
            )])
        })
}

/// What the name of the object that a create with this key makes ends with: the key's namespace is the account's UID and
/// the path.
pub fn name_suffix(account_uid: &str, path: &str, key: &str) -> String {
    // None of the parts can contain a line feed.
    ids::derived_suffix(format!("{account_uid}\n{path}\n{key}").as_bytes())
}

/// A digest of a body.
pub fn body_hash(canonical: &[u8]) -> String {
    ids::derived_suffix(canonical)
}

/// 422 for a key that comes with another body than before.
pub fn reused() -> ApiError {
    ApiError {
        details: vec![Detail::new(
            "Idempotency-Key",
            "invalid_value",
            "was used with another body; take a new key for a new request",
        )],
        ..ApiError::new(
            ErrorCode::IdempotencyKeyReused,
            "the Idempotency-Key was used with another body",
        )
    }
}

/// Marks an answer if it is one to a request that was done before.
pub fn replayed_if(before: bool, mut response: Response) -> Response {
    if before {
        response
            .headers_mut()
            .insert(&IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// An action that was done, as the annotation remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
struct Remembered {
    /// Digest of path and key.
    k: String,
    /// Digest of the body.
    b: String,
    /// The request's nonce, or what else has to be told again.
    n: String,
}

/// An action that comes with a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedAction {
    k: String,
    b: String,
}

impl KeyedAction {
    /// The action at `path` with this key and body.
    pub fn new(path: &str, key: &str, canonical_body: &[u8]) -> Self {
        Self {
            k: ids::derived_suffix(format!("{path}\n{key}").as_bytes()),
            b: body_hash(canonical_body),
        }
    }

    /// Whether this very request has been done; 422 if it was another one with the same key.
    pub fn was_done(&self, object: &impl Kept) -> Result<bool, ApiError> {
        Ok(self.note(object)?.is_some())
    }

    /// What was remembered of this very request, if it has been done; 422 if it was another one with the same key.
    pub fn note(&self, object: &impl Kept) -> Result<Option<String>, ApiError> {
        match remembered(object).into_iter().find(|done| done.k == self.k) {
            Some(done) if done.b == self.b => Ok(Some(done.n)),
            Some(_) => Err(reused()),
            None => Ok(None),
        }
    }

    /// The annotation's value once this request is done too.
    pub fn remember(&self, object: &impl Kept, note: &str) -> String {
        let mut list = remembered(object);
        list.push(Remembered {
            k: self.k.clone(),
            b: self.b.clone(),
            n: note.to_owned(),
        });
        let forgotten = list.len().saturating_sub(MAX_REMEMBERED);
        serde_json::to_string(&list[forgotten..]).unwrap_or_default()
    }
}

/// What somebody else wrote into the annotation is as good as nothing.
fn remembered(object: &impl Kept) -> Vec<Remembered> {
    object
        .annotation_of(IDEMPOTENCY_ANNOTATION)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::Instance;

    fn instance(annotation: &str) -> Instance {
        serde_json::from_value(json!({
            "metadata": { "name": "a", "annotations": { IDEMPOTENCY_ANNOTATION: annotation } },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap()
    }

    #[test]
    fn keys_are_visible_ascii() {
        let read = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&IDEMPOTENCY_KEY, http::HeaderValue::from_bytes(value).unwrap());
            }
            key(&headers).map(|key| key.map(str::to_owned))
        };
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[b"a-1"]), Ok(Some("a-1".to_owned())));
        assert!(read(&["x".repeat(255).as_bytes()]).is_ok());
        for bad in [
            &[&b""[..]][..],
            &[b"a b"],
            &[b"\xc3\xa4"],
            &["x".repeat(256).as_bytes()],
            &[b"a", b"a"],
        ] {
            assert_eq!(read(bad).unwrap_err().details[0].field, "Idempotency-Key");
        }
    }

    #[test]
    fn a_creates_name_depends_on_account_path_and_key() {
        let name = name_suffix("uid-a", "/v1/instances", "k");
        assert!(ids::is_instance_id(&format!("i-{name}")));
        assert_eq!(name, name_suffix("uid-a", "/v1/instances", "k"));
        assert_ne!(name, name_suffix("uid-b", "/v1/instances", "k"));
        assert_ne!(name, name_suffix("uid-a", "/v1/webhooks", "k"));
        assert_ne!(name, name_suffix("uid-a", "/v1/instances", "l"));
    }

    #[test]
    fn an_action_is_found_again_and_the_oldest_are_forgotten() {
        let path = "/v1/instances/i-1/reboot";
        let first = KeyedAction::new(path, "first", b"[]");
        let mut object = instance("nonsense");
        assert_eq!(first.was_done(&object), Ok(false));
        object = instance(&first.remember(&object, "n"));
        assert_eq!(first.was_done(&object), Ok(true));
        assert_eq!(
            KeyedAction::new("/v1/instances/i-1/start", "first", b"[]").was_done(&object),
            Ok(false)
        );
        let other_body = KeyedAction::new(path, "first", b"[1]")
            .was_done(&object)
            .unwrap_err();
        assert_eq!(other_body.code, ErrorCode::IdempotencyKeyReused);
        for number in 0..MAX_REMEMBERED {
            let next = KeyedAction::new(path, &format!("k{number}"), b"[]");
            object = instance(&next.remember(&object, "n"));
            assert_eq!(next.was_done(&object), Ok(true));
        }
        assert_eq!(first.was_done(&object), Ok(false));
        assert_eq!(remembered(&object).len(), MAX_REMEMBERED);
    }
}
