//! API keys as responses show them (decisions, section 6).

use jiff::{Timestamp, civil::Date};
use serde::Serialize;
use serde_json::json;
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{facade::response::view::Seconds, service::index::Object as _};
use resources::{ApiKey, KeyScope, origin};

/// An API key, without the key itself.
#[derive(Serialize, ToSchema)]
#[schema(as = Key)]
pub struct KeyView<'a> {
    /// Identifier: the name of the ApiKey.
    #[schema(schema_with = key_id)]
    id: &'a str,
    /// What the key may do.
    #[schema(schema_with = key_scope)]
    scope: KeyScope,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// When the key expires; `null` if it does not.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2027-02-21T00:00:00Z")]
    expires_at: Option<Seconds>,
    /// The latest day, in UTC, on which the key was used, also through the console; `null` if it was not. A new day shows within
    /// seconds.
    #[schema(required, value_type = Option<String>, format = Date, example = "2026-11-21")]
    last_used_on: Option<Date>,
    /// The last characters of the key, to tell keys apart; `null` if they are not known.
    #[schema(required, max_length = 4, example = "xRtY")]
    last_characters: Option<&'a str>,
}

/// An API key that was just created.
#[derive(Serialize, ToSchema)]
pub struct NewKey<'a> {
    /// Identifier: the name of the ApiKey.
    #[schema(schema_with = key_id)]
    id: &'a str,
    /// The key itself, for the header `Authorization: Bearer <API_KEY>`. It is shown only once; `null` in the answer to a
    /// repeated request.
    #[schema(
        required,
        example = "stl_4q7hz0c9k2m8x1ta0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY"
    )]
    key: Option<&'a str>,
    /// What the key may do.
    #[schema(schema_with = key_scope)]
    scope: KeyScope,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// When the key expires; `null` if it does not.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2027-02-21T00:00:00Z")]
    expires_at: Option<Seconds>,
    /// The latest day, in UTC, on which the key was used: `null`, but in the answer to a repeated request.
    #[schema(required, value_type = Option<String>, format = Date)]
    last_used_on: Option<Date>,
    /// The last characters of the key, to tell keys apart; `null` if they are not known.
    #[schema(required, max_length = 4, example = "xRtY")]
    last_characters: Option<&'a str>,
}

impl<'a> KeyView<'a> {
    /// A key as lists and its detail show it.
    pub fn of(key: &'a ApiKey) -> Self {
        Self {
            id: key.name(),
            scope: key.spec.scope,
            created_at: created_at(key),
            expires_at: key.spec.expires_at.map(Seconds),
            last_used_on: key.last_used_on(),
            last_characters: key.spec.last_characters.as_deref(),
        }
    }
}

impl<'a> NewKey<'a> {
    /// A key as the answer to a create shows it.
    pub fn of(object: &'a ApiKey, key: Option<&'a str>) -> Self {
        let KeyView {
            id,
            scope,
            created_at,
            expires_at,
            last_used_on,
            last_characters,
        } = KeyView::of(object);
        Self {
            id,
            key,
            scope,
            created_at,
            expires_at,
            last_used_on,
            last_characters,
        }
    }
}

fn created_at(key: &ApiKey) -> Seconds {
    Seconds(origin::created_at(&key.metadata).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn key_id() -> RefOr<Schema> {
    Ref::from_schema_name("KeyId").into()
}

/// The schema of `scope` in answers and requests.
pub(super) fn key_scope() -> RefOr<Schema> {
    Ref::from_schema_name("KeyScope").into()
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> serde_json::Value {
    json!({
        "KeyId": {
            "type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253,
            "description": "Identifier of an API key.", "examples": ["key-ta4q7hz0c9k2m8x1"],
        },
        "KeyScope": {
            "type": "string", "enum": ["read", "write"], "description": "`read`: GET requests only. `write`: all requests.",
        },
    })
}
