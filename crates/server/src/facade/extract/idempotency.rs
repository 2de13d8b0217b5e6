//! `Idempotency-Key`, `Idempotency-Replayed` and `Idempotency-Retention`.

use std::sync::LazyLock;

use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::facade::response::error::Error;
use crate::service::idempotency::{IdempotentRequest, MAX_REMEMBERED};

/// The request header.
pub static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The response header that says that a request was already carried out.
pub static IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The response header that says how long the key of the request is remembered.
pub static IDEMPOTENCY_RETENTION: HeaderName = HeaderName::from_static("idempotency-retention");

/// How long a key is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// As long as the object exists that the request created.
    Resource,
    /// Until this many later actions on the same object have had a key.
    Actions,
}

impl Retention {
    /// The value of the header: a dictionary of RFC 9651, with one member.
    fn header(self) -> HeaderValue {
        match self {
            Self::Resource => HeaderValue::from_static("resource"),
            Self::Actions => ACTIONS.clone(),
        }
    }
}

static ACTIONS: LazyLock<HeaderValue> = LazyLock::new(|| {
    HeaderValue::try_from(format!("actions={MAX_REMEMBERED}"))
        .unwrap_or_else(|_| HeaderValue::from_static("actions"))
});

/// Maximum length of a key.
const MAX_KEY: usize = 255;

/// The key of a request, if it has one: 1 to 255 visible ASCII characters, else 422.
pub fn key(headers: &HeaderMap) -> Result<Option<&str>, Error> {
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
            Error::invalid_value(
                "Idempotency-Key",
                "must be a header with 1 to 255 visible ASCII characters",
            )
        })
}

/// Adds to the response to a request with a key how long the key is remembered, and whether the request was already carried out.
pub fn mark(
    response: &mut Response,
    request: Option<&IdempotentRequest>,
    replayed: bool,
    retention: Retention,
) {
    if request.is_some() {
        let headers = response.headers_mut();
        headers.insert(&IDEMPOTENCY_RETENTION, retention.header());
        if replayed {
            headers.insert(&IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_to_requests_with_a_key_say_how_long_it_is_remembered() {
        let request = IdempotentRequest::new("/v1/webhooks", "a", &[], &[]);
        let headers = |request, replayed, retention| {
            let mut answer = Response::default();
            mark(&mut answer, request, replayed, retention);
            let value = |name| {
                answer
                    .headers()
                    .get(name)
                    .map(|value| value.to_str().unwrap().to_owned())
            };
            (value(&IDEMPOTENCY_RETENTION), value(&IDEMPOTENCY_REPLAYED))
        };
        let says = |text: &str| Some(text.to_owned());
        assert_eq!(
            headers(Some(&request), false, Retention::Resource),
            (says("resource"), None)
        );
        assert_eq!(
            headers(Some(&request), true, Retention::Actions),
            (says("actions=16"), says("true"))
        );
        assert_eq!(headers(None, true, Retention::Actions), (None, None));
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
}
