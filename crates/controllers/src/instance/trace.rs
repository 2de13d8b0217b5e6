//! The trace that a reconcile continues: that of the request that wrote the spec, until its operation has ended.
//!
//! The annotation stays on the object, so it alone does not say whether a change belongs to that request. It is adopted once, with the
//! first status that describes the change; from then on, the operation that began with the change has the trace. If a later change has
//! no `traceparent` of its own, the one it finds has already been adopted.

use domain::event::outbox;
use resources::{Instance, InstanceStatus, Operation, traceparent::annotated};
use runtime::traces::{self, Span, SpanKind};

/// The `traceparent` of the request that wrote the spec, unless the status already reflects that spec.
fn requested(instance: &Instance) -> Option<&str> {
    let status = instance.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    let taken_up = status.and_then(|status| status.traceparent.as_deref());
    annotated(&instance.metadata)
        .filter(|annotated| observed != instance.metadata.generation && taken_up != Some(annotated))
}

/// The span of a reconcile caused by a traced request.
pub(super) fn span(instance: &Instance) -> Option<Span> {
    let operation = instance
        .status
        .as_ref()
        .and_then(|status| status.operation.as_ref());
    let begin = |parent| traces::continued(parent, "reconcile Instance", SpanKind::Internal);
    let under_way = || begin(operation?.traceparent.as_deref()?);
    let span = requested(instance).and_then(begin).or_else(under_way)?;
    span.set(
        "k8s.namespace.name",
        instance.metadata.namespace.clone().unwrap_or_default(),
    );
    span.set(
        "stellage.instance",
        instance.metadata.name.clone().unwrap_or_default(),
    );
    Some(span)
}

/// Adds the traces to a decided status: that of the request that it answers, and that of the current reconcile.
pub(super) fn carry(instance: &Instance, status: &mut InstanceStatus) {
    let requested = requested(instance).and_then(traces::accepted);
    carry_from(requested, traces::current().as_deref(), instance, status);
}

fn carry_from(requested: Option<&str>, now: Option<&str>, instance: &Instance, status: &mut InstanceStatus) {
    let before = instance.status.as_ref();
    if let Some(requested) = requested {
        status.traceparent = Some(requested.to_owned());
        let was = before
            .and_then(|before| before.operation.as_ref())
            .map(Operation::id);
        if let Some(begun) = status
            .operation
            .as_mut()
            .filter(|operation| Some(operation.id()) != was)
        {
            begun.traceparent = Some(requested.to_owned());
        }
    }
    let told = before.map_or(0, |before| before.event_sequence);
    outbox::carry_trace(&mut status.outbox, told, now);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use resources::testing;

    const REQUEST: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn instance(generation: i64, status: Value) -> Instance {
        testing::instance(json!({
            "metadata": { "generation": generation, "annotations": { "stellage.dev/traceparent": REQUEST } },
            "status": status,
        }))
    }

    fn operation(kind: &str) -> Value {
        json!({ "kind": kind, "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "starter", "image": "debian-13" })
    }

    fn entry(sequence: i64, event_type: &str) -> Value {
        json!({ "id": "e", "type": event_type, "sequence": sequence, "createdAt": "2026-11-21T10:00:00Z", "body": "{}" })
    }

    #[test]
    fn an_annotation_is_taken_up_once_and_only_with_a_change_of_the_spec() {
        assert_eq!(requested(&instance(1, json!({}))), Some(REQUEST));
        assert_eq!(
            requested(&instance(2, json!({ "observedGeneration": 1 }))),
            Some(REQUEST)
        );
        for status in [
            // Nothing has changed.
            json!({ "observedGeneration": 2 }),
            // Somebody changed the spec later and left the annotation in place.
            json!({ "observedGeneration": 1, "traceparent": REQUEST }),
        ] {
            assert_eq!(requested(&instance(2, status.clone())), None, "{status}");
        }
    }

    #[test]
    fn the_operation_that_begins_with_a_request_has_its_trace_and_one_under_way_does_not() {
        let decided = |kind: &str| -> InstanceStatus {
            serde_json::from_value(json!({ "operation": operation(kind) })).unwrap()
        };
        let before = instance(
            2,
            json!({ "observedGeneration": 1, "operation": operation("Create") }),
        );
        for (kind, has_begun) in [("Create", false), ("Stop", true)] {
            let mut status = decided(kind);
            carry_from(Some(REQUEST), None, &before, &mut status);
            assert_eq!(status.traceparent.as_deref(), Some(REQUEST));
            assert_eq!(
                status.operation.unwrap().traceparent.is_some(),
                has_begun,
                "{kind}"
            );
        }
        let mut status = decided("Stop");
        carry_from(None, None, &before, &mut status);
        assert_eq!(status, decided("Stop"), "without a trace nothing is stored");
    }

    #[test]
    fn new_events_carry_the_span_that_records_them_but_alerts_do_not() {
        let before = instance(
            2,
            json!({ "eventSequence": 1, "outbox": [entry(1, "instance.created")] }),
        );
        let outbox = [
            entry(1, "instance.created"),
            entry(2, "instance.started"),
            entry(3, "alert.triggered"),
        ];
        let mut status = serde_json::from_value(json!({ "eventSequence": 3, "outbox": outbox })).unwrap();
        carry_from(None, Some(REQUEST), &before, &mut status);
        let carried: Vec<bool> = status
            .outbox
            .iter()
            .map(|entry| entry.traceparent.is_some())
            .collect();
        assert_eq!(carried, [false, true, false]);
    }
}
