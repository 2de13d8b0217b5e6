//! Sessions: a sealed cookie that names an ApiKey, never the key itself. There is no session store: each request looks up whether the key
//! still works.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::oidc::{FLOW_LASTS, Flow};
use crate::{
    seal::Seal,
    service::{
        credentials::{Credential, Credentials, KeyIdentity},
        error::Error,
    },
};

/// Maximum duration of a session.
pub const LONGEST: SignedDuration = SignedDuration::from_hours(12);
/// Seconds that a note is kept for the next page.
const NOTE_LASTS: i64 = 60;
/// Maximum length of a note, in bytes: browsers keep no cookies over 4 KiB.
const MAX_NOTE: usize = 2000;

/// The contents of a session's cookie.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Session {
    account_uid: String,
    namespace: String,
    key: String,
    key_uid: String,
    /// See [`Credential::subject`].
    subject: Option<String>,
    expires_at: Timestamp,
}

impl Session {
    /// A session that starts now. It ends with its key, and after [`LONGEST`] at the latest.
    pub fn begin(credential: &Credential, now: Timestamp) -> Self {
        let longest = now.saturating_add(LONGEST).unwrap_or(now);
        Self {
            account_uid: credential.tenant.uid.to_string(),
            namespace: credential.tenant.namespace.to_string(),
            key: credential.key_name().to_owned(),
            key_uid: credential.key_uid().to_owned(),
            subject: credential.subject.as_deref().map(str::to_owned),
            expires_at: credential.expires_at().map_or(longest, |end| end.min(longest)),
        }
    }

    /// The key with which it began, while that is valid.
    pub fn credential(&self, credentials: &Credentials, now: Timestamp) -> Result<Credential, Error> {
        let identity = KeyIdentity {
            account_uid: &self.account_uid,
            namespace: &self.namespace,
            name: &self.key,
            uid: &self.key_uid,
        };
        let mut credential = credentials.resume(&identity, now)?;
        credential.subject = self.subject.as_deref().map(Arc::from);
        Ok(credential)
    }

    /// Whether it has ended.
    pub fn has_ended(&self, now: Timestamp) -> bool {
        self.expires_at <= now
    }
}

/// A message for the next page to show.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Note {
    pub text: String,
    /// Whether it describes an operation in progress, so that it is out of date when that has ended.
    pub passes: bool,
}

/// The cookies of the console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookies {
    /// For plain HTTP: cookies without `Secure`, since browsers do not send those then, and under other names.
    pub insecure: bool,
}

impl Cookies {
    const fn session_name(self) -> &'static str {
        if self.insecure {
            "stellage-insecure"
        } else {
            "__Host-stellage"
        }
    }

    const fn note_name(self) -> &'static str {
        if self.insecure {
            "stellage-insecure-note"
        } else {
            "__Host-stellage-note"
        }
    }

    const fn flow_name(self) -> &'static str {
        if self.insecure {
            "stellage-insecure-oidc"
        } else {
            "__Host-stellage-oidc"
        }
    }

    /// The session of a request, if it has one that has not ended.
    pub fn session(self, headers: &HeaderMap, seal: &Seal, now: Timestamp) -> Option<Session> {
        let name = self.session_name();
        let content = seal.open(name, read(headers, name)?)?;
        let session: Session = serde_json::from_slice(&content).ok()?;
        (!session.has_ended(now)).then_some(session)
    }

    /// Whether a request has a session cookie.
    pub fn has_session(self, headers: &HeaderMap) -> bool {
        read(headers, self.session_name()).is_some()
    }

    /// The cookie that keeps a session.
    pub fn keep(self, session: &Session, seal: &Seal, now: Timestamp) -> Option<HeaderValue> {
        let content = serde_json::to_vec(session).ok()?;
        let sealed = seal.seal(self.session_name(), &content)?;
        let seconds = session.expires_at.duration_since(now).as_secs().max(0);
        self.cookie(self.session_name(), &sealed, seconds, "Strict")
    }

    /// The cookie that ends the session.
    pub fn end(self) -> Option<HeaderValue> {
        self.cookie(self.session_name(), "", 0, "Strict")
    }

    /// The cookie of a note.
    pub fn tell(self, mut note: Note, seal: &Seal) -> Option<HeaderValue> {
        note.text.truncate(note.text.floor_char_boundary(MAX_NOTE));
        let sealed = seal.seal(self.note_name(), &serde_json::to_vec(&note).ok()?)?;
        self.cookie(self.note_name(), &sealed, NOTE_LASTS, "Strict")
    }

    /// The note of a request.
    pub fn note(self, headers: &HeaderMap, seal: &Seal) -> Option<Note> {
        let name = self.note_name();
        let content = seal.open(name, read(headers, name)?)?;
        serde_json::from_slice(&content).ok()
    }

    /// The cookie that removes a note, if the request has one.
    pub fn told(self, headers: &HeaderMap) -> Option<HeaderValue> {
        read(headers, self.note_name())?;
        self.cookie(self.note_name(), "", 0, "Strict")
    }

    /// The cookie of a sign-in at the provider. `Lax`, because the browser comes back from another site.
    pub fn begin_flow(self, flow: &Flow, seal: &Seal) -> Option<HeaderValue> {
        let sealed = seal.seal(self.flow_name(), &serde_json::to_vec(flow).ok()?)?;
        self.cookie(self.flow_name(), &sealed, FLOW_LASTS.as_secs(), "Lax")
    }

    /// The sign-in from which a browser comes back, if it started one that has not taken too long.
    pub fn flow(self, headers: &HeaderMap, seal: &Seal, now: Timestamp) -> Option<Flow> {
        let name = self.flow_name();
        let content = seal.open(name, read(headers, name)?)?;
        let flow: Flow = serde_json::from_slice(&content).ok()?;
        (!flow.is_expired(now)).then_some(flow)
    }

    /// The cookie that ends a sign-in.
    pub fn end_flow(self) -> Option<HeaderValue> {
        self.cookie(self.flow_name(), "", 0, "Lax")
    }

    fn cookie(self, name: &str, value: &str, seconds: i64, same_site: &str) -> Option<HeaderValue> {
        let secure = if self.insecure { "" } else { "; Secure" };
        let text =
            format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite={same_site}{secure}");
        HeaderValue::try_from(text).ok()
    }
}

