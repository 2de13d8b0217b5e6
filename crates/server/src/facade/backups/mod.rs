//! `/v1/backups` and `/v1/instances/{id}/backups`: list, create, detail, delete.
//!
//! - `view`: backups as responses show them.

pub mod view;

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;

use self::view::backup;
use super::{
    App,
    extract::{
        Caller, Change, Post, Target,
        fields::Fields,
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
    backups::{BackupFilter, still_running, too_many},
    id::{BackupId, InstanceId},
};
use api::{Backup, CreateBackup, List, Single};
use resources::validation;

/// Reads a request to create one; 422 names every invalid field.
fn read(mut fields: Fields) -> Result<CreateBackup, Error> {
    let name = fields.string("name", &validation::name);
    fields.finish()?;
    Ok(CreateBackup { name })
}

/// Lists backups
///
/// Of all instances of the account, deleted ones included, newest first, then by id. Filters can be combined with each other and
/// with paging. A filter that matches nothing gives an empty list.
#[utoipa::path(
    get,
    path = "/v1/backups",
    operation_id = "listBackups",
    tag = "backups",
    params(
        Paging,
        ("instance_id" = Option<String>, Query, description = "Only backups of this instance, which may be a deleted one.", example = "i-4q7hz0c9k2m8x1ta"),
        ("status" = Option<String>, Query, description = "Only backups with this status: `running`, `completed` or `failed`.", example = "completed"),
    ),
    responses((status = 200, description = "A page of backups", body = List<Backup>)),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    paging: Paging,
    parameters: Parameters,
) -> Result<Response, Error> {
    let filter = BackupFilter {
        instance_id: parameters.get("instance_id"),
        status: parameters.get("status"),
    };
    let backups = app.service.list_backups(caller.namespace(), filter, paging);
    response::list(paging, backups, backup)
}

/// Lists the backups of an instance
///
/// Newest first, then by id. `GET /v1/backups?instance_id=…` also lists those of a deleted instance.
#[utoipa::path(
    get,
    path = "/v1/instances/{id}/backups",
    operation_id = "listInstanceBackups",
    tag = "backups",
    params(Target<InstanceId>, Paging),
    responses((status = 200, description = "A page of backups", body = List<Backup>)),
)]
pub async fn list_of_instance(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InstanceId>,
    paging: Paging,
) -> Result<Response, Error> {
    let backups = app
        .service
        .list_backups_of(caller.namespace(), id, paging)
        .await?;
    response::list(paging, backups, backup)
}

/// Backs an instance up
///
/// Allowed from `running` and `stopped`, while no operation and no other backup of the instance is under way. The backup has the
/// disk as it is now. Poll the backup until its `status` has changed, or wait for `backup.completed` or `backup.failed`.
#[utoipa::path(
    post,
    path = "/v1/instances/{id}/backups",
    operation_id = "createBackup",
    tag = "backups",
    params(Target<InstanceId>),
    request_body(content = CreateBackup),
    responses(
        (status = 201, description = "The backup is being made", body = Single<Backup>, headers(("ETag")), example = json!({"data": {"status": "running", "size_gb": null, "completed_at": null}, "message": "Instance web-1 is being backed up."})),
        (status = 403, description = "Forbidden", body = ErrorAnswer, example = json!(examples::error(too_many("the instance has 30 manual backups")))),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::not_backed_up_now()))),
    ),
)]
pub async fn create(call: Change<InstanceId>) -> Result<Response, Error> {
    let post = Post::with_optional_body(call.request).await?;
    let body = read(post.fields)?;
    let (service, request) = (&call.app.service, post.idempotent.as_ref());
    let (tenant, name) = (call.caller.tenant(), body.name.as_deref());
    let creating = service.create_backup(tenant, call.id, name, request, &call.precondition);
    let created = creating.await?;
    let shown = service.shown(created.item);
    let view = backup(&shown);
    let message = format!("Instance {} is being backed up.", view.instance_name);
    let mut response = response::single(StatusCode::CREATED, &*shown.item.backup, view, Some(message))?;
    response::locate(&mut response, "/v1/backups", shown.item.id);
    idempotency::mark(&mut response, request, created.replayed, Retention::Resource);
    Ok(response)
}

/// Shows a backup
#[utoipa::path(
    get,
    path = "/v1/backups/{id}",
    operation_id = "getBackup",
    tag = "backups",
    params(Target<BackupId>),
    responses((status = 200, description = "The backup", body = Single<Backup>, headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<BackupId>,
) -> Result<Response, Error> {
    let shown = app.service.backup(caller.namespace(), id).await?;
    response::single(StatusCode::OK, &*shown.item.backup, backup(&shown), None)
}

/// Deletes a backup
///
/// This cannot be undone. Not allowed while the backup is `running`.
#[utoipa::path(
    delete,
    path = "/v1/backups/{id}",
    operation_id = "deleteBackup",
    tag = "backups",
    params(Target<BackupId>),
    responses(
        (status = 204, description = "The backup is deleted"),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(still_running()))),
    ),
)]
pub async fn delete(call: Change<BackupId>) -> Result<StatusCode, Error> {
    let (service, namespace) = (&call.app.service, call.caller.namespace());
    let deleting = service.delete_backup(namespace, call.id, &call.precondition);
    deleting.await?;
    Ok(StatusCode::NO_CONTENT)
}
