//! The REST API, `/v1`. It does HTTP only; [`crate::service`] does the work.
//!
//! A request passes through `middleware` (request id, key, scope, rate limit, panics, metrics, error format) to a handler in
//! the folder of its resource, which reads the request with the extractors, calls the service and answers.
//!
//! - `instances`, `webhooks`, `deliveries`, `account`, `keys`, `catalogue`: the resources, with their bodies and views;
//! - `middleware`, with `authentication` and `rate_limit`: what surrounds every handler;
//! - `extract`, `query`, `body`, `fields`, `precondition`, `idempotency`: reading requests;
//! - `response`, `view`, `error`, `unreadable`: answers;
//! - [`openapi`]: the routes, and the document generated from them.

mod account;
mod authentication;
mod body;
mod catalogue;
mod deliveries;
mod error;
mod extract;
mod fields;
mod idempotency;
mod instances;
mod keys;
mod middleware;
pub mod openapi;
mod precondition;
mod query;
mod rate_limit;
mod response;
mod unreadable;
mod view;
mod webhooks;

use std::{sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{Request, header::CACHE_CONTROL};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use self::{rate_limit::RateLimits, response::NO_STORE};
use crate::{
    resources::{Account, ApiKey},
    runtime::{
        Metrics,
        http::{self as server, Limits, tls::Certificate},
        watch::Listener,
    },
    service::{Service, instances::duration_in_words},
};

/// State shared by the handlers.
struct App {
    service: Arc<Service>,
    rate_limits: Arc<RateLimits>,
    /// How long provisioning takes, in words.
    provisioning: String,
}

/// The REST API. Cheap to clone.
#[derive(Clone)]
pub struct Facade {
    app: Arc<App>,
    router: Router,
}

impl Facade {
    /// The REST API of a service. `provisioning` is how long it takes to create a server; the answer to a create says so.
    pub fn new(service: Arc<Service>, provisioning: Duration, metrics: &Metrics) -> Self {
        let app = Arc::new(App {
            service,
            rate_limits: Arc::default(),
            provisioning: duration_in_words(provisioning),
        });
        let (routes, served) = openapi::router();
        let router = middleware::around(routes, &served, &app, metrics);
        Self { app, router }
    }

    /// The listeners to attach to the program's watches of keys and accounts.
    pub fn listeners(&self) -> (Box<dyn Listener<ApiKey>>, Box<dyn Listener<Account>>) {
        let limits = &self.app.rate_limits;
        (limits.key_listener(), limits.account_listener())
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: Request<B>) -> axum::response::Response
    where
        B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let mut router = self.router.clone();
        let mut response = match router.call(request.map(Body::new)).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        response.headers_mut().entry(CACHE_CONTROL).or_insert(NO_STORE);
        response
    }

    /// Serves until `shutdown`, over TLS if there is a certificate, then gives running requests `grace` to finish.
    pub async fn serve(
        &self,
        listener: TcpListener,
        limits: Limits,
        certificate: Option<Certificate>,
        shutdown: CancellationToken,
        grace: Duration,
    ) {
        let facade = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let facade = facade.clone();
            async move { Ok::<_, std::convert::Infallible>(facade.answer(request).await) }
        });
        let options = server::Options {
            limits,
            unreadable: unreadable::answer,
            certificate,
            grace,
        };
        server::connections(listener, service, options, shutdown).await;
    }
}
