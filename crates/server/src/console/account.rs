//! The account: quotas and their use, limits, e-mail address.

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::StatusCode;

use super::{
    App,
    call::Call,
    page::{Shell, page},
    refusal::Answer,
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{Account, Quota, Single};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/console/account", get(show))
}

#[derive(Template)]
#[template(path = "console/account.html")]
struct AccountPage {
    shell: Shell,
    account: Account,
}

impl AccountPage {
    /// The quotas with their labels, and the maximum for a meter; an unlimited one is never full.
    fn quotas(&self) -> [(&'static str, Quota, usize); 7] {
        let quotas = &self.account.quotas;
        let row = |label, quota: Quota| (label, quota, quota.limit.unwrap_or(usize::MAX).max(1));
        [
            row("Instances", quotas.instances),
            row("vCPUs", quotas.vcpu),
            row("Memory in GB", quotas.memory_gb),
            row("Disk in GB", quotas.disk_gb),
            row("Webhooks", quotas.webhooks),
            row("API keys", quotas.api_keys),
            row("Manual backups", quotas.backups),
        ]
    }
}

async fn show(request: SessionRequest) -> Answer {
    let call = Call::get("/v1/account");
    let found: Single<Account> = request.get(&call).await?;
    let template = AccountPage {
        shell: request.shell_with("account", "Account", &[call]),
        account: found.data,
    };
    Ok(page(StatusCode::OK, &template))
}
