//! `/v1/instances`: list, create, detail, change, delete.
//!
//! - `actions`: start, stop, poweroff, reboot, rebuild; `console`: access to the consoles;
//! - `body`: request bodies; `installation` and `network`: the image or backup, and the private network, that they name;
//! - `view`: instances as responses show them.

pub mod actions;
pub mod body;
pub mod console;
mod installation;
mod network;
pub mod view;

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;

use self::{installation::NamedBackup, network::NamedNetwork};
use super::{
    App,
    extract::{
        Caller, Change, Post, Target,
        body::required,
        idempotency::{self, Retention},
        query::{Paging, Parameters},
    },
    openapi::examples,
    response::{
        self,
        error::{Error, ErrorAnswer},
    },
};
use crate::service::{
    error::{protected, quota_used_up},
    id::{InstanceId, NetworkId, PublicId as _},
    idempotency::IdempotentRequest,
    instances::{Filter, IndexedInstance},
    store::Created,
};
use api::{ChangeInstance, CreateInstance, Instance, InstanceSummary, List, NewInstance, Single};
use resources::{InstanceState, Plan};

/// Lists instances
///
/// Newest first, then by id. Filters can be combined with each other and with paging. A filter that matches nothing gives an
/// empty list.
#[utoipa::path(
    get,
    path = "/v1/instances",
    operation_id = "listInstances",
    tag = "instances",
    params(
        Paging,
        ("status" = Option<String>, Query, description = "Only instances with this status.", example = "running"),
        ("region" = Option<String>, Query, description = "Only instances in this region.", example = "fr-par-1"),
        ("name" = Option<String>, Query, description = "Only instances with exactly this name.", example = "web-1"),
        ("tag" = Option<Vec<String>>, Query, description = "Only instances with this tag; with all of them, if it is given more than once.", example = json!(["env:prod"])),
        ("private_network" = Option<String>, Query, description = "Only instances in the private network with this id.", example = "pn-4t8kq2m6x1r9z3wb"),
        ("search" = Option<String>, Query, description = "Only instances whose name, id or address contains this text. Capital and small letters count alike.", example = "web"),
    ),
    responses((status = 200, description = "A page of instances", body = List<InstanceSummary>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    paging: Paging,
    parameters: Parameters,
) -> Result<Response, Error> {
    let tags: Vec<_> = parameters.all("tag").collect();
    let network = match parameters.get("private_network") {
        Some(text) => Some(
            app.service
                .network_name(caller.namespace(), NetworkId::parse(text))
                .await?,
        ),
        None => None,
    };
    let filter = Filter {
        status: parameters.get("status"),
        region: parameters.get("region"),
        name: parameters.get("name"),
        tags: &tags,
        private_network: network.as_deref(),
        search: parameters.get("search"),
    };
    let instances = app.service.list_instances(caller.namespace(), filter, paging);
    response::list(paging, instances, |item| view::summary(item))
}

/// Creates an instance
///
/// The instance exists at once, with the status `provisioning`, and becomes `running` after about the time given in
/// `message`. Poll the instance until `data.status` has changed. With `backup` in place of `image`, a backup is restored. With
/// `user_data`, the server sets itself up at its first boot.
#[utoipa::path(
    post,
    path = "/v1/instances",
    operation_id = "createInstance",
    tag = "instances",
    request_body(content = CreateInstance, example = json!({
        "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"],
        "user_data": "#cloud-config\npackages: [nginx]\n"
    })),
    responses(
        (status = 201, description = "The instance is being created", body = Single<NewInstance>, headers(("ETag")), example = json!({"data": {"status": "provisioning"}, "message": "Instance web-1 is being created; this takes about 2 to 3 minutes."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(quota_used_up("instances")))),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn create(
    State(app): State<Arc<App>>,
    caller: Caller,
    request: Request,
) -> Result<Response, Error> {
    let mut post = Post::with_body(request).await?;
    let tenant = caller.tenant();
    let request = post.idempotent.as_ref();
    let backup = NamedBackup::find(&app, &tenant.namespace, &post.fields).await;
    backup.check(&mut post.fields);
    let network = NamedNetwork::find(&app, &tenant.namespace, &post.fields).await?;
    network.check(&mut post.fields);
    let user_data = post.fields.peek("user_data").map(str::to_owned);
    let user_data = user_data.as_deref();
    let wanted = body::create(post.fields, &app.service.catalogue())
        .and_then(|body| Ok((backup.or(body.image.clone())?, body::spec(body))));
    let created = match wanted {
        Ok((installation, mut spec)) => {
            spec.private_network = network.name();
            let service = &app.service;
            let requester = caller.credential.requester();
            let created = service.create_instance(requester, spec, user_data, &installation, request);
            created.await?
        }
        // What the request names may have been there when it was sent first.
        Err(refusal) => {
            let created = app.service.instance_created_by(tenant, user_data, request);
            created.await?.ok_or(refusal)?
        }
    };
    is_created(&app, &created, request)
}

/// How long a server in a cluster of its own takes (specification, section 1).
const REAL_SERVER: &str = "2 to 3 minutes";

/// The answer to a create.
fn is_created(
    app: &App,
    created: &Created<IndexedInstance>,
    request: Option<&IdempotentRequest>,
) -> Result<Response, Error> {
    let item = &*created.item;
    let is_real = app
        .service
        .catalogue()
        .kubevirt(&item.instance.spec.region)
        .is_some();
    let time = if is_real { REAL_SERVER } else { &app.provisioning };
    let message = format!(
        "Instance {} is being created; this takes about {time}.",
        item.instance.display_name()
    );
    let mut response = response::single(
        StatusCode::CREATED,
        &*item.instance,
        view::created(item),
        Some(message),
    )?;
    response::locate(&mut response, "/v1/instances", item.id);
    idempotency::mark(&mut response, request, created.replayed, Retention::Resource);
    Ok(response)
}

/// Shows an instance
#[utoipa::path(
    get,
    path = "/v1/instances/{id}",
    operation_id = "getInstance",
    tag = "instances",
    params(Target<InstanceId>, ("include" = Option<String>, Query, description = "`metrics` adds the current usage.", pattern = "^metrics$", example = "metrics")),
    responses((status = 200, description = "The instance", body = Single<Instance>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    parameters: Parameters,
) -> Result<Response, Error> {
    let include_metrics = parameters.include_metrics()?;
    let item = app.service.instance(caller.namespace(), id).await?;
    let usage = if include_metrics {
        Some(app.service.usage_of(&item).await)
    } else {
        None
    };
    let view = view::detail(&item, usage);
    response::single(StatusCode::OK, &*item.instance, view, None)
}

/// An answer with the detail of an instance.
fn detail_of(status: StatusCode, item: &IndexedInstance, message: Option<String>) -> Result<Response, Error> {
    response::single(status, &*item.instance, view::detail(item, None), message)
}

/// Changes an instance
///
/// Fields left out stay as they are; `tags` replaces all tags. A new `plan` reboots the server, unless `reboot` is `false`:
/// then the plan is pending until the next reboot, or stop and start.
#[utoipa::path(
    patch,
    path = "/v1/instances/{id}",
    operation_id = "changeInstance",
    tag = "instances",
    params(Target<InstanceId>),
    request_body(content = ChangeInstance, example = json!({"plan": "business", "reboot": false})),
    responses(
        (status = 200, description = "The changed instance", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"pending_plan": "business"}, "message": "Instance web-1 gets the plan business at its next reboot or start; set the plan starter to drop that."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(examples::no_room()))),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn change(call: Change<InstanceId>) -> Result<Response, Error> {
    let change = body::change(required(call.request).await?)?;
    let (service, requester) = (&call.app.service, call.caller.credential.requester());
    let changing = service.change_instance(requester, call.id, &change, &call.precondition);
    let item = changing.await?;
    let message = change.plan.map(|plan| plan_message(&item, plan));
    detail_of(StatusCode::OK, &item, message)
}

/// Says what becomes of an instance that was given this plan.
fn plan_message(item: &IndexedInstance, plan: Plan) -> String {
    let (name, in_effect) = (item.instance.display_name(), item.plan);
    if item.state == InstanceState::Resizing {
        format!("Instance {name} is changing to the plan {}.", plan.as_str())
    } else if plan == in_effect {
        format!("Instance {name} has the plan {}.", plan.as_str())
    } else {
        format!(
            "Instance {name} gets the plan {} at its next reboot or start; set the plan {} to drop that.",
            plan.as_str(),
            in_effect.as_str(),
        )
    }
}

/// Deletes an instance
///
/// This cannot be undone. From the answer on, the id is unknown (404), even while the server is still being removed.
#[utoipa::path(
    delete,
    path = "/v1/instances/{id}",
    operation_id = "deleteInstance",
    tag = "instances",
    params(Target<InstanceId>),
    responses(
        (status = 204, description = "The instance is deleted"),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(protected()))),
    ),
)]
pub async fn delete(call: Change<InstanceId>) -> Result<StatusCode, Error> {
    let (service, namespace) = (&call.app.service, call.caller.namespace());
    let deleting = service.delete_instance(namespace, call.id, &call.precondition);
    deleting.await?;
    Ok(StatusCode::NO_CONTENT)
}
