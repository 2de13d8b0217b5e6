//! The console of a server, in the browser: a page with a terminal or a screen, which asks for a ticket and opens a WebSocket to the
//! gateway.

use askama::Template;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::{SECTION, offers, view::Instance};
use crate::console::{
    call::{Call, Id},
    form::Form,
    middleware::policy,
    page::{Shell, page},
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
};
use api::{ConsoleType, ErrorAnswer, ErrorCode, Single};

#[derive(Template)]
#[template(path = "console/instances/console.html")]
struct ConsolePage {
    shell: Shell,
    instance: Instance,
    kind: ConsoleType,
    is_serial: bool,
    is_simulated: bool,
    /// Whether there is also the other console.
    has_other: bool,
    /// Of the page's policy.
    nonce: String,
}

fn call(id: &str, r#type: ConsoleType) -> Call {
    let body = json!({ "type": r#type });
    Call::with(Method::POST, format!("/v1/instances/{id}/console"), body)
}

/// The page with a console.
pub async fn show(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let found: Single<Instance> = request.get(&Call::get(format!("/v1/instances/{id}"))).await?;
    let instance = found.data;
    let regions = offers::regions(&request).await?;
    let region = regions.into_iter().find(|region| region.id == instance.region);
    let consoles = region.as_ref().map(|region| region.consoles.as_slice());
    // A region that is not listed is simulated.
    let consoles = consoles.unwrap_or(&[ConsoleType::Serial]);
    let asked = request.query.get("type");
    let shown = if asked.is_empty() {
        consoles.first()
    } else {
        consoles.iter().find(|console| console.as_str() == asked)
    };
    let (Some(shown), Some(gateway)) = (shown.copied(), request.gateway_origin()) else {
        let message = format!("there is no such console in region {}", instance.region);
        return Err(Refusal::new(ErrorCode::NotFound, message));
    };
    let is_serial = shown == ConsoleType::Serial;
    let nonce = hex::encode(rand::random::<[u8; 16]>());
    let policy = policy(&nonce, &gateway);
    let template = ConsolePage {
        shell: request.shell_with(
            SECTION,
            format!("Console of {}", instance.name),
            &[call(&id, shown)],
        ),
        kind: shown,
        is_serial,
        is_simulated: region.as_ref().is_none_or(|region| region.simulated),
        has_other: consoles.len() > 1,
        nonce,
        instance,
    };
    let mut response = page(StatusCode::OK, &template);
    if let Ok(policy) = HeaderValue::try_from(policy) {
        response
            .headers_mut()
            .insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    Ok(response)
}

/// Asks for a ticket, and passes on what `/v1` answers: the script of the page reads it.
pub async fn open(request: SessionRequest, Id(id): Id, form: Form) -> Response {
    let wanted = form.value("type").parse().unwrap_or(ConsoleType::Serial);
    let answered = request.get::<Value>(&call(&id, wanted)).await;
    let (status, body) = match answered {
        Ok(answer) => (StatusCode::CREATED, answer),
        // As a page would, it sends to the sign-in.
        Err(refusal) if refusal.status == StatusCode::UNAUTHORIZED => return refusal.into_response(),
        Err(refusal) => {
            let message = refusal.sentence();
            let error = api::ErrorBody {
                message,
                ..refusal.error
            };
            (refusal.status, json!(ErrorAnswer { error }))
        }
    };
    (
        status,
        [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
        body.to_string(),
    )
        .into_response()
}
