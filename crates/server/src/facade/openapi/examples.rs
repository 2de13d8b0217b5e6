//! Example invoices and errors. All other examples are those of the schemas.

use serde_json::{Value, json};

use super::super::response::error::{self, Detail, ErrorCode};
use crate::service::{
    self,
    error::{Error, suspended},
    idempotency, precondition,
};
use domain::instance::Action;
use resources::{
    InstanceState, Plan,
    quota::{SizeQuotas, Sizes},
};

/// The id of an instance.
pub(super) const ID: &str = "i-4q7hz0c9k2m8x1ta";
/// The id of an invoice.
const INVOICE_ID: &str = "inv_1ta4q7hz0c9k2m8x";
pub(super) const ETAG: &str = "\"7c1b7f0e-6a55-4c7e-9a3a-0c1d2e3f4a5b-1\"";
pub(super) const REQUEST_ID: &str = "9b2f4c0a8d7e4f1ca6b5d4e3f2a1b0c9";

/// The body of an error answer.
pub fn error(error: Error) -> Value {
    serde_json::from_slice(&error::body(&error, REQUEST_ID)).unwrap_or_default()
}

/// A plan for which the account's quotas have no room.
pub fn no_room() -> Error {
    let quotas = SizeQuotas {
        vcpu: Some(8),
        ..SizeQuotas::default()
    };
    let others = Sizes {
        vcpu: 6,
        ..Sizes::default()
    };
    let exceeded = quotas.exceeded(others, Sizes::of(Plan::Starter), Sizes::of(Plan::Performance));
    exceeded.map_or_else(Error::fault, |exceeded| {
        service::error::no_room(Plan::Performance, &exceeded)
    })
}

/// The refusal of a console of a server that is off.
pub fn no_console() -> Error {
    let message = "is stopped; a console can be opened while the server is running, or is shutting down";
    Error::invalid_state("the instance", "status", message)
}

/// The refusal of an action in an unsuitable status.
pub fn not_running() -> Error {
    let refused = Action::Reboot.check(InstanceState::Stopped).err();
    refused.map_or_else(Error::fault, Error::from)
}

/// The refusal of a backup in an unsuitable status.
pub fn not_backed_up_now() -> Error {
    let message =
        "is stopping; a backup is allowed from running, stopped, and while no operation is under way";
    Error::invalid_state("the instance", "status", message)
}

/// An invoice without its lines.
pub fn invoice(is_issued: bool) -> Value {
    let money = |value: &str| json!({ "value": value, "currency": "EUR" });
    json!({
        "id": INVOICE_ID, "number": is_issued.then_some("2026-000042"), "type": "invoice", "status": if is_issued { "issued" } else { "open" },
        "period": { "from": "2026-11-01T00:00:00Z", "to": "2026-12-01T00:00:00Z" },
        "issued_at": is_issued.then_some("2026-12-01T00:00:05Z"), "due_date": is_issued.then_some("2026-12-15"),
        "seller": {
            "name": "Stellage Ltd", "address": ["1 Main Street", "10115 Berlin"], "country": "DE", "vat_id": "DE123456789",
            "email": "billing@stellage.example", "reference": null,
        },
        "buyer": {
            "name": "Ada Ltd", "address": ["2 Side Street", "75001 Paris"], "country": "FR", "vat_id": "FR12345678901",
            "email": "ada@example.com", "reference": "PO 4711",
        },
        "corrects": null, "reason": null, "tax_rate": "19.00", "tax_note": null,
        "net": money("5.00"), "tax": money("0.95"), "amount": money("5.95"), "lines_count": 1,
    })
}

/// What an answer has that shows an invoice with a page of its lines.
pub fn invoice_with_lines(is_issued: bool) -> Value {
    let mut data = invoice(is_issued);
    data["lines"] = json!([{
        "instance_id": ID, "name": "web-1",
        "hours": [{ "plan": "starter", "hours": 720, "unit_price": { "value": "0.00745", "currency": "EUR" }, "amount": { "value": "5.36400", "currency": "EUR" } }],
        "reduction": { "value": "-0.36400", "currency": "EUR" },
        "amount": { "value": "5.00", "currency": "EUR" },
    }]);
    json!({ "data": data })
}

/// An error that any operation can have. `kind` is the kind of object that its path names.
pub(super) fn general_error(code: ErrorCode, kind: &str, takes_body: bool, has_query: bool) -> Error {
    match code {
        ErrorCode::JsonError => Error::new(code, "the body is not JSON: expected `:` at line 2 column 6"),
        ErrorCode::Unauthorized => Error::new(
            code,
            "the API key is missing; send the header Authorization: Bearer <API_KEY>",
        ),
        ErrorCode::Forbidden => Error::new(
            code,
            "a policy of the cluster refuses this: images from last year are not allowed",
        ),
        ErrorCode::TokenReadonly => Error::new(
            code,
            "this needs a key with the scope write; this key has the scope read",
        ),
        ErrorCode::AccountSuspended => suspended("invoice 2026-000042 is overdue"),
        ErrorCode::NotFound => Error::no_such(kind),
        ErrorCode::Conflict => Error::new(
            code,
            "the object changed during the request; read it and try again",
        ),
        ErrorCode::PreconditionFailed => precondition::failed(),
        ErrorCode::PayloadTooLarge => Error::new(code, "the body is larger than 64 KiB"),
        ErrorCode::UnsupportedMediaType => Error::new(code, "the Content-Type must be application/json"),
        ErrorCode::InvalidInput if takes_body => Error::invalid(vec![Detail::new(
            "rebot",
            "unknown_field",
            "is not a known field",
        )]),
        ErrorCode::InvalidInput if !has_query => Error::invalid(vec![Detail::new(
            "limit",
            "unknown_field",
            "is not known; this request has no query parameters",
        )]),
        ErrorCode::InvalidInput => Error::invalid_value("limit", "must be an integer from 1 to 100"),
        ErrorCode::IdempotencyKeyReused => idempotency::reused(),
        ErrorCode::RateLimitExceeded => Error::new(
            code,
            "the key has used up its 3600 requests per hour; try again in 1 s",
        ),
        ErrorCode::ServiceUnavailable => {
            Error::unavailable("the service cannot reach its database at the moment; try again")
        }
        _ => Error::fault(),
    }
}
