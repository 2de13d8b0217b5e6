//! Everything that an account holder can do, independent of HTTP. The REST facade builds on it.
//!
//! - [`instances`], [`alerts`], [`networks`], [`backups`], [`webhooks`], [`deliveries`], [`events`]: the resources, one folder or file each;
//! - [`usage`]: the usage of instances, which their source is asked for; [`console`]: tickets for the consoles of servers;
//! - [`invoices`]: what the account is billed; [`account`], [`keys`]: the account itself, its API keys and its sign-ins to the console;
//! - [`credentials`]: the index of keys and accounts, for authentication, and the day on which a key was last used;
//! - [`index`]: in-memory indexes fed by the watches, and read-your-writes;
//! - [`store`]: reads from and writes to the API server, with optimistic concurrency;
//! - [`idempotency`], [`precondition`]: requests that are carried out once, or for one version only;
//! - [`cost`]: what a request costs in addition to being one;
//! - [`id`]: public ids; [`error`]: the error type.
//!
//! The service is stateless: it reads from watches and writes to the API server.

pub mod account;
pub mod alerts;
pub mod backups;
pub mod console;
pub mod cost;
pub mod credentials;
pub mod deliveries;
pub mod error;
pub mod events;
pub mod idempotency;
pub mod index;
pub mod instances;
pub mod invoices;
pub mod keys;
pub mod networks;
pub mod precondition;
pub mod store;
pub mod usage;
pub mod webhooks;

use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc;

pub use resources::public_id as id;

use domain::{backup::BackupLimits, catalogue::Catalogue, nonce};
use providers::UsageSource;
use resources::{
    Account, ApiKey, Backup, Instance, PrivateNetwork, Webhook, account::DEFAULT_INSTANCE_QUOTA,
    api_key::DEFAULT_KEY_QUOTA, backup, private_network::DEFAULT_NETWORK_QUOTA,
};
use runtime::{Clock, FairPermits, Health, shared_catalogue::SharedCatalogue, watch::Listener};

use self::{
    backups::IndexedBackup,
    credentials::Credentials,
    index::{Index as _, OrderedIndex},
    instances::InstanceIndex,
    invoices::OpenSums,
    networks::IndexedNetwork,
    store::{ApiCalls, KeyedLocks, MAX_CALLS, Store},
    webhooks::IndexedWebhook,
};

/// Dependencies of the service.
pub struct Dependencies {
    /// Client of the API server.
    pub client: Client,
    /// Whether the watches go on.
    pub health: Health,
    /// Clock for expiry times and nonces.
    pub clock: Arc<dyn Clock>,
    /// What can be ordered.
    pub catalogue: SharedCatalogue,
    /// Where the usage of instances is known.
    pub usage: Arc<dyn UsageSource>,
    /// Validates the URLs of receivers.
    pub receiver_check: ReceiverCheck,
}

/// What the operator is configured to do.
pub struct Settings {
    /// Maximum number of concurrent calls to the API server.
    pub max_calls: usize,
    /// Instances that an account may have unless its spec says otherwise.
    pub instance_quota: u32,
    /// Keys that an account may have.
    pub key_quota: usize,
    /// Private networks that an account may have.
    pub network_quota: u32,
    pub backup_limits: BackupLimits,
    /// Whether the operator logs events.
    pub has_event_log: bool,
    /// How many hours logged events are shown.
    pub log_retention_hours: u32,
    /// The operator's namespace, where the prices of the past are.
    pub operator_namespace: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_calls: MAX_CALLS,
            instance_quota: DEFAULT_INSTANCE_QUOTA,
            key_quota: size(DEFAULT_KEY_QUOTA),
            network_quota: DEFAULT_NETWORK_QUOTA,
            backup_limits: BackupLimits {
                per_instance: size(backup::DEFAULT_PER_INSTANCE),
                per_account: size(backup::DEFAULT_PER_ACCOUNT),
            },
            has_event_log: true,
            log_retention_hours: 24,
            operator_namespace: "stellage-system".to_owned(),
        }
    }
}

/// Checks the host of a receiver's URL; the error is for the account holder. It is called on every create and change, so it
/// must neither block nor resolve names.
pub type ReceiverCheck = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Everything that an account holder can do. Its indexes are empty until the [`Service::listeners`] are attached to watches.
pub struct Service {
    calls: Arc<ApiCalls>,
    instances: Store<InstanceIndex>,
    networks: Store<OrderedIndex<IndexedNetwork>>,
    backups: Store<OrderedIndex<IndexedBackup>>,
    webhooks: Store<OrderedIndex<IndexedWebhook>>,
    credentials: Arc<Credentials>,
    /// Receives keys on their first use of a day. Not set until something records them.
    first_uses: OnceLock<mpsc::UnboundedSender<Arc<ApiKey>>>,
    /// For creating keys, by namespace.
    key_locks: KeyedLocks,
    /// For requests that change many deliveries, by webhook.
    bulk_locks: KeyedLocks,
    secret_locks: KeyedLocks,
    /// For creating and resizing instances of accounts with quotas of their sizes, by namespace.
    size_locks: KeyedLocks,
    /// For creating backups, by namespace.
    backup_locks: KeyedLocks,
    settings: Settings,
    open_sums: Arc<OpenSums>,
    catalogue: SharedCatalogue,
    clock: Arc<dyn Clock>,
    usage: Arc<dyn UsageSource>,
    /// For questions about usage.
    usage_permits: Arc<FairPermits>,
    receiver_check: ReceiverCheck,
    /// Of the consoles of servers, if there is one.
    gateway: Option<console::Gateway>,
}

