//! Successful answers.

use std::{fmt::Display, sync::Arc};

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

use super::{
    entry::Kept,
    error::ApiError,
    index::Shown,
    precondition,
    view::{InstanceView, Pagination, Single},
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
    // One allocation for all that comes: ETag, RateLimit-*, X-Request-Id, Content-Length, Location.
    *response.headers_mut() = HeaderMap::with_capacity(12);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A page of instances, whose items are JSON already.
pub fn page(instances: &[Arc<Shown>], pagination: Pagination) -> Result<Response, ApiError> {
    let items: Vec<&[u8]> = instances.iter().map(|shown| shown.item()).collect();
    let mut bytes = Vec::with_capacity(128 + items.iter().map(|item| item.len() + 1).sum::<usize>());
    bytes.extend_from_slice(b"{\"data\":[");
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            bytes.push(b',');
        }
        bytes.extend_from_slice(item);
    }
    bytes.extend_from_slice(b"],\"pagination\":");
    serde_json::to_writer(&mut bytes, &pagination).map_err(|_| ApiError::fault())?;
    bytes.push(b'}');
    Ok(bytes_of(StatusCode::OK, bytes))
}

/// An answer that shows one object, with its `ETag`.
pub fn single(
    status: StatusCode,
    object: &impl Kept,
    data: impl Serialize,
    message: Option<String>,
) -> Result<Response, ApiError> {
    let mut response = json(status, &Single { data, message }, 768)?;
    response
        .headers_mut()
        .insert(header::ETAG, precondition::etag(object));
    Ok(response)
}

/// Says where what was created is.
pub fn locate(response: &mut Response, collection: &str, id: impl Display) {
    if let Ok(location) = HeaderValue::try_from(format!("{collection}/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
}

/// The plain detail of an instance.
pub fn rendered(shown: &Shown) -> Response {
    let rendered = shown.detail();
    let mut response = bytes_of(StatusCode::OK, rendered.body.clone());
    response.headers_mut().insert(header::ETAG, rendered.etag.clone());
    response
}

/// An answer with all about one instance.
pub fn detail(status: StatusCode, shown: &Shown, message: Option<String>) -> Result<Response, ApiError> {
    single(status, &*shown.instance, InstanceView::of(shown, None), message)
}
