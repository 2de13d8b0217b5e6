//! `/v1/invoices`: list, current, detail; as JSON, CSV, or a printable page.
//!
//! - `view`: invoices as responses show them;
//! - `csv`, `html`: the other formats.

mod csv;
mod html;
pub mod view;

use std::sync::Arc;

use axum::{body::Body, extract::State, response::Response};
use bytes::Bytes;
use futures::{Stream, stream};
use http::{HeaderValue, StatusCode, header};

use super::{
    App,
    extract::{
        Caller, Charged, Target,
        query::{Paging, Parameters, both},
    },
    openapi::examples,
    response::{self, error::Detail},
};
use crate::service::{error::Error, id::InvoiceId, invoices::OpenedInvoice};
use api::{Invoice, InvoiceAnswer, List, Pagination};
use resources::{InvoiceLine, money::Cents};

/// How to show an invoice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Csv,
    Html,
}

/// The format in the query; 422 if there is no such format.
fn format(parameters: &Parameters) -> Result<Format, Error> {
    match parameters.get("format") {
        None | Some("json") => Ok(Format::Json),
        Some("csv") => Ok(Format::Csv),
        Some("html") => Ok(Format::Html),
        Some(_) => Err(Error::invalid(vec![Detail::new(
            "format",
            "invalid_value",
            "must be json, csv or html",
        )])),
    }
}

/// Lists invoices
///
/// Those that are issued, the latest period first; with `year`, those whose period begins in it (UTC). The open one is
/// `GET /v1/invoices/current`.
#[utoipa::path(
    get,
    path = "/v1/invoices",
    operation_id = "listInvoices",
    tag = "invoices",
    params(Paging, ("year" = Option<u16>, Query, description = "Four digits.", minimum = 1000, maximum = 9999, example = 2026)),
    responses((status = 200, description = "A page of invoices", body = List<Invoice>, example = json!(examples::page(examples::invoice(true))))),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Error> {
    let (paging, year) = both(parameters.paging(), parameters.year())?;
    let (page, total) = app
        .service
        .list_invoices(
            caller.tenant(),
            year,
            paging.page,
            paging.limit,
            &Charged::new(&app, &caller),
        )
        .await?;
    let data: Vec<_> = page.iter().map(view::issued).collect();
    let pagination = Pagination::new(paging.page, paging.limit, total);
    response::json(StatusCode::OK, &List { data, pagination }, 512)
}

/// Shows the open invoice
///
/// With a page of its lines: the hours that have begun so far. `page` and `limit` are about the lines. Without anything to bill it has no
/// lines, and its `id` is `null`. A change shows some seconds after it has happened. Every five pages of the invoice
/// that are read count as one more request against the rate limits.
#[utoipa::path(
    get,
    path = "/v1/invoices/current",
    operation_id = "getCurrentInvoice",
    tag = "invoices",
    params(Paging, ("format" = Option<String>, Query, description = "`json` by default; `csv` or `html` for all lines as a table or a page to print.", pattern = "^(json|csv|html)$", example = "json")),
    responses((status = 200, description = "The open invoice", content(
        (InvoiceAnswer = "application/json", example = json!(examples::invoice_with_lines(false))), (String = "text/csv"), (String = "text/html"),
    ))),
)]
pub async fn current(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Error> {
    // Report a mistake before reading anything.
    format(&parameters)?;
    parameters.paging()?;
    let cost = Charged::new(&app, &caller);
    let opened = app.service.current_invoice(caller.tenant(), &cost).await?;
    answer(opened, &parameters, cost).await
}

/// Shows an invoice
///
/// With a page of its lines; `page` and `limit` are about these. An issued invoice never changes. Every five pages of the invoice that are
/// read count as one more request against the rate limits.
#[utoipa::path(
    get,
    path = "/v1/invoices/{id}",
    operation_id = "getInvoice",
    tag = "invoices",
    params(Target<InvoiceId>, Paging, ("format" = Option<String>, Query, description = "`json` by default; `csv` or `html` for all lines as a table or a page to print.", pattern = "^(json|csv|html)$", example = "json")),
    responses((status = 200, description = "The invoice", content(
        (InvoiceAnswer = "application/json", example = json!(examples::invoice_with_lines(true))), (String = "text/csv"), (String = "text/html"),
    ), headers(("ETag")))),
)]
pub async fn detail(
    State(app): State<Arc<App>>,
    caller: Caller,
    Target(id): Target<InvoiceId>,
    parameters: Parameters,
) -> Result<Response, Error> {
    format(&parameters)?;
    parameters.paging()?;
    let opened = app.service.invoice(caller.tenant(), id).await?;
    let version = opened.invoice.as_deref().map(response::etag);
    let mut response = answer(opened, &parameters, Charged::new(&app, &caller)).await?;
    if let Some(version) = version {
        response.headers_mut().insert(header::ETAG, version);
    }
    Ok(response)
}

