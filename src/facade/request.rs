//! What handlers take from a request's head.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::{Uri, request::Parts};

use super::{error::ApiError, id::PublicId, keys::Credential, precondition::IfMatch, query::Parameters};

/// Whose request it is, as [`super::front`] found out.
pub struct Caller(pub Credential);

impl Caller {
    /// The namespace of the caller's account: nothing outside of it is ever looked at.
    pub fn namespace(&self) -> &str {
        &self.0.tenant.namespace
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        parts.extensions.remove().map(Self).ok_or_else(|| {
            tracing::error!(
                path = parts.uri.path(),
                "a handler is reached without authentication"
            );
            ApiError::fault()
        })
    }
}

/// The id in `/v1/<collection>/{id}…`; `None` if it has not the form of one.
pub struct Target<I>(pub Option<I>);

/// The id in `/v1/<collection>/{id}/<collection>/{id}…`; `None` if it has not the form of one.
pub struct Inner<I>(pub Option<I>);

fn id_at<I: PublicId>(uri: &Uri, segment: usize) -> Option<I> {
    let segment = uri.path().as_bytes().split(|byte| *byte == b'/').nth(segment);
    segment
        .and_then(|text| str::from_utf8(text).ok())
        .and_then(I::parse)
}

impl<S: Sync, I: PublicId> FromRequestParts<S> for Target<I> {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(id_at(&parts.uri, 3)))
    }
}

impl<S: Sync, I: PublicId> FromRequestParts<S> for Inner<I> {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(id_at(&parts.uri, 5)))
    }
}

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.uri))
    }
}

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.headers))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::id::InstanceId, *};

    #[test]
    fn the_third_segment_is_the_id() {
        let id = |path: &str| id_at::<InstanceId>(&path.parse().unwrap(), 3).map(|id| id.to_string());
        assert_eq!(
            id("/v1/instances/i-abcdefgh01234567/start").as_deref(),
            Some("i-abcdefgh01234567")
        );
        assert_eq!(
            id("/v1/instances/i-abcdefgh01234567?x=1").as_deref(),
            Some("i-abcdefgh01234567")
        );
        assert_eq!(id("/v1/instances/web"), None);
        assert_eq!(id("/v1/instances/%69-abcdefgh01234567"), None);
        assert_eq!(id("/v1/instances"), None);
    }
}
