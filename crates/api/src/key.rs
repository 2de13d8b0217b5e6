//! API keys: `/v1/keys` (decisions, section 6).

use jiff::{Timestamp, civil::Date};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{schema, time::Seconds};
use resources::KeyScope;

/// An API key, without the key itself.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Key {
    /// Identifier: the name of the ApiKey.
    #[schema(schema_with = schema::key_id)]
    pub id: String,
    /// What the key is for; `null` if that was not said.
    #[schema(required, max_length = 63, example = "dashboard")]
    pub name: Option<String>,
    /// What the key may do.
    #[schema(schema_with = schema::key_scope)]
    pub scope: KeyScope,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// When the key expires; `null` if it does not.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2027-02-21T00:00:00Z")]
    pub expires_at: Option<Seconds>,
    /// The latest day, in UTC, on which the key was used, also through the console; `null` if it was not. A new day shows within
    /// seconds.
    #[schema(required, value_type = Option<String>, format = Date, example = "2026-11-21")]
    pub last_used_on: Option<Date>,
    /// The last characters of the key, to tell keys apart; `null` if they are not known.
    #[schema(required, max_length = 4, example = "xRtY")]
    pub last_characters: Option<String>,
}

/// An API key that was just created.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct NewKey {
    /// Identifier: the name of the ApiKey.
    #[schema(schema_with = schema::key_id)]
    pub id: String,
    /// The key itself, for the header `Authorization: Bearer <API_KEY>`. It is shown only once; `null` in the answer to a
    /// repeated request.
    #[schema(
        required,
        example = "stl_4q7hz0c9k2m8x1ta0Zr1kN6jS8d5wq9XyTn2uVb4cLm7aHgE3fPoKiJxRtY"
    )]
    pub key: Option<String>,
    /// What the key is for; `null` if that was not said.
    #[schema(required, max_length = 63, example = "dashboard")]
    pub name: Option<String>,
    /// What the key may do.
    #[schema(schema_with = schema::key_scope)]
    pub scope: KeyScope,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// When the key expires; `null` if it does not.
    #[schema(required, value_type = Option<String>, format = DateTime, example = "2027-02-21T00:00:00Z")]
    pub expires_at: Option<Seconds>,
    /// The latest day, in UTC, on which the key was used: `null`, but in the answer to a repeated request.
    #[schema(required, value_type = Option<String>, format = Date)]
    pub last_used_on: Option<Date>,
    /// The last characters of the key, to tell keys apart; `null` if they are not known.
    #[schema(required, max_length = 4, example = "xRtY")]
    pub last_characters: Option<String>,
}

/// An API key to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// What the key is for, in your words.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        max_length = 63,
        pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]*$",
        example = "dashboard"
    )]
    pub name: Option<String>,
    /// What the key may do; by default `write`.
    #[serde(default)]
    #[schema(required = false, schema_with = schema::key_scope)]
    pub scope: KeyScope,
    /// RFC 3339 time in the future at which the key expires; by default it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}
