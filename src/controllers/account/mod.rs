//! Gives each Account its namespace, its quota and the operator's rights there, and takes them back.
//!
//! - `claims`: which Accounts want which namespace;
//! - `decide`: what to do about one of them, decided purely;
//! - `children`: what belongs into the namespace;
//! - `apply`: looks, has it decided, and makes it so;
//! - `directory`: tells the other controllers whose namespace is whose.

mod apply;
mod children;
mod claims;
mod decide;
mod directory;

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::{
    core::v1::{Namespace, ResourceQuota},
    rbac::v1::RoleBinding,
};
use kube::{
    Client, Resource as _,
    core::PartialObjectMeta,
    runtime::{
        controller::{self, Action, Controller},
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use parking_lot::Mutex;
use rand::RngExt as _;
use thiserror::Error;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use self::claims::Claims;
use crate::{
    resources::{ACCOUNT_LABEL, Account, Instance},
    runtime::{
        Backoffs, Clock, Metrics,
        client::CallError,
        events::Events,
        metrics::{KindLabels, ReconcileLabels},
        watch::{Change, Listener, Watches},
    },
};

pub use directory::AccountDirectory;

/// Name under which this controller writes.
const CONTROLLER: &str = "stellage-account-controller";
/// Accounts reconciled at the same time. Each costs a few short calls, and accounts come and go slowly.
const CONCURRENCY: u16 = 8;
/// How often an Account is looked at though nothing about it has changed.
const RESYNC: Duration = Duration::from_mins(5);

/// What the controller is built from.
#[derive(Clone)]
pub struct Deps {
    /// The client that writes.
    pub client: Client,
    /// The operator's own namespace: holds its service account, and no Account may have it.
    pub namespace: String,
    /// The operator's service account.
    pub service_account: String,
    /// This replica, as Kubernetes Events name it.
    pub identity: String,
    /// Where reconciles are counted.
    pub metrics: Metrics,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// A reconcile that failed and will be tried again.
#[derive(Debug, Error)]
pub enum AccountError {
    /// An API call failed.
    #[error("cannot {doing}: {source}")]
    Call {
        /// What was being done, as in "cannot create the namespace".
        doing: &'static str,
        /// Why it failed.
        source: CallError,
    },
}

impl AccountError {
    fn label(&self) -> &'static str {
        let Self::Call { source, .. } = self;
        source.label()
    }

    /// Whether what this reconcile had decided on was no longer true; the next one sees what is.
    fn is_stale(&self) -> bool {
        let Self::Call { source, .. } = self;
        source.is_conflict()
    }
}

/// Makes Accounts real. Every replica listens, so that it is warm; the leader calls [`run`](Self::run).
#[derive(Clone)]
pub struct AccountController {
    shared: Arc<Shared>,
}

struct Shared {
    deps: Deps,
    events: Events,
    claims: Mutex<Claims>,
    /// Where to ask for a reconcile; none while another replica leads, so that nothing piles up.
    queue: Mutex<Option<mpsc::UnboundedSender<ObjectRef<Account>>>>,
    /// Namespaces whose Account is held back until they are empty.
    awaited: Mutex<HashSet<String>>,
    backoffs: Backoffs,
    /// Kubernetes can count webhooks, which it cannot in the first half minute of their kind.
    webhooks_count: AtomicBool,
}

impl AccountController {
    /// A controller that has seen nothing yet. Needs a runtime, for the task that writes its Events.
    pub fn new(deps: Deps) -> Self {
        Self {
            shared: Arc::new(Shared {
                events: Events::new(deps.client.clone(), "account-controller", &deps.identity),
                deps,
                claims: Mutex::default(),
                queue: Mutex::default(),
                awaited: Mutex::default(),
                backoffs: Backoffs::default(),
                webhooks_count: AtomicBool::new(false),
            }),
        }
    }

    /// Has to hear of every change of the watch of Accounts.
    pub fn account_listener(&self) -> Box<dyn Listener<Account>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Account>| {
            if let Change::Deleted(gone) = change {
                shared.backoffs.reset(&uid(gone));
            }
            let affected = shared.claims.lock().changed(change);
            for name in affected {
                shared.enqueue(&name);
            }
        })
    }

    /// Has to hear of every change of the watch of Instances: the last one to go lets its Account go.
    pub fn instance_listener(&self) -> Box<dyn Listener<Instance>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Instance>| match change {
            Change::Applied(object) | Change::Deleted(object) => {
                if let Some(namespace) = &object.metadata.namespace {
                    shared.content_changed(namespace);
                }
            }
            Change::Replaced(_) => {
                let awaited: Vec<_> = shared.awaited.lock().iter().cloned().collect();
                for namespace in awaited {
                    shared.enqueue_claimants(&namespace);
                }
            }
            Change::Unreadable(_) => {}
        })
    }

    /// Reconciles until `shutdown`, then lets finish what is under way. Only one replica may be in here at a time.
    ///
    /// `accounts` is the store of the watch that [`account_listener`](Self::account_listener) hears; `watches` makes
    /// the watches of the children, by label and with little more than metadata in memory.
    pub async fn run(&self, accounts: Store<Account>, watches: &Watches, shutdown: CancellationToken) {
        let (sender, mut queue) = mpsc::unbounded_channel();
        *self.shared.queue.lock() = Some(sender);
        self.watch_children(watches);
        if accounts.wait_until_ready().await.is_err() {
            return;
        }
        for account in accounts.state() {
            self.shared
                .enqueue(account.metadata.name.as_deref().unwrap_or_default());
        }
        let requests = futures::stream::poll_fn(move |cx| queue.poll_recv(cx));
        Controller::for_shared_stream(futures::stream::pending(), accounts)
            .with_config(controller::Config::default().concurrency(CONCURRENCY))
            .reconcile_on(requests)
            .graceful_shutdown_on(shutdown.cancelled_owned())
            .run(
                |account, shared| reconcile(account, shared).boxed(),
                on_error,
                self.shared.clone(),
            )
            .for_each(|outcome| async move {
                match outcome {
                    // Logged where they happen, or an Account that was gone before its turn came.
                    Ok(_)
                    | Err(controller::Error::ReconcilerFailed(..) | controller::Error::ObjectNotFound(_)) => {
                    }
                    Err(error) => tracing::error!(%error, "the account controller's queue failed"),
                }
            })
            .await;
        *self.shared.queue.lock() = None;
    }

    fn watch_children(&self, watches: &Watches) {
        let labelled = watcher::Config::default().labels(ACCOUNT_LABEL);
        let shared = self.shared.clone();
        watches.spawn_selected::<PartialObjectMeta<Namespace>>(
            labelled.clone(),
            vec![Box::new(move |change: &Change<PartialObjectMeta<Namespace>>| {
                if let Change::Applied(object) | Change::Deleted(object) = change {
                    shared.enqueue_claimants(object.metadata.name.as_deref().unwrap_or_default());
                }
            })],
        );
        let shared = self.shared.clone();
        watches.spawn_selected::<PartialObjectMeta<RoleBinding>>(
            labelled.clone(),
            vec![Box::new(
                move |change: &Change<PartialObjectMeta<RoleBinding>>| {
                    if let Change::Applied(object) | Change::Deleted(object) = change {
                        shared.enqueue_claimants(object.metadata.namespace.as_deref().unwrap_or_default());
                    }
                },
            )],
        );
        let shared = self.shared.clone();
        watches.spawn_selected::<ResourceQuota>(
            labelled,
            vec![Box::new(move |change: &Change<ResourceQuota>| match change {
                // Its status changes with every instance; what it says is what counts.
                Change::Applied(quota) if shared.quota_is_as_decided(quota) => {}
                Change::Applied(quota) | Change::Deleted(quota) => {
                    shared.enqueue_claimants(quota.metadata.namespace.as_deref().unwrap_or_default());
                }
                Change::Replaced(_) | Change::Unreadable(_) => {}
            })],
        );
    }
}

