//! The account: `/v1/account`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Seconds;

/// The account that the key belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Account {
    /// Identifier of the account holder; also part of every event.
    #[schema(pattern = "^usr_[a-z0-9]{16}$", example = "usr_7hz0c9k2m8x1ta4q")]
    pub id: String,
    /// Name of the account.
    #[schema(example = "demo")]
    pub name: String,
    /// Name of the installation that the account is in; `null` if it has none.
    #[schema(required, pattern = "^[a-z][a-z0-9]{0,11}$", example = "eu1")]
    pub installation: Option<String>,
    /// E-mail address of the account holder, for notifications.
    #[schema(format = Email, example = "ada@example.com")]
    pub email: String,
    /// When the account was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T09:00:00Z")]
    pub created_at: Seconds,
    /// Quotas of the account, and how much of them is used.
    pub quotas: AccountQuotas,
    /// Why the account is suspended; `null` unless it is. Until that is lifted, the account can only be read.
    #[schema(required)]
    pub suspended: Option<Suspension>,
    /// Requests that each API key may make per hour.
    #[schema(minimum = 1, example = 3600)]
    pub rate_limit_per_hour: u32,
    /// Requests that all API keys of the account together may make per hour: ten times as many.
    #[schema(minimum = 10, example = 36000)]
    pub account_rate_limit_per_hour: u32,
}

/// The suspension of an account.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Suspension {
    /// The reason, for people.
    #[schema(example = "invoice 2026-000042 is overdue")]
    pub reason: String,
    /// Whether the servers of the account are kept off until the suspension is lifted.
    #[schema(example = true)]
    pub servers_stopped: bool,
}

/// Quotas of an account, and how much of them is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct AccountQuotas {
    /// Instances.
    pub instances: Quota,
    /// Virtual CPUs of all instances together.
    pub vcpu: Quota,
    /// Memory of all instances together, in GB.
    pub memory_gb: Quota,
    /// Disks of all instances together, in GB.
    pub disk_gb: Quota,
    /// Webhooks.
    pub webhooks: Quota,
    /// API keys.
    pub api_keys: Quota,
    /// Private networks.
    pub private_networks: Quota,
    /// Manual backups, and the completed backups of deleted instances.
    pub backups: Quota,
}

/// A quota: the number in use, or the sum, and the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct Quota {
    /// Number in use.
    #[schema(minimum = 0, example = 3)]
    pub used: usize,
    /// Maximum; `null` means unlimited.
    #[schema(required, minimum = 0, example = 20)]
    pub limit: Option<usize>,
}
