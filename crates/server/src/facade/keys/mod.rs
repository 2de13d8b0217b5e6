//! `/v1/keys`: list, create, detail, revoke.
//!
//! - `view`: keys as responses show them.

pub mod view;

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::{FromRequestParts, Request, State},
    response::Response,
};
use http::{StatusCode, request::Parts};
use jiff::Timestamp;
use utoipa::{
    IntoParams,
    openapi::path::{Parameter, ParameterIn},
};

use super::{
    App,
    extract::{
        Caller, IfMatch, Post,
        fields::Fields,
        id_parameter,
        idempotency::{self, Retention},
        query::Paging,
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::error::quota_used_up;
use api::{CreateKey, Key, List, NewKey, Single};
use resources::{
    KeyScope, ids, times,
    validation::{self, MAX_NAME},
};

/// Reads a request to create one; 422 names every invalid field. `now` is `None` for a request that may be a repetition: its expiry may be
/// in the past by then.
fn read(mut fields: Fields, now: Option<Timestamp>) -> Result<CreateKey, Error> {
    let name = fields.string("name", &|text| validation::label(text, MAX_NAME));
    let scope = fields.string("scope", &|text| match text {
        "read" | "write" => Ok(()),
        _ => Err("must be read or write"),
    });
    let expires_at = fields.string("expires_at", &|text| match text.parse::<Timestamp>() {
        Ok(time) if !times::is_in_schema(time) => Err("must be before the year 9000"),
        Ok(time) if now.is_none_or(|now| time > now) => Ok(()),
        Ok(_) => Err("must be in the future"),
        Err(_) => Err("must be an RFC 3339 time such as 2027-02-21T10:00:00Z"),
    });
    fields.finish()?;
    Ok(CreateKey {
        name,
        scope: match scope.as_deref() {
            Some("read") => KeyScope::Read,
            _ => KeyScope::Write,
        },
        expires_at: expires_at.and_then(|text| text.parse().ok()),
    })
}

/// The name in `/v1/keys/{id}`; `None` if it is not a valid object name.
pub struct KeyName(Option<String>);

impl<S: Sync> FromRequestParts<S> for KeyName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let name = parts.uri.path().rsplit('/').next().unwrap_or_default();
        Ok(Self(ids::is_object_name(name).then(|| name.to_owned())))
    }
}

impl IntoParams for KeyName {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        vec![id_parameter("id", "KeyId")]
    }
}

/// Lists API keys
///
/// Newest first, then by id; without the keys themselves.
#[utoipa::path(
    get, path = "/v1/keys", operation_id = "listKeys", tag = "account",
    params(Paging),
    responses((status = 200, description = "A page of API keys", body = List<Key>)),
)]
pub async fn list(State(app): State<Arc<App>>, caller: Caller, paging: Paging) -> Result<Response, Error> {
    let keys = app.service.list_keys(caller.namespace(), paging);
    response::list(paging, keys, |key| view::key(key))
}

/// Creates an API key
///
/// The key itself is shown only in this answer. It works at once. A repetition with the same `Idempotency-Key` shows which key
/// was created, with `null` in place of the key itself.
#[utoipa::path(
    post, path = "/v1/keys", operation_id = "createKey", tag = "account",
    request_body(content = CreateKey, example = json!({"name": "dashboard", "scope": "read", "expires_at": "2027-02-21T00:00:00Z"})),
    responses(
        (status = 201, description = "The API key", body = Single<NewKey>, headers(("ETag")), example = json!({"message": "Store the key now; it will not be shown again."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("API keys")))),
    ),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Error> {
    let post = Post::with_optional_body(request).await?;
    let request = post.idempotent.as_ref();
    let now = request.is_none().then(|| app.service.now());
    let body = read(post.fields, now)?;
    let created = app.service.create_key(caller.tenant(), &body, request).await?;
    let message = match created.key {
        Some(_) => "Store the key now; it will not be shown again.",
        None => "The key was shown when it was created. If it is lost, revoke this one and create another.",
    };
    let data = view::created(&created.object, created.key.clone());
    let mut response = response::single(
        StatusCode::CREATED,
        &*created.object,
        data,
        Some(message.to_owned()),
    )?;
    response::locate(
        &mut response,
        "/v1/keys",
        created.object.metadata.name.as_deref().unwrap_or_default(),
    );
    let replayed = created.key.is_none();
    idempotency::mark(&mut response, request, replayed, Retention::Resource);
    Ok(response)
}

