//! `/v1/invoices`: list, current, detail; as JSON, or as a document.

use std::sync::{Arc, LazyLock};

use axum::{body::Body, extract::State, response::Response};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures::{Stream, stream};
use http::{HeaderValue, StatusCode, header};
use sha2::{Digest as _, Sha256};

use super::{
    App,
    extract::{
        Caller, Charged, Target,
        query::{Paging, Parameters, both},
    },
    openapi::examples,
    response,
};
use crate::service::{error::Error, id::InvoiceId, invoices::OpenedInvoice};
use api::{ErrorAnswer, Invoice, InvoiceAnswer, List, Pagination};
use domain::invoice::render::{Form, html, json as model, ubl};
use resources::{InvoiceLine, money::Cents};

/// The Content-Security-Policy of a page to print, which has one style sheet and nothing else.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let digest = STANDARD.encode(Sha256::digest(html::STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The format in the query: JSON (`None`) or a document; 422 if there is no such format.
fn format(parameters: &Parameters) -> Result<Option<Form>, Error> {
    match parameters.get("format") {
        None | Some("json") => Ok(None),
        Some("csv") => Ok(Some(Form::Csv)),
        Some("html") => Ok(Some(Form::Html)),
        Some("ubl") => Ok(Some(Form::Ubl)),
        Some(_) => Err(Error::invalid_value("format", "must be json, csv, html or ubl")),
    }
}

/// Why there is no e-invoice: the field that is to blame, and what is wrong.
fn no_e_invoice(field: &'static str, message: impl Into<String>) -> Error {
    Error::invalid_state("there is no e-invoice:", field, &message.into())
}

/// The error for the e-invoice of an open invoice.
fn still_open() -> Error {
    no_e_invoice("status", "the invoice is open; it can be read once it is issued")
}

/// Refuses an e-invoice of what is not issued, or lacks what it needs.
fn check_e_invoice(invoice: &resources::Invoice) -> Result<(), Error> {
    if !invoice.is_issued() {
        return Err(still_open());
    }
    let missing = ubl::missing(invoice);
    missing.first().map_or(Ok(()), |first| {
        let missing = missing.join(", ");
        Err(no_e_invoice(
            first,
            format!("the invoice was issued without a valid {missing}, which EN 16931 requires; those that are issued once it is set have it"),
        ))
    })
}

/// Lists invoices
///
/// Those that are issued, and credit notes, the latest period first and a credit note after its invoice; with `year`, those whose period
/// begins in it (UTC). The open one is `GET /v1/invoices/current`.
#[utoipa::path(
    get,
    path = "/v1/invoices",
    operation_id = "listInvoices",
    tag = "invoices",
    params(Paging, ("year" = Option<u16>, Query, description = "Four digits.", minimum = 1000, maximum = 9999, example = 2026)),
    responses((status = 200, description = "A page of invoices", body = List<Invoice>, example = json!({"data": [examples::invoice(true)]}))),
)]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    parameters: Parameters,
) -> Result<Response, Error> {
    let (paging, year) = both(parameters.paging(), parameters.year())?;
    let cost = Charged::new(&app, &caller);
    let invoices = app
        .service
        .list_invoices(caller.tenant(), year, paging, &cost)
        .await?;
    response::list(paging, invoices, model::issued)
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
    params(Paging, ("format" = Option<String>, Query, description = "`json` by default; `csv`, `html` or `ubl` for all lines as a table, a page to print, or an e-invoice (UBL 2.1, EN 16931; of an issued invoice).", pattern = "^(json|csv|html|ubl)$", example = "json")),
    responses((status = 200, description = "The open invoice", content(
        (InvoiceAnswer = "application/json", example = json!(examples::invoice_with_lines(false))), (String = "text/csv"), (String = "text/html"), (String = "application/xml"),
    )), (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(still_open())))),
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
/// With a page of its lines; `page` and `limit` are about these. An issued invoice never changes: a credit note takes back what it bills. Every five pages of the invoice that are
/// read count as one more request against the rate limits.
#[utoipa::path(
    get,
    path = "/v1/invoices/{id}",
    operation_id = "getInvoice",
    tag = "invoices",
    params(Target<InvoiceId>, Paging, ("format" = Option<String>, Query, description = "`json` by default; `csv`, `html` or `ubl` for all lines as a table, a page to print, or an e-invoice (UBL 2.1, EN 16931; of an issued invoice).", pattern = "^(json|csv|html|ubl)$", example = "json")),
    responses((status = 200, description = "The invoice", content(
        (InvoiceAnswer = "application/json", example = json!(examples::invoice_with_lines(true))), (String = "text/csv"), (String = "text/html"), (String = "application/xml"),
    ), headers(("ETag"))), (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(still_open())))),
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
    let version = response::etag(&*opened.invoice);
    let mut response = answer(opened, &parameters, Charged::new(&app, &caller)).await?;
    response.headers_mut().insert(header::ETAG, version);
    Ok(response)
}

