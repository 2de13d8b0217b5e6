//! Events: `/v1/events`, and what webhooks receive (specification, section 6).

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::time::Seconds;
use resources::EventType;

/// An event, exactly as receivers get it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Event {
    /// Identifier, the same in every attempt to send it.
    pub id: String,
    /// Its type.
    pub r#type: EventType,
    /// When it happened.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Seconds,
    /// What it is about: the account holder, and the objects of its type. The OpenAPI document has their schemas.
    pub data: Value,
}
