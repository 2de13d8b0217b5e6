//! Responses.
//!
//! - `entity_tag`: `ETag`;
//! - `error`: the error format; `unreadable`: responses to requests that cannot be read.

mod entity_tag;
pub mod error;
pub mod unreadable;

use std::fmt::Display;

use axum::{body::Body, response::Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Serialize;

pub use self::entity_tag::{etag, tag};

use self::error::Error;
use crate::service::index::{Object, Paging};
use api::{List, Pagination, Single};

/// The Content-Type of every body.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// `Cache-Control` of every response but the OpenAPI document: they belong to one account, and some contain secrets.
pub const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// A JSON answer. `size` is an estimate of its length in bytes.
pub fn json(status: StatusCode, body: &impl Serialize, size: usize) -> Result<Response, Error> {
    let mut bytes = Vec::with_capacity(size);
    serde_json::to_writer(&mut bytes, body).map_err(|error| {
        tracing::error!(%error, "cannot serialize an answer as JSON");
        Error::fault()
    })?;
    Ok(rendered(status, bytes))
}

/// A JSON answer with a body that is already serialized.
pub fn rendered(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let mut response = Response::new(bytes.into());
    *response.status_mut() = status;
    // One allocation for all headers: ETag, RateLimit-*, X-Request-Id, Content-Length, Location.
    *response.headers_mut() = HeaderMap::with_capacity(12);
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// A page of a list, of which there are `total` items, each as `view` shows it.
pub fn list<T, I: Serialize>(
    paging: Paging,
    (page, total): (Vec<T>, usize),
    view: impl Fn(&T) -> I,
) -> Result<Response, Error> {
    let list = List {
        data: page.iter().map(view).collect(),
        pagination: Pagination::new(paging.page, paging.limit, total),
    };
    json(StatusCode::OK, &list, 512 * (1 + page.len()))
}

/// An answer that shows one object, with its `ETag`.
pub fn single(
    status: StatusCode,
    object: &impl Object,
    data: impl Serialize,
    message: Option<String>,
) -> Result<Response, Error> {
    let mut response = json(status, &Single { data, message }, 768)?;
    response.headers_mut().insert(header::ETAG, etag(object));
    Ok(response)
}

/// Sets `Location` to the path of the created resource.
pub fn locate(response: &mut Response, collection: &str, id: impl Display) {
    if let Ok(location) = HeaderValue::try_from(format!("{collection}/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
}

/// A reason of the conditions as answers show it: `InvalidURL` as `invalid_url`.
pub fn snake_case(reason: &str) -> String {
    let mut name = String::with_capacity(reason.len() + 4);
    let mut was_lower = false;
    for letter in reason.chars() {
        if letter.is_ascii_uppercase() && was_lower {
            name.push('_');
        }
        was_lower = !letter.is_ascii_uppercase();
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_snake_case() {
        for (reason, shown) in [
            ("Failing", "failing"),
            ("GuestShutdown", "guest_shutdown"),
            ("InvalidURL", "invalid_url"),
        ] {
            assert_eq!(snake_case(reason), shown);
        }
    }
}