async fn answer(opened: OpenedInvoice, parameters: &Parameters, cost: Charged) -> Result<Response, Error> {
    let Some(form) = format(parameters)? else {
        let paging = parameters.paging()?;
        let lines = opened.lines(paging, &cost).await?;
        let pagination = Pagination::new(paging.page, paging.limit, lines.count);
        let data = model::with_lines(&opened.invoice, &lines.lines, lines.total, lines.count);
        return response::json(StatusCode::OK, &InvoiceAnswer { data, pagination }, 4096);
    };
    if form == Form::Ubl {
        check_e_invoice(&opened.invoice)?;
    }
    let invoice = &opened.invoice;
    let name = match invoice.number() {
        Some(number) => format!("{}-{number}", invoice.word().replace(' ', "-")),
        None => "invoice".to_owned(),
    };
    let extension = match form {
        Form::Csv => Some("csv"),
        Form::Ubl => Some("xml"),
        Form::Html => None,
    };
    let text = chunks(opened, cost, form).await?;
    let mut response = response::rendered(StatusCode::OK, Body::from_stream(text));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    let file = extension.map(|extension| format!("attachment; filename=\"{name}.{extension}\""));
    if let Some(Ok(file)) = file.map(HeaderValue::try_from) {
        headers.insert(header::CONTENT_DISPOSITION, file);
    }
    if form == Form::Html {
        headers.insert(header::CONTENT_SECURITY_POLICY, POLICY.clone());
    }
    Ok(response)
}

/// How far an invoice's text has been sent.
enum Position {
    Head(Vec<InvoiceLine>),
    Page(u32),
    End,
}

/// How much of an invoice has been rendered.
#[derive(Default)]
struct Rendered {
    lines: usize,
    net: u64,
}

impl Rendered {
    fn lines(&mut self, form: Form, opened: &OpenedInvoice, lines: &[InvoiceLine]) -> String {
        let text = form.lines(&opened.invoice, self.lines + 1, lines);
        self.lines += lines.len();
        self.net += lines.iter().map(|line| line.amount_cents).sum::<u64>();
        text
    }
}

/// The text of an invoice, in chunks. Only one page is in memory at a time: the next one is read after the previous one has been
/// sent. The sum of an open invoice is that of the lines above it, because it may change in the meantime.
async fn chunks(
    opened: OpenedInvoice,
    cost: Charged,
    form: Form,
) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + 'static, Error> {
    let first = opened.page(0, &cost).await?.unwrap_or_default();
    let begin = ((opened, cost), Position::Head(first), Rendered::default());
    Ok(stream::unfold(
        begin,
        move |((opened, cost), position, mut rendered)| async move {
            let (text, next) = match position {
                Position::Head(first) => {
                    let text = form.head(&opened.invoice) + &rendered.lines(form, &opened, &first);
                    (Ok(text), Position::Page(1))
                }
                Position::Page(number) => match opened.page(number, &cost).await {
                    Ok(Some(lines)) => (
                        Ok(rendered.lines(form, &opened, &lines)),
                        Position::Page(number + 1),
                    ),
                    Ok(None) => {
                        let total = opened.total(Cents(rendered.net));
                        (Ok(form.foot(&opened.invoice, total)), Position::End)
                    }
                    Err(error) => (Err(error), Position::End),
                },
                Position::End => return None,
            };
            Some((text.map(Bytes::from), ((opened, cost), next, rendered)))
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_is_one_of_four() {
        let read = |query: &str| {
            format(&Parameters::of(
                &format!("/v1/invoices/current{query}").parse().unwrap(),
            ))
        };
        assert_eq!(read(""), Ok(None));
        assert_eq!(read("?format=csv"), Ok(Some(Form::Csv)));
        assert_eq!(read("?format=html&page=2"), Ok(Some(Form::Html)));
        assert_eq!(read("?format=ubl"), Ok(Some(Form::Ubl)));
        // The style sheet of a page cannot be closed by its own text.
        assert!(POLICY.to_str().unwrap().contains("style-src 'sha256-"));
        assert_eq!(read("?format=pdf").unwrap_err().details[0].field, "format");
    }
}