/// The value of a cookie; the first value if there are several cookies of that name.
fn read<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter();
    lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(expires_at: &str) -> Session {
        Session {
            account_uid: "a".to_owned(),
            namespace: "demo".to_owned(),
            key: "key-1".to_owned(),
            key_uid: "u".to_owned(),
            subject: Some("subject-1".to_owned()),
            expires_at: expires_at.parse().unwrap(),
        }
    }

    fn sent(cookie: &HeaderValue) -> HeaderMap {
        let pair = cookie.to_str().unwrap().split(';').next().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert("cookie", format!("other=1; {pair}").parse().unwrap());
        headers
    }

    #[test]
    fn a_cookie_is_read_until_its_session_ends() {
        let seal = Seal::new(&[7; 32]).unwrap();
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let session = session("2026-11-22T10:30:00Z");
        let cookies = Cookies { insecure: false };
        let cookie = cookies.keep(&session, &seal, now).unwrap();
        let text = cookie.to_str().unwrap();
        assert!(text.starts_with("__Host-stellage="));
        for flag in ["Path=/", "HttpOnly", "Secure", "SameSite=Strict", "Max-Age=1800"] {
            assert!(text.contains(flag), "{flag}");
        }
        let headers = sent(&cookie);
        assert_eq!(cookies.session(&headers, &seal, now), Some(session));
        let later = "2026-11-22T10:30:00Z".parse().unwrap();
        assert_eq!(cookies.session(&headers, &seal, later), None);
        let other = Seal::new(&[8; 32]).unwrap();
        assert_eq!(cookies.session(&headers, &other, now), None);
        let insecure = Cookies { insecure: true };
        assert_eq!(insecure.session(&headers, &seal, now), None);
        let plain = insecure.end().unwrap();
        assert!(!plain.to_str().unwrap().contains("Secure"));
    }

    #[test]
    fn a_flow_comes_back_from_another_site_within_its_time_and_is_no_session() {
        let seal = Seal::new(&[7; 32]).unwrap();
        let now: Timestamp = "2026-11-23T10:00:00Z".parse().unwrap();
        let flow = Flow::begin(now);
        let cookies = Cookies { insecure: false };
        let cookie = cookies.begin_flow(&flow, &seal).unwrap();
        let text = cookie.to_str().unwrap();
        for flag in ["HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600"] {
            assert!(text.contains(flag), "{flag}");
        }
        let headers = sent(&cookie);
        assert_eq!(cookies.flow(&headers, &seal, now), Some(flow));
        let later = "2026-11-23T10:10:00Z".parse().unwrap();
        assert_eq!(cookies.flow(&headers, &seal, later), None);
        assert!(cookies.session(&headers, &seal, now).is_none());
        assert!(cookies.flow(&HeaderMap::new(), &seal, now).is_none());
    }

    #[test]
    fn a_note_is_no_session_and_is_cut() {
        let seal = Seal::new(&[7; 32]).unwrap();
        let cookies = Cookies { insecure: false };
        let note = Note {
            text: "ä".repeat(2000),
            passes: true,
        };
        let cookie = cookies.tell(note, &seal).unwrap();
        assert!(cookie.len() < 4000);
        let headers = sent(&cookie);
        let note = cookies.note(&headers, &seal).unwrap();
        assert_eq!((note.text.chars().count(), note.passes), (1000, true));
        assert!(cookies.told(&headers).is_some() && cookies.told(&HeaderMap::new()).is_none());
        assert!(cookies.session(&headers, &seal, Timestamp::MIN).is_none());
    }
}
