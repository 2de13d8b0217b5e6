//! What the controllers of instances and accounts need to know about the ledger: an instance may go once its end is recorded, and an
//! account once its last invoice is issued and kept.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::mpsc, time::Instant};

use crate::resources::{Instance, origin};

/// The state that the Invoice controller shares with others. Cheap to clone.
#[derive(Clone, Default)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// UIDs of instances that are being deleted, and whose end is stored.
    ended: Mutex<HashSet<String>>,
    /// Deleted Accounts in which there is nothing any more, by UID.
    closing: Mutex<HashMap<String, Closing>>,
    /// Namespaces to look at; `None` while another replica is the leader.
    requests: Mutex<Option<mpsc::UnboundedSender<String>>>,
}

struct Closing {
    /// When there was nothing left.
    since: Instant,
    /// Whether its invoices are all issued and kept.
    is_closed: bool,
}

impl Ledger {
    /// Whether nothing has to be recorded any more of an instance that is being deleted. Asks for it if there is.
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

    /// Whether the invoices of a deleted Account are all issued and kept. Asks for it if they are not. Only for an Account in which
    /// there is nothing any more.
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

    /// Tells that there is something in a deleted Account, perhaps again.
    pub fn reopen(&self, account_uid: &str) {
        self.shared.closing.lock().remove(account_uid);
    }

    /// For how long a deleted Account has been waiting to be closed; `None` if there is something in it.
    pub(super) fn closing_for(&self, account_uid: &str) -> Option<Duration> {
        let closing = self.shared.closing.lock();
        closing.get(account_uid).map(|closing| closing.since.elapsed())
    }

    /// Has the account with this namespace looked at.
    pub(super) fn request(&self, namespace: &str) {
        if let Some(requests) = &*self.shared.requests.lock() {
            // Sending fails only at the shutdown.
            let _ = requests.send(namespace.to_owned());
        }
    }

    /// Begins to take requests: the namespaces to look at.
    pub(super) fn open(&self) -> mpsc::UnboundedReceiver<String> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.shared.requests.lock() = Some(sender);
        receiver
    }

    /// Whether this replica keeps the ledger.
    pub(super) fn is_open(&self) -> bool {
        self.shared.requests.lock().is_some()
    }

    /// Takes over that the ends of these instances are stored.
    pub(super) fn ended<'a>(&self, uids: impl Iterator<Item = &'a str>) {
        let mut ended = self.shared.ended.lock();
        for uid in uids {
            if !ended.contains(uid) {
                ended.insert(uid.to_owned());
            }
        }
    }

    /// Forgets an instance that is gone. Returns whether its end was stored.
    pub(super) fn gone(&self, uid: &str) -> bool {
        self.shared.ended.lock().remove(uid)
    }

    /// Takes over that all invoices of a deleted Account are issued and kept.
    pub(super) fn closed(&self, account_uid: &str) {
        if let Some(closing) = self.shared.closing.lock().get_mut(account_uid) {
            closing.is_closed = true;
        }
    }
}
