//! What an account holder can do, without HTTP. The REST facade is a face over it.
//!
//! - [`instances`], [`webhooks`], [`deliveries`]: the resources, one folder each;
//! - [`account`], [`keys`]: the account itself, and its API keys;
//! - [`credentials`]: the index of keys and accounts, which tells whose a key is;
//! - [`index`]: what the watches show, in memory, and read-your-writes;
//! - [`store`]: reads and writes of the API server, decided again when somebody else was faster;
//! - [`idempotency`], [`precondition`], [`nonce`]: requests that are done once, or for one version only;
//! - [`id`]: public ids; [`error`]: the one error.
//!
//! The service is stateless: it reads from watches, writes to the API server, and never talks to a provider, but for usage.

pub mod account;
pub mod credentials;
pub mod deliveries;
pub mod error;
pub mod id;
pub mod idempotency;
pub mod index;
pub mod instances;
pub mod keys;
pub mod nonce;
pub mod precondition;
pub mod store;
pub mod webhooks;

use std::sync::Arc;

use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;

use crate::{
    catalogue::Catalogue,
    providers::{ProviderError, Usage, UsageSource},
    resources::{Account, ApiKey, Instance, Webhook},
    runtime::{Clock, watch::Listener},
};

use self::{
    credentials::Credentials,
    index::{Index as _, OrderedIndex},
    instances::InstanceIndex,
    store::{ApiCalls, Store},
    webhooks::IndexedWebhook,
};

/// What the service stands on.
pub struct Dependencies {
    /// Reads and writes the API server.
    pub client: Client,
    /// Tells the time for expiry and nonces.
    pub clock: Arc<dyn Clock>,
    /// What can be ordered.
    pub catalogue: Catalogue,
    /// Where the usage of an instance comes from.
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

/// What an account holder can do. It knows nothing until its [`Service::listeners`] hear of something.
pub struct Service {
    calls: Arc<ApiCalls>,
    instances: Store<InstanceIndex>,
    webhooks: Store<OrderedIndex<IndexedWebhook>>,
    credentials: Arc<Credentials>,
    catalogue: Catalogue,
    clock: Arc<dyn Clock>,
    usage: Box<dyn AnyUsageSource>,
    receiver_check: ReceiverCheck,
}

/// The listeners that the service needs on the program's watches.
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

impl Service {
    /// A service on these dependencies.
    pub fn new(dependencies: Dependencies) -> Self {
        let Dependencies {
            client,
            clock,
            catalogue,
            usage,
            receiver_check,
        } = dependencies;
        let calls = Arc::new(ApiCalls::new(client));
        Self {
            instances: Store::new(calls.clone(), Arc::default()),
            webhooks: Store::new(calls.clone(), Arc::default()),
            calls,
            credentials: Arc::default(),
            catalogue,
            clock,
            usage,
            receiver_check,
        }
    }

    /// The listeners to hand to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            instances: index::listener(self.instances.shared_index()),
            webhooks: index::listener(self.webhooks.shared_index()),
            keys: self.credentials.key_listener(),
            accounts: self.credentials.account_listener(),
        }
    }

    /// Whether every kind has been listed for the first time.
    pub fn is_synced(&self) -> bool {
        self.instances.index().progress().is_synced() && self.webhooks.index().progress().is_synced()
    }

    /// API keys and accounts.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What can be ordered.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// The time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// What is wrong with the URL of a receiver, if anything.
    pub fn check_receiver(&self, url: &str) -> Result<(), String> {
        (self.receiver_check)(url)
    }
}
