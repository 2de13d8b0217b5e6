//! The customer console, `/console`: everything that the REST API does, in a browser.
//!
//! A page calls `/v1` in this process, with the request that the page also shows as a command, and renders the response. So `/v1` alone
//! decides what is valid, allowed, limited or present, and nothing exists only in the console.
//!
//! - `session_request`: a request of a signed-in user, and its requests to `/v1`; `call` describes these, `refusal` their errors;
//! - `sign_in`, with `session`, `sign_in_limiter`: keys, one-time links, and the cookie; `oidc_sign_in`, with `oidc`: OpenID
//!   Connect;
//! - `middleware`, with `same_origin`: the middleware around every page;
//! - `page`, `form`, `refresh`, `text`, `assets`: what pages are made of; their templates are in `crates/server/templates/console/`;
//! - `instances`, `backups`, `networks`, `alerts`, `webhooks`, `events`, `invoices`, `keys`, `account`: the pages.

mod account;
mod alerts;
mod assets;
mod backups;
mod call;
mod events;
mod form;
mod instances;
mod invoices;
mod keys;
mod middleware;
mod networks;
mod oidc;
mod oidc_sign_in;
mod page;
mod refresh;
mod refusal;
mod same_origin;
mod session;
mod session_request;
mod sign_in;
mod sign_in_limiter;
mod text;
mod webhooks;

pub use self::oidc::{OidcError, OidcSettings, Provider};

use std::{net::IpAddr, sync::Arc};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use http::{Extensions, HeaderMap, header};
use kube::Client;

use self::{
    page::see_other, refusal::Refusal, session::Cookies, session_request::SessionRequest,
    sign_in_limiter::SignInLimiter,
};
use crate::{
    facade::Facade,
    seal::Seal,
    sealing_key::{Sealed, SealingKey},
    service::Service,
};
use api::ErrorCode;
use runtime::{Metrics, http::Peer, metrics::RequestLabels};

/// The path of the console; all pages are at or below it.
pub const PREFIX: &str = "/console";

/// Dependencies of the console.
pub struct Dependencies {
    /// The REST API.
    pub facade: Facade,
    /// The service behind it, for keys and sessions.
    pub service: Arc<Service>,
    /// Client of the API server, for the Secret with the sealing key.
    pub client: Client,
    /// The operator's namespace, which contains the Secret.
    pub namespace: String,
    /// Whether browsers use plain HTTP, so that cookies cannot be `Secure`.
    pub insecure_cookie: bool,
    /// The OpenID Connect provider, if there is one.
    pub provider: Option<Provider>,
    /// Counts pages.
    pub metrics: Metrics,
}

/// State shared by the pages.
struct App {
    facade: Facade,
    service: Arc<Service>,
    sealing_key: SealingKey,
    cookies: Cookies,
    attempts: SignInLimiter,
    provider: Option<Provider>,
    metrics: Metrics,
}

impl App {
    /// The seal of cookies; 503 while the Secret cannot be read.
    async fn seal(&self) -> Result<&Seal, Refusal> {
        self.sealing_key.seal().await.ok_or_else(|| {
            Refusal::new(
                ErrorCode::ServiceUnavailable,
                "nobody can sign in at the moment; try again",
            )
        })
    }

    /// The URL of the service as the browser knows it.
    fn origin(&self, headers: &HeaderMap) -> String {
        if let Some(url) = self.facade.public_url() {
            return url.as_str().to_owned();
        }
        let scheme = if self.cookies.insecure { "http" } else { "https" };
        let is_plain = |host: &&str| {
            !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "-.:[]".contains(c))
        };
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        match host.filter(is_plain) {
            Some(host) => format!("{scheme}://{host}"),
            None => "$STELLAGE_URL".to_owned(),
        }
    }

    fn count(&self, labels: &RequestLabels) {
        self.metrics.requests.get_or_create_owned(labels).inc();
    }
}

/// The address that a request comes from.
fn client(extensions: &Extensions) -> IpAddr {
    extensions
        .get()
        .map_or(IpAddr::from([0, 0, 0, 0]), |Peer(address)| *address)
}

/// The pages, to be mounted at [`PREFIX`].
pub fn router(dependencies: Dependencies) -> Router {
    let app = Arc::new(App {
        sealing_key: SealingKey::new(dependencies.client, &dependencies.namespace, Sealed::Cookies),
        facade: dependencies.facade,
        service: dependencies.service,
        cookies: Cookies {
            insecure: dependencies.insecure_cookie,
        },
        attempts: SignInLimiter::default(),
        provider: dependencies.provider,
        metrics: dependencies.metrics,
    });
    Router::new()
        .route("/console", get(home))
        .route("/console/", get(home))
        .route("/console/welcome", get(home))
        .route("/console/assets/{*path}", get(asset))
        .route("/console/sign-in", get(sign_in::show).post(sign_in::with_key))
        .route("/console/sign-in/oidc", get(oidc_sign_in::start))
        .route(oidc::CALLBACK, get(oidc_sign_in::callback))
        .route("/console/sign-out", post(sign_in::out))
        .route("/console/link", get(sign_in::show_link).post(sign_in::with_link))
        .merge(instances::routes())
        .merge(backups::routes())
        .merge(networks::routes())
        .merge(alerts::routes())
        .merge(webhooks::routes())
        .merge(events::routes())
        .merge(invoices::routes())
        .merge(keys::routes())
        .merge(account::routes())
        .fallback(async || Refusal::no_such_page())
        .method_not_allowed_fallback(async || {
            Refusal::new(
                ErrorCode::MethodNotAllowed,
                "this page does not support the method",
            )
        })
        .layer(axum::middleware::from_fn_with_state(
            app.clone(),
            middleware::surround,
        ))
        .with_state(app)
}

async fn home(_: SessionRequest) -> Response {
    see_other("/console/instances")
}

async fn asset(request: Request) -> Response {
    let found = assets::answer(request.uri().path(), request.headers());
    found.unwrap_or_else(|| Refusal::no_such_page().into_response())
}
