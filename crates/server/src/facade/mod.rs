//! The REST API, `/v1`. It only does HTTP; [`crate::service`] does the work.
//!
//! A request passes through `middleware` (request id, key, scope, rate limit, panics, metrics, error format) to a handler in
//! the folder of its resource, which reads the request with the extractors, calls the service and responds.
//!
//! - `instances`, `networks`, `backups`, `monitoring`, `webhooks`, `deliveries`, `events`, `invoices`, `account`, `keys`, `catalogue`: the resources, with
//!   their bodies and views;
//! - `middleware`: around every handler; `rate_limit`: rate limits; `extract`: extractors; `response`: responses and errors;
//! - [`openapi`]: the routes, and the document generated from them.

mod account;
mod backups;
mod catalogue;
mod deliveries;
mod events;
mod extract;
mod instances;
mod invoices;
mod keys;
mod middleware;
mod monitoring;
mod networks;
pub mod openapi;
mod rate_limit;
mod response;
mod webhooks;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::{IntoResponse as _, Response},
};
use futures::FutureExt as _;
use http::{Request, StatusCode};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

pub use self::response::error::status;
pub(crate) use self::response::unreadable::{answer as unreadable_answer, error_answer};
use self::{middleware::Writes, rate_limit::RateLimits, response::unreadable};
use crate::public_url::PublicUrl;
use crate::service::{Service, credentials::Credential, instances::duration_in_words};
use runtime::{
    Metrics, http as server,
    http::{ConnectionLimits, tls::Certificate},
};

/// State shared by the handlers.
struct App {
    service: Arc<Service>,
    rate_limits: RateLimits,
    /// How long provisioning takes, in words.
    provisioning: String,
    /// Requests that may write. They run to completion even if their client hangs up.
    writing: TaskTracker,
    /// How many of them each account has in progress.
    writes: Arc<Writes>,
    /// The OpenAPI document, as text: parsed, it takes some megabytes.
    document: bytes::Bytes,
    /// Where clients see the service, if that was said.
    public_url: Option<PublicUrl>,
}

/// In the extensions of a request: the credential to answer it with. Nothing that arrives on a port can set it.
#[derive(Clone)]
struct AnsweredAs(Credential);

/// The REST API. Cheap to clone.
#[derive(Clone)]
pub struct Facade {
    app: Arc<App>,
    router: Router,
    /// What answers the paths below a prefix instead.
    mounted: Option<(&'static str, Router)>,
}

impl Facade {
    /// The REST API of a service. `provisioning` is how long creating a server takes, which the response to a create says.
    /// `public_url` is where clients see it.
    pub fn new(
        service: Arc<Service>,
        provisioning: Duration,
        public_url: Option<PublicUrl>,
        metrics: &Metrics,
    ) -> Self {
        let document = openapi::text(public_url.as_ref());
        let app = Arc::new(App {
            service,
            rate_limits: RateLimits::default(),
            provisioning: duration_in_words(provisioning),
            writing: TaskTracker::new(),
            writes: Arc::default(),
            document,
            public_url,
        });
        let (handlers, served) = openapi::router();
        let router = middleware::around(handlers, &served, &app, metrics);
        Self {
            app,
            router,
            mounted: None,
        }
    }

    /// Where clients see it, if that was said.
    pub fn public_url(&self) -> Option<&PublicUrl> {
        self.app.public_url.as_ref()
    }

    /// Lets `router` answer `prefix` and the paths below it, with the same connections and the same shutdown.
    #[must_use]
    pub fn mounting(mut self, prefix: &'static str, router: Router) -> Self {
        self.mounted = Some((prefix, router));
        self
    }

    /// Answers a request of another front end of the service, as if it had the key of `credential`. Reads count against a limit of
    /// their own, everything else against that of the key.
    pub fn answer_as<B>(
        &self,
        credential: Credential,
        mut request: Request<B>,
    ) -> impl Future<Output = Response> + Send + use<B>
    where
        B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        request.extensions_mut().insert(AnsweredAs(credential));
        self.answer(request)
    }

    /// The router for a path.
    fn router_for(&self, path: &str) -> &Router {
        match &self.mounted {
            Some((prefix, router))
                if path
                    .strip_prefix(prefix)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) =>
            {
                router
            }
            _ => &self.router,
        }
    }

    /// Answers one request. One that may write runs to completion even if this future is dropped, because a write of two objects
    /// must not stop after the first. Only its body must have arrived: reading it fails without the connection.
    pub fn answer<B>(&self, request: Request<B>) -> impl Future<Output = Response> + Send + use<B>
    where
        B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let is_read = request.method().is_safe();
        let mut router = self.router_for(request.uri().path()).clone();
        let answer = router.call(request.map(Body::new));
        let answer = answer.map(|Ok(response)| response);
        if is_read {
            return answer.left_future();
        }
        // The middleware has turned a panic of the handler into a response.
        let answered = self.app.writing.spawn(answer).map(|answered| {
            answered.unwrap_or_else(|error| {
                tracing::error!(%error, "a request did not run to its end");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            })
        });
        answered.right_future()
    }

    /// Serves until `shutdown`, over TLS if there is a certificate, then gives running requests `grace` to finish. Clients are
    /// told to open other connections once `leaving` is set.
    pub async fn serve(
        &self,
        listener: TcpListener,
        limits: ConnectionLimits,
        certificate: Option<Certificate>,
        leaving: Arc<AtomicBool>,
        shutdown: CancellationToken,
        grace: Duration,
    ) {
        let ended = shutdown.clone();
        let facade = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let public_url = facade.app.public_url.clone();
            let request = match &public_url {
                Some(url) => url.at_root(request),
                None => request,
            };
            facade.answer(request).map(move |response| {
                Ok::<_, std::convert::Infallible>(match &public_url {
                    Some(url) => url.below(response),
                    None => response,
                })
            })
        });
        let options = server::Options {
            limits,
            unreadable: unreadable::answer,
            certificate,
            grace,
            leaving,
        };
        let overdue = async {
            ended.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        let served = async {
            server::connections(listener, service, options, shutdown).await;
            // Wait for writes whose clients have hung up.
            self.app.writing.close();
            self.app.writing.wait().await;
        };
        tokio::select! {
            () = served => {}
            () = overdue => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::routing::post;
    use http_body_util::Empty;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_request_that_writes_runs_to_its_end_although_its_client_has_hung_up() {
        let service = Service::without_cluster();
        let mut facade = Facade::new(Arc::new(service), Duration::ZERO, None, &Metrics::new());
        let (begun, go_on, ended) = (
            Arc::new(Notify::new()),
            Arc::new(Notify::new()),
            Arc::new(AtomicBool::new(false)),
        );
        let handler = {
            let (begun, go_on, ended) = (begun.clone(), go_on.clone(), ended.clone());
            async move || {
                begun.notify_one();
                go_on.notified().await;
                ended.store(true, Ordering::Relaxed);
            }
        };
        facade.router = Router::new().route("/", post(handler.clone()).get(handler));
        for (method, expected) in [("GET", false), ("POST", true)] {
            let request = Request::builder().method(method).uri("/");
            let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
            tokio::select! {
                _ = facade.answer(request) => unreachable!("the handler waits"),
                () = begun.notified() => {}
            }
            // The client has hung up, so the future is dropped.
            go_on.notify_one();
            facade.app.writing.close();
            facade.app.writing.wait().await;
            facade.app.writing.reopen();
            assert_eq!(ended.load(Ordering::Relaxed), expected, "{method}");
            if !expected {
                go_on.notified().await;
            }
        }
    }
}
