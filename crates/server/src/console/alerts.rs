//! Alerts of monitored instances: those that are firing, and those of the last day.

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::StatusCode;

use super::{
    App,
    page::{Pager, Query, Shell, Shown, page},
    refresh::Refresh,
    refusal::Answer,
    session_request::SessionRequest,
    text::{Moment as _, percent},
};
use api::{AlertMetric, AlertStatus};

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

async fn list(request: SessionRequest) -> Answer {
    let filters = ["status", "instance_id"];
    let (call, items, pager) = request.list::<Alert>("alerts", &filters, None).await?;
    let template = ListPage {
        shell: request.shell_with("alerts", "Alerts", &[call]),
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(false),
        query: request.query,
        items,
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}
