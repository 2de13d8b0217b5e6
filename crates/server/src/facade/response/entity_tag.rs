//! `ETag` (RFC 9110, section 8.8.3).

use bytes::Bytes;
use http::HeaderValue;

use crate::service::{index::Object, precondition::quoted_version};

/// The strong entity tag of an object.
pub fn etag(object: &impl Object) -> HeaderValue {
    tag(quoted_version(object))
}

/// An entity tag from a quoted version.
pub fn tag(quoted: impl Into<Bytes>) -> HeaderValue {
    // A UID is visible ASCII.
    HeaderValue::from_maybe_shared(quoted.into()).unwrap_or(HeaderValue::from_static("\"\""))
}
