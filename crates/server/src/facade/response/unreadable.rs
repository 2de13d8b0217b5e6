//! Responses to requests that reach no handler of the facade, most because their head cannot be parsed, is late or is too large.

use bytes::Bytes;
use http::{Response, StatusCode, header};

use super::{
    JSON, NO_STORE,
    error::{self, Error, ErrorCode},
};

/// The answer with this status, in the error format.
pub fn answer(status: StatusCode) -> Response<Bytes> {
    let error = match status {
        StatusCode::REQUEST_TIMEOUT => Error::new(
            ErrorCode::RequestTimeout,
            "the head of the request did not arrive in time",
        ),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Error::new(
            ErrorCode::HeadersTooLarge,
            "the head of the request is too large; send at most 32 KiB and 100 headers",
        ),
        _ => Error::new(ErrorCode::BadRequest, "the request is not valid HTTP/1.1"),
    };
    error_answer(&error)
}

/// The answer with an error to a request that no handler of the facade gets.
pub fn error_answer(error: &Error) -> Response<Bytes> {
    let id = hex::encode(rand::random::<[u8; 16]>());
    let mut response = Response::new(Bytes::from(error::body(error, &id)));
    *response.status_mut() = error::status(error.code);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    if let Ok(id) = id.try_into() {
        headers.insert("x-request-id", id);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_answered_with_its_status_in_the_error_format() {
        for (status, code) in [
            (StatusCode::BAD_REQUEST, "bad_request"),
            (StatusCode::REQUEST_TIMEOUT, "request_timeout"),
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "headers_too_large"),
        ] {
            let answer = answer(status);
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers()["content-type"], "application/json");
            let body: serde_json::Value = serde_json::from_slice(answer.body()).unwrap();
            assert_eq!(body["error"]["code"], code);
            assert_eq!(
                body["error"]["request_id"],
                answer.headers()["x-request-id"].to_str().unwrap()
            );
        }
    }
}
