//! The security scheme, and the parameters and headers that operations share.

use serde_json::{Value, json};

use super::examples;

pub(super) fn security_schemes() -> Value {
    json!({ "bearer": {
        "type": "http", "scheme": "bearer",
        "description": "An API key of the account, with the scope `read` or `write`. `POST /v1/keys` or `stellage key create` creates one.",
    } })
}

/// Their names differ from those of all schemas, because some generators put both into one namespace.
pub(super) fn parameters() -> Value {
    json!({
        "IdempotencyKey": {
            "name": "Idempotency-Key", "in": "header",
            "description": "Requests with the same key and body are carried out once, however often they are sent; the answer to a repetition has the header `Idempotency-Replayed: true`. The same key with another body is refused with 422 `idempotency_key_reused`. For actions, each object remembers the last 16 keys; a create is remembered for as long as its object exists.",
            "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$" },
            "example": "5f0c2a3e-9f5b-4f5e-8a57-1f9b4ef0e7b1",
        },
        "IfMatch": {
            "name": "If-Match", "in": "header",
            "description": "ETags of the versions that the request applies to, or `*`. If the current version has another ETag, the request is refused with 412.",
            "schema": { "type": "string" }, "example": examples::ETAG,
        },
        "RequestId": {
            "name": "X-Request-Id", "in": "header",
            "description": "An id of the client's choice for the request: 1 to 128 visible ASCII characters. Without one, and in place of any other, the service generates one.",
            "schema": { "type": "string" },
        },
    })
}

pub(super) fn headers() -> Value {
    let integer = |description: &str, example: u32| json!({ "description": description, "required": true, "schema": { "type": "integer", "minimum": 0 }, "example": example });
    let text = |description: &str, required: bool, example: &str| json!({ "description": description, "required": required, "schema": { "type": "string" }, "example": example });
    json!({
        "X-Request-Id": text("Identifier of the request; quote it in support requests.", true, examples::REQUEST_ID),
        "Cache-Control": text("`no-store`: the answer belongs to one account, and may contain secrets. Only this document may be cached.", true, "no-store"),
        "RateLimit-Limit": integer("Requests that the key may make per hour.", 3600),
        "RateLimit-Remaining": integer("Requests that the key has left at the moment. The allowance refills evenly over the hour. All keys of the account together have ten times as many: a 429 is possible even if the key has requests left.", 3599),
        "RateLimit-Reset": integer("Seconds until the full allowance is available again.", 1),
        "Retry-After": integer("Seconds to wait before trying again.", 1),
        "ETag": text("Version of the resource. It changes with every change of the settings, not with the status.", true, examples::ETAG),
        "Location": text("Path of the created resource.", true, &format!("/v1/instances/{}", examples::ID)),
        "Idempotency-Replayed": text("`true` if an earlier request with the same `Idempotency-Key` was already carried out.", false, "true"),
        "Idempotency-Retention": text("How long the request's `Idempotency-Key` is remembered: `resource`, as long as the created resource exists, or `actions=16`, until 16 later actions of the same resource have had a key. Sent with every successful answer to a request that has a key.", false, "actions=16"),
        "WWW-Authenticate": text("How to authenticate.", true, "Bearer"),
    })
}
