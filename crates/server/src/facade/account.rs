//! `/v1/account`: the account that the key belongs to.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    App,
    extract::Caller,
    openapi::examples,
    rate_limit,
    response::{
        self,
        error::ApiError,
        view::{Seconds, Single},
    },
};
use crate::service::{account::Quota, credentials::Tenant};

/// The account that the key belongs to.
#[derive(Serialize, ToSchema)]
#[schema(as = Account)]
pub struct AccountView {
    /// Identifier of the account holder; also part of every event.
    #[schema(pattern = "^usr_[a-z0-9]{16}$", example = "usr_7hz0c9k2m8x1ta4q")]
    id: Box<str>,
    /// Name of the account.
    #[schema(example = "demo")]
    name: Box<str>,
    /// E-mail address of the account holder, for notifications.
    #[schema(format = Email, example = "ada@example.com")]
    email: Box<str>,
    /// When the account was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T09:00:00Z")]
    created_at: Seconds,
    /// Quotas of the account, and how much of them is used.
    quotas: AccountQuotas,
    /// Requests that each API key may make per hour.
    #[schema(minimum = 1, example = 3600)]
    rate_limit_per_hour: u32,
    /// Requests that all API keys of the account together may make per hour: ten times as many.
    #[schema(minimum = 10, example = 36000)]
    account_rate_limit_per_hour: u32,
}

/// Quotas of an account, and how much of them is used.
#[derive(Serialize, ToSchema)]
pub struct AccountQuotas {
    /// Instances.
    instances: QuotaView,
    /// Webhooks.
    webhooks: QuotaView,
    /// API keys.
    api_keys: QuotaView,
    /// Manual backups.
    backups: QuotaView,
}

/// A quota: the number in use, and the maximum.
#[derive(Serialize, ToSchema)]
#[schema(as = Quota)]
pub struct QuotaView {
    /// Number in use.
    #[schema(minimum = 0, example = 3)]
    used: usize,
    /// Maximum; `null` means unlimited.
    #[schema(required, minimum = 0, example = 20)]
    limit: Option<usize>,
}

impl From<Quota> for QuotaView {
    fn from(quota: Quota) -> Self {
        Self {
            used: quota.used,
            limit: quota.limit,
        }
    }
}

impl AccountView {
    fn of(tenant: &Tenant, quotas: AccountQuotas) -> Self {
        Self {
            id: tenant.id.clone(),
            name: tenant.account.clone(),
            email: tenant.email.clone(),
            created_at: Seconds(tenant.created_at),
            quotas,
            rate_limit_per_hour: tenant.rate_limit,
            account_rate_limit_per_hour: rate_limit::of_account(tenant.rate_limit),
        }
    }

    /// An example for the OpenAPI document.
    fn example() -> Self {
        let quota = |used, limit| QuotaView { used, limit };
        Self {
            id: "usr_7hz0c9k2m8x1ta4q".into(),
            name: "demo".into(),
            email: "ada@example.com".into(),
            created_at: Seconds("2026-11-21T09:00:00Z".parse().unwrap_or_default()),
            quotas: AccountQuotas {
                instances: quota(3, Some(20)),
                webhooks: quota(1, Some(20)),
                api_keys: quota(2, Some(50)),
                backups: quota(4, Some(1000)),
            },
            rate_limit_per_hour: 3600,
            account_rate_limit_per_hour: rate_limit::of_account(3600),
        }
    }
}

/// Shows the account
///
/// The account that the API key belongs to: its e-mail address, quotas and rate limits.
#[utoipa::path(
    get, path = "/v1/account", operation_id = "getAccount", tag = "account",
    responses((status = 200, description = "The account", body = Single<AccountView>, example = json!(examples::single(AccountView::example())))),
)]
pub async fn show(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let tenant = caller.tenant();
    let quotas = app.service.quotas(tenant);
    let quotas = AccountQuotas {
        instances: quotas.instances.into(),
        webhooks: quotas.webhooks.into(),
        api_keys: quotas.api_keys.into(),
        backups: quotas.backups.into(),
    };
    let answer = Single {
        data: AccountView::of(tenant, quotas),
        message: None,
    };
    response::json(StatusCode::OK, &answer, 512)
}
