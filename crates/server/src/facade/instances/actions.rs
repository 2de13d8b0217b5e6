//! `/v1/instances/{id}/…`: start, stop, poweroff, reboot, rebuild.

use axum::response::Response;
use http::StatusCode;

use super::{
    body, detail_of,
    installation::{self, NamedBackup},
};
use crate::{
    facade::{
        extract::{
            Change, Post, Target,
            idempotency::{self, Retention},
        },
        openapi::examples,
        response::error::{Error, ErrorAnswer},
    },
    service::{error::protected, id::InstanceId, instances::ActionOutcome},
};
use api::{Instance, RebuildInstance, Single};
use domain::instance::Action;

/// Starts an instance
///
/// Allowed from `stopped` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/start", operation_id = "startInstance", tag = "actions",
    params(Target<InstanceId>),
    responses(
        (status = 202, description = "The server is being powered on", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"status": "starting"}, "message": "Instance web-1 is being started."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn start(call: Change<InstanceId>) -> Result<Response, Error> {
    act(call, Action::Start).await
}

/// Shuts an instance down
///
/// Asks the guest to shut down, and cuts the power if it does not do so in time. Allowed from `running`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/stop", operation_id = "stopInstance", tag = "actions",
    params(Target<InstanceId>),
    responses(
        (status = 202, description = "The guest is being asked to shut down", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"status": "stopping"}, "message": "Instance web-1 is being shut down."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn stop(call: Change<InstanceId>) -> Result<Response, Error> {
    act(call, Action::Stop).await
}

/// Cuts the power of an instance
///
/// Allowed from `running`, `stopping`, `starting`, `rebooting` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/poweroff", operation_id = "powerOffInstance", tag = "actions",
    params(Target<InstanceId>),
    responses(
        (status = 202, description = "The power is being cut", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"status": "stopping"}, "message": "The power of instance web-1 is being cut."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn poweroff(call: Change<InstanceId>) -> Result<Response, Error> {
    act(call, Action::PowerOff).await
}

/// Reboots an instance
///
/// A pending plan takes effect. Allowed from `running` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/reboot", operation_id = "rebootInstance", tag = "actions",
    params(Target<InstanceId>),
    responses(
        (status = 202, description = "The server is being rebooted", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"status": "rebooting"}, "message": "Instance web-1 is being rebooted."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_running()))),
    ),
)]
pub async fn reboot(call: Change<InstanceId>) -> Result<Response, Error> {
    act(call, Action::Reboot).await
}

/// Reinstalls an instance
///
/// From an image, or from a backup with the backup's image and data. All data on its disk is lost, so a protected instance is not rebuilt. Allowed from `running`, `stopped` and `error`; afterwards the instance is running or stopped
/// as it was before.
#[utoipa::path(
    post, path = "/v1/instances/{id}/rebuild", operation_id = "rebuildInstance", tag = "actions",
    params(Target<InstanceId>),
    request_body(content = RebuildInstance),
    responses(
        (status = 202, description = "The server is being reinstalled", body = Single<Instance>, headers(("ETag")), example = json!({"data": {"status": "rebuilding"}, "message": "Instance web-1 is being reinstalled from debian-13."})),
        (status = 409, description = "Conflict", body = ErrorAnswer, examples(
            ("invalid_state" = (value = json!(examples::error(examples::not_running())))),
            ("protected" = (value = json!(examples::error(protected())))),
        )),
    ),
)]
pub async fn rebuild(call: Change<InstanceId>) -> Result<Response, Error> {
    act(call, Action::Rebuild).await
}

async fn act(call: Change<InstanceId>, action: Action) -> Result<Response, Error> {
    let (service, id) = (&call.app.service, call.id);
    let namespace = call.caller.namespace();
    let mut what = String::new();
    let (wanted, idempotent) = if action == Action::Rebuild {
        let mut post = Post::with_body(call.request).await?;
        what = installation::in_words(&post.fields);
        let backup = NamedBackup::find(&call.app, namespace, &post.fields).await;
        backup.check(&mut post.fields);
        // If there is no such instance, the action says so.
        let shown = service.instance(namespace, id).await.ok();
        let catalogue = service.catalogue();
        let region = shown.as_ref().map(|shown| shown.instance.spec.region.as_str());
        let wanted = body::rebuild(post.fields, region.and_then(|region| catalogue.offer(region)))
            .and_then(|body| backup.or(body.image).map(Some));
        (wanted, post.idempotent)
    } else {
        let post = Post::with_optional_body(call.request).await?;
        (post.fields.finish().map(|()| None), post.idempotent)
    };
    let request = idempotent.as_ref();
    let done = match wanted {
        Ok(installation) => {
            let (installation, requester) = (installation.as_ref(), call.caller.credential.requester());
            let done =
                service.act_on_instance(requester, id, action, installation, request, &call.precondition);
            done.await?
        }
        // What the request names may have been there when it was sent first.
        Err(refusal) => {
            let changed = service.instance_changed_by(namespace, id, request).await?;
            ActionOutcome {
                item: changed.ok_or(refusal)?,
                replayed: true,
            }
        }
    };
    let message = message(action, done.item.instance.display_name(), &what);
    let mut response = detail_of(StatusCode::ACCEPTED, &done.item, Some(message))?;
    idempotency::mark(&mut response, request, done.replayed, Retention::Actions);
    Ok(response)
}

/// Says what an action has begun. `what` is being installed by a rebuild.
fn message(action: Action, name: &str, what: &str) -> String {
    match action {
        Action::Start => format!("Instance {name} is being started."),
        Action::Stop => format!("Instance {name} is being shut down."),
        Action::PowerOff => format!("The power of instance {name} is being cut."),
        Action::Reboot => format!("Instance {name} is being rebooted."),
        Action::Rebuild => format!("Instance {name} is being reinstalled from {what}."),
        Action::ChangePlan => format!("Instance {name} is changing to another plan."),
    }
}
