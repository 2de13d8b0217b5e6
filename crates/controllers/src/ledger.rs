//! What the controllers of instances and accounts need to know about the ledger: an instance may go once its end is recorded, and an
//! account once its last invoice is issued and kept.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};

use resources::{Instance, origin};

/// The state that the Invoice controller shares with the Instance and Account controllers. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// UIDs of instances that are being deleted and whose end has been stored.
    ended: Mutex<HashSet<String>>,
    /// Deleted Accounts whose namespace is empty, by UID.
    closing: Mutex<HashMap<String, Closing>>,
    /// Queue of namespaces to reconcile; `None` while another replica is the leader.
    requests: Mutex<Option<mpsc::UnboundedSender<String>>>,
}

struct Closing {
    /// When the namespace became empty.
    since: Instant,
    /// Whether all its invoices have been issued and kept.
    is_closed: bool,
}

impl Ledger {
    /// Whether nothing is left to record about an instance that is being deleted. If something is, requests a
    /// reconcile of its namespace.
    pub fn has_end_of(&self, instance: &Instance) -> bool {
        let is_metered = instance
            .status
            .as_ref()
            .is_some_and(|status| status.metering.is_some());
        let uid = origin::uid(&instance.metadata);
        if !is_metered || self.shared.ended.lock().contains(uid) {
            return true;
        }
        self.request(instance.metadata.namespace.as_deref().unwrap_or_default());
        false
    }

    /// Whether all invoices of a deleted Account have been issued and kept. If not, requests a reconcile of its namespace. Call
    /// it only for an Account whose namespace is empty.
    pub fn is_closed(&self, account_uid: &str, namespace: &str) -> bool {
        let begun = || Closing {
            since: Instant::now(),
            is_closed: false,
        };
        let mut closing = self.shared.closing.lock();
        let closing = closing.entry(account_uid.to_owned()).or_insert_with(begun);
        if !closing.is_closed {
            self.request(namespace);
        }
        closing.is_closed
    }

    /// Notes that a deleted Account's namespace is not empty, or no longer.
    pub fn reopen(&self, account_uid: &str) {
        self.shared.closing.lock().remove(account_uid);
    }

    /// How long a deleted Account has been waiting to be closed; `None` if its namespace is not empty.
    pub(super) fn closing_for(&self, account_uid: &str) -> Option<Duration> {
        let closing = self.shared.closing.lock();
        closing.get(account_uid).map(|closing| closing.since.elapsed())
    }

    /// Requests a reconcile of the account with this namespace.
    pub(super) fn request(&self, namespace: &str) {
        if let Some(requests) = &*self.shared.requests.lock() {
            // Sending fails only during shutdown.
            let _ = requests.send(namespace.to_owned());
        }
    }

    /// Starts accepting requests. The receiver yields the namespaces to reconcile.
    pub(super) fn open(&self) -> mpsc::UnboundedReceiver<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.shared.requests.lock() = Some(sender);
        receiver
    }

    /// Whether this replica, as the leader, keeps the ledger.
    pub(super) fn is_open(&self) -> bool {
        self.shared.requests.lock().is_some()
    }

    /// Notes that the ends of these instances have been stored.
    pub(super) fn ended<'a>(&self, uids: impl Iterator<Item = &'a str>) {
        let mut ended = self.shared.ended.lock();
        for uid in uids {
            if !ended.contains(uid) {
                ended.insert(uid.to_owned());
            }
        }
    }

    /// Forgets an instance that no longer exists. Returns whether its end had been stored.
    pub(super) fn gone(&self, uid: &str) -> bool {
        self.shared.ended.lock().remove(uid)
    }

    /// Notes that all invoices of a deleted Account have been issued and kept.
    pub(super) fn closed(&self, account_uid: &str) {
        if let Some(closing) = self.shared.closing.lock().get_mut(account_uid) {
            closing.is_closed = true;
        }
    }
}
