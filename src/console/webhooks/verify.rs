//! How receivers check signatures, with the code of the example receivers.

use askama::Template;
use axum::response::Response;
use http::StatusCode;

use super::SECTION;
use crate::console::{
    page::{Shell, page},
    visit::Visit,
};

/// The example receivers, which the project's tests run.
const RECEIVERS: [(&str, &str); 4] = [
    (
        "Python",
        include_str!("../../../examples/receivers/python/receiver.py"),
    ),
    (
        "Node.js",
        include_str!("../../../examples/receivers/node/receiver.mjs"),
    ),
    ("Go", include_str!("../../../examples/receivers/go/main.go")),
    ("Rust", include_str!("../../../examples/receivers/rust/main.rs")),
];

#[derive(Template)]
#[template(path = "console/webhooks/verify.html")]
struct VerifyPage {
    shell: Shell,
    receivers: [(&'static str, &'static str); 4],
}

/// Shows how.
pub async fn show(visit: Visit) -> Response {
    let template = VerifyPage {
        shell: visit.shell(SECTION, "Verify signatures"),
        receivers: RECEIVERS,
    };
    page(StatusCode::OK, &template)
}
