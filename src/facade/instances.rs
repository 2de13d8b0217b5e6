//! `/v1/instances`: list, create, detail, change, delete.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use jiff::Timestamp;

use super::{
    App, answer, body,
    change::Change,
    create::KeyedCreate,
    error::{ApiError, protected},
    id::InstanceId,
    idempotency,
    index::{Filter, Shown},
    modify::Verdict,
    order::Order,
    precondition::IfMatch,
    query::Parameters,
    request::{Asked, Caller, Target},
    view::{InstanceMetrics, InstanceView, List, ListItem, NewInstance, Pagination, Single},
};
use crate::providers::Usage;

/// How long an answer waits for metrics before they are unknown.
const USAGE_TIMEOUT: Duration = Duration::from_secs(2);

/// Lists instances
///
/// Newest first, then by id. Filters can be combined with each other and with paging; a value that does not exist gives an
/// empty list.
#[utoipa::path(
    get,
    path = "/v1/instances",
    operation_id = "listInstances",
    tag = "instances",
    params(
        ("page" = Option<u64>, Query, description = "Page, counted from 1. Past the end: an empty list.", minimum = 1, maximum = 9_007_199_254_740_991_u64, example = 1),
        ("limit" = Option<u64>, Query, description = "Most instances on a page; 20 if it is left out.", minimum = 1, maximum = 100, example = 20),
        ("status" = Option<String>, Query, description = "Only instances with this status.", example = "running"),
        ("region" = Option<String>, Query, description = "Only instances of this region.", example = "fr-par-1"),
    ),
    responses((status = 200, description = "A page of instances", body = List<ListItem<'static>>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let paging = parameters.paging()?;
    let filter = Filter {
        status: parameters.get("status"),
        region: parameters.get("region"),
    };
    let (page, total) = app
        .instances
        .index()
        .page(caller.namespace(), filter, paging.page, paging.limit);
    answer::page(&page, Pagination::new(paging.page, paging.limit, total))
}

/// Creates an instance
///
/// The instance is there at once, in status `provisioning`, and becomes `running` after the time that the message
/// announces. Poll its detail until `data.status` is what you wait for.
#[utoipa::path(
    post,
    path = "/v1/instances",
    operation_id = "createInstance",
    tag = "instances",
    request_body = Order,
    responses((status = 201, description = "The instance is being made", body = Single<NewInstance<'static>>)),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let tenant = &caller.0.tenant;
    let asked = Asked::with_body(request).await?;
    let keyed = KeyedCreate::of(asked.suffix(&tenant.uid), &asked.input.canonical)?;
    let order = Order::read(asked.input.fields, &app.catalogue)?;
    let build = |name: &str, hash: Option<String>| order.clone().into_instance(name, hash);
    let made = app
        .instances
        .create_once(&tenant.namespace, keyed.as_ref(), || tenant.check_stays(), build)
        .await?;
    let response = created(&app, &made.entry)?;
    Ok(idempotency::replayed_if(made.before, response))
}

fn created(app: &App, shown: &Shown) -> Result<Response, ApiError> {
    let message = format!(
        "Instance {} is being created; this takes about {}.",
        shown.instance.display_name(),
        app.provisioning
    );
    let mut response = answer::single(
        StatusCode::CREATED,
        &*shown.instance,
        NewInstance::of(shown),
        Some(message),
    )?;
    answer::locate(&mut response, "/v1/instances", shown.id);
    Ok(response)
}

/// Shows an instance
#[utoipa::path(
    get,
    path = "/v1/instances/{id}",
    operation_id = "getInstance",
    tag = "instances",
    params(("include" = Option<String>, Query, description = "`metrics` adds the usage now.", pattern = "^metrics$", example = "metrics")),
    responses((status = 200, description = "The instance", body = Single<InstanceView<'static>>)),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    parameters: Parameters,
) -> Result<Response, ApiError> {
    let include_metrics = parameters.include_metrics()?;
    let shown = app.instances.find(caller.namespace(), id).await?;
    if !include_metrics {
        return Ok(answer::rendered(&shown));
    }
    let metrics = app.metrics_of(&shown).await;
    answer::single(
        StatusCode::OK,
        &*shown.instance,
        InstanceView::of(&shown, Some(metrics)),
        None,
    )
}

/// Changes an instance
///
/// What is left out stays as it is; `tags` are replaced as a whole. Another `plan` reboots the server unless `reboot` is
/// `false`: then it is pending until the next reboot, or stop and start.
#[utoipa::path(
    patch,
    path = "/v1/instances/{id}",
    operation_id = "changeInstance",
    tag = "instances",
    request_body = Change,
    responses((status = 200, description = "The instance as it is now", body = Single<InstanceView<'static>>)),
)]
pub async fn change(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    let change = Change::read(body::required(request).await?.fields)?;
    let decide = |shown: &Shown| {
        if_match.check(&*shown.instance)?;
        Ok(Verdict::Write {
            spec: Box::new(change.apply(shown)?),
            done: None,
        })
    };
    let shown = app.instances.modify(caller.namespace(), id, decide).await?;
    answer::detail(StatusCode::OK, &shown, None)
}

/// Deletes an instance
///
/// Cannot be undone. The id is unknown from now on, while the server is being removed.
#[utoipa::path(
    delete,
    path = "/v1/instances/{id}",
    operation_id = "deleteInstance",
    tag = "instances",
    responses((status = 204, description = "The instance is gone")),
)]
pub async fn delete(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    if_match: IfMatch,
) -> Result<StatusCode, ApiError> {
    let check = |shown: &Shown| {
        if_match.check(&*shown.instance)?;
        if shown.instance.spec.deletion_protection {
            return Err(protected());
        }
        Ok(())
    };
    app.instances
        .remove(caller.namespace(), id, if_match.is_present(), check)
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

impl App {
    async fn metrics_of(&self, shown: &Shown) -> InstanceMetrics {
        let now: Timestamp = self.clock.now();
        let asked = self.usage.usage_of(&shown.instance, now);
        let usage = match tokio::time::timeout(USAGE_TIMEOUT, asked).await {
            Ok(Ok(usage)) => usage,
            Ok(Err(error)) => {
                tracing::debug!(instance = %shown.id, %error, "no metrics");
                Usage::default()
            }
            Err(_) => Usage::default(),
        };
        usage.into()
    }
}
