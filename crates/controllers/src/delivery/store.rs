//! Reads and writes Delivery objects.

use std::{sync::Arc, time::Instant};

use kube::{Api, core::Status};

use crate::webhook::{FIELD_MANAGER, shared::Shared};
use domain::delivery::{WriteRequest, Written};
use resources::{Delivery, quota};
use runtime::{
    client::{CallError, bounded, only, written_by},
    log_throttle::LogThrottle,
};

/// Complaints about Deliveries, of which there may be hundreds a second while the API server does not answer.
static LOOK_UPS: LogThrottle = LogThrottle::new();
static WRITES: LogThrottle = LogThrottle::new();

/// Carries out a write.
pub(crate) async fn write(shared: &Shared, request: WriteRequest) -> Written {
    let params = written_by(FIELD_MANAGER);
    if let WriteRequest::Create(delivery) | WriteRequest::Replace(delivery) = &request
        && delivery.is_finished()
    {
        shared.finished(delivery);
    }
    match request {
        WriteRequest::Create(delivery) => {
            let api = api(shared, &delivery);
            match bounded(api.create(&params, &delivery)).await {
                Ok(stored) => Written::Stored(pruned(stored)),
                Err(error) if error.is_already_exists() => {
                    match read_back(&api, &delivery).await {
                        // It was deleted in the meantime, so a retry will succeed.
                        Written::Gone => Written::Failed,
                        found => found,
                    }
                }
                Err(error) if is_hopeless(&error) => Written::Gone,
                Err(error) if error.status().is_some_and(quota::is_exceeded) => {
                    tracing::debug!(delivery = name(&delivery), %error, "a quota refuses a Delivery");
                    Written::Refused
                }
                Err(error) => failed(&delivery, &error),
            }
        }
        WriteRequest::Replace(delivery) => {
            let api = api(shared, &delivery);
            match bounded(api.replace(name(&delivery), &params, &delivery)).await {
                Ok(stored) => Written::Stored(pruned(stored)),
                Err(error) if error.is_conflict() => read_back(&api, &delivery).await,
                Err(error) if error.is_not_found() => Written::Gone,
                Err(error) => failed(&delivery, &error),
            }
        }
        WriteRequest::Delete(delivery) => match delete(&api(shared, &delivery), &delivery, None).await {
            Ok(()) => Written::Gone,
            Err(error) => failed(&delivery, &error),
        },
    }
}

/// Reads a Delivery; `None` if it does not exist or is only a request.
pub(crate) async fn get(shared: &Shared, namespace: &str, name: &str) -> Result<Option<Arc<Delivery>>, ()> {
    let api: Api<Delivery> = Api::namespaced(shared.deps.client.clone(), namespace);
    match bounded(api.get_opt(name)).await {
        Ok(found) => Ok(found.filter(|found| !found.is_request()).map(pruned)),
        Err(error) => {
            if let Some(left_out) = LOOK_UPS.left_out(Instant::now()) {
                tracing::warn!(namespace, name, %error, left_out, "cannot look up a Delivery");
            }
            Err(())
        }
    }
}

async fn read_back(api: &Api<Delivery>, delivery: &Delivery) -> Written {
    match bounded(api.get_opt(name(delivery))).await {
        Ok(Some(found)) if found.is_request() || found.spec.event_id != delivery.spec.event_id => {
            // An account holder created it: the operator uses this name only for this event.
            let version = found.metadata.resource_version.clone();
            match delete(api, &found, version).await {
                Ok(()) => Written::Failed,
                Err(error) => failed(delivery, &error),
            }
        }
        Ok(Some(found)) => Written::Found(pruned(found)),
        Ok(None) => Written::Gone,
        Err(error) => failed(delivery, &error),
    }
}

/// Deletes a Delivery, but not another one that has taken its name by now; or deletes only this version of
/// it.
pub(crate) async fn delete(
    api: &Api<Delivery>,
    delivery: &Delivery,
    version: Option<String>,
) -> Result<(), CallError> {
    let params = only(delivery.metadata.uid.clone(), version);
    match bounded(api.delete(name(delivery), &params)).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

fn failed(delivery: &Delivery, error: &CallError) -> Written {
    if let Some(left_out) = WRITES.left_out(Instant::now()) {
        tracing::warn!(delivery = name(delivery), %error, left_out, "cannot write a Delivery; will retry");
    }
    Written::Failed
}

/// Whether nothing can be created any more, because the namespace is gone or being deleted.
pub(crate) fn is_hopeless(error: &CallError) -> bool {
    let causes = |status: &Status| {
        let details = status.details.as_ref();
        details.is_some_and(|details| {
            details
                .causes
                .iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
        })
    };
    let lacks_namespace = |status: &Status| {
        let kind = status.details.as_ref().map(|details| details.kind.as_str());
        error.is_not_found() && kind == Some("namespaces")
    };
    error
        .status()
        .is_some_and(|status| causes(status) || lacks_namespace(status))
}

fn pruned(mut delivery: Delivery) -> Arc<Delivery> {
    delivery.metadata.managed_fields = None;
    Arc::new(delivery)
}

fn api(shared: &Shared, delivery: &Delivery) -> Api<Delivery> {
    let namespace = delivery.metadata.namespace.as_deref().unwrap_or_default();
    Api::namespaced(shared.deps.client.clone(), namespace)
}

fn name(delivery: &Delivery) -> &str {
    delivery.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::Method;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;
    use crate::webhook::{Deps, WebhookController, tests::deps};
    use runtime::testing::answered_by;

    fn delivery(event: &str) -> Value {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": "Delivery",
            "metadata": {
                "namespace": "ns", "name": "dlv-abcdefgh01234567", "uid": event, "resourceVersion": "7",
                "labels": { "stellage.dev/finished": "true" },
            },
            "spec": {
                "webhook": "hook", "eventId": event, "eventType": "instance.created",
                "eventCreatedAt": "2026-11-22T10:00:00Z", "body": "{}",
            },
            "status": { "phase": "Delivered" },
        })
    }

    /// The outcome of creating the Delivery of `evt_1` when `there` already has its name, and whether `there` is deleted.
    async fn created_over(there: Value) -> (Written, bool) {
        let deleted = Arc::new(Mutex::new(false));
        let log = deleted.clone();
        let client = answered_by(move |method, _, _| {
            let status = |code: u16, reason: &str| {
                let failure = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason });
                (code, failure)
            };
            let answer = match method {
                Method::POST => status(409, "AlreadyExists"),
                Method::DELETE => {
                    *log.lock() = true;
                    (200, there.clone())
                }
                _ => (200, there.clone()),
            };
            async move { answer }
        });
        let shared = WebhookController::new(Deps { client, ..deps(&[]) }).shared;
        let wanted = serde_json::from_value(delivery("evt_1")).unwrap();
        let written = write(&shared, WriteRequest::Create(wanted)).await;
        (written, *deleted.lock())
    }

    #[tokio::test]
    async fn a_delivery_of_another_event_with_the_name_of_a_new_one_is_not_taken_for_it() {
        assert_eq!(created_over(delivery("evt_2")).await, (Written::Failed, true));
        let (written, deleted) = created_over(delivery("evt_1")).await;
        assert!(matches!(written, Written::Found(found) if found.is_finished()) && !deleted);
    }
}