/// The listeners that the service needs on the program's watches.
pub struct Listeners {
    /// For the watch of instances.
    pub instances: Box<dyn Listener<Instance>>,
    /// For the watch of private networks.
    pub networks: Box<dyn Listener<PrivateNetwork>>,
    /// For the watch of backups.
    pub backups: Box<dyn Listener<Backup>>,
    /// For the watch of webhooks.
    pub webhooks: Box<dyn Listener<Webhook>>,
    /// For the watch of keys.
    pub keys: Box<dyn Listener<ApiKey>>,
    /// For the watch of accounts.
    pub accounts: Box<dyn Listener<Account>>,
}

/// The Account `demo` with the UID `uid`, which owns the namespace `demo`.
#[cfg(test)]
fn demo_account() -> Arc<Account> {
    let account = serde_json::json!({
        "metadata": { "name": "demo", "uid": "uid", "creationTimestamp": "2026-11-22T09:00:00Z" },
        "spec": { "email": "ada@example.com" },
        "status": { "namespace": "demo", "conditions": [{
            "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": "2026-11-22T09:00:00Z",
        }] },
    });
    Arc::new(serde_json::from_value(account).unwrap())
}

#[cfg(test)]
impl Service {
    /// A service whose API server cannot be reached.
    pub(crate) fn without_cluster() -> Self {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        Self::with_client(Client::try_from(nowhere).unwrap())
    }

    /// A service with this client.
    pub(crate) fn with_client(client: Client) -> Self {
        let dependencies = Dependencies {
            client,
            health: Health::default(),
            clock: Arc::new(runtime::SystemClock),
            catalogue: SharedCatalogue::default(),
            usage: Arc::new(providers::simulator::SimulatedUsage::default()),
            receiver_check: Arc::new(|_| Ok(())),
        };
        Self::new(dependencies, Settings::default())
    }

    /// The same, with images and receivers that are not served.
    pub(crate) fn without_images_and_receivers(mut self) -> Self {
        self.catalogue = SharedCatalogue::new(domain::catalogue::testing::catalogue());
        self.receiver_check = Arc::new(|_| Err("is not allowed".to_owned()));
        self
    }

    /// Feeds it the Account `demo` and no other.
    fn show_demo_account(&self) {
        let mut listeners = self.listeners();
        let accounts = runtime::watch::Change::Replaced(vec![demo_account()]);
        listeners.accounts.changed(&accounts);
    }
}

impl Service {
    /// A service with these dependencies and settings.
    pub fn new(dependencies: Dependencies, settings: Settings) -> Self {
        let Dependencies {
            client,
            health,
            clock,
            catalogue,
            usage,
            receiver_check,
        } = dependencies;
        let calls = Arc::new(ApiCalls::new(client, settings.max_calls));
        Self {
            instances: Store::new(calls.clone(), Arc::default()),
            networks: Store::new(calls.clone(), Arc::default()),
            backups: Store::new(calls.clone(), Arc::default()),
            webhooks: Store::new(calls.clone(), Arc::default()),
            calls,
            credentials: Arc::new(Credentials::new(settings.instance_quota, health)),
            first_uses: OnceLock::new(),
            key_locks: KeyedLocks::default(),
            bulk_locks: KeyedLocks::default(),
            secret_locks: KeyedLocks::default(),
            size_locks: KeyedLocks::default(),
            backup_locks: KeyedLocks::default(),
            settings,
            open_sums: Arc::default(),
            catalogue,
            clock,
            usage,
            usage_permits: FairPermits::new(usage::ASKED_AT_ONCE, usage::ASKED_BY_ONE),
            receiver_check,
            gateway: None,
        }
    }

    /// The listeners to attach to the program's watches.
    pub fn listeners(&self) -> Listeners {
        Listeners {
            instances: index::listener(self.instances.shared_index()),
            networks: index::listener(self.networks.shared_index()),
            backups: index::listener(self.backups.shared_index()),
            webhooks: index::listener(self.webhooks.shared_index()),
            keys: self.credentials.key_listener(),
            accounts: self.credentials.account_listener(),
        }
    }

    /// Whether instances, private networks, backups and webhooks have been listed once.
    pub fn is_synced(&self) -> bool {
        self.instances.index().progress().is_synced()
            && self.networks.index().progress().is_synced()
            && self.backups.index().progress().is_synced()
            && self.webhooks.index().progress().is_synced()
    }

    /// The index of keys and accounts.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// What can be ordered, and what it costs, as of now.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.catalogue.current()
    }

    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Checks the URL of a receiver. The error says what is wrong with it.
    pub fn check_receiver(&self, url: &str) -> Result<(), String> {
        (self.receiver_check)(url)
    }
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
