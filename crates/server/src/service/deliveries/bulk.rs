//! Requests for many deliveries of a webhook. The deliveries are patched in the order of their events, some concurrently, within
//! a deadline. Such a request counts as a long read until it ends, so an account can run two at a time, and those for the same
//! webhook wait for each other.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{DEADLINE, WORD, When, selection::Selection, too_slow};
use crate::service::{
    Service,
    cost::Cost,
    error::Error,
    id::{PublicId as _, WebhookId},
    idempotency::IdempotentRequest,
    index::Object as _,
    precondition::Precondition,
    store::{MAX_ATTEMPTS, Verdict, contended, pause},
    webhooks::{IndexedWebhook, not_active},
};
use domain::delivery::send_now;
use resources::{
    Delivery, DeliveryPhase, Webhook, delivery, delivery::FINISHED_LABEL, instance::IDEMPOTENCY_ANNOTATION,
};

/// Maximum number of concurrent patches of a request.
const AT_ONCE: usize = 8;

/// The result of a request for many deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Number of deliveries to send.
    pub count: usize,
    /// When they will be sent.
    pub when: When,
    /// Whether an earlier request with the same key was carried out instead.
    pub replayed: bool,
}

/// What to do with many deliveries.
#[derive(Clone, Copy)]
enum Bulk {
    /// Send the exhausted ones again; with a time, only those exhausted since then.
    Recover(Option<Timestamp>),
    /// Send the pending ones now.
    Retry,
}

impl Bulk {
    fn phase(self) -> DeliveryPhase {
        match self {
            Self::Recover(_) => DeliveryPhase::Exhausted,
            Self::Retry => DeliveryPhase::Pending,
        }
    }

    /// When the deliveries of this webhook will be sent.
    fn when(self, webhook: &Webhook) -> When {
        match (self, When::of(webhook)) {
            // No attempt was requested for them, so they are held.
            (Self::Recover(_), When::NowOnce) => When::OnceEnabled,
            (_, when) => when,
        }
    }

    fn wants(self, delivery: &Delivery) -> bool {
        let since = match self {
            Self::Recover(since) => since,
            Self::Retry => None,
        };
        let exhausted_at =
            || delivery::finished_at(&delivery.metadata).unwrap_or(delivery.spec.event_created_at);
        !delivery.spec.test && since.is_none_or(|since| exhausted_at() >= since)
    }

    fn patch(self, delivery: &Delivery, now: Timestamp) -> Value {
        match self {
            // Only this version, so that concurrent requests do not send it twice.
            Self::Recover(_) => {
                let version = delivery.metadata.resource_version.as_deref();
                json!({ "metadata": { "resourceVersion": version, "labels": { FINISHED_LABEL: null } } })
            }
            Self::Retry => send_now(delivery, now),
        }
    }
}

/// The answer to a repetition of a request, as a note in an annotation.
fn note(count: usize, when: When) -> String {
    serde_json::to_string(&(count, when)).unwrap_or_default()
}

/// The reverse of [`note`].
fn read_note(note: &str) -> (usize, When) {
    serde_json::from_str(note).unwrap_or((0, When::Now))
}

impl Service {
    /// Sends every exhausted delivery of a webhook again, as soon as it can be sent to (with `since`: only those exhausted since
    /// then), once per idempotency key.
    pub async fn recover(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        since: Option<Timestamp>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
        cost: &Cost,
    ) -> Result<Counted, Error> {
        let bulk = Bulk::Recover(since);
        self.to_many(namespace, webhook, bulk, request, precondition, cost)
            .await
    }

    /// Sends every pending delivery of a webhook now, or as soon as it is no longer blocked, once per idempotency key;
    /// `invalid_state` if the webhook is not active.
    pub async fn retry(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
        cost: &Cost,
    ) -> Result<Counted, Error> {
        self.to_many(namespace, webhook, Bulk::Retry, request, precondition, cost)
            .await
    }

