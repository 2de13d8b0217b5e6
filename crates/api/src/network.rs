//! Private networks: `/v1/networks`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{schema, time::Seconds};

/// A private network of the account.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct PrivateNetwork {
    /// Identifier.
    #[schema(schema_with = schema::network_id)]
    pub id: String,
    /// Display name; need not be unique.
    #[schema(example = "backend")]
    pub name: String,
    /// Region code. Only instances of this region can be attached.
    #[schema(example = "fr-par-1")]
    pub region: String,
    /// The IPv4 prefix that instances get their addresses from; `null` until it is chosen, which takes a moment.
    #[schema(required, example = "10.128.4.0/24")]
    pub prefix: Option<String>,
    /// Whether instances can be attached.
    #[schema(example = true)]
    pub ready: bool,
    /// Why they cannot. Present only while `ready` is `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "the network is being made")]
    pub message: Option<String>,
    /// Number of instances that are in the network.
    #[schema(minimum = 0, example = 2)]
    pub instances: usize,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
}

/// A private network to create.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNetwork {
    /// Display name; need not be unique. By default the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$",
        example = "backend"
    )]
    pub name: Option<String>,
    /// Region code.
    #[schema(example = "fr-par-1")]
    pub region: String,
    /// IPv4 prefix from 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16: a /16 at the largest, a /28 at the smallest. It must not overlap
    /// another network of the account, nor 10.0.2.0/24. By default a free /24.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_length = 18, example = "10.128.4.0/24")]
    pub prefix: Option<String>,
}

/// Changes of a private network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeNetwork {
    /// Display name; need not be unique.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$",
        example = "backend"
    )]
    pub name: Option<String>,
}
