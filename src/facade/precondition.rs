//! `ETag` and `If-Match`: the version of what a client asked for, so that a change of status leaves it alone.

use http::{HeaderMap, HeaderValue, header};
use kube::Resource as _;

use super::{
    entry::Kept,
    error::{ApiError, ErrorCode},
};
use crate::resources::Delivery;

/// The strong entity tag of an object: its UID and generation.
pub fn etag(object: &impl Kept) -> HeaderValue {
    // A UID is visible ASCII.
    HeaderValue::try_from(tag(object)).unwrap_or(HeaderValue::from_static("\"\""))
}

fn tag<K: Kept>(object: &K) -> String {
    // Without a status subresource every change counts as a generation, but what a Delivery sends never changes.
    let generation = if K::kind(&()) == Delivery::kind(&()) {
        1
    } else {
        object.meta().generation.unwrap_or(0)
    };
    format!("\"{}-{generation}\"", object.uid())
}

/// What `If-Match` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum IfMatch {
    /// Nothing.
    #[default]
    Absent,
    /// `*`: that there is something.
    Any,
    /// One of these tags.
    OneOf(Vec<String>),
}

impl IfMatch {
    /// The precondition of a request. Weak tags never match (RFC 9110, section 13.1.1), and neither does nonsense.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(header::IF_MATCH).iter().peekable();
        if values.peek().is_none() {
            return Self::Absent;
        }
        let mut tags = Vec::new();
        for value in values {
            for one in value.to_str().unwrap_or_default().split(',') {
                match one.trim_ascii() {
                    "*" => return Self::Any,
                    tag => tags.push(tag.to_owned()),
                }
            }
        }
        Self::OneOf(tags)
    }

    /// Whether the request is conditional.
    pub fn is_present(&self) -> bool {
        *self != Self::Absent
    }

    /// 412 if the object is another version than the request is for.
    pub fn check(&self, object: &impl Kept) -> Result<(), ApiError> {
        match self {
            Self::OneOf(tags) if !tags.contains(&tag(object)) => Err(failed()),
            _ => Ok(()),
        }
    }
}

/// 412.
pub(super) fn failed() -> ApiError {
    ApiError::new(
        ErrorCode::PreconditionFailed,
        "If-Match does not name the present ETag: what it is for has changed; read it and try again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Instance;

    fn instance(generation: i64) -> Instance {
        serde_json::from_value(serde_json::json!({
            "metadata": { "name": "a", "uid": "u-1", "generation": generation },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap()
    }

    fn if_match(values: &[&str]) -> IfMatch {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::IF_MATCH, value.parse().unwrap());
        }
        IfMatch::of(&headers)
    }

    #[test]
    fn a_tag_is_quoted_and_changes_with_the_generation() {
        assert_eq!(etag(&instance(3)), "\"u-1-3\"");
        assert_ne!(etag(&instance(3)), etag(&instance(4)));
    }

    #[test]
    fn only_a_version_that_is_named_matches() {
        let object = instance(3);
        for good in [
            &[][..],
            &["*"],
            &["\"u-1-3\""],
            &["\"x\", \"u-1-3\""],
            &["\"x\"", "\"u-1-3\""],
        ] {
            assert_eq!(if_match(good).check(&object), Ok(()), "{good:?}");
        }
        for bad in ["", "\"u-1-2\"", "u-1-3", "W/\"u-1-3\"", "\"x\",\"y\""] {
            let refusal = if_match(&[bad]).check(&object).unwrap_err();
            assert_eq!(refusal.code, ErrorCode::PreconditionFailed, "{bad}");
        }
    }
}