    async fn to_many(
        &self,
        namespace: &str,
        webhook: Option<WebhookId>,
        bulk: Bulk,
        request: Option<&IdempotentRequest>,
        precondition: &Precondition,
        cost: &Cost,
    ) -> Result<Counted, Error> {
        // Lock before looking anything up: the request that holds the lock may have the same key.
        let key = webhook.map(|id| format!("{namespace}/{}", id.name()));
        let _lock = match &key {
            Some(key) => Some(self.bulk_locks.lock(key).await?),
            None => None,
        };
        let decide = |item: &IndexedWebhook| {
            let was_done = request
                .map(|request| request.was_done(&*item.webhook))
                .transpose()?;
            if was_done != Some(true) {
                precondition.check(&*item.webhook)?;
                if matches!(bulk, Bulk::Retry) && !item.webhook.spec.active {
                    return Err(not_active());
                }
            }
            Ok(Verdict::Leave)
        };
        let item = self.webhooks.modify(namespace, webhook, decide).await?;
        let when = bulk.when(&item.webhook);
        let noted = request.map(|request| request.note(&*item.webhook)).transpose()?;
        if let Some(noted) = noted.flatten() {
            let (count, when) = read_note(&noted);
            return Ok(Counted {
                count,
                when,
                replayed: true,
            });
        }
        let count = tokio::time::timeout(DEADLINE, self.to_each(&item.webhook, bulk, cost))
            .await
            .map_err(|_| too_slow())??;
        if let Some(request) = request {
            // Remember the request last, so that after a crash a repetition does the rest.
            let decide = |item: &IndexedWebhook| {
                Ok(Verdict::Write {
                    spec: Box::new(item.webhook.spec.clone()),
                    annotations: vec![(
                        IDEMPOTENCY_ANNOTATION,
                        request.remember(&*item.webhook, &note(count, when)),
                    )],
                })
            };
            self.webhooks.modify(namespace, webhook, decide).await?;
        }
        Ok(Counted {
            count,
            when,
            replayed: false,
        })
    }

    /// Patches the deliveries. Returns how many are being sent.
    async fn to_each(&self, webhook: &Webhook, bulk: Bulk, cost: &Cost) -> Result<usize, Error> {
        let reading = self.calls.long_read(webhook.namespace()).await?;
        let selection = Selection {
            status: Some(bulk.phase()),
            ..Selection::default()
        };
        // Patch those about the same object one after the other, so that they are attempted in order.
        let mut by_object: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let now = self.now();
        let see = |page: Vec<Delivery>| {
            for delivery in page.into_iter().filter(|delivery| bulk.wants(delivery)) {
                let patch = bulk.patch(&delivery, now);
                let Delivery { metadata, spec, .. } = delivery;
                let place = (
                    spec.event_created_at,
                    spec.sequence,
                    metadata.name.unwrap_or_default(),
                );
                by_object.entry(spec.subject).or_default().push((place, patch));
            }
        };
        self.each_delivery(&reading, webhook, selection, cost, see)
            .await?;
        let mut by_object: Vec<_> = by_object.into_values().collect();
        for of_object in &mut by_object {
            of_object.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        }
        by_object.sort_unstable_by(|a, b| {
            a.first()
                .map(|(place, _)| place)
                .cmp(&b.first().map(|(place, _)| place))
        });
        futures::stream::iter(by_object)
            .map(async |of_object| {
                let mut count = 0;
                for ((.., name), patch) in of_object {
                    let is_sent = self.patch_one(webhook.namespace(), &name, &patch, cost).await?;
                    count += usize::from(is_sent);
                }
                Ok::<_, Error>(count)
            })
            .buffered(AT_ONCE)
            .try_fold(0, async |sum, count| Ok(sum + count))
            .await
    }

