//! `/v1/instances/{id}/console`: access to the consoles of a server.

use std::str::FromStr as _;

use axum::response::Response;
use http::StatusCode;

use crate::{
    facade::{
        extract::{Change, Post, Target, fields::Fields},
        openapi::examples,
        response::{
            self,
            error::{Error, ErrorAnswer},
        },
    },
    service::id::InstanceId,
};
use api::{Console, ConsoleType, OpenConsole, Single};

/// Reads a request; 422 names every invalid field.
fn read(mut fields: Fields) -> Result<OpenConsole, Error> {
    let r#type = fields.string("type", &|text| match ConsoleType::from_str(text) {
        Ok(_) => Ok(()),
        Err(_) => Err("must be serial or vnc"),
    });
    let r#type = fields.missing("type", r#type);
    fields.finish()?;
    // `finish` reports a missing field.
    let r#type = r#type
        .and_then(|text| text.parse().ok())
        .ok_or_else(Error::fault)?;
    Ok(OpenConsole { r#type })
}

/// Opens a console of an instance
///
/// Answers with the URL of a WebSocket, which works once within a minute. Its messages carry, in both directions, what is on the serial
/// line, or the protocol of VNC (RFB); send binary ones. `GET /v1/regions` lists the consoles of each region. Allowed while the server is
/// running or shutting down, and from `error` if its power is on. Every answer has a new URL, also one to a repeated `Idempotency-Key`.
#[utoipa::path(
    post, path = "/v1/instances/{id}/console", operation_id = "openInstanceConsole", tag = "actions",
    params(Target<InstanceId>),
    request_body(content = OpenConsole),
    responses(
        (status = 201, description = "The console can be opened", body = Single<Console>),
        (status = 409, description = "Conflict", body = ErrorAnswer, example = json!(examples::error(examples::no_console()))),
    ),
)]
pub async fn open(call: Change<InstanceId>) -> Result<Response, Error> {
    let wanted = read(Post::with_body(call.request).await?.fields)?;
    let (service, credential) = (&call.app.service, &call.caller.credential);
    let opening = service.open_console(credential, call.id, wanted.r#type, &call.precondition);
    let data = opening.await?;
    response::json(StatusCode::CREATED, &Single { data, message: None }, 768)
}
