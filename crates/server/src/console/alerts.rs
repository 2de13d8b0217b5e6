//! Alerts of monitored instances: those that are firing, and those of the last day.

use std::sync::Arc;

use askama::Template;
use axum::{Router, response::Response, routing::get};
use http::StatusCode;

use super::{
    App,
    call::{Call, with_query},
    page::{Pager, Query, Shell, Shown, page},
    refresh::Refresh,
    refusal::Refusal,
    session_request::SessionRequest,
    text::{Moment as _, percent},
};
use api::{AlertMetric, AlertStatus, List};

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new().route("/console/alerts", get(list))
}

pub type Alert = Shown<api::Alert>;

impl Alert {
    /// Whether it is firing.
    pub fn is_firing(&self) -> bool {
        self.status == AlertStatus::Firing
    }

    /// The colour of its status.
    pub fn tone(&self) -> &'static str {
        if self.is_firing() { "bad" } else { "quiet" }
    }

    /// What was measured.
    pub fn measured(&self) -> String {
        let metric = match self.metric {
            AlertMetric::CpuUsage => "CPU",
            AlertMetric::MemoryUsage => "memory",
            AlertMetric::DiskUsage => "disk",
        };
        format!(
            "{metric} {}, above {}",
            percent(Some(self.value)),
            percent(Some(self.threshold))
        )
    }
}

#[derive(Template)]
#[template(path = "console/alerts/list.html")]
struct ListPage {
    shell: Shell,
    query: Query,
    items: Vec<Alert>,
    pager: Pager,
    is_filtered: bool,
    refresh: Refresh,
}

async fn list(request: SessionRequest) -> Result<Response, Refusal> {
    let filters = ["status", "instance_id"];
    let parameters = [
        ("status", request.query.get("status")),
        ("instance_id", request.query.get("instance_id")),
        ("page", request.query.get("page")),
    ];
    let call = Call::get(with_query("/v1/alerts", &parameters));
    let List {
        data: items,
        pagination,
    }: List<Alert> = request.get(&call).await?;
    let template = ListPage {
        shell: request.shell_with("alerts", "Alerts", &[call]),
        pager: Pager::new(pagination, "/console/alerts", &request.query),
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(false),
        query: request.query,
        items,
    };
    Ok(page(StatusCode::OK, &template))
}
