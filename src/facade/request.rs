//! What handlers take from a request.

use std::convert::Infallible;

use axum::{body::Body, extract::FromRequestParts};
use http::{Request, Uri, request::Parts};

use super::{
    body::{self, Input},
    error::ApiError,
    id::PublicId,
    idempotency::{self, KeyedAction},
    keys::Credential,
    precondition::IfMatch,
    query::Parameters,
};

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

/// What every POST says: its path, its body, and maybe an `Idempotency-Key`.
pub struct Asked {
    key: Option<String>,
    path: String,
    /// The body.
    pub input: Input,
}

impl Asked {
    /// Reads a request whose body must be there.
    pub async fn with_body(request: Request<Body>) -> Result<Self, ApiError> {
        let (key, path) = Self::head(&request)?;
        let input = body::required(request).await?;
        Ok(Self { key, path, input })
    }

    /// Reads a request whose body may be left out.
    pub async fn maybe_with_body(request: Request<Body>) -> Result<Self, ApiError> {
        let (key, path) = Self::head(&request)?;
        let input = body::optional(request).await?;
        Ok(Self { key, path, input })
    }

    fn head(request: &Request<Body>) -> Result<(Option<String>, String), ApiError> {
        let key = idempotency::key(request.headers())?.map(str::to_owned);
        Ok((key, request.uri().path().to_owned()))
    }

    /// What the names of the objects that it makes end with, if it has a key.
    pub fn suffix(&self, account_uid: &str) -> Option<String> {
        let key = self.key.as_deref()?;
        Some(idempotency::name_suffix(account_uid, &self.path, key))
    }

    /// The action, if it has a key.
    pub fn keyed_action(&self) -> Option<KeyedAction> {
        let key = self.key.as_deref()?;
        Some(KeyedAction::new(&self.path, key, &self.input.canonical))
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
