//! `/v1/account`: the account that the key belongs to.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;

use super::{
    App,
    extract::Caller,
    rate_limit,
    response::{self, error::Error},
};
use crate::service::credentials::Tenant;
use api::{Account, AccountQuotas, Seconds, Single, Suspension};
use resources::account::SuspendedServers;

fn view(tenant: &Tenant, quotas: AccountQuotas) -> Account {
    Account {
        id: tenant.id.to_string(),
        name: tenant.account.to_string(),
        installation: tenant.installation.as_deref().map(ToOwned::to_owned),
        email: tenant.email.to_string(),
        created_at: Seconds(tenant.created_at),
        quotas,
        suspended: tenant.suspended.as_ref().map(|suspension| Suspension {
            reason: suspension.reason.clone(),
            servers_stopped: suspension.servers == SuspendedServers::Stop,
        }),
        rate_limit_per_hour: tenant.rate_limit,
        account_rate_limit_per_hour: rate_limit::of_account(tenant.rate_limit),
    }
}

/// Shows the account
///
/// The account that the API key belongs to: its e-mail address, quotas and rate limits, and whether it is suspended.
#[utoipa::path(
    get, path = "/v1/account", operation_id = "getAccount", tag = "account",
    responses((status = 200, description = "The account", body = Single<Account>, example = json!({"data": {"quotas": {
        "vcpu": {"used": 6, "limit": 32}, "memory_gb": {"used": 12, "limit": null}, "disk_gb": {"used": 240, "limit": 2000},
        "webhooks": {"used": 1}, "api_keys": {"used": 2, "limit": 50}, "private_networks": {"used": 1, "limit": 10},
        "backups": {"used": 4, "limit": 1000}
    }}}))),
)]
pub async fn show(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Error> {
    let tenant = caller.tenant();
    let answer = Single {
        data: view(tenant, app.service.quotas(tenant)),
        message: None,
    };
    response::json(StatusCode::OK, &answer, 512)
}
