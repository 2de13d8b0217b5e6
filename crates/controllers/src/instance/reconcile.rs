//! One reconcile of one instance: `observe`, decide ([`domain::instance`]), `apply`.

use std::{collections::HashSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, time::Instant};

use super::{
    InstanceController,
    apply::Draft,
    observe::{LookAgain, is_accepted},
    room::Room,
    trace,
    user_data::LOOK_AGAIN,
};
use domain::instance::{Audience, Gate, Next, Question, decide, question, waits_for_room};
use providers::Provider;
use resources::{Instance, origin, refusal::Cause};
use runtime::{
    ObjectRef, ReconcileQueue,
    backoff::Backoffs,
    client::CallError,
    traces,
    work_queue::{Class, Reconcile},
};

/// Maximum number of status writes in one pass. A server needs fewer, even if its operations take no time; any that are
/// left follow in the next pass.
const MAX_STEPS: usize = 6;

/// When to check again whether what is refused can be done, because a change of the catalogue is not reported, and one of a backup may be
/// missed.
const REFUSED_AGAIN: Duration = Duration::from_mins(10);
/// When to check again whether the quotas have room, for which it is usually queued sooner, or its private network.
const ROOM_AGAIN: Duration = Duration::from_mins(1);
/// When to check again whether the end of an instance has been recorded: the first and the longest interval.
const UNTIL_RECORDED: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// When to retry an instance whose outbox is full.
const CONGESTED: Duration = Duration::from_secs(1);

pub(super) struct Reconciler<P> {
    pub(super) controller: InstanceController<P>,
    pub(super) queue: ReconcileQueue<Instance>,
    /// Limits concurrent writes.
    pub(super) writes: Semaphore,
    pub(super) backoffs: Backoffs,
    /// The regions of instances that are not available, which the log tells of once.
    pub(super) lost_regions: Mutex<HashSet<String>>,
    /// In the quotas of accounts.
    pub(super) room: Room,
}

impl<P: Provider> Reconcile for Reconciler<P> {
    fn class(&self, object_ref: &ObjectRef) -> Class {
        let Some(instance) = self.queue.current(object_ref) else {
            return Class::Normal;
        };
        let gate = self.gate(&instance);
        let asks = question(&instance, &gate, self.controller.clock.now()) == Question::Step;
        if asks && self.is_suspect(&instance) {
            Class::Suspect
        } else {
            Class::Normal
        }
    }

    /// A simulated region never keeps anybody waiting.
    fn region(&self, object_ref: &ObjectRef) -> Option<Arc<str>> {
        let instance = self.queue.current(object_ref)?;
        let region = instance.spec.region.as_str();
        let catalogue = self.controller.catalogue.current();
        catalogue.kubevirt(region).map(|_| region.into())
    }

    async fn reconcile(&self, object_ref: &ObjectRef, class: Class) -> Option<Duration> {
        let Some(instance) = self.queue.current(object_ref) else {
            // It was deleted while queued.
            self.backoffs.reset(object_ref);
            return None;
        };
        let begun = Instant::now();
        let span = trace::span(&instance);
        let work = async {
            let result = Box::pin(self.pass(instance.clone(), class)).await;
            let outcome = result.as_ref().map_or_else(CallError::label, |_| "ok");
            let metrics = &self.controller.metrics;
            metrics.reconciled("Instance", begun.elapsed(), outcome);
            result.unwrap_or_else(|error| {
                if let Some(span) = &span {
                    span.fail(error.label());
                }
                self.backoffs.after(&*instance, &error)
            })
        };
        traces::within_logged(span.as_ref(), work).await
    }
}

/// When to check again whether the end of an instance that is being deleted has been recorded. The interval grows with the
/// time it has taken.
fn until_recorded(instance: &Instance, now: Timestamp) -> Duration {
    let deleted = instance.metadata.deletion_timestamp.as_ref();
    let since = deleted.map_or(Duration::ZERO, |deleted| {
        Duration::try_from(now.duration_since(deleted.0)).unwrap_or_default()
    });
    let (soonest, latest) = UNTIL_RECORDED;
    (since / 8).clamp(soonest, latest)
}

