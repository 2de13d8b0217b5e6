//! Request bodies: their size, their type, and JSON into [`Fields`].

use std::{collections::HashSet, fmt, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::fields::Fields;
use crate::facade::response::error::{Detail, Error, ErrorCode};

/// Maximum size of a body in bytes (decisions, section 6).
pub const MAX_BODY: usize = 64 * 1024;
/// How long a body of that size may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of an oversized body that are read and discarded, and for how long: a client that is still sending when the
/// connection closes may never see the answer (RFC 9112, section 9.6).
const MAX_DRAINED: usize = 16 * 1024 * 1024;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Some editors and shells put it before a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads a required JSON object.
pub async fn required(request: Request<Body>) -> Result<Fields, Error> {
    let (head, body) = request.into_parts();
    let bytes = read(&head.headers, body).await?;
    if bytes.is_empty() {
        return Err(Error::new(
            ErrorCode::JsonError,
            "the body is missing; it must be a JSON object",
        ));
    }
    check_type(&head.headers)?;
    parse(&bytes)
}

/// Reads an optional JSON object; an empty body, white space and `null` count as `{}`.
pub async fn optional(request: Request<Body>) -> Result<Fields, Error> {
    let (head, body) = request.into_parts();
    let bytes = read(&head.headers, body).await?;
    if matches!(bytes.trim_ascii(), b"" | b"null") {
        // Do not check the type: clients set a Content-Type even if they send nothing.
        return parse(b"{}");
    }
    check_type(&head.headers)?;
    parse(&bytes)
}

async fn read(headers: &HeaderMap, mut body: Body) -> Result<Bytes, Error> {
    let too_large = || Error::new(ErrorCode::PayloadTooLarge, "the body is larger than 64 KiB");
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > MAX_BODY as u64) {
        // A client that sent `Expect: 100-continue` has not started sending the body.
        if !headers.contains_key(header::EXPECT) {
            drain(body).await;
        }
        return Err(too_large());
    }
    match tokio::time::timeout(READ_TIMEOUT, Limited::new(&mut body, MAX_BODY).collect()).await {
        Ok(Ok(collected)) => {
            let mut bytes = collected.to_bytes();
            if bytes.starts_with(BYTE_ORDER_MARK) {
                bytes = bytes.slice(BYTE_ORDER_MARK.len()..);
            }
            Ok(bytes)
        }
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            drain(body).await;
            Err(too_large())
        }
        Ok(Err(_)) => Err(Error::new(ErrorCode::JsonError, "the body ended too early")),
        Err(_) => Err(Error::new(
            ErrorCode::JsonError,
            "the body did not arrive within 30 s",
        )),
    }
}

async fn drain(mut body: Body) {
    let reading = async {
        let mut left = MAX_DRAINED;
        while let Some(Ok(frame)) = body.frame().await {
            let size = frame.data_ref().map_or(0, Bytes::len);
            let Some(rest) = left.checked_sub(size) else {
                return;
            };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, reading).await;
}

/// A missing Content-Type counts as JSON; any other must be `application/json` or `application/…+json`.
fn check_type(headers: &HeaderMap) -> Result<(), Error> {
    let refusal = |message: &'static str| Error::new(ErrorCode::UnsupportedMediaType, message);
    if headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(refusal("the body must have no Content-Encoding"));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = value
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim_ascii()
        .to_ascii_lowercase();
    let is_json = essence
        .strip_prefix("application/")
        .is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        Err(refusal("the Content-Type must be application/json"))
    }
}

fn parse(bytes: &[u8]) -> Result<Fields, Error> {
    let pairs = match bytes.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice::<Pairs>(bytes).map(Some),
        Some(b'[') => serde_json::from_slice::<Vec<IgnoredAny>>(bytes).map(|_| None),
        _ => serde_json::from_slice::<Value>(bytes).map(|_| None),
    };
    let pairs =
        pairs.map_err(|error| Error::new(ErrorCode::JsonError, format!("the body is not JSON: {error}")))?;
    let Some(Pairs(pairs)) = pairs else {
        return Err(Error::invalid(vec![Detail::new(
            "body",
            "invalid_type",
            "must be a JSON object",
        )]));
    };
    let mut problems = Vec::new();
    let mut names = HashSet::with_capacity(pairs.len());
    let mut entries = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        if names.insert(name.clone()) {
            entries.push((name, value));
        } else {
            problems.push(Detail::new(
                name,
                "duplicate_field",
                "must not occur more than once",
            ));
        }
    }
    Ok(Fields::new(entries, problems))
}

