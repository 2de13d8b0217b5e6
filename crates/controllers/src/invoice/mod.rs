//! The Invoice controller: keeps the ledger of each account ([`domain::invoice::ledger`]) and issues its invoices.
//!
//! - `reconcile`: one reconcile of one account: `observe` gathers what the decision depends on, `apply` writes it;
//! - `books`: reads what is stored;
//! - `numbers`: the invoice numbers;
//! - `prices`: the past prices;
//! - `credit`: credit notes; `retention`: deletes invoices that need not be kept any longer.

mod apply;
mod books;
mod credit;
mod numbers;
mod observe;
mod prices;
mod reconcile;
mod retention;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::{Client, Resource};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use self::{numbers::InvoiceNumbers, prices::KeptPrices, reconcile::Reconciler};
use super::{account::AccountDirectory, backup::BackupIndex, ledger::Ledger};
use domain::{catalogue::Catalogue, event::Outbox, invoice::Period};
use resources::{Account, Backup, Instance, Invoice, origin};
use runtime::{
    ByNamespace, Clock, Metrics, ObjectRef, ReconcileQueue, ServerTime, Store,
    events::Events,
    metrics::KindLabels,
    reconcile_queue::messages,
    shared_catalogue::SharedCatalogue,
    watch::{Change, Listener},
    work_queue,
};

/// Maximum number of accounts reconciled at the same time. In effect half as many, because the queue treats
/// all of them as one account.
const CONCURRENCY: u16 = 32;

/// What the controller depends on.
#[derive(Clone)]
pub struct Deps {
    /// Client of the API server.
    pub client: Client,
    /// The operator's namespace, which holds the invoices and the prices.
    pub namespace: String,
    /// How invoices are numbered, bounded and kept.
    pub settings: InvoiceSettings,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// Tells the Instance and Account controllers what has been recorded.
    pub ledger: Ledger,
    pub instances: ByNamespace<Instance>,
    pub backups: BackupIndex,
    /// Accepts recorded events for delivery.
    pub outbox: Arc<dyn Outbox>,
    /// The prices, and what invoices say besides their lines.
    pub catalogue: SharedCatalogue,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
    /// The API server's time. Nothing is closed until this clock, too, says that it is time.
    pub server_time: ServerTime,
    /// Where reconciles are counted.
    pub metrics: Metrics,
    /// Publishes Kubernetes Events.
    pub events: Events,
}

/// How invoices are numbered, bounded and kept.
#[derive(Clone, Debug)]
pub struct InvoiceSettings {
    /// What every number begins with.
    pub prefix: String,
    /// Number of lines from which on an invoice is issued and the next one begins.
    pub max_lines: usize,
    /// How long after its issue an invoice is deleted; `None` for never.
    pub retention: Option<Duration>,
    /// Whether simulated servers and their backups are billed, too.
    pub bills_simulated: bool,
}

impl InvoiceSettings {
    /// Whether servers in this region and their backups are billed.
    pub(super) fn bills(&self, catalogue: &Catalogue, region: &str) -> bool {
        self.bills_simulated || catalogue.kubevirt(region).is_some()
    }
}

impl Default for InvoiceSettings {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            max_lines: 100_000,
            retention: None,
            bills_simulated: false,
        }
    }
}

/// The controller. Its listeners must receive every change of the watches from the start.
#[derive(Clone)]
pub struct InvoiceController {
    shared: Arc<Shared>,
}

struct Shared {
    deps: Deps,
    numbers: InvoiceNumbers,
    prices: KeptPrices,
    /// A hash of the last seen metering state of each instance, so that other status changes queue nothing. Keyed by a
    /// hash of the UID. Where two hashes happen to be equal, a change is recorded with the account's next one.
    seen: Mutex<HashMap<u64, u64>>,
    hasher: RandomState,
    /// The invoices that still need work, by the origin of their account.
    unsettled: Mutex<HashMap<String, Unsettled>>,
    /// Instances that were deleted before their end was recorded, by the origins of their account and then of themselves, with the time
    /// of deletion.
    gone: Mutex<HashMap<String, HashMap<String, Gone>>>,
}

/// The names of an account's invoices that still need work, and whether each is a credit note that is asked for.
type Unsettled = HashMap<String, bool>;

#[derive(Clone)]
struct Gone {
    instance: Arc<Instance>,
    at: Timestamp,
}

