//! One reconcile of one network: `observe`, decide ([`domain::network`]), `apply`.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::NetworkController;
use domain::network::{decide, question};
use providers::Provider;
use resources::{PrivateNetwork, origin};
use runtime::{
    ObjectRef, ReconcileQueue,
    backoff::Backoffs,
    client::CallError,
    work_queue::{Class, Reconcile},
};

/// Maximum number of status writes in one pass. A network needs two: its prefix, and that it is made.
const MAX_STEPS: usize = 3;

pub(super) struct Reconciler<P> {
    pub(super) controller: NetworkController<P>,
    pub(super) queue: ReconcileQueue<PrivateNetwork>,
    pub(super) backoffs: Backoffs,
}

pub(super) fn namespace(network: &PrivateNetwork) -> &str {
    network.metadata.namespace.as_deref().unwrap_or_default()
}

impl<P: Provider> Reconcile for Reconciler<P> {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        self.backoffs.class(object_ref)
    }

    async fn reconcile(&self, object_ref: &ObjectRef, _: Class) -> Option<Duration> {
        let Some(network) = self.queue.current(object_ref) else {
            // It was deleted while queued.
            self.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let result = self.pass(network.clone()).await;
        let outcome = result.as_ref().map_or_else(CallError::label, |_| "ok");
        let metrics = &self.controller.metrics;
        metrics.reconciled("PrivateNetwork", begun.elapsed(), outcome);
        result.unwrap_or_else(|error| self.backoffs.after(&*network, &error))
    }
}

impl<P: Provider> Reconciler<P> {
    async fn pass(&self, mut network: Arc<PrivateNetwork>) -> Result<Option<Duration>, CallError> {
        for _ in 0..MAX_STEPS {
            if network.is_deleting() && !network.has_finalizer() {
                return Ok(None);
            }
            let (asks, has_account) = self.with_situation(&network, |situation| {
                (question(&network, situation), situation.has_account)
            });
            let is_marked = network.has_finalizer() && !origin::is_missing(&network.metadata);
            if has_account && !network.is_deleting() && !is_marked {
                network = self.mark(&network).await?;
                continue;
            }
            let asked = self.ask(&network, asks).await;
            let now = self.controller.clock.now();
            let decision = self.with_situation(&network, |situation| {
                decide(&network, situation, asked.seen(), now)
            });
            if decision.finished {
                self.finish(&network).await?;
                self.backoffs.reset(&ObjectRef::of(&*network));
                return Ok(None);
            }
            let prefix_of =
                |network: &PrivateNetwork| network.status.as_ref().and_then(|it| it.prefix.clone());
            let before = prefix_of(&network);
            let written = self.store(&network, &decision).await?;
            if decision.retry {
                return Ok(Some(self.backoffs.next(&ObjectRef::of(&*network))));
            }
            self.backoffs.reset(&ObjectRef::of(&*network));
            match written {
                // It can be made now.
                Some(written) if before != prefix_of(&written) => network = written,
                _ => return Ok(decision.recheck_after),
            }
        }
        Ok(Some(Duration::ZERO))
    }
}
