//! Successful answers.

use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::{
    error::ApiError,
    index::Shown,
    precondition,
    view::{InstanceView, Single},
};

/// The type of every body.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A JSON answer. `size` is about how many bytes it will have.
pub fn json(status: StatusCode, body: &impl Serialize, size: usize) -> Result<Response, ApiError> {
    let mut bytes = Vec::with_capacity(size);
    serde_json::to_writer(&mut bytes, body).map_err(|error| {
        tracing::error!(%error, "an answer could not be written as JSON");
        ApiError::fault()
    })?;
    Ok(bytes_of(status, bytes))
}

/// A JSON answer that is written already.
pub fn bytes_of(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// An answer that shows one instance, with its `ETag`.
pub fn single(
    status: StatusCode,
    shown: &Shown,
    data: impl Serialize,
    message: Option<String>,
) -> Result<Response, ApiError> {
    let mut response = json(status, &Single { data, message }, 768)?;
    if let Some(etag) = precondition::etag(&shown.instance) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    Ok(response)
}

/// An answer with all about one instance.
pub fn detail(status: StatusCode, shown: &Shown, message: Option<String>) -> Result<Response, ApiError> {
    single(status, shown, InstanceView::of(shown, None), message)
}
