//! `ApiKey`: one REST key, stored only as the digest of a random secret.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::times;

/// What a key may do.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    schemars::JsonSchema,
    clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// GET only; other methods are refused with 403 `token_readonly`.
    Read,
    /// All methods.
    #[default]
    Write,
}

/// A REST key of the account whose namespace it is in. Deleting it revokes the key within a second.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "ApiKey",
    plural = "apikeys",
    shortname = "key",
    category = "stellage",
    namespaced,
    derive = "PartialEq",
    doc = "One REST key of the account whose namespace it is in. Only the digest of the key is stored, so nothing here is secret. Delete the object to revoke the key.",
    printcolumn(name = "Scope", type_ = "string", json_path = ".spec.scope"),
    printcolumn(name = "Ends-In", type_ = "string", json_path = ".spec.lastCharacters"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expiresAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ApiKeySpec {
    /// SHA-256 of the key, 64 lower-case hexadecimal digits. Immutable.
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{64}$')").message("must be the SHA-256 of the key as 64 lower-case hexadecimal digits; `stellage key create` creates one"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is immutable: delete this ApiKey and create another"))]
    #[schemars(length(max = 64))]
    pub sha256: String,

    /// `read` or `write`.
    #[serde(default)]
    pub scope: KeyScope,

    /// When the key stops working. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub expires_at: Option<Timestamp>,

    /// The key's last four characters, to tell keys apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    pub last_characters: Option<String>,
}

impl ApiKey {
    /// Whether the key has expired at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.spec.expires_at.is_some_and(|end| end <= now)
    }
}