    /// Patches a delivery. Returns whether it is being sent because of this patch: it may have been deleted or finished, or
    /// another request may have been faster.
    async fn patch_one(
        &self,
        namespace: &str,
        name: &str,
        patch: &Value,
        cost: &Cost,
    ) -> Result<bool, Error> {
        let is_for_one_version = patch["metadata"].get("resourceVersion").is_some();
        for attempt in 1..=MAX_ATTEMPTS {
            let patched = self.calls.patch::<Delivery>(namespace, name, patch).await;
            cost.add_object();
            match patched {
                Ok(delivery) => return Ok(!delivery.is_finished()),
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) if error.is_conflict() && is_for_one_version => return Ok(false),
                Err(error) if error.is_conflict() => pause(attempt).await,
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(WORD))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use futures::FutureExt as _;
    use http::Method;
    use serde_json::json;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::service::deliveries::pending_delivery;
    use runtime::testing::answered_by;

    /// Pending deliveries of the webhook.
    const PENDING: usize = 20;

    /// The number of patches in flight, and its maximum.
    #[derive(Default)]
    struct Patches {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    /// A service whose API server has a webhook, and does not answer patches of its deliveries until the gate opens.
    fn service(gate: &Arc<Semaphore>, patches: &Arc<Patches>) -> Service {
        let (gate, patches) = (gate.clone(), patches.clone());
        let client = answered_by(move |method, path, _| {
            let (gate, patches) = (gate.clone(), patches.clone());
            async move {
                let namespace = path.split('/').skip_while(|part| *part != "namespaces").nth(1);
                if method == Method::PATCH {
                    let now = patches.now.fetch_add(1, Ordering::Relaxed) + 1;
                    patches.most.fetch_max(now, Ordering::Relaxed);
                    gate.acquire().await.unwrap().forget();
                    patches.now.fetch_sub(1, Ordering::Relaxed);
                    (200, pending_delivery(0))
                } else if path.contains("/deliveries") {
                    let items: Vec<Value> = (0..PENDING).map(pending_delivery).collect();
                    (200, json!({ "metadata": {}, "items": items }))
                } else {
                    let webhook = json!({
                        "metadata": {
                            "namespace": namespace, "name": "wh-abcdefgh01234567", "uid": "u", "resourceVersion": "1",
                        },
                        "spec": {
                            "url": "https://example.com", "events": ["instance.created"], "secretRef": { "name": "s" },
                        },
                    });
                    (200, webhook)
                }
            }
        });
        Service::with_client(client)
    }

    #[tokio::test]
    async fn requests_for_all_deliveries_of_a_webhook_follow_each_other_and_are_long_reads_to_their_end() {
        let (gate, patches) = (Arc::new(Semaphore::new(0)), Arc::new(Patches::default()));
        let service = service(&gate, &patches);
        let precondition = Precondition::default();
        let webhook = WebhookId::of_suffix("abcdefgh01234567");
        assert!(webhook.is_some());
        let cost = Cost::default();
        let retry = || service.retry("demo", webhook, None, &precondition, &cost);
        let watching = async {
            while patches.now.load(Ordering::Relaxed) < AT_ONCE {
                tokio::task::yield_now().await;
            }
            // Give the second request time to start, too.
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            let other = service.calls.long_read("demo").await;
            assert!(other.is_ok());
            assert!(service.calls.long_read("demo").now_or_never().is_none());
            gate.add_permits(2 * PENDING);
        };
        let (first, second, ()) = tokio::join!(retry(), retry(), watching);
        for answer in [first, second] {
            assert_eq!(
                answer,
                Ok(Counted {
                    count: PENDING,
                    when: When::Now,
                    replayed: false
                })
            );
        }
        assert_eq!(patches.most.load(Ordering::Relaxed), AT_ONCE);
    }

    #[tokio::test]
    async fn other_accounts_read_while_sixteen_send_all_their_deliveries_again() {
        let (gate, patches) = (Arc::new(Semaphore::new(0)), Arc::new(Patches::default()));
        let service = service(&gate, &patches);
        let (precondition, cost) = (Precondition::default(), Cost::default());
        let webhook = WebhookId::of_suffix("abcdefgh01234567");
        let accounts: Vec<_> = (0..16).map(|number| format!("account-{number}")).collect();
        let retries = accounts
            .iter()
            .map(|account| service.retry(account, webhook, None, &precondition, &cost));
        let watching = async {
            while patches.now.load(Ordering::Relaxed) < accounts.len() * AT_ONCE {
                tokio::task::yield_now().await;
            }
            let reading = service.calls.long_read("other").await.unwrap();
            assert!(reading.turn().now_or_never().is_some_and(|turn| turn.is_ok()));
            gate.add_permits(accounts.len() * PENDING);
        };
        let (answers, ()) = tokio::join!(futures::future::join_all(retries), watching);
        assert!(answers.into_iter().all(|answer| answer.unwrap().count == PENDING));
        let requests = accounts.len() * PENDING / 5;
        assert_eq!(cost.requests(), u32::try_from(requests).unwrap());
    }

    #[tokio::test]
    async fn a_request_that_is_cut_off_costs_what_it_has_done() {
        let (gate, patches) = (Arc::new(Semaphore::new(10)), Arc::new(Patches::default()));
        let service = service(&gate, &patches);
        let (precondition, cost) = (Precondition::default(), Cost::default());
        let webhook = WebhookId::of_suffix("abcdefgh01234567");
        tokio::select! {
            _ = service.retry("demo", webhook, None, &precondition, &cost) => panic!("it waits for the gate"),
            () = async {
                while gate.available_permits() > 0 || patches.now.load(Ordering::Relaxed) < AT_ONCE {
                    tokio::task::yield_now().await;
                }
            } => {}
        }
        assert_eq!(cost.requests(), 2);
    }

    #[test]
    fn a_note_is_read_as_it_was_written() {
        for when in [When::Now, When::OnceUnblocked] {
            assert_eq!(read_note(&note(20, when)), (20, when));
        }
    }
}