impl InvoiceController {
    /// A controller that does nothing until [`run`](Self::run).
    pub fn new(deps: Deps) -> Self {
        Self {
            shared: Arc::new(Shared {
                numbers: InvoiceNumbers::new(deps.client.clone(), &deps.namespace, &deps.settings.prefix),
                prices: KeptPrices::new(deps.client.clone(), &deps.namespace, deps.catalogue.clone()),
                seen: Mutex::default(),
                hasher: RandomState::new(),
                unsettled: Mutex::default(),
                gone: Mutex::default(),
                deps,
            }),
        }
    }

    /// The listeners for the watch of Instances: one to call before the listener of `instances`, so that a deleted instance is
    /// always in one of the two, and one to call after it.
    pub fn instance_listeners(&self) -> [Box<dyn Listener<Instance>>; 2] {
        let (before, after) = (self.shared.clone(), self.shared.clone());
        [
            Box::new(move |change: &Change<Instance>| before.instance_gone(change)),
            Box::new(move |change: &Change<Instance>| after.instance_changed(change)),
        ]
    }

    /// The listener for the watch of Backups.
    pub fn backup_listener(&self) -> Box<dyn Listener<Backup>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Backup>| {
            if !shared.bills_backups() {
                return;
            }
            let changed = match change {
                Change::Applied(backup) | Change::Deleted(backup) => std::slice::from_ref(backup),
                Change::Replaced(all) => all,
                Change::Unreadable(_) => return,
            };
            shared.request(changed);
        })
    }

    /// The listener for the watch of Invoices that still need work. Must be called before the queue.
    pub fn invoice_listener(&self) -> Box<dyn Listener<Invoice>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Invoice>| {
            let mut unsettled = shared.unsettled.lock();
            if let Change::Replaced(_) = change {
                unsettled.clear();
            }
            match change {
                Change::Applied(invoice) => add(&mut unsettled, invoice),
                Change::Replaced(all) => all.iter().for_each(|invoice| add(&mut unsettled, invoice)),
                Change::Deleted(invoice) => {
                    if let Some(names) = unsettled.get_mut(&invoice.spec.account) {
                        names.remove(invoice.name());
                        if names.is_empty() {
                            unsettled.remove(&invoice.spec.account);
                        }
                    }
                }
                Change::Unreadable(_) => {}
            }
        })
    }

    /// The listener for the watch of Accounts. Must be called after the directory's listener.
    pub fn account_listener(&self) -> Box<dyn Listener<Account>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Account>| match change {
            Change::Applied(account) => {
                shared
                    .deps
                    .ledger
                    .request(account.owned_namespace().unwrap_or_default());
            }
            Change::Deleted(account) => {
                let uid = origin::uid(&account.metadata);
                shared.deps.ledger.reopen(uid);
            }
            Change::Replaced(_) | Change::Unreadable(_) => {}
        })
    }

    /// Keeps the books until shutdown, then finishes the running reconciles. Reconciles every account once at startup. `invoices`
    /// is the store of the watch of Invoices that still need work, and `queue` listens to that watch.
    pub async fn run(
        self,
        accounts: Store<Account>,
        queue: ReconcileQueue<Invoice>,
        invoices: Store<Invoice>,
        shutdown: CancellationToken,
    ) {
        let shared = self.shared;
        let requests = shared.deps.ledger.open();
        let all_accounts = accounts.clone();
        let look_at_all = || {
            for account in all_accounts.state() {
                let namespace = account.owned_namespace().unwrap_or_default();
                shared.deps.ledger.request(namespace);
            }
        };
        look_at_all();
        // Triggered by settled events.
        let (changed, _) = queue.open(&invoices);
        let of_invoices = invoices.clone();
        let changed = changed.filter_map(move |invoice| {
            let invoice = of_invoices.get(&invoice);
            std::future::ready(invoice.map(|invoice| invoice.spec.account_namespace.clone()))
        });
        let directory = shared.deps.directory.clone();
        let triggers = stream::select(messages(requests), changed).filter_map(move |namespace| {
            let account = directory.account_of(&namespace);
            std::future::ready(account.map(|account| ObjectRef::of(&*account)))
        });
        let reconciler = Reconciler::new(shared.clone(), accounts, invoices.clone());
        let kind = KindLabels { kind: "Invoice" };
        let depth = shared.deps.metrics.queue_depth.get_or_create_owned(&kind);
        let needed_since = || {
            let last_month = Period::before(Period::month_of(shared.now())).from;
            let open = invoices.state();
            let open = open.iter().map(|invoice| invoice.spec.period.from);
            open.min().unwrap_or(last_month).min(last_month)
        };
        tokio::join!(
            shared
                .prices
                // An account that has only backups has no open invoice while backups are free.
                .keep(
                    || shared.deps.server_time.now(),
                    needed_since,
                    look_at_all,
                    shutdown.clone()
                ),
            work_queue::run(&reconciler, triggers, CONCURRENCY, depth, &shutdown),
            reconciler.close_orphans(shutdown.clone()),
            retention::run(&shared.deps, shutdown.clone()),
        );
    }
}

