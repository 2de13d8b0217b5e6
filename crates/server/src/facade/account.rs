//! `/v1/account`: the account that the key belongs to.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;

use super::{
    App,
    extract::Caller,
    openapi::examples,
    rate_limit,
    response::{self, error::Error},
};
use crate::service::credentials::Tenant;
use api::{Account, AccountQuotas, Quota, Seconds, Single, Suspension};
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

/// An example for the OpenAPI document.
fn example() -> Account {
    let quota = |used, limit| Quota { used, limit };
    Account {
        id: "usr_7hz0c9k2m8x1ta4q".to_owned(),
        name: "demo".to_owned(),
        installation: Some("eu1".to_owned()),
        email: "ada@example.com".to_owned(),
        created_at: Seconds("2026-11-21T09:00:00Z".parse().unwrap_or_default()),
        quotas: AccountQuotas {
            instances: quota(3, Some(20)),
            vcpu: quota(6, Some(32)),
            memory_gb: quota(12, None),
            disk_gb: quota(240, Some(2000)),
            webhooks: quota(1, Some(20)),
            api_keys: quota(2, Some(50)),
            private_networks: quota(1, Some(10)),
            backups: quota(4, Some(1000)),
        },
        suspended: None,
        rate_limit_per_hour: 3600,
        account_rate_limit_per_hour: rate_limit::of_account(3600),
    }
}

/// Shows the account
///
/// The account that the API key belongs to: its e-mail address, quotas and rate limits, and whether it is suspended.
#[utoipa::path(
    get, path = "/v1/account", operation_id = "getAccount", tag = "account",
    responses((status = 200, description = "The account", body = Single<Account>, example = json!(examples::single(example())))),
)]
pub async fn show(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Error> {
    let tenant = caller.tenant();
    let answer = Single {
        data: view(tenant, app.service.quotas(tenant)),
        message: None,
    };
    response::json(StatusCode::OK, &answer, 512)
}
