//! The headers of a delivery, including its signatures (specification, sections 6.3 and 6.4; decisions, section 5).
//!
//! There are two signatures. `X-Service-Signature` is the one from the specification: computed over the body alone and
//! keyed with the characters of the secret. `webhook-signature` is the one from Standard Webhooks, which has libraries
//! for receivers: computed over `id.timestamp.body`, so that an old delivery cannot be replayed as a new one.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _, digest::InvalidLength};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, CONTENT_TYPE, USER_AGENT},
};
use jiff::Timestamp;
use rand::RngExt as _;
use sha2::Sha256;

/// Lower-case hexadecimal HMAC-SHA256 of the body (specification, section 6.4).
pub const SERVICE_SIGNATURE: HeaderName = HeaderName::from_static("x-service-signature");
/// Identifier of the event, the same on every attempt (specification, section 6.3).
pub const SERVICE_EVENT_ID: HeaderName = HeaderName::from_static("x-service-event-id");
/// Type of the event (specification, section 6.3).
pub const SERVICE_EVENT_TYPE: HeaderName = HeaderName::from_static("x-service-event-type");
/// UNIX time of the event in seconds, the same on every attempt (specification, section 6.3).
pub const SERVICE_TIMESTAMP: HeaderName = HeaderName::from_static("x-service-timestamp");
/// Identifier of the event (Standard Webhooks).
pub const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
/// UNIX time of the attempt in seconds (Standard Webhooks).
pub const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
/// `v1,<base64>` for each key, separated by spaces (Standard Webhooks).
pub const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Prefix of secrets that are a key in base64 (Standard Webhooks).
const SECRET_PREFIX: &str = "whsec_";
/// Number of random bytes of a generated secret (decisions, section 5).
const SECRET_BYTES: usize = 32;
/// User-Agent of deliveries.
pub const AGENT: &str = concat!("Stellage/", env!("CARGO_PKG_VERSION"));

/// Accept of deliveries: some firewalls reject requests without it.
pub const ACCEPTED: &str = "*/*";

/// A new signing secret: `whsec_` and 32 random bytes in base64 (decisions, section 5).
pub fn new_secret() -> String {
    let key: [u8; SECRET_BYTES] = rand::rng().random();
    format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(key))
}

/// The signing keys of one webhook. Secrets are parsed once, not for every delivery.
#[derive(Clone)]
pub struct SigningKeys {
    /// Key of `X-Service-Signature`.
    service: Hmac<Sha256>,
    /// Key of the first signature in `webhook-signature`.
    current: Hmac<Sha256>,
    /// Key of the second signature in `webhook-signature`, after a rotation.
    previous: Option<Hmac<Sha256>>,
}

impl SigningKeys {
    /// The keys for these secrets; `previous` is the secret from before the last rotation, if deliveries are also
    /// signed with it.
    pub fn new(current: &str, previous: Option<&str>) -> Self {
        Self {
            service: keyed(current.as_bytes()),
            current: keyed(&standard_key(current)),
            previous: previous.map(|secret| keyed(&standard_key(secret))),
        }
    }
}

/// Shows whether there is a previous key, but no key.
impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKeys")
            .field("overlap", &self.previous.is_some())
            .finish_non_exhaustive()
    }
}

