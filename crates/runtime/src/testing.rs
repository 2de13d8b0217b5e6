//! For the tests of this crate and, with the feature `testing`, of others: an in-memory API server, and a clock.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use http::{Request, Response};
use jiff::Timestamp;
use kube::{
    Client,
    client::{Body, retry::RetryPolicy},
};
use parking_lot::Mutex;
use tower::{BoxError, Layer as _, retry::RetryLayer};

use super::Clock;

/// A clock that stands still until a test sets it. Clones show the same time.
#[derive(Clone, Debug)]
pub struct TestClock(Arc<Mutex<Timestamp>>);

impl TestClock {
    /// A clock that shows this time.
    pub fn at(time: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(time)))
    }

    /// Sets the clock.
    pub fn set(&self, time: Timestamp) {
        *self.0.lock() = time;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        *self.0.lock()
    }
}

/// A client of an in-memory API server that does not stream lists: `answer` gets the method, the path with its query,
/// and the body of each request, and returns the status code and body of the response. Like the client of [`connect`](crate::client::connect),
/// it repeats requests that are answered with 429, 503 or 504.
pub fn answered_by<A, F>(answer: A) -> Client
where
    A: Fn(http::Method, String, serde_json::Value) -> F + Clone + Send + 'static,
    F: Future<Output = (u16, serde_json::Value)> + Send + 'static,
{
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (head, body) = request.into_parts();
            if head
                .uri
                .query()
                .is_some_and(|query| query.contains("sendInitialEvents=true"))
            {
                let refusal = r#"{"kind":"Status","status":"Failure","reason":"Invalid","code":422}"#;
                return Ok(Response::builder()
                    .status(422)
                    .body(Body::from(refusal.as_bytes().to_vec()))?);
            }
            let body = body.collect_bytes().await?;
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let (code, body) = answer(head.method, head.uri.to_string(), body).await;
            let response = Response::builder().status(code);
            Ok::<_, BoxError>(response.body(Body::from(serde_json::to_vec(&body)?))?)
        }
    });
    let repeating = RetryLayer::new(RetryPolicy::server_retry()).layer(service);
    Client::new(repeating, "default")
}

/// A client of an in-memory API server that has these objects. The server carries out the first create but answers it
/// with 504, so that the client repeats it; `refusal` is its answer to creates of existing objects. Also returns the
/// server's objects.
pub fn first_create_answered_with_504(
    objects: Vec<serde_json::Value>,
    refusal: serde_json::Value,
) -> (Client, Arc<Mutex<Vec<serde_json::Value>>>) {
    use serde_json::json;

    let existing = objects.len();
    let stored = Arc::new(Mutex::new(objects));
    let objects = stored.clone();
    let client = answered_by(move |method, path, mut object| {
        let mut objects = objects.lock();
        let path = path.split('?').next().unwrap_or_default();
        let name = match method {
            http::Method::POST => object["metadata"]["name"].clone(),
            _ => json!(path.rsplit('/').next()),
        };
        let found = objects.iter().find(|object| object["metadata"]["name"] == name);
        let answer = match (method, found) {
            (http::Method::POST, Some(_)) => (refusal["code"].as_u64(), refusal.clone()),
            (http::Method::POST, None) => {
                object["metadata"]["namespace"] = json!("demo");
                object["metadata"]["uid"] = json!(name);
                objects.push(object.clone());
                let timeout =
                    json!({ "kind": "Status", "status": "Failure", "reason": "Timeout", "code": 504 });
                match objects.len() - existing {
                    1 => (Some(504), timeout),
                    _ => (Some(201), object),
                }
            }
            (_, Some(found)) => (Some(200), found.clone()),
            (_, None) => {
                let unknown =
                    json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
                (Some(404), unknown)
            }
        };
        let code = answer.0.and_then(|code| code.try_into().ok()).unwrap_or(500);
        async move { (code, answer.1) }
    });
    (client, stored)
}

/// Refusals of a create that an earlier try has already carried out: that try took the name, or used up the quota.
pub fn refusals_of_a_second_try() -> [serde_json::Value; 2] {
    use serde_json::json;

    let refusal = |code: u16, reason: &str, message: &str| json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message });
    [
        refusal(409, "AlreadyExists", "it already exists"),
        refusal(403, "Forbidden", "it is forbidden: exceeded quota: stellage"),
    ]
}
