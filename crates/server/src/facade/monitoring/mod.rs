//! `/v1/alerts` and `/v1/instances/{id}/metrics`: alerts, and usage over time.
//!
//! - `view`: alerts and series as responses show them.

pub mod view;

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;

use super::{
    App,
    extract::{
        Caller, Target,
        query::{Paging, Parameters},
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{alerts::AlertFilter, error::not_monitored, id::InstanceId};
use api::{Alert, InstanceSeries, List, Single};
use domain::provider::Window;

/// Lists alerts
///
/// Of all monitored instances of the account: those that are firing, and those that ended within the last 24 hours; newest first,
/// then by id. Filters can be combined with each other and with paging. A filter that matches nothing gives an empty list.
#[utoipa::path(
    get,
    path = "/v1/alerts",
    operation_id = "listAlerts",
    tag = "monitoring",
    params(
        Paging,
        ("instance_id" = Option<String>, Query, description = "Only alerts of this instance.", example = "i-4q7hz0c9k2m8x1ta"),
        ("status" = Option<String>, Query, description = "Only alerts with this status: `firing` or `ended`.", example = "firing"),
    ),
    responses((status = 200, description = "A page of alerts", body = List<Alert>, example = json!({"data": [{"ended_at": null}]}))),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    paging: Paging,
    parameters: Parameters,
) -> Result<Response, Error> {
    let filter = AlertFilter {
        instance_id: parameters.get("instance_id"),
        status: parameters.get("status"),
    };
    let alerts = app.service.list_alerts(caller.namespace(), filter, paging);
    response::list(paging, alerts, view::alert)
}

/// Shows the usage of an instance over time
///
/// A point a minute for the last hour, or every five minutes for the last day. What is not known is `null`, as is everything before
/// `known_since`. Only of an instance with `monitoring_enabled`, and where a metrics system keeps its usage.
#[utoipa::path(
    get,
    path = "/v1/instances/{id}/metrics",
    operation_id = "getInstanceMetrics",
    tag = "monitoring",
    params(Target<InstanceId>, ("window" = Option<String>, Query, description = "`1h`, the default, or `24h`.", pattern = "^(1h|24h)$", example = "1h")),
    responses(
        (status = 200, description = "The usage", body = Single<InstanceSeries>, example = json!({"data": {"series": {
            "network_in": [["2026-11-21T10:00:00Z", 1_048_576], ["2026-11-21T10:01:00Z", null]],
            "network_out": [["2026-11-21T10:00:00Z", 524_288], ["2026-11-21T10:01:00Z", null]]
        }}})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(not_monitored()))),
        (status = 422, description = "Unprocessable Entity", body = ErrorAnswer, example = json!(examples::error(wrong_window()))),
    ),
)]
pub async fn series(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    parameters: Parameters,
) -> Result<Response, Error> {
    let window = match parameters.get("window") {
        None => Window::Hour,
        Some(text) => Window::parse(text).ok_or_else(wrong_window)?,
    };
    let series = app.service.series_of(caller.namespace(), id, window).await?;
    let data = view::series(window, &series);
    let answer = Single { data, message: None };
    response::json(StatusCode::OK, &answer, 32 * series.points.len() * 5)
}

/// The refusal of another window.
fn wrong_window() -> Error {
    Error::invalid_value("window", "must be 1h or 24h")
}
