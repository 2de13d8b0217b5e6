//! Instances: list, create, detail, and the actions on one.
//!
//! - `view`: instances and images as pages show them; `charts`: their usage over time;
//! - `create`: the form for a new one, with `offers`: what the regions offer; `operate`: power, plan, image, settings, backups, deletion;
//! - `server_console`: the console of its server.

mod charts;
mod create;
pub(super) mod offers;
mod operate;
mod server_console;
mod view;

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::StatusCode;
use jiff::Timestamp;

use self::{
    charts::{Chart, Measured},
    view::{Instance, ListItem, statuses},
};
use super::{
    App,
    alerts::Alert,
    backups::view::Backup,
    call::{Call, Id, with_query},
    events::{
        sent::{Sent, sent},
        view::Event,
    },
    form::Form,
    page::{Pager, Query, Shell, page},
    refresh::Refresh,
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
    webhooks::view::Webhook,
};
use api::{CursorList, List, RegionOffer, Seconds, Single};
use domain::instance::Action;

/// The section in the navigation.
const SECTION: &str = "instances";
/// Instances on a page.
const PER_PAGE: &str = "20";
/// Number of backups, and of events, on the page of an instance.
const FEW: &str = "5";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/instances", get(list).post(create::send))
        .route("/console/instances/new", get(create::show))
        .route("/console/instances/{id}", get(detail))
        .route(
            "/console/instances/{id}/power/{action}",
            get(operate::show_power).post(operate::power),
        )
        .route(
            "/console/instances/{id}/plan",
            get(operate::show_plan).post(operate::change_plan),
        )
        .route(
            "/console/instances/{id}/rebuild",
            get(operate::show_rebuild).post(operate::rebuild),
        )
        .route(
            "/console/instances/{id}/settings",
            get(operate::show_settings).post(operate::change_settings),
        )
        .route(
            "/console/instances/{id}/backup",
            get(operate::show_backup).post(operate::back_up),
        )
        .route(
            "/console/instances/{id}/console",
            get(server_console::show).post(server_console::open),
        )
        .route(
            "/console/instances/{id}/delete",
            get(operate::show_delete).post(operate::delete),
        )
}

#[derive(Template)]
#[template(path = "console/instances/list.html")]
struct ListPage {
    shell: Shell,
    query: Query,
    statuses: Vec<&'static str>,
    regions: Vec<RegionOffer>,
    items: Vec<ListItem>,
    pager: Pager,
    is_filtered: bool,
    refresh: Refresh,
}

