//! Invoices: the charges of the current month so far, and the issued invoices; as pages, as a table (CSV) and for printing.
//!
//! - `view`: invoices as pages show them.

mod view;

use std::sync::Arc;

use askama::Template;
use axum::{Router, response::Response, routing::get};
use http::{StatusCode, header};

use self::view::Invoice;
use super::{
    App,
    call::{Call, Id, with_query},
    page::{Pager, Shell, Shown, page},
    refusal::Answer,
    session_request::SessionRequest,
    text::Moment as _,
};
use api::InvoiceAnswer;

const SECTION: &str = "invoices";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/invoices", get(list))
        .route("/console/invoices/{id}", get(detail))
        .route("/console/invoices/{id}/csv", get(csv))
        .route("/console/invoices/{id}/print", get(print))
        .route("/console/invoices/{id}/ubl", get(ubl))
}

#[derive(Template)]
#[template(path = "console/invoices/list.html")]
struct ListPage {
    shell: Shell,
    current: Invoice,
    items: Vec<Invoice>,
    pager: Pager,
}

async fn list(request: SessionRequest) -> Answer {
    let (call, items, pager) = request.list("invoices", &[], None).await?;
    let open = Call::get("/v1/invoices/current");
    let current: InvoiceAnswer = request.get(&open).await?;
    let template = ListPage {
        shell: request.shell_with(SECTION, "Invoices", &[open, call]),
        current: Shown(current.data),
        items,
        pager,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/invoices/detail.html")]
struct DetailPage {
    shell: Shell,
    invoice: Invoice,
    /// The path that the links of the page begin with.
    path: String,
    pager: Pager,
}

async fn detail(request: SessionRequest, Id(id): Id) -> Answer {
    let parameters = [("page", request.query.get("page"))];
    let call = Call::get(with_query(&format!("/v1/invoices/{id}"), &parameters));
    let InvoiceAnswer { data, pagination } = request.get(&call).await?;
    let (invoice, path) = (Shown(data), format!("/console/invoices/{id}"));
    let template = DetailPage {
        shell: request.shell_with(SECTION, invoice.title(), &[call, formatted(&id, "csv")]),
        pager: Pager::new(pagination, &path, &request.query),
        invoice,
        path,
    };
    Ok(page(StatusCode::OK, &template))
}

/// The request for an invoice in another format.
fn formatted(id: &str, format: &str) -> Call {
    Call::get(format!("/v1/invoices/{id}?format={format}"))
}

async fn csv(request: SessionRequest, Id(id): Id) -> Answer {
    passed_on(&request, &formatted(&id, "csv")).await
}

async fn print(request: SessionRequest, Id(id): Id) -> Answer {
    passed_on(&request, &formatted(&id, "html")).await
}

async fn ubl(request: SessionRequest, Id(id): Id) -> Answer {
    passed_on(&request, &formatted(&id, "ubl")).await
}

/// The answer of `/v1`, streamed unchanged, with those of its headers that describe its content.
async fn passed_on(request: &SessionRequest, call: &Call) -> Answer {
    let (head, body) = request.open(call).await?.into_parts();
    let mut response = Response::new(body);
    for name in [
        header::CONTENT_TYPE,
        header::CONTENT_DISPOSITION,
        header::CONTENT_SECURITY_POLICY,
    ] {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}
