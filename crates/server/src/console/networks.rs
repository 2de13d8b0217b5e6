//! Private networks: list, create, rename, delete.

use std::sync::Arc;

use askama::Template;
use axum::{Router, response::Response, routing::get};
use http::{Method, StatusCode};
use serde_json::json;

use super::{
    App,
    call::{Call, Id},
    form::{Field, Form},
    instances::offers,
    page::{Pager, Shell, Shown, page},
    refresh::Refresh,
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{RegionOffer, Single};

const SECTION: &str = "networks";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/networks", get(list).post(create))
        .route("/console/networks/{id}/rename", get(show_rename).post(rename))
        .route("/console/networks/{id}/delete", get(show_delete).post(delete))
}

/// A private network.
pub(super) type Network = Shown<api::PrivateNetwork>;

#[derive(Template)]
#[template(path = "console/networks/list.html")]
struct ListPage {
    shell: Shell,
    items: Vec<Network>,
    /// Those that have private networks.
    regions: Vec<RegionOffer>,
    pager: Pager,
    form: Form,
    refresh: Refresh,
}

fn create_call(form: &Form) -> Call {
    let mut body = json!({ "region": form.value("region") });
    for field in ["name", "prefix"] {
        let text = form.text(field);
        if !text.is_empty() {
            body[field] = json!(text);
        }
    }
    Call::with(Method::POST, "/v1/networks", body).once(form.key())
}

async fn shown(request: SessionRequest, status: StatusCode, mut form: Form) -> Answer {
    let (call, items, pager) = request.list::<Network>("networks", &[], None).await?;
    let mut regions = offers::regions(&request).await?;
    regions.retain(|region| region.private_networks);
    if form.value("region").is_empty()
        && let Some(first) = regions.first()
    {
        form = form.with("region", &first.id);
    }
    let mut calls = vec![call];
    if request.may_write() && !regions.is_empty() {
        calls.push(create_call(&form));
    }
    let is_under_way = items.iter().any(|network| !network.ready);
    let template = ListPage {
        shell: request.shell_with(SECTION, "Private networks", &calls),
        refresh: request.refresh(is_under_way),
        items,
        pager,
        regions,
        form,
    };
    Ok(page(status, &template))
}

async fn list(request: SessionRequest) -> Answer {
    shown(request, StatusCode::OK, Form::new()).await
}

async fn create(request: SessionRequest, mut form: Form) -> Answer {
    match request.send(&create_call(&form)).await {
        Ok(_) => Ok(request
            .done("/console/networks", "The private network is created.")
            .await),
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            shown(request, status, form).await
        }
    }
}

#[derive(Template)]
#[template(path = "console/networks/rename.html")]
struct RenamePage {
    shell: Shell,
    /// Of the network.
    id: String,
    form: Form,
}

/// The fields that can be changed.
const FIELDS: [Field; 1] = [Field {
    name: "name",
    label: "Name",
    is_choice: false,
}];

fn rename_call(id: &str, form: &Form) -> Call {
    let body = json!({ "name": form.text("name") });
    let call = Call::with(Method::PATCH, format!("/v1/networks/{id}"), body);
    call.if_match(form.version())
}

/// The form with the current name of a network, and its version.
async fn named(request: &SessionRequest, id: &str) -> Result<(Form, String), Refusal> {
    let call = Call::get(format!("/v1/networks/{id}"));
    let (found, version): (Single<Network>, _) = request.get_version(&call).await?;
    Ok((Form::default().with("name", &found.data.name), version))
}

fn rename_page(request: &SessionRequest, status: StatusCode, id: String, form: Form) -> Response {
    let template = RenamePage {
        shell: request.shell_with(SECTION, "Rename private network", &[rename_call(&id, &form)]),
        id,
        form,
    };
    page(status, &template)
}

async fn show_rename(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let (form, version) = named(&request, &id).await?;
    let form = form.remembering(&version);
    Ok(rename_page(&request, StatusCode::OK, id, form))
}

async fn rename(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let call = |form: &Form| rename_call(&id, form);
    let sent = request
        .save(&mut form, &FIELDS, call, async || named(&request, &id).await)
        .await;
    match sent {
        Ok(_) => Ok(request.done("/console/networks", "The new name is saved.").await),
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            Ok(rename_page(&request, status, id, form))
        }
    }
}

#[derive(Template)]
#[template(path = "console/networks/delete.html")]
struct DeletePage {
    shell: Shell,
    network: Network,
    form: Form,
}

async fn delete_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let path = format!("/v1/networks/{id}");
    let found: Single<Network> = request.get(&Call::get(path.clone())).await?;
    let template = DeletePage {
        shell: request.shell_with(SECTION, "Delete private network", &[Call::delete(path)]),
        network: found.data,
        form,
    };
    Ok(page(status, &template))
}

async fn show_delete(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    delete_page(&request, StatusCode::OK, &id, Form::new()).await
}

async fn delete(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    match request.send(&Call::delete(format!("/v1/networks/{id}"))).await {
        Ok(_) => Ok(request
            .done("/console/networks", "The private network is deleted.")
            .await),
        Err(refusal) if refusal.status == StatusCode::CONFLICT => {
            form.refused(&refusal);
            delete_page(&request, refusal.status, &id, form).await
        }
        Err(refusal) => Err(refusal),
    }
}
