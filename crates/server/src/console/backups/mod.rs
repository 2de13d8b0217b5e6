//! Backups: list, detail, delete. The instance pages create and restore them.
//!
//! - `view`: backups as pages show them.

pub mod view;

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::StatusCode;

use self::view::Backup;
use super::{
    App,
    call::{Call, Id},
    form::Form,
    page::{Pager, Query, Shell, page},
    refresh::Refresh,
    refusal::Answer,
    session_request::SessionRequest,
    text::Moment as _,
};
use api::Single;

const SECTION: &str = "backups";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/backups", get(list))
        .route("/console/backups/{id}", get(detail))
        .route("/console/backups/{id}/delete", get(show_delete).post(delete))
}

#[derive(Template)]
#[template(path = "console/backups/list.html")]
struct ListPage {
    shell: Shell,
    query: Query,
    items: Vec<Backup>,
    pager: Pager,
    is_filtered: bool,
    refresh: Refresh,
}

async fn list(request: SessionRequest) -> Answer {
    let filters = ["status", "instance_id"];
    let (call, items, pager) = request.list::<Backup>("backups", &filters, None).await?;
    let is_under_way = items.iter().any(Backup::is_running);
    let template = ListPage {
        shell: request.shell_with(SECTION, "Backups", &[call]),
        is_filtered: request.query.has_any(&filters),
        refresh: request.refresh(is_under_way),
        query: request.query,
        items,
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/backups/detail.html")]
struct DetailPage {
    shell: Shell,
    item: Backup,
    refresh: Refresh,
}

async fn detail(request: SessionRequest, Id(id): Id) -> Answer {
    let call = Call::get(format!("/v1/backups/{id}"));
    let Single { data: item, .. }: Single<Backup> = request.get(&call).await?;
    let template = DetailPage {
        shell: request.shell_with(SECTION, item.name.as_str(), &[call]),
        refresh: request.refresh(item.is_running()),
        item,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/backups/delete.html")]
struct DeletePage {
    shell: Shell,
    backup: Backup,
    form: Form,
}

async fn delete_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let found: Single<Backup> = request.get(&Call::get(format!("/v1/backups/{id}"))).await?;
    let call = Call::delete(format!("/v1/backups/{id}"));
    let template = DeletePage {
        shell: request.shell_with(SECTION, "Delete backup", &[call]),
        backup: found.data,
        form,
    };
    Ok(page(status, &template))
}

async fn show_delete(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    delete_page(&request, StatusCode::OK, &id, Form::new()).await
}

async fn delete(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    match request.send(&Call::delete(format!("/v1/backups/{id}"))).await {
        Ok(_) => Ok(request.done("/console/backups", "The backup is deleted.").await),
        Err(refusal) if refusal.status == StatusCode::CONFLICT => {
            form.refused(&refusal);
            delete_page(&request, refusal.status, &id, form).await
        }
        Err(refusal) => Err(refusal),
    }
}
