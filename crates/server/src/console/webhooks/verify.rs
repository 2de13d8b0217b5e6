//! How receivers check signatures, with the code of the example receivers.

use askama::Template;
use http::StatusCode;

use super::{SECTION, view::Webhook};
use crate::console::{
    call::Call,
    page::{Shell, page},
    refusal::Answer,
    session_request::SessionRequest,
};
use api::List;

/// The example receivers, which the project's tests run.
const RECEIVERS: [(&str, &str); 4] = [
    (
        "Python",
        include_str!("../../../../../examples/receivers/python/receiver.py"),
    ),
    (
        "Node.js",
        include_str!("../../../../../examples/receivers/node/receiver.mjs"),
    ),
    ("Go", include_str!("../../../../../examples/receivers/go/main.go")),
    (
        "Rust",
        include_str!("../../../../../examples/receivers/rust/main.rs"),
    ),
];

#[derive(Template)]
#[template(path = "console/webhooks/verify.html")]
struct VerifyPage {
    shell: Shell,
    receivers: [(&'static str, &'static str); 4],
}

/// Shows how to verify signatures, and how to have a signed event sent to the newest webhook.
pub async fn show(request: SessionRequest) -> Answer {
    let newest = Call::get("/v1/webhooks?limit=1");
    let webhooks: List<Webhook> = request.get(&newest).await?;
    let webhook = webhooks.data.first().filter(|_| request.may_write());
    let test = webhook.map(|webhook| Call::post(format!("/v1/webhooks/{}/test", webhook.id)));
    let template = VerifyPage {
        shell: request.shell_with(SECTION, "Verify signatures", &[test.unwrap_or(newest)]),
        receivers: RECEIVERS,
    };
    Ok(page(StatusCode::OK, &template))
}