async fn list(request: SessionRequest) -> Answer {
    let filters = ["search", "tag", "status", "region", "private_network"];
    let (call, items, pager) = request
        .list::<ListItem>("instances", &filters, Some(PER_PAGE))
        .await?;
    // A refresh replaces only the rows.
    let regions = if request.is_refresh {
        Vec::new()
    } else {
        offers::regions(&request).await?
    };
    let is_under_way = items.iter().any(ListItem::is_under_way);
    let template = ListPage {
        shell: request.shell_with(SECTION, "Instances", &[call]),
        statuses: statuses(),
        regions,
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(is_under_way),
        query: request.query,
        items,
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}

/// A power action, as a button.
struct Power {
    action: &'static str,
    label: &'static str,
    hint: &'static str,
    is_harsh: bool,
}

#[derive(Template)]
#[template(path = "console/instances/detail.html")]
#[expect(clippy::struct_excessive_bools, reason = "which buttons it has")]
struct DetailPage {
    shell: Shell,
    instance: Instance,
    powers: Vec<Power>,
    may_change_plan: bool,
    may_rebuild: bool,
    may_back_up: bool,
    may_open_console: bool,
    backups: Vec<Backup>,
    /// `None` if it is not read again.
    more: Option<More>,
    /// Idempotency-Key of the buttons.
    form: Form,
    refresh: Refresh,
    /// When usage was read.
    now: Timestamp,
}

/// The past of an instance, as its page shows it.
struct More {
    /// `None` if events are not logged.
    events: Option<Vec<Event>>,
    /// The webhooks that these events were sent to.
    sent: Vec<Sent>,
    /// `None` if it is not monitored.
    usage: Option<Usage>,
}

impl More {
    /// Reads it, and adds the requests to `calls`.
    async fn read(
        request: &SessionRequest,
        instance: &Instance,
        calls: &mut Vec<Call>,
    ) -> Result<Self, Refusal> {
        let id = &instance.id;
        let usage = if instance.monitoring_enabled {
            Some(usage(request, id, calls).await?)
        } else {
            None
        };
        let call = Call::get(with_query("/v1/events", &[("instance_id", id), ("limit", FEW)]));
        let Some(CursorList { data: events, .. }) = request.find::<CursorList<Event>>(&call).await? else {
            return Ok(Self {
                events: None,
                sent: Vec::new(),
                usage,
            });
        };
        calls.push(call);
        let wants = |webhook: &Webhook| events.iter().any(|event| webhook.wants(event.r#type));
        let sent = sent(request, &events, wants).await?;
        calls.extend(sent.iter().map(|sent| sent.call.clone()));
        Ok(Self {
            events: Some(events),
            sent,
            usage,
        })
    }
}

/// The monitoring data of an instance.
struct Usage {
    /// `1h` or `24h`.
    window: &'static str,
    known_since: Option<Seconds>,
    charts: Vec<Chart>,
    /// Why there are no charts.
    problem: Option<String>,
    alerts: Vec<Alert>,
}

impl Usage {
    /// When the charts begin.
    fn begins(&self) -> &'static str {
        if self.window == "24h" {
            "24 hours ago"
        } else {
            "an hour ago"
        }
    }
}

/// Reads the monitoring data of an instance, and adds the requests to `calls`.
async fn usage(request: &SessionRequest, id: &str, calls: &mut Vec<Call>) -> Result<Usage, Refusal> {
    let window = if request.query.is("window", "24h") {
        "24h"
    } else {
        "1h"
    };
    let call = Call::get(format!("/v1/instances/{id}/metrics?window={window}"));
    // The metrics system may be unavailable for a moment, or there is none.
    let (measured, problem) = match request.get::<Single<Measured>>(&call).await {
        Ok(measured) => (Some(measured.data), None),
        Err(refusal) => (None, Some(refusal.error.message)),
    };
    let alerts_call = Call::get(with_query("/v1/alerts", &[("instance_id", id), ("limit", FEW)]));
    let alerts: List<Alert> = request.get(&alerts_call).await?;
    calls.extend([call, alerts_call]);
    Ok(Usage {
        window,
        known_since: measured.as_ref().and_then(|measured| measured.known_since),
        charts: measured.map_or_else(Vec::new, |measured| measured.charts()),
        problem,
        alerts: alerts.data,
    })
}

async fn detail(request: SessionRequest, Id(id): Id) -> Answer {
    let call = Call::get(format!("/v1/instances/{id}?include=metrics"));
    let Single { data: instance, .. }: Single<Instance> = request.get(&call).await?;
    let backups = Call::get(with_query(
        &format!("/v1/instances/{id}/backups"),
        &[("limit", FEW)],
    ));
    let mut calls = vec![call, backups];
    let backups: List<Backup> = request.get(&calls[1]).await?;
    let backs_up = backups.data.iter().any(Backup::is_running);
    let is_under_way = instance.is_under_way() || backs_up;
    // Events are read from the API server, not from a watch, so a page that refreshes fast reads them only when the operation is over.
    let more = if request.is_refresh && is_under_way {
        None
    } else {
        Some(More::read(&request, &instance, &mut calls).await?)
    };
    let may = |action: Action| instance.allows(action) && request.may_write();
    let powers = [
        (Action::Start, "Start", "Power it on", false),
        (
            Action::Stop,
            "Shut down",
            "Ask the guest to shut down; its power is cut if it does not",
            false,
        ),
        (Action::Reboot, "Reboot", "Power-cycle it", false),
        (
            Action::PowerOff,
            "Cut power",
            "Like pulling the plug: unsaved data may be lost",
            true,
        ),
    ]
    .into_iter()
    .filter(|(action, ..)| may(*action))
    .map(|(action, label, hint, is_harsh)| Power {
        action: action.as_str(),
        label,
        hint,
        is_harsh,
    })
    .collect::<Vec<_>>();
    calls.extend(
        powers
            .iter()
            .map(|power| Call::post(format!("/v1/instances/{id}/{}", power.action))),
    );
    let template = DetailPage {
        shell: request.shell_with(SECTION, instance.name.as_str(), &calls),
        may_change_plan: may(Action::ChangePlan),
        may_rebuild: may(Action::Rebuild),
        may_back_up: instance.may_be_backed_up() && !backs_up && request.may_write(),
        may_open_console: instance.may_have_console()
            && request.gateway_origin().is_some()
            && request.may_write(),
        powers,
        backups: backups.data,
        more,
        form: Form::new(),
        refresh: request.refresh(is_under_way),
        now: request.now(),
        instance,
    };
    Ok(page(StatusCode::OK, &template))
}
