//! Tells account holders by e-mail about webhooks that were disabled or have a backlog (decisions, sections 5 and 8).
//!
//! The webhook controller writes into the status of a webhook what there is to tell; the notifier writes into it what was told,
//! and when. All that it knows is in the statuses of webhooks and Accounts, which it reads from the API server before each
//! mail, so that neither a restart nor a watch that lags makes it tell anything twice, or exceed a limit. Only a crash between
//! sending and recording repeats a mail, with the same Message-ID.
//!
//! - `worker`: sends one account's mails; `limits`: when the next one may be sent; `record`: records in the status of a webhook
//!   what was told.

mod limits;
mod record;
#[cfg(test)]
mod tests;
mod worker;

use std::{future::ready, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use kube::Client;
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use worker::Worker;

use super::account::AccountDirectory;
use crate::mail::{MailLimits, Mailer};
use resources::Webhook;
use runtime::{
    ByNamespace, Clock, Metrics, ObjectRef, ReconcileQueue, Store,
    events::Events,
    lease::Tenure,
    watch::{Change, Listener},
    work_queue,
};

/// The controller's name in managedFields.
const FIELD_MANAGER: &str = "stellage-notifier";
/// Maximum number of accounts whose mails are sent at the same time, each on its own connection.
const MAILS_AT_ONCE: u16 = 8;
/// How long a mail waits for others that can be combined with it: what happens to one webhook of an account often happens
/// to others.
const GATHER: Duration = Duration::from_secs(2);
/// Maximum number of changes that wait so at the same time.
const GATHERED: usize = 1000;

/// What the notifier depends on.
pub struct Deps {
    /// Client of the API server.
    pub client: Client,
    /// Sends the mails.
    pub mailer: Mailer,
    /// How often an account holder may be sent one.
    pub limits: MailLimits,
    /// Maps namespaces to the Accounts that own them.
    pub directory: AccountDirectory,
    /// Where mails are counted.
    pub metrics: Metrics,
    /// Source of the time.
    pub clock: Arc<dyn Clock>,
}

/// The notifier. Its listeners must receive every change of the watch of Webhooks from the start.
pub struct Notifier {
    deps: Deps,
    /// The webhooks with something to tell, as the watch shows them.
    untold: ByNamespace<Webhook>,
    queue: ReconcileQueue<Webhook>,
}

impl Notifier {
    /// A notifier that does nothing until [`run`](Self::run).
    pub fn new(deps: Deps) -> Self {
        Self {
            deps,
            untold: ByNamespace::default(),
            queue: ReconcileQueue::default(),
        }
    }

    /// The listeners for the watch of Webhooks.
    pub fn listeners(&self) -> [Box<dyn Listener<Webhook>>; 2] {
        let mut untold = self.untold.clone();
        let only_untold = move |change: &Change<Webhook>| match change {
            Change::Replaced(all) => {
                let some = all.iter().filter(|webhook| has_news(webhook));
                untold.changed(&Change::Replaced(some.cloned().collect()));
            }
            Change::Applied(webhook) if !has_news(webhook) => {
                untold.changed(&Change::Deleted(webhook.clone()));
            }
            _ => untold.changed(change),
        };
        [Box::new(only_untold), Box::new(self.queue.clone())]
    }

    /// Sends mails until shutdown, as long as `tenure` holds. `webhooks` is the store of the watch of Webhooks.
    pub async fn run(
        self,
        webhooks: Store<Webhook>,
        tenure: Tenure,
        events: Events,
        shutdown: CancellationToken,
    ) {
        let namespaces = self.namespaces(&webhooks);
        let worker = Worker::new(self.deps, self.untold, tenure, events, shutdown.clone());
        work_queue::run(&worker, namespaces, MAILS_AT_ONCE, Gauge::default(), &shutdown).await;
    }

    /// The namespaces of webhooks with something to tell.
    fn namespaces(&self, webhooks: &Store<Webhook>) -> impl Stream<Item = ObjectRef> + Send + use<> {
        let (changed, _) = self.queue.open(webhooks);
        let untold = self.untold.clone();
        let namespaces = changed.filter_map(move |webhook| {
            let namespace = webhook.namespace();
            ready((untold.count(namespace) > 0).then(|| ObjectRef::new("", namespace)))
        });
        let gathered = namespaces.map(|namespace| async {
            tokio::time::sleep(GATHER).await;
            namespace
        });
        gathered.buffer_unordered(GATHERED)
    }
}

/// Whether the account holder has to be told anything about a webhook.
fn has_news(webhook: &Webhook) -> bool {
    webhook.untold().is_some() || webhook.untold_backlog().is_some()
}