/// All headers of one attempt to deliver `body`, except `Host` and `Content-Length`.
///
/// `event_at` is when the event happened, `attempt_at` when this attempt is made. If an id or type is not a valid header
/// value, the header is empty; those generated here are always valid.
pub fn headers(
    keys: &SigningKeys,
    event_id: &str,
    event_type: &str,
    event_at: Timestamp,
    attempt_at: Timestamp,
    body: &[u8],
) -> HeaderMap {
    let attempt = attempt_at.as_second().to_string();
    let sign = |key: &Hmac<Sha256>| {
        let signed = key
            .clone()
            .chain_update(event_id)
            .chain_update(".")
            .chain_update(&attempt)
            .chain_update(".")
            .chain_update(body);
        format!("v1,{}", BASE64_STANDARD.encode(signed.finalize().into_bytes()))
    };
    let mut signatures = sign(&keys.current);
    if let Some(previous) = &keys.previous {
        signatures.push(' ');
        signatures.push_str(&sign(previous));
    }
    let service = hex::encode(keys.service.clone().chain_update(body).finalize().into_bytes());

    let id = value(event_id);
    HeaderMap::from_iter([
        (USER_AGENT, HeaderValue::from_static(AGENT)),
        (ACCEPT, HeaderValue::from_static(ACCEPTED)),
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (SERVICE_SIGNATURE, value(&service)),
        (SERVICE_EVENT_ID, id.clone()),
        (SERVICE_EVENT_TYPE, value(event_type)),
        (SERVICE_TIMESTAMP, event_at.as_second().into()),
        (WEBHOOK_ID, id),
        (WEBHOOK_TIMESTAMP, attempt_at.as_second().into()),
        (WEBHOOK_SIGNATURE, value(&signatures)),
    ])
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// The key of `webhook-signature`: the base64 after `whsec_`, decoded, or else the bytes of the secret. Also the bytes if the
/// key would be empty, because anybody could sign with an empty key.
fn standard_key(secret: &str) -> Vec<u8> {
    secret
        .strip_prefix(SECRET_PREFIX)
        .and_then(|encoded| BASE64_STANDARD.decode(encoded).ok())
        .filter(|key| !key.is_empty())
        .unwrap_or_else(|| secret.as_bytes().to_vec())
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    match Hmac::new_from_slice(key) {
        Ok(hmac) => hmac,
        Err(InvalidLength) => unreachable!("HMAC takes keys of any length (RFC 2104)"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use standardwebhooks::Webhook;

    use super::*;

    static EVENT_AT: LazyLock<Timestamp> = LazyLock::new(|| "2026-11-21T10:00:00.987Z".parse().unwrap());

    fn signed(secret: &str, previous: Option<&str>, body: &[u8]) -> HeaderMap {
        let keys = SigningKeys::new(secret, previous);
        headers(
            &keys,
            "evt_1",
            "instance.started",
            *EVENT_AT,
            Timestamp::now(),
            body,
        )
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
        headers[name].to_str().unwrap()
    }

    #[test]
    fn the_request_in_the_documentation_has_the_signatures_that_it_says() {
        let page = include_str!("../../../docs/receivers.md");
        let (_, request) = page.split_once("```http\n").unwrap();
        let (head, body) = request.split_once("\n\n").unwrap();
        let body = body.lines().next().unwrap();
        let of = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{name} in {head}"))
        };
        let (_, secret) = page.split_once("made with the secret `").unwrap();
        let (secret, _) = secret.split_once('`').unwrap();
        let at = |seconds: &str| Timestamp::from_second(seconds.parse().unwrap()).unwrap();
        let signed = headers(
            &SigningKeys::new(secret, None),
            of("X-Service-Event-Id: "),
            of("X-Service-Event-Type: "),
            at(of("X-Service-Timestamp: ")),
            at(of("Webhook-Timestamp: ")),
            body.as_bytes(),
        );
        assert_eq!(of("Content-Length: "), body.len().to_string());
        assert_eq!(text(&signed, "x-service-signature"), of("X-Service-Signature: "));
        assert_eq!(text(&signed, "webhook-signature"), of("Webhook-Signature: "));
    }

    /// The digest computed by the definition (RFC 2104, section 2), not with the crate that the code uses.
    fn hmac_by_definition(key: &[u8], message: &[u8]) -> String {
        use sha2::Digest as _;
        let mut block = [0; 64];
        if key.len() > block.len() {
            block[..32].copy_from_slice(&Sha256::digest(key));
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let inner = Sha256::digest([&block.map(|byte| byte ^ 0x36), message].concat());
        hex::encode(Sha256::digest(
            [&block.map(|byte| byte ^ 0x5c)[..], &inner].concat(),
        ))
    }

    #[test]
    fn the_service_signature_is_that_of_the_known_vectors() {
        // RFC 4231, section 4.3 (test case 2), and the well-known example of the algorithm.
        for (secret, body, expected) in [
            (
                "Jefe",
                "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                "key",
                "The quick brown fox jumps over the lazy dog",
                "f7bc83f430538424b13298e6aa6fb143ef4d59a14946175997479dbc2d1a3cd8",
            ),
        ] {
            let headers = signed(secret, None, body.as_bytes());
            assert_eq!(text(&headers, "x-service-signature"), expected);
        }
    }

    #[test]
    fn the_standard_signature_is_that_of_the_known_vector() {
        // The example of the reference implementations of Standard Webhooks.
        let keys = SigningKeys::new("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", None);
        let attempt_at = Timestamp::from_second(1_614_265_330).unwrap();
        let headers = headers(
            &keys,
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            "instance.started",
            *EVENT_AT,
            attempt_at,
            br#"{"test": 2432232314}"#,
        );
        assert_eq!(
            text(&headers, "webhook-signature"),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn every_header_of_the_specification_is_there_once_and_no_other() {
        let keys = SigningKeys::new("secret", None);
        let attempt_at = Timestamp::from_second(1_800_000_000).unwrap();
        let headers = headers(&keys, "evt_1", "instance.started", *EVENT_AT, attempt_at, b"{}");
        let mut names: Vec<_> = headers.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "content-type",
                "user-agent",
                "webhook-id",
                "webhook-signature",
                "webhook-timestamp",
                "x-service-event-id",
                "x-service-event-type",
                "x-service-signature",
                "x-service-timestamp",
            ]
        );
        assert_eq!(text(&headers, "content-type"), "application/json");
        assert_eq!(
            text(&headers, "user-agent"),
            concat!("Stellage/", env!("CARGO_PKG_VERSION"))
        );
        assert_eq!(text(&headers, "x-service-event-id"), "evt_1");
        assert_eq!(text(&headers, "x-service-event-type"), "instance.started");
        assert_eq!(text(&headers, "x-service-timestamp"), "1795255200");
        assert_eq!(text(&headers, "webhook-id"), "evt_1");
        assert_eq!(text(&headers, "webhook-timestamp"), "1800000000");
    }

    #[test]
    fn during_an_overlap_both_secrets_verify_and_the_service_signature_is_the_current_ones() {
        let (old, new) = (new_secret(), new_secret());
        let headers = signed(&new, Some(&old), b"{}");
        for secret in [&old, &new] {
            Webhook::new(secret).unwrap().verify(b"{}", &headers).unwrap();
        }
        let alone = signed(&new, None, b"{}");
        assert!(text(&headers, "webhook-signature").starts_with(text(&alone, "webhook-signature")));
        assert_eq!(
            text(&headers, "x-service-signature"),
            hmac_by_definition(new.as_bytes(), b"{}")
        );
        assert!(Webhook::new(&old).unwrap().verify(b"{}", &alone).is_err());
    }

    #[test]
    fn a_secret_that_is_not_base64_or_decodes_to_nothing_signs_with_its_own_bytes() {
        for secret in [
            "plain",
            "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_not base64!",
            "whsec_",
        ] {
            let headers = signed(secret, None, b"{}");
            Webhook::from_bytes(secret.as_bytes().to_vec())
                .unwrap()
                .verify(b"{}", &headers)
                .unwrap();
        }
    }

    #[test]
    fn a_new_secret_has_256_bits_and_is_another_every_time() {
        let secret = new_secret();
        assert_eq!(standard_key(&secret).len(), 32);
        assert!(secret.starts_with("whsec_"));
        assert_ne!(secret, new_secret());
    }

    #[test]
    fn what_cannot_be_a_header_leaves_it_empty() {
        let keys = SigningKeys::new("secret", None);
        let headers = headers(&keys, "evt\r\nX: y", "instance\0", *EVENT_AT, *EVENT_AT, b"{}");
        assert_eq!(headers["webhook-id"], "");
        assert_eq!(headers["x-service-event-type"], "");
    }

    #[test]
    fn debug_shows_nothing_of_the_secrets() {
        let keys = SigningKeys::new("geheim", Some("vorher"));
        assert_eq!(format!("{keys:?}"), "SigningKeys { overlap: true, .. }");
    }

    proptest! {
        #[test]
        fn headers_verify_for_any_secrets_and_any_body(secret in ".{1,255}", previous in proptest::option::of(".{1,255}"), body in ".*") {
            let headers = signed(&secret, previous.as_deref(), body.as_bytes());
            prop_assert_eq!(text(&headers, "x-service-signature"), hmac_by_definition(secret.as_bytes(), body.as_bytes()));
            for secret in [Some(&secret), previous.as_ref()].into_iter().flatten() {
                let library = Webhook::from_bytes(standard_key(secret)).unwrap();
                prop_assert!(library.verify(body.as_bytes(), &headers).is_ok());
                let other = format!("{body} ");
                prop_assert!(library.verify(other.as_bytes(), &headers).is_err());
            }
        }

        #[test]
        fn headers_verify_with_the_secrets_that_libraries_take(key in proptest::collection::vec(any::<u8>(), 1..180), body in ".*") {
            let secret = format!("whsec_{}", BASE64_STANDARD.encode(key));
            let headers = signed(&secret, None, body.as_bytes());
            prop_assert!(Webhook::new(&secret).unwrap().verify(body.as_bytes(), &headers).is_ok());
        }
    }
}