impl Shared {
    fn enqueue(&self, account: &str) {
        if let Some(queue) = &*self.queue.lock() {
            // Closed only when `run` is over.
            let _ = queue.send(ObjectRef::new(account));
        }
    }

    fn enqueue_claimants(&self, namespace: &str) {
        let names = self.claims.lock().names(namespace);
        for name in names {
            self.enqueue(&name);
        }
    }

    fn content_changed(&self, namespace: &str) {
        if self.awaited.lock().contains(namespace) {
            self.enqueue_claimants(namespace);
        }
    }

    fn quota_is_as_decided(&self, quota: &ResourceQuota) -> bool {
        let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
        let claims = self.claims.lock();
        claims
            .limits(namespace)
            .any(|limits| children::limits_to(quota, limits))
    }
}

fn uid(account: &Account) -> String {
    account.metadata.uid.clone().unwrap_or_default()
}

async fn reconcile(account: Arc<Account>, shared: Arc<Shared>) -> Result<Action, AccountError> {
    let labels = KindLabels { kind: "Account" };
    let metrics = shared.deps.metrics.clone();
    let depth = metrics.queue_depth.get_or_create_owned(&labels);
    depth.inc();
    let begun = Instant::now();
    let outcome = apply::reconcile(&shared, &account).await;
    depth.dec();
    metrics
        .reconcile_seconds
        .get_or_create_owned(&labels)
        .observe(begun.elapsed().as_secs_f64());
    let label = outcome.as_ref().map_or_else(AccountError::label, |_| "ok");
    metrics
        .reconciles
        .get_or_create_owned(&ReconcileLabels {
            kind: "Account",
            outcome: label,
        })
        .inc();
    match &outcome {
        Ok(_) => shared.backoffs.reset(&uid(&account)),
        Err(error) if error.is_stale() => {
            tracing::debug!(account = ?account.meta().name, %error, "decided on an old version");
        }
        Err(error) => {
            tracing::warn!(account = ?account.meta().name, %error, "reconcile failed, will be tried again");
        }
    }
    outcome
}

#[expect(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn on_error(account: Arc<Account>, _: &AccountError, shared: Arc<Shared>) -> Action {
    Action::requeue(shared.backoffs.next(&uid(&account)))
}

/// [`RESYNC`] give or take a fifth, so that Accounts that came together do not stay together.
fn resync() -> Action {
    Action::requeue(RESYNC.mul_f64(rand::rng().random_range(0.8..1.2)))
}
