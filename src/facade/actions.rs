//! `/v1/instances/{id}/…`: start, stop, poweroff, reboot, rebuild.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use utoipa::ToSchema;

use super::{
    App, answer,
    body::{self, Input},
    change::check_state,
    error::ApiError,
    id::InstanceId,
    idempotency::{self, KeyedAction},
    index::Shown,
    modify::{Verdict, instance_nonce},
    precondition::IfMatch,
    request::{Caller, Target},
    view::{InstanceView, Single},
};
use crate::{lifecycle::Action, resources::validation};

/// What to reinstall a server from.
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(as = RebuildInstance, example = json!({"image": "debian-13"}))]
pub struct Rebuild {
    /// Operating-system image; GET /v1/images lists them.
    #[schema(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length = 63)]
    pub image: String,
}

/// Starts an instance
///
/// Allowed from `stopped` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/start", operation_id = "startInstance", tag = "actions",
    responses((status = 202, description = "The server is being powered on", body = Single<InstanceView<'static>>)),
)]
pub async fn start(
    state: State<Arc<App>>,
    caller: Caller,
    target: Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    act(state, &caller, target, if_match, request, Action::Start).await
}

/// Shuts an instance down
///
/// Softly; forced if the guest does not shut down in time. Allowed from `running`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/stop", operation_id = "stopInstance", tag = "actions",
    responses((status = 202, description = "The guest is asked to shut down", body = Single<InstanceView<'static>>)),
)]
pub async fn stop(
    state: State<Arc<App>>,
    caller: Caller,
    target: Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    act(state, &caller, target, if_match, request, Action::Stop).await
}

/// Cuts the power of an instance
///
/// Allowed from `running`, `stopping`, `starting`, `rebooting` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/poweroff", operation_id = "powerOffInstance", tag = "actions",
    responses((status = 202, description = "The power is being cut", body = Single<InstanceView<'static>>)),
)]
pub async fn poweroff(
    state: State<Arc<App>>,
    caller: Caller,
    target: Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    act(state, &caller, target, if_match, request, Action::PowerOff).await
}

/// Reboots an instance
///
/// A pending plan takes effect. Allowed from `running` and `error`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/reboot", operation_id = "rebootInstance", tag = "actions",
    responses((status = 202, description = "The server is being rebooted", body = Single<InstanceView<'static>>)),
)]
pub async fn reboot(
    state: State<Arc<App>>,
    caller: Caller,
    target: Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    act(state, &caller, target, if_match, request, Action::Reboot).await
}

/// Reinstalls an instance
///
/// What is on its disk is lost. Allowed from `running`, `stopped` and `error`; afterwards it is as before.
#[utoipa::path(
    post, path = "/v1/instances/{id}/rebuild", operation_id = "rebuildInstance", tag = "actions",
    request_body = Rebuild,
    responses((status = 202, description = "The server is being reinstalled", body = Single<InstanceView<'static>>)),
)]
pub async fn rebuild(
    state: State<Arc<App>>,
    caller: Caller,
    target: Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
) -> Result<Response, ApiError> {
    act(state, &caller, target, if_match, request, Action::Rebuild).await
}

async fn act(
    State(app): State<Arc<App>>,
    caller: &Caller,
    Target(id): Target<InstanceId>,
    if_match: IfMatch,
    request: Request,
    action: Action,
) -> Result<Response, ApiError> {
    let key = idempotency::key(request.headers())?.map(str::to_owned);
    let path = request.uri().path().to_owned();
    let Input {
        mut fields,
        canonical,
    } = match action {
        Action::Rebuild => body::required(request).await?,
        _ => body::optional(request).await?,
    };
    let image = if action == Action::Rebuild {
        let image = fields.string("image", &|text| {
            validation::image(text)?;
            if app.catalogue.serves_image(text) {
                Ok(())
            } else {
                Err("is not on offer; GET /v1/images lists the images")
            }
        });
        fields.missing("image", image)
    } else {
        None
    };
    fields.finish()?;
    let keyed = key.map(|key| KeyedAction::new(&path, &key, &canonical));
    let replayed = AtomicBool::new(false);
    let decide = |shown: &Shown| {
        if let Some(keyed) = &keyed {
            let was_done = keyed.was_done(&*shown.instance)?;
            replayed.store(was_done, Ordering::Relaxed);
            if was_done {
                return Ok(Verdict::Leave);
            }
        }
        if_match.check(&*shown.instance)?;
        check_state(action, shown)?;
        let mut spec = Box::new(shown.instance.spec.clone());
        let nonce = instance_nonce(app.clock.now(), &spec);
        if let Some(image) = &image {
            spec.image.clone_from(image);
        }
        action.request(&mut spec, &nonce);
        Ok(Verdict::Write {
            spec,
            done: keyed
                .as_ref()
                .map(|keyed| keyed.remember(&*shown.instance, &nonce)),
        })
    };
    let shown = app.instances.modify(caller.namespace(), id, decide).await?;
    let message = message(action, shown.instance.display_name(), image.as_deref());
    let response = answer::detail(StatusCode::ACCEPTED, &shown, Some(message))?;
    Ok(idempotency::replayed_if(replayed.into_inner(), response))
}

fn message(action: Action, name: &str, image: Option<&str>) -> String {
    match action {
        Action::Start => format!("Instance {name} is being started."),
        Action::Stop => format!("Instance {name} is being shut down."),
        Action::PowerOff => format!("The power of instance {name} is being cut."),
        Action::Reboot => format!("Instance {name} is being rebooted."),
        Action::Rebuild => format!(
            "Instance {name} is being reinstalled from {}.",
            image.unwrap_or_default()
        ),
        Action::ChangePlan => format!("Instance {name} is changing to another plan."),
    }
}