/// The fields of an object, duplicates included, which a map would lose.
struct Pairs(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
pub(in crate::facade) fn fields(body: &str) -> Result<Fields, Error> {
    parse(body.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(content_type: Option<&str>, body: impl Into<Body>) -> Request<Body> {
        let mut request = Request::new(body.into());
        if let Some(value) = content_type {
            request
                .headers_mut()
                .insert("content-type", value.parse().unwrap());
        }
        request
    }

    async fn code(request: Request<Body>) -> &'static str {
        match required(request).await {
            Ok(_) => "ok",
            Err(error) => error.code.as_str(),
        }
    }

    #[tokio::test]
    async fn only_json_is_accepted() {
        for good in [
            None,
            Some("application/json"),
            Some("Application/JSON; charset=utf-8"),
            Some("application/merge-patch+json"),
        ] {
            assert_eq!(code(request(good, "{}")).await, "ok", "{good:?}");
        }
        for bad in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "application/jsonp",
            "text/json",
            "application/yaml",
        ] {
            assert_eq!(
                code(request(Some(bad), "{}")).await,
                "unsupported_media_type",
                "{bad}"
            );
        }
        let mut packed = request(None, "{}");
        packed
            .headers_mut()
            .insert("content-encoding", "gzip".parse().unwrap());
        assert_eq!(code(packed).await, "unsupported_media_type");
    }

    #[tokio::test]
    async fn a_body_that_is_not_json_is_refused_with_the_position() {
        for bad in ["", "{", "{]", "nonsense", "{} x", "{\"a\":1,}", "\u{feff}"] {
            assert_eq!(code(request(None, bad)).await, "json_error", "{bad}");
        }
        assert_eq!(code(request(None, "\u{feff}{}")).await, "ok");
        let deep = "[".repeat(10_000);
        assert_eq!(code(request(None, deep)).await, "json_error");
        assert_eq!(code(request(None, &b"{\"a\":\"\xff\"}"[..])).await, "json_error");
        let error = required(request(None, "{\n \"a\" 1}")).await.err().unwrap();
        assert!(error.message.contains("line 2 column 6"), "{error}");
    }

    #[tokio::test]
    async fn json_other_than_an_object_is_invalid_input() {
        for other in ["null", "true", "1", "-1", "1.5", "\"a\"", "[]", "[{\"a\":[1]}]"] {
            assert_eq!(code(request(None, other)).await, "invalid_input", "{other}");
        }
    }

    #[tokio::test]
    async fn bodies_are_bounded_with_and_without_a_length() {
        let fits = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_BODY - 8));
        assert_eq!(fits.len(), MAX_BODY);
        assert_eq!(code(request(None, fits.clone())).await, "ok");
        let over = fits.replace("{\"a\"", "{ \"a\"");
        assert_eq!(code(request(None, over.clone())).await, "payload_too_large");
        let pieces = over
            .into_bytes()
            .chunks(1000)
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>();
        let stream = futures::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
        assert_eq!(
            code(request(None, Body::from_stream(stream))).await,
            "payload_too_large"
        );
        let announced = |length: &str| {
            let mut announced = request(None, "{}");
            announced
                .headers_mut()
                .insert("content-length", length.parse().unwrap());
            announced
        };
        assert!(required(announced("65536")).await.is_ok());
        assert_eq!(code(announced("65537")).await, "payload_too_large");
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_not_called_too_large() {
        let broken = futures::stream::iter([Ok("{"), Err("reset")]);
        assert_eq!(code(request(None, Body::from_stream(broken))).await, "json_error");
    }

    #[tokio::test]
    async fn an_empty_optional_body_counts_as_an_empty_object() {
        for empty in [None, Some("application/x-www-form-urlencoded")] {
            let fields = optional(request(empty, "")).await.ok().unwrap();
            assert!(fields.finish().is_ok());
        }
        assert!(optional(request(Some("text/plain"), "x")).await.is_err());
    }

    #[test]
    fn order_and_white_space_are_ignored_and_duplicate_fields_refused() {
        let canonical = |body: &str| fields(body).ok().unwrap().canonical(&[]);
        let one = canonical(r#"{"a":1,"b":[2]}"#);
        assert_eq!(one, canonical(r#" { "b" : [2], "a":1}"#));
        assert_ne!(one, canonical(r#"{"a":1,"b":[3]}"#));
        // Only the presence of a hidden field counts.
        let hiding = |body: &str| fields(body).ok().unwrap().canonical(&["b"]);
        assert_eq!(hiding(r#"{"a":1,"b":2}"#), hiding(r#"{"a":1,"b":3}"#));
        assert_ne!(hiding(r#"{"a":1,"b":2}"#), hiding(r#"{"a":4,"b":2}"#));
        assert_ne!(hiding(r#"{"a":1,"b":2}"#), hiding(r#"{"a":1}"#));
        let mut twice = fields(r#"{"a":1,"a":2}"#).ok().unwrap();
        twice.skip("a");
        let error = twice.finish().unwrap_err();
        assert_eq!(error.details.len(), 1);
        assert_eq!(error.details[0].code, "duplicate_field");
    }
}
