//! `If-Match` (RFC 9110, section 13.1.1).

use http::{HeaderMap, header};

use crate::service::precondition::Precondition;

/// The precondition of a request. A weak tag counts like a strong one, since proxies that compress answers make ours weak. Malformed
/// tags never match.
pub fn if_match(headers: &HeaderMap) -> Precondition {
    let mut values = headers.get_all(header::IF_MATCH).iter().peekable();
    if values.peek().is_none() {
        return Precondition::None;
    }
    let mut versions = Vec::new();
    for value in values {
        for one in value.to_str().unwrap_or_default().split(',') {
            let tag = one.trim_ascii();
            if tag == "*" {
                return Precondition::Exists;
            }
            let opaque = tag.strip_prefix("W/").unwrap_or(tag);
            let version = opaque.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            versions.extend(version.map(str::to_owned));
        }
    }
    Precondition::OneOf(versions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{facade::response::etag, service::error::ErrorCode};
    use resources::Instance;

    fn instance(generation: i64) -> Instance {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "a", "uid": "u-1", "generation": generation },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap()
    }

    fn precondition(values: &[&str]) -> Precondition {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::IF_MATCH, value.parse().unwrap());
        }
        if_match(&headers)
    }

    #[test]
    fn a_tag_is_quoted_and_changes_with_the_generation() {
        assert_eq!(etag(&instance(3)), "\"u-1-3\"");
        assert_ne!(etag(&instance(3)), etag(&instance(4)));
    }

    #[test]
    fn only_the_versions_listed_match() {
        let object = instance(3);
        for good in [
            &[][..],
            &["*"],
            &["\"u-1-3\""],
            &["\"x\", \"u-1-3\""],
            &["\"x\"", "\"u-1-3\""],
            &["W/\"u-1-3\""],
            &["\"x\", W/\"u-1-3\""],
        ] {
            assert_eq!(precondition(good).check(&object), Ok(()), "{good:?}");
        }
        for bad in [
            "",
            "\"u-1-2\"",
            "u-1-3",
            "W/\"u-1-2\"",
            "W/u-1-3",
            "w/\"u-1-3\"",
            "\"x\",\"y\"",
        ] {
            let refusal = precondition(&[bad]).check(&object).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::PreconditionFailed, "{bad}");
        }
    }
}