/// What [`run`](InvoiceController::run) runs, for tests that control the time.
#[cfg(test)]
impl InvoiceController {
    pub(super) fn reconciler(
        &self,
        accounts: Store<Account>,
        invoices: Store<Invoice>,
    ) -> impl work_queue::Reconcile + use<> {
        Reconciler::new(self.shared.clone(), accounts, invoices)
    }

    /// Records the prices if they have changed. Returns whether they have been stored.
    pub(super) async fn record_prices(&self) -> bool {
        let Some(now) = self.shared.deps.server_time.now() else {
            return false;
        };
        let last_month = Period::before(Period::month_of(now)).from;
        matches!(self.shared.prices.record(now, last_month).await, Ok(None))
    }
}

fn add(unsettled: &mut HashMap<String, Unsettled>, invoice: &Invoice) {
    let is_asked_for = !invoice.is_invoice() && !invoice.is_issued();
    let of_account = unsettled.entry(invoice.spec.account.clone()).or_default();
    of_account.insert(invoice.name().to_owned(), is_asked_for);
}

impl Shared {
    /// The time: the earlier of this machine's and the API server's, so that neither clock alone ends a month too early.
    fn now(&self) -> Timestamp {
        self.deps.server_time.or_earlier(self.deps.clock.now())
    }

    /// The invoices of an account that still need work.
    fn unsettled(&self, account: &str) -> Unsettled {
        self.unsettled.lock().get(account).cloned().unwrap_or_default()
    }

    /// Whether backups have a price.
    fn bills_backups(&self) -> bool {
        let has_price = |history: Arc<domain::invoice::PriceHistory>| history.has_backup_price();
        self.prices.current().is_some_and(has_price)
    }

    /// The instances of an account that were deleted before their end was recorded, by origin.
    fn gone(&self, account: &str) -> HashMap<String, Gone> {
        self.gone.lock().get(account).cloned().unwrap_or_default()
    }

    /// Remembers an instance that was deleted by force.
    fn instance_gone(&self, change: &Change<Instance>) {
        let Change::Deleted(instance) = change else { return };
        let uid = origin::uid(&instance.metadata).to_owned();
        self.seen.lock().remove(&self.hasher.hash_one(&uid));
        let is_metered = instance
            .status
            .as_ref()
            .is_some_and(|status| status.metering.is_some());
        let was_recorded = self.deps.ledger.gone(&uid);
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let account = self.deps.directory.account_of(namespace);
        if let Some(account) = account.filter(|_| !was_recorded && is_metered && self.deps.ledger.is_open()) {
            // Use the API server's clock, which also stamps ordinary deletions, in case this machine's clock
            // is off.
            let at = self.deps.server_time.now();
            let gone = Gone {
                instance: instance.clone(),
                at: at.unwrap_or_else(|| self.deps.clock.now()),
            };
            let account = origin::uid(&account.metadata).to_owned();
            self.gone.lock().entry(account).or_default().insert(uid, gone);
        }
    }

    fn instance_changed(&self, change: &Change<Instance>) {
        match change {
            Change::Applied(instance) => {
                let Some(metering) = instance
                    .status
                    .as_ref()
                    .and_then(|status| status.metering.as_ref())
                else {
                    return;
                };
                let state = (metering.changes.last(), instance.is_deleting());
                let seen = self.hasher.hash_one(state);
                let uid = self.hasher.hash_one(origin::uid(&instance.metadata));
                if self.seen.lock().insert(uid, seen) != Some(seen) {
                    self.request(std::slice::from_ref(instance));
                }
            }
            Change::Deleted(instance) => self.request(std::slice::from_ref(instance)),
            Change::Replaced(all) => {
                self.seen.lock().clear();
                self.request(all);
            }
            Change::Unreadable(_) => {}
        }
    }

    /// Requests a reconcile of the accounts that these objects belong to, each once: a list may contain many
    /// objects of one account.
    fn request<K: Resource>(&self, objects: &[Arc<K>]) {
        let namespaces: HashSet<&str> = objects
            .iter()
            .filter_map(|object| object.meta().namespace.as_deref())
            .collect();
        for namespace in namespaces {
            self.deps.ledger.request(namespace);
        }
    }
}
