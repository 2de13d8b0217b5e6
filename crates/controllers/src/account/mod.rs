//! The Account controller: gives each Account its namespace, with a quota and the operator's RoleBinding, and cleans up when
//! the Account is deleted.
//!
//! - `claims`: which Accounts claim which namespace;
//! - `children`: the objects in the namespace;
//! - `apply`: the I/O: reads, decides, applies and writes the status;
//! - `directory`: tells the other controllers which Account owns which namespace.

mod apply;
mod children;
mod claims;
mod directory;
mod expired_keys;

use std::{
    collections::HashSet,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota},
        rbac::v1::RoleBinding,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Client, core::PartialObjectMeta, runtime::watcher};
use parking_lot::Mutex;
use rand::RngExt as _;
use thiserror::Error;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use self::claims::Claims;
use super::ledger::Ledger;
use providers::Clusters;
use resources::{ACCOUNT_LABEL, Account, origin};
use runtime::{
    Backoffs, Clock, Metrics, ObjectRef, Store,
    client::CallError,
    events::Events,
    metrics::KindLabels,
    reconcile_queue::{Queued, messages},
    watch::{Change, Listener, Watches},
    work_queue::{self, Class, Reconcile},
};

pub use children::DefaultQuotas;
pub use directory::AccountDirectory;

/// Field manager of this controller.
const CONTROLLER: &str = "stellage-account-controller";
/// Maximum number of concurrent Account reconciles. Low, because a reconcile takes only a few short calls and Accounts
/// rarely change.
const CONCURRENCY: u16 = 8;
/// How often to reconcile an Account that has not changed.
const RESYNC: Duration = Duration::from_mins(5);

/// What the controller depends on.
#[derive(Clone)]
pub struct Deps {
    /// Client of the API server.
    pub client: Client,
    /// The operator's namespace, which holds its service account; no Account may claim it.
    pub namespace: String,
    /// Name of this installation, if it has one.
    pub installation: Option<String>,
    /// Name of the service account of the controllers, or of the whole operator.
    pub service_account: String,
    /// Name of the facade's service account, if it has one of its own.
    pub api_service_account: Option<String>,
    /// The limits of accounts that set none.
    pub quotas: DefaultQuotas,
    /// Removes what is left in the regions of an account whose instances are gone.
    pub clusters: Clusters,
    /// Tells whether the invoices of a deleted Account have been kept.
    pub ledger: Ledger,
    /// Whether a mail server is configured, so that account holders are notified about their webhooks.
    pub has_mail: bool,
    /// Publishes Kubernetes Events.
    pub events: Events,
    /// Where reconciles are counted.
    pub metrics: Metrics,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

/// Why a reconcile failed. It will be retried.
#[derive(Debug, Error)]
pub enum AccountError {
    /// An API call failed.
    #[error("cannot {doing}: {source}")]
    Call {
        /// What the call was for, as in "cannot create the namespace".
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

    /// Whether the decision was based on an outdated version; the next reconcile sees the current one.
    fn is_stale(&self) -> bool {
        let Self::Call { source, .. } = self;
        source.is_conflict()
    }
}

/// Reconciles Accounts. Every replica listens to the watches; only the leader calls [`run`](Self::run).
#[derive(Clone)]
pub struct AccountController {
    shared: Arc<Shared>,
}

struct Shared {
    deps: Deps,
    claims: Mutex<Claims>,
    /// Queue of Accounts to reconcile; `None` while another replica is the leader, so that nothing accumulates.
    queue: Mutex<Option<mpsc::UnboundedSender<ObjectRef>>>,
    /// Namespaces that must become empty before their Account can be deleted.
    draining: Mutex<HashSet<String>>,
    backoffs: Backoffs,
    /// Whether Kubernetes can count all kinds, which takes half a minute after the CRDs have been created.
    all_count: AtomicBool,
}

impl AccountController {
    /// A controller with no state yet.
    pub fn new(deps: Deps) -> Self {
        Self {
            shared: Arc::new(Shared {
                claims: Mutex::new(Claims::new(deps.quotas)),
                deps,
                queue: Mutex::default(),
                draining: Mutex::default(),
                backoffs: Backoffs::default(),
                all_count: AtomicBool::new(false),
            }),
        }
    }

    /// The listener for the watch of Accounts. It must receive every change.
    pub fn account_listener(&self) -> Box<dyn Listener<Account>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<Account>| {
            if let Change::Deleted(gone) = change {
                shared.backoffs.reset(&ObjectRef::of(&**gone));
            }
            let affected = shared.claims.lock().changed(change);
            for name in affected {
                shared.enqueue(&name);
            }
        })
    }