/// Shows an API key
///
/// Without the key itself.
#[utoipa::path(
    get, path = "/v1/keys/{id}", operation_id = "getKey", tag = "account",
    params(KeyName),
    responses((status = 200, description = "The API key", body = Single<Key>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    KeyName(name): KeyName,
) -> Result<Response, Error> {
    let key = app.service.key(caller.namespace(), name.as_deref()).await?;
    response::single(StatusCode::OK, &*key, view::key(&key), None)
}

/// Revokes an API key
///
/// It stops working within a second. A key with the scope `write` can revoke itself.
#[utoipa::path(
    delete, path = "/v1/keys/{id}", operation_id = "revokeKey", tag = "account",
    params(KeyName),
    responses((status = 204, description = "The API key is revoked")),
)]
pub async fn revoke(
    State(app): State<Arc<App>>,
    caller: Caller,
    KeyName(name): KeyName,
    IfMatch(precondition): IfMatch,
) -> Result<StatusCode, Error> {
    app.service
        .revoke_key(caller.namespace(), name.as_deref(), &precondition)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facade::extract::body::fields;

    fn read(body: &Value) -> Result<CreateKey, Error> {
        let now = "2026-11-22T10:00:00Z".parse().unwrap();
        super::read(fields(&body.to_string())?, Some(now))
    }

    #[test]
    fn by_default_a_key_may_write_and_does_not_expire() {
        let key = read(&json!({})).unwrap();
        assert_eq!((key.scope, key.expires_at), (KeyScope::Write, None));
        let key = read(&json!({ "scope": "read", "expires_at": "2026-11-22T11:30:00+01:00" })).unwrap();
        assert!(key.scope == KeyScope::Read && key.expires_at.is_some());
        let name = "Größe 42: \u{1f511}".repeat(5);
        let key = read(&json!({ "name": name })).unwrap();
        assert_eq!(
            key.name,
            Some(name),
            "any characters, and they are counted, not bytes"
        );
    }

    #[test]
    fn wrong_fields_are_refused() {
        for (body, field) in [
            (json!({ "scope": "admin" }), "scope"),
            (json!({ "scope": null }), "scope"),
            (json!({ "expires_at": "2026-11-22T10:00:00Z" }), "expires_at"),
            (json!({ "expires_at": "tomorrow" }), "expires_at"),
            (json!({ "expires_at": "9000-01-01T00:00:00Z" }), "expires_at"),
            (json!({ "expires_at": "9999-12-29T23:59:59-23:59" }), "expires_at"),
            (json!({ "expires_in": 7 }), "expires_in"),
            (json!({ "name": "ä".repeat(64) }), "name"),
            (json!({ "name": "two\nlines" }), "name"),
            (json!({ "name": "\u{202e}drawkcab" }), "name"),
        ] {
            let error = read(&body).unwrap_err();
            assert_eq!(error.details[0].field, field, "{body}");
        }
    }

    #[tokio::test]
    async fn an_invalid_object_name_is_none() {
        for (path, expected) in [
            ("/v1/keys/key-1", Some("key-1")),
            ("/v1/keys/laptop.ada", Some("laptop.ada")),
            ("/v1/keys/-a", None),
            ("/v1/keys/Key", None),
            ("/v1/keys/%61", None),
        ] {
            let (mut parts, ()) = Request::get(path).body(()).unwrap().into_parts();
            let KeyName(name) = KeyName::from_request_parts(&mut parts, &()).await.unwrap();
            assert_eq!(name.as_deref(), expected, "{path}");
        }
    }
}
