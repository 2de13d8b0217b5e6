//! The REST facade, `/v1`: stateless, reads from watches, writes to the API server, never talks to a provider.
//!
//! A request's way: [`front`] (request id, route, key, scope, rate limit, metrics, and the one error format), then a handler
//! of [`instances`], [`actions`], [`webhooks`] or [`catalogue`], which reads the request ([`request`], [`query`], [`body`] into
//! [`fields`]), decides ([`order`], [`change`], [`precondition`], [`idempotency`]), writes ([`create`], [`modify`],
//! [`store`]) and answers ([`answer`], [`view`], [`error`]).
//!
//! What it knows comes from watches: [`index`] has the instances, [`few`] the webhooks (an [`entry`] is what both have in
//! common), [`keys`] keys and accounts with their rate [`limit`]s, [`progress`] how far a watch has come. [`openapi`] makes the document out of the handlers.

pub mod actions;
pub mod answer;
pub mod body;
pub mod catalogue;
pub mod change;
pub mod create;
pub mod entry;
pub mod error;
pub mod few;
pub mod fields;
pub mod front;
pub mod id;
pub mod idempotency;
pub mod index;
pub mod instances;
pub mod keys;
pub mod limit;
pub mod modify;
pub mod openapi;
pub mod order;
pub mod precondition;
pub mod progress;
pub mod query;
pub mod request;
pub mod store;
pub mod view;
pub mod webhooks;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    catalogue::Catalogue,
    lifecycle::Timings,
    providers::{ProviderError, Usage, UsageSource},
    resources::{Account, ApiKey, Instance, OperationKind, Webhook},
    runtime::{Clock, Metrics, http::connections, watch::Listener},
};

use self::{
    entry::Index as _,
    few::Few,
    front::Front,
    index::InstanceIndex,
    keys::Keys,
    store::{Calls, Store},
    webhooks::ShownWebhook,
};

/// What the facade stands on.
pub struct Dependencies {
    /// Writes to the API server.
    pub client: Client,
    /// Tells the time for expiry and nonces.
    pub clock: Arc<dyn Clock>,
    /// Where requests are counted.
    pub metrics: Metrics,
    /// What can be ordered.
    pub catalogue: Catalogue,
    /// How long provisioning takes, which a create announces.
    pub timings: Timings,
    /// Where `include=metrics` comes from.
    pub usage: Box<dyn AnyUsageSource>,
    /// What is wrong with the URL of a receiver.
    pub receiver_check: ReceiverCheck,
}

/// Says what is wrong with the URL of a receiver, for its account holder: the address that it names, or the name. Called on
/// every create and change, so it must neither block nor resolve names.
pub type ReceiverCheck = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A [`UsageSource`] of any type.
pub trait AnyUsageSource: Send + Sync + 'static {
    /// The usage at `now`.
    fn usage_of<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>>;
}

impl<S: UsageSource> AnyUsageSource for S {
    fn usage_of<'a>(
        &'a self,
        instance: &'a Instance,
        now: Timestamp,
    ) -> BoxFuture<'a, Result<Usage, ProviderError>> {
        Box::pin(self.usage(instance, now))
    }
}

/// What handlers share.
pub struct App {
    calls: Arc<Calls>,
    instances: Store<InstanceIndex>,
    webhooks: Store<Few<ShownWebhook>>,
    keys: Arc<Keys>,
    catalogue: Catalogue,
    /// How long provisioning takes, in words.
    provisioning: String,
    clock: Arc<dyn Clock>,
    usage: Box<dyn AnyUsageSource>,
    receiver_check: ReceiverCheck,
}

impl App {
    /// Whether every kind has been listed for the first time.
    fn is_synced(&self) -> bool {
        self.instances.index().progress().is_synced() && self.webhooks.index().progress().is_synced()
    }
}

/// The listeners that the facade needs on the program's watches.
pub struct Listeners {
    /// For the watch of instances.
    pub instances: Box<dyn Listener<Instance>>,
    /// For the watch of webhooks.
    pub webhooks: Box<dyn Listener<Webhook>>,
    /// For the watch of keys.
    pub keys: Box<dyn Listener<ApiKey>>,
    /// For the watch of accounts.
    pub accounts: Box<dyn Listener<Account>>,
}

/// The REST API. Cheap to clone.
#[derive(Clone)]
pub struct Facade {
    app: Arc<App>,
    front: Arc<Front>,
}

impl Facade {
    /// A facade that knows nothing until its [`Facade::listeners`] hear of something; until then it answers 503.
    pub fn new(dependencies: Dependencies) -> Self {
        let Dependencies {
            client,
            clock,
            metrics,
            catalogue,
            timings,
            usage,
            receiver_check,
        } = dependencies;
        let calls = Arc::new(Calls::new(client));
        let app = Arc::new(App {
            instances: Store::new(calls.clone(), Arc::default()),
            webhooks: Store::new(calls.clone(), Arc::default()),
            calls,
            keys: Arc::default(),
            catalogue,
            provisioning: order::duration_in_words(timings.duration(OperationKind::Create)),
            clock,
            usage,
            receiver_check,
        });
        let front = Arc::new(Front::new(app.clone(), metrics));
        Self { app, front }
    }

    /// The listeners to hand to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            instances: entry::listener(self.app.instances.shared_index()),
            webhooks: entry::listener(self.app.webhooks.shared_index()),
            keys: self.app.keys.key_listener(),
            accounts: self.app.keys.account_listener(),
        }
    }

    /// Answers one request.
    pub async fn answer<B>(&self, request: http::Request<B>) -> axum::response::Response
    where
        B: hyper::body::Body<Data = bytes::Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        self.front.answer(request).await
    }

    /// Serves until `shutdown`, then lets what runs finish within `grace`.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken, grace: Duration) {
        let facade = self.clone();
        let service = hyper::service::service_fn(move |request| {
            let facade = facade.clone();
            async move { Ok::<_, std::convert::Infallible>(facade.answer(request).await) }
        });
        connections(listener, service, shutdown, grace).await;
    }
}