async fn answer(opened: OpenedInvoice, parameters: &Parameters, cost: Charged) -> Result<Response, Error> {
    let name = match opened
        .invoice
        .as_ref()
        .and_then(|invoice| invoice.status.as_ref()?.number.clone())
    {
        Some(number) => format!("invoice-{number}"),
        None => "invoice".to_owned(),
    };
    match format(parameters)? {
        Format::Json => {
            let paging = parameters.paging()?;
            let lines = opened.lines(paging.page, paging.limit, &cost).await?;
            let pagination = Pagination::new(paging.page, paging.limit, lines.count);
            let data = view::with_lines(&opened, &lines);
            response::json(StatusCode::OK, &InvoiceAnswer { data, pagination }, 4096)
        }
        Format::Csv => {
            let head = csv::HEAD.to_owned();
            let text = chunks(opened, cost, head, csv::rows, |_, _| String::new()).await?;
            let mut response = rendered(text, "text/csv; charset=utf-8; header=present");
            if let Ok(value) = HeaderValue::try_from(format!("attachment; filename=\"{name}.csv\"")) {
                response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
            }
            Ok(response)
        }
        Format::Html => {
            let head = html::head(&opened);
            let text = chunks(opened, cost, head, html::rows, html::foot).await?;
            let mut response = rendered(text, "text/html; charset=utf-8");
            response
                .headers_mut()
                .insert(header::CONTENT_SECURITY_POLICY, html::policy());
            Ok(response)
        }
    }
}

fn rendered(
    text: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
    content_type: &'static str,
) -> Response {
    let mut response = response::rendered(StatusCode::OK, Body::from_stream(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// How far an invoice's text has been sent.
enum Position {
    Head(String, Option<Vec<InvoiceLine>>),
    Page(u32),
    End,
}

/// The text of an invoice, in chunks. Only one page is in memory at a time: the next one is read after the previous one has been
/// sent. `foot` gets the sum of the lines above it, because an open invoice may change in the meantime.
async fn chunks(
    opened: OpenedInvoice,
    cost: Charged,
    head: String,
    rows: fn(&OpenedInvoice, &[InvoiceLine]) -> String,
    foot: fn(&OpenedInvoice, Cents) -> String,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + 'static, Error> {
    let first = opened.page(0, &cost).await?;
    let begin = ((opened, cost), Position::Head(head, first), Cents(0));
    Ok(stream::unfold(
        begin,
        move |((opened, cost), position, mut net)| async move {
            let mut rows = |opened: &_, lines: &[InvoiceLine]| {
                net.0 += lines.iter().map(|line| line.amount_cents).sum::<u64>();
                rows(opened, lines)
            };
            let (text, next) = match position {
                Position::Head(mut text, first) => match first {
                    Some(lines) => {
                        text.push_str(&rows(&opened, &lines));
                        (Ok(text), Position::Page(1))
                    }
                    None => (Ok(text + &foot(&opened, net)), Position::End),
                },
                Position::Page(number) => match opened.page(number, &cost).await {
                    Ok(Some(lines)) => (Ok(rows(&opened, &lines)), Position::Page(number + 1)),
                    Ok(None) => (Ok(foot(&opened, net)), Position::End),
                    Err(error) => (Err(error), Position::End),
                },
                Position::End => return None,
            };
            Some((text.map(Bytes::from), ((opened, cost), next, net)))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_one_of_three() {
        let read = |query: &str| {
            format(&Parameters::of(
                &format!("/v1/invoices/current{query}").parse().unwrap(),
            ))
        };
        assert_eq!(read(""), Ok(Format::Json));
        assert_eq!(read("?format=csv"), Ok(Format::Csv));
        assert_eq!(read("?format=html&page=2"), Ok(Format::Html));
        assert_eq!(read("?format=pdf").unwrap_err().details[0].field, "format");
    }
}
