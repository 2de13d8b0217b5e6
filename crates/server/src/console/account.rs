//! The account: quotas and their use, limits, e-mail address.

use std::sync::Arc;

use askama::Template;
use axum::{Router, response::Response, routing::get};
use http::StatusCode;
use serde::Deserialize;

use super::{
    App,
    call::Call,
    page::{Shell, Single, page},
    refusal::Refusal,
    session_request::SessionRequest,
    text::Moment,
};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/console/account", get(show))
}

/// The account.
#[derive(Debug, Deserialize)]
struct AccountView {
    id: String,
    name: String,
    email: String,
    created_at: Moment,
    quotas: Quotas,
    rate_limit_per_hour: u32,
    account_rate_limit_per_hour: u32,
}

#[derive(Debug, Deserialize)]
struct Quotas {
    instances: Quota,
    webhooks: Quota,
    api_keys: Quota,
    backups: Quota,
}

impl Quotas {
    /// The quotas, with their labels.
    fn rows(&self) -> [(&'static str, &Quota); 4] {
        [
            ("Instances", &self.instances),
            ("Webhooks", &self.webhooks),
            ("API keys", &self.api_keys),
            ("Manual backups", &self.backups),
        ]
    }
}

/// A quota: the number in use, and the maximum.
#[derive(Debug, Deserialize)]
struct Quota {
    used: usize,
    limit: Option<usize>,
}

impl Quota {
    /// The maximum, for a meter; an unlimited one is never full.
    fn most(&self) -> usize {
        self.limit.unwrap_or(usize::MAX).max(1)
    }
}

#[derive(Template)]
#[template(path = "console/account.html")]
struct AccountPage {
    shell: Shell,
    account: AccountView,
}

async fn show(request: SessionRequest) -> Result<Response, Refusal> {
    let call = Call::get("/v1/account");
    let found: Single<AccountView> = request.get(&call).await?;
    let template = AccountPage {
        shell: request.shell_with("account", "Account", &[call]),
        account: found.data,
    };
    Ok(page(StatusCode::OK, &template))
}
