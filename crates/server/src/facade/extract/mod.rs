//! Extractors: how handlers read requests.
//!
//! - `body`: JSON bodies, and `fields`, which collects all errors in them; `query`: parameters;
//! - `precondition`: `If-Match`; `idempotency`: `Idempotency-Key`, and the headers of its responses.

pub mod body;
pub mod fields;
pub mod idempotency;
mod precondition;
pub mod query;

use std::{convert::Infallible, ops::Deref, sync::Arc};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts},
};
use http::{Request, Uri, request::Parts};
use utoipa::{
    IntoParams,
    openapi::{
        Ref, Required,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

use self::{
    fields::Fields,
    query::{Paging, Parameters},
};
use super::{App, response::error::Error};
use crate::service::{
    cost::Cost,
    credentials::{Credential, Tenant},
    id::PublicId,
    idempotency::IdempotentRequest,
    precondition::Precondition,
};

/// The sender of a request, as authenticated by [`super::middleware`].
#[derive(Clone)]
pub struct Caller {
    /// The key of the request, and its account.
    pub credential: Credential,
    /// Whether the request counts against the limit for reads in the console.
    pub reads_in_console: bool,
}

impl Caller {
    /// The caller's account.
    pub fn tenant(&self) -> &Tenant {
        &self.credential.tenant
    }

    /// The namespace of the caller's account. Handlers read and write nothing outside it.
    pub fn namespace(&self) -> &str {
        &self.credential.tenant.namespace
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        parts.extensions.remove().ok_or_else(|| {
            tracing::error!(
                path = parts.uri.path(),
                "a request reached a handler without authentication"
            );
            Error::fault()
        })
    }
}

/// The cost of a request. It counts against the rate limits as soon as the request ends, however it ends.
pub struct Charged {
    app: Arc<App>,
    caller: Caller,
    cost: Cost,
}

impl Charged {
    /// A request of this caller that has cost nothing yet.
    pub fn new(app: &Arc<App>, caller: &Caller) -> Self {
        Self {
            app: app.clone(),
            caller: caller.clone(),
            cost: Cost::default(),
        }
    }
}

impl Deref for Charged {
    type Target = Cost;

    fn deref(&self) -> &Cost {
        &self.cost
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.app.rate_limits.charge(&self.caller, self.cost.requests());
    }
}

/// The id in `/v1/<collection>/{id}…`; `None` if it is malformed.
pub struct Target<I>(pub Option<I>);

/// The id in `/v1/<collection>/{id}/<collection>/{id}…`; `None` if it is malformed.
pub struct Inner<I>(pub Option<I>);

impl<I: PublicId> IntoParams for Target<I> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![id_parameter("id", I::TYPE)]
    }
}

impl<I: PublicId> IntoParams for Inner<I> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let kind = I::TYPE.trim_end_matches("Id").to_lowercase();
        vec![id_parameter(&format!("{kind}_id"), I::TYPE)]
    }
}

/// Describes an id in a path; `schema` is the schema of the id.
pub fn id_parameter(name: &str, schema: &str) -> Parameter {
    let kind = schema.trim_end_matches("Id").to_lowercase();
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(format!("Identifier of the {kind}.")))
        .schema(Some(Ref::from_schema_name(schema)))
        .build()
}

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

/// The fields of bodies whose values are secret.
const SECRET_FIELDS: [&str; 2] = ["secret", "user_data"];

/// The content of a POST: its body, and perhaps an `Idempotency-Key`.
pub struct Post {
    /// The fields of the body.
    pub fields: Fields,
    /// Set if the request has an `Idempotency-Key`.
    pub idempotent: Option<IdempotentRequest>,
}

impl Post {
    /// Reads a request with a required body.
    pub async fn with_body(request: Request<Body>) -> Result<Self, Error> {
        let key = idempotency::key(request.headers())?.map(str::to_owned);
        let path = request.uri().path().to_owned();
        Ok(Self::new(&path, key, body::required(request).await?))
    }

    /// Reads a request with an optional body.
    pub async fn with_optional_body(request: Request<Body>) -> Result<Self, Error> {
        let key = idempotency::key(request.headers())?.map(str::to_owned);
        let path = request.uri().path().to_owned();
        Ok(Self::new(&path, key, body::optional(request).await?))
    }

    fn new(path: &str, key: Option<String>, fields: Fields) -> Self {
        let idempotent = key.map(|key| {
            let (body, visible) = (fields.canonical(&[]), fields.canonical(&SECRET_FIELDS));
            IdempotentRequest::new(path, &key, &body, &visible)
        });
        Self { fields, idempotent }
    }
}

impl<S: Sync> FromRequestParts<S> for Parameters {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.uri))
    }
}

impl<S: Sync> FromRequestParts<S> for Paging {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Error> {
        Parameters::of(&parts.uri).paging()
    }
}

/// The versions that a request applies to.
pub struct IfMatch(pub Precondition);

impl<S: Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(precondition::if_match(&parts.headers)))
    }
}

/// A request that changes the object in `/v1/<collection>/{id}…`, or something of it.
pub struct Change<I> {
    pub app: Arc<App>,
    pub caller: Caller,
    /// The object; `None` if its id is malformed.
    pub id: Option<I>,
    /// The versions of the object that the request applies to.
    pub precondition: Precondition,
    /// The request, whose body has not been read.
    pub request: Request<Body>,
}

impl<I: PublicId> FromRequest<Arc<App>> for Change<I> {
    type Rejection = Error;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, Error> {
        let (mut parts, body) = request.into_parts();
        let caller = Caller::from_request_parts(&mut parts, app).await?;
        Ok(Self {
            app: app.clone(),
            caller,
            id: id_at(&parts.uri, 3),
            precondition: precondition::if_match(&parts.headers),
            request: Request::from_parts(parts, body),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::id::InstanceId;

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
