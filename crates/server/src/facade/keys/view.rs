//! API keys as responses show them (decisions, section 6).

use jiff::Timestamp;

use crate::service::index::Object as _;
use api::{Key, NewKey, Seconds};
use resources::{ApiKey, origin};

/// A key as lists and its detail show it.
pub fn key(key: &ApiKey) -> Key {
    Key {
        id: key.name().to_owned(),
        name: key.spec.name.clone(),
        scope: key.spec.scope,
        created_at: Seconds(origin::created_at(&key.metadata).unwrap_or(Timestamp::UNIX_EPOCH)),
        expires_at: key.spec.expires_at.map(Seconds),
        last_used_on: key.last_used_on(),
        last_characters: key.last_characters().map(ToOwned::to_owned),
    }
}

/// A key as the answer to a create shows it.
pub fn created(object: &ApiKey, key: Option<String>) -> NewKey {
    let shown = self::key(object);
    NewKey {
        id: shown.id,
        key,
        name: shown.name,
        scope: shown.scope,
        created_at: shown.created_at,
        expires_at: shown.expires_at,
        last_used_on: shown.last_used_on,
        last_characters: shown.last_characters,
    }
}