impl<P: Provider> Reconciler<P> {
    async fn pass(&self, instance: Arc<Instance>, class: Class) -> Result<Option<Duration>, CallError> {
        let mut draft = Draft::new(instance);
        for _ in 0..MAX_STEPS {
            if draft.instance.is_deleting() && !draft.instance.has_finalizer() {
                return Ok(None);
            }
            if self.is_congested(&draft.stored) {
                return Ok(Some(CONGESTED));
            }
            let holder = self.holder_of(&draft.instance);
            let gate = self.gate(&draft.instance);
            // An accepted instance needs the finalizer even if the gate is closed: it may have a server, and without the
            // finalizer its deletion is refused.
            let is_marked = draft.instance.has_finalizer()
                && (draft.instance.is_deleting() || !origin::is_missing(&draft.instance.metadata));
            if (gate == Gate::Open || is_accepted(&draft.instance)) && !is_marked {
                draft = Draft::new(self.mark(&draft.instance).await?);
            }
            let plan = draft.instance.spec.plan;
            let asked = match self.ask(&mut draft, &gate, class).await? {
                Ok(asked) => asked,
                Err(LookAgain(delay)) => return Ok(Some(delay)),
            };
            // The provider call may have taken a while. If the spec has changed since, decide on the new one; the provider's
            // answer still matches the status, which only this controller writes.
            draft.refresh(self.queue.freshest(draft.stored.clone()));
            // Whether there is room for another plan was not asked.
            let gate = if draft.instance.spec.plan == plan {
                gate
            } else {
                self.gate(&draft.instance)
            };
            let now = self.controller.clock.now();
            let findings = self.controller.monitor.findings(&draft.instance);
            let audience = Audience {
                user: holder.as_ref(),
                is_settled: &|event_id| self.controller.outbox.is_settled(event_id),
                may_wait: self.controller.write_pressure.is_busy() && self.controller.outbox.is_logged(),
                // Without an Account, nothing ends its backups.
                is_backed_up_now: holder.is_some()
                    && draft.instance.is_deleting()
                    && self.controller.backups.has_unfinished(&draft.instance),
                findings: findings.as_ref(),
                is_billed: self
                    .controller
                    .invoices
                    .bills(&self.controller.catalogue.current(), &draft.instance.spec.region),
            };
            let deadlines = self.controller.provider.deadlines(&draft.instance.spec.region);
            let mut decision = decide(&draft.instance, &gate, asked.seen(), audience, now, &deadlines);
            trace::carry(&draft.instance, &mut decision.status);
            if decision.finished {
                if holder.is_some() && !self.controller.ledger.has_end_of(&draft.instance) {
                    return Ok(Some(until_recorded(&draft.instance, now)));
                }
                self.finish(&draft.instance).await?;
                return Ok(None);
            }
            let changed = draft.instance.status.as_ref() != Some(&decision.status);
            let next = decision.next(changed);
            if let Some(due) = decision.backup_due
                && let Err(error) = self
                    .make_backup(&draft.instance, due, &mut decision, holder.is_some(), now)
                    .await
            {
                // The backup is created later; nothing else waits for it.
                let before = draft.instance.status.as_ref();
                decision.status.next_backup_at = before.and_then(|status| status.next_backup_at);
                draft.take(decision);
                self.store(&mut draft).await?;
                return Err(error);
            }
            // What the quotas had room for is stored at once: the next leader knows it from the statuses alone.
            let may_be_stored_later = decision.may_be_stored_later
                && !self.is_suspect(&draft.instance)
                && !self.has_size_quotas(&draft.instance);
            draft.take(decision);
            if may_be_stored_later {
                continue;
            }
            self.store(&mut draft).await?;
            if next == Next::AfterBackoff {
                let delay = self.backoffs.next(&ObjectRef::of(&*draft.instance));
                let awaits = asked.awaits_user_data();
                return Ok(Some(if awaits { delay.min(LOOK_AGAIN) } else { delay }));
            }
            self.backoffs.reset(&ObjectRef::of(&*draft.instance));
            let is_refused = matches!(gate, Gate::InvalidSpec(_) | Gate::InPart(_) | Gate::NoRegion(_));
            let network_is_full =
                matches!(&gate, Gate::InvalidSpec(refusal) if refusal.cause == Cause::PrivateNetworkFull);
            let again = if network_is_full || waits_for_room(&draft.instance) {
                Some(ROOM_AGAIN)
            } else {
                is_refused.then_some(REFUSED_AGAIN)
            };
            match next {
                Next::Now => {}
                Next::After(delay) => return Ok(Some(again.map_or(delay, |again| delay.min(again)))),
                Next::OnChange | Next::AfterBackoff => return Ok(again),
            }
        }
        self.store(&mut draft).await?;
        Ok(Some(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_longer_the_end_of_an_instance_is_not_recorded_the_more_rarely_it_is_looked_for() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "deletionTimestamp": "2026-11-21T10:00:00Z" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        for (now, milliseconds) in [
            ("2026-11-21T09:59:59Z", 100),
            ("2026-11-21T10:00:00.7Z", 100),
            ("2026-11-21T10:00:08Z", 1000),
            ("2026-11-21T11:00:00Z", 5000),
        ] {
            let pause = until_recorded(&instance, now.parse().unwrap());
            assert_eq!(pause, Duration::from_millis(milliseconds), "{now}");
        }
    }
}
