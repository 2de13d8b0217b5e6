//! The protocol that replicas use to ask the leader about usage: HTTP, authenticated in both directions with a key from a Secret
//! of the operator's namespace.
//!
//! A request carries a MAC over its path, its time and a nonce; the response carries a MAC over that and its body. The key itself
//! is never sent: the leader's address comes from the Lease, and after a crash another pod may have that address. That pod must neither
//! learn anything that it could use nor be believed, so a service-account token in the request would not do. The content is
//! not encrypted; it is percentages and byte counts.

use std::{fmt, time::Duration};

use hmac::{Hmac, KeyInit as _, Mac as _};
use jiff::Timestamp;
use rand::RngExt as _;
use sha2::Sha256;
use thiserror::Error;

use super::series::Window;

/// Name of the Secret with the key, in the operator's namespace.
pub const SECRET_NAME: &str = "stellage-usage-key";
/// Its only entry.
pub const SECRET_ENTRY: &str = "key";
/// Annotation on the Lease with the leader's address, `host:port`.
pub const ADDRESS_ANNOTATION: &str = "stellage.dev/usage-address";
/// Header of a request with its time, nonce and code.
pub const REQUEST_HEADER: &str = "x-stellage-request";
/// Header of an answer with its code.
pub const ANSWER_HEADER: &str = "x-stellage-answer";
/// Largest answer in bytes. A day's series has some 30 KiB.
pub const MAX_ANSWER: usize = 256 * 1024;

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// How far the clocks of two replicas may differ, in seconds. An older request is refused.
const TOLERANCE: i64 = 120;

/// How long an answer about the current usage may take. After that it is unknown (decisions, section 7).
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The leader cannot be reached.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the leader, which has the samples, cannot be reached at the moment; try again")]
pub struct Unavailable;

/// Which instance a question is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Namespace of the Instance.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// A question for the leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// The current usage.
    Usage(Subject),
    /// A series.
    Series(Subject, Window),
}

impl fmt::Display for Query {
    /// The path of its request. Names and UIDs need no escaping.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, subject) = match self {
            Self::Usage(subject) => ("usage", subject),
            Self::Series(subject, window) => (window.as_str(), subject),
        };
        let Subject { namespace, name, uid } = subject;
        write!(f, "/{what}/{namespace}/{name}/{uid}")
    }
}

impl Query {
    /// The question that a path asks.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let mut part = || parts.next().filter(|part| !part.is_empty());
        let what = part()?;
        let subject = Subject {
            namespace: part()?.to_owned(),
            name: part()?.to_owned(),
            uid: part()?.to_owned(),
        };
        if parts.next().is_some() {
            return None;
        }
        match Window::parse(what) {
            Some(window) => Some(Self::Series(subject, window)),
            None => (what == "usage").then_some(Self::Usage(subject)),
        }
    }
}

/// The key that all replicas share.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// A new random key, as text.
pub fn new_key() -> String {
    let key: [u8; KEY_BYTES] = rand::rng().random();
    hex::encode(key)
}

impl Key {
    /// The key that a Secret's entry holds; `None` if it is not one of at least 32 bytes.
    pub fn of(text: &[u8]) -> Option<Self> {
        let bytes = hex::decode(text).ok().filter(|bytes| bytes.len() >= KEY_BYTES)?;
        Hmac::new_from_slice(&bytes).ok().map(Self)
    }

    fn over(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut code = self.0.clone();
        for part in parts {
            code.update(part);
            code.update(b"\n");
        }
        code
    }

    /// The header of a request.
    pub fn sign_request(&self, path: &str, now: Timestamp) -> String {
        let nonce: [u8; 16] = rand::rng().random();
        let stamp = format!("{}:{}", now.as_second(), hex::encode(nonce));
        let code = self.over(&[b"request", path.as_bytes(), stamp.as_bytes()]);
        format!("{stamp}:{}", hex::encode(code.finalize().into_bytes()))
    }

    /// Whether the sender of a request with this header has the key, and sent it just now.
    pub fn accepts_request(&self, path: &str, header: &str, now: Timestamp) -> bool {
        let Some((stamp, code)) = header.rsplit_once(':') else {
            return false;
        };
        let sent = stamp
            .split_once(':')
            .and_then(|(sent, _)| sent.parse::<i64>().ok());
        let is_fresh =
            sent.is_some_and(|sent| now.as_second().saturating_sub(sent).saturating_abs() <= TOLERANCE);
        let Ok(code) = hex::decode(code) else { return false };
        let expected = self.over(&[b"request", path.as_bytes(), stamp.as_bytes()]);
        is_fresh && expected.verify_slice(&code).is_ok()
    }

    /// The header of the answer to the request with this header.
    pub fn sign_answer(&self, request: &str, body: &[u8]) -> String {
        let code = self.over(&[b"answer", request.as_bytes(), body]);
        hex::encode(code.finalize().into_bytes())
    }

    /// Whether an answer comes from the leader and belongs to this request.
    pub fn accepts_answer(&self, request: &str, body: &[u8], header: &str) -> bool {
        let Ok(code) = hex::decode(header) else {
            return false;
        };
        let expected = self.over(&[b"answer", request.as_bytes(), body]);
        expected.verify_slice(&code).is_ok()
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    fn key(text: &str) -> Option<Key> {
        Key::of(text.as_bytes())
    }

    #[test]
    fn a_question_is_its_path() {
        let subject = Subject {
            namespace: "demo".into(),
            name: "web".into(),
            uid: "7c1b-0c".into(),
        };
        for query in [
            Query::Usage(subject.clone()),
            Query::Series(subject.clone(), Window::Hour),
            Query::Series(subject, Window::Day),
        ] {
            assert_eq!(Query::parse(&query.to_string()), Some(query));
        }
        for wrong in [
            "",
            "/",
            "/usage",
            "/usage/a/b",
            "/usage/a/b/",
            "/usage/a/b/c/d",
            "/2h/a/b/c",
            "usage/a/b/c",
        ] {
            assert_eq!(Query::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_who_has_the_key_asks_and_answers_and_only_now() {
        let (ours, other) = (key(&new_key()).unwrap(), key(&new_key()).unwrap());
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let request = ours.sign_request("/usage/a/b/c", now);
        assert!(ours.accepts_request("/usage/a/b/c", &request, now));
        assert!(!other.accepts_request("/usage/a/b/c", &request, now));
        assert!(!ours.accepts_request("/usage/a/b/d", &request, now));
        let later = Timestamp::from_second(1_800_000_121).unwrap();
        assert!(!ours.accepts_request("/usage/a/b/c", &request, later));
        for wrong in ["", ":", "1800000000:00:00", "x:y:z"] {
            assert!(!ours.accepts_request("/usage/a/b/c", wrong, now), "{wrong}");
        }
        let answer = ours.sign_answer(&request, b"{}");
        assert!(ours.accepts_answer(&request, b"{}", &answer));
        assert!(!other.accepts_answer(&request, b"{}", &answer));
        assert!(!ours.accepts_answer(&request, b"[]", &answer));
        let again = ours.sign_request("/usage/a/b/c", now);
        assert!(
            !ours.accepts_answer(&again, b"{}", &answer),
            "an answer is to one request"
        );
    }

    #[test]
    fn a_short_key_is_none() {
        assert!(key("").is_none() && key("00ff").is_none() && key("no hex").is_none());
    }
}