    /// The listener for the watch of Instances, `PrivateNetworks` or Backups. It must receive every change: a deleted Account waits until its last
    /// instance and its last backup are gone.
    pub fn content_listener<K: Queued>(&self) -> Box<dyn Listener<K>> {
        let shared = self.shared.clone();
        Box::new(move |change: &Change<K>| match change {
            Change::Applied(object) | Change::Deleted(object) => {
                if let Some(namespace) = &object.meta().namespace {
                    shared.content_changed(namespace);
                }
            }
            Change::Replaced(_) => {
                let draining: Vec<_> = shared.draining.lock().iter().cloned().collect();
                for namespace in draining {
                    shared.enqueue_claimants(&namespace);
                }
            }
            Change::Unreadable(_) => {}
        })
    }

    /// Reconciles until `shutdown`, then finishes the running reconciles. Only one replica may run this at a time.
    ///
    /// `accounts` is the store of the watch that [`account_listener`](Self::account_listener) listens to. `watches` starts
    /// the watches of the child objects, which are selected by label and hold little more than metadata in memory.
    pub async fn run(&self, accounts: Store<Account>, watches: &Watches, shutdown: CancellationToken) {
        let (sender, requests) = mpsc::unbounded_channel();
        *self.shared.queue.lock() = Some(sender);
        self.watch_children(watches);
        if accounts.wait_until_ready().await.is_err() {
            return;
        }
        for account in accounts.state() {
            self.shared
                .enqueue(account.metadata.name.as_deref().unwrap_or_default());
        }
        let reconciler = Reconciler {
            shared: &self.shared,
            accounts,
        };
        let kind = KindLabels { kind: "Account" };
        let depth = self.shared.deps.metrics.queue_depth.get_or_create_owned(&kind);
        let deps = &self.shared.deps;
        tokio::join!(
            work_queue::run(&reconciler, messages(requests), CONCURRENCY, depth, &shutdown),
            expired_keys::delete(&deps.client, &*deps.clock, &shutdown),
        );
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
        watches.spawn_without::<PartialObjectMeta<RoleBinding>>(
            labelled.clone(),
            only_names,
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
                // The quota's status changes with every instance; only the spec matters here.
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
            // Sending fails only after `run` has ended.
            let _ = queue.send(ObjectRef::new("", account));
        }
    }

    fn enqueue_claimants(&self, namespace: &str) {
        let names = self.claims.lock().names(namespace);
        for name in names {
            self.enqueue(&name);
        }
    }

    fn content_changed(&self, namespace: &str) {
        if self.draining.lock().contains(namespace) {
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

/// Drops the metadata that users of the account may have added to a RoleBinding.
fn only_names(binding: &mut PartialObjectMeta<RoleBinding>) {
    let metadata = std::mem::take(&mut binding.metadata);
    binding.metadata = ObjectMeta {
        name: metadata.name,
        namespace: metadata.namespace,
        ..ObjectMeta::default()
    };
}

fn uid(account: &Account) -> String {
    origin::uid(&account.metadata).to_owned()
}

struct Reconciler<'a> {
    shared: &'a Shared,
    accounts: Store<Account>,
}

impl Reconcile for Reconciler<'_> {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        self.shared.backoffs.class(object_ref)
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let Some(account) = self.accounts.get(object_ref) else {
            // It was deleted while queued.
            self.shared.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let outcome = Box::pin(apply::reconcile(self.shared, &account)).await;
        let label = outcome.as_ref().map_or_else(AccountError::label, |_| "ok");
        let metrics = &self.shared.deps.metrics;
        metrics.reconciled("Account", begun.elapsed(), label);
        match outcome {
            Ok(again) => {
                self.shared.backoffs.reset(object_ref);
                again
            }
            Err(error) => {
                if error.is_stale() {
                    tracing::debug!(account = object_ref.name(), %error, "decided on an outdated version");
                } else {
                    tracing::warn!(account = object_ref.name(), %error, "reconcile failed; will retry");
                }
                Some(self.shared.backoffs.next(object_ref))
            }
        }
    }
}

/// [`RESYNC`] plus or minus a fifth, so that not all Accounts are reconciled at the same time.
fn resync() -> Duration {
    RESYNC.mul_f64(rand::rng().random_range(0.8..1.2))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_a_role_binding_only_its_names_are_kept_in_memory() {
        let metadata = json!({
            "name": "mine", "namespace": "ada", "labels": { "stellage.dev/account": "ada" },
            "annotations": { "notes": "x".repeat(1 << 18) }, "finalizers": ["example.com/x"],
        });
        let mut binding: PartialObjectMeta<RoleBinding> =
            serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        only_names(&mut binding);
        assert_eq!(
            json!(binding.metadata),
            json!({ "name": "mine", "namespace": "ada" })
        );
    }
}
