//! Deliveries as responses show them (decisions, section 6).

use crate::service::deliveries::{created_at, next_attempt, shown_phase};
use api::{DeliveryAttempt, DeliveryHeaders, DeliveryRequest, Milliseconds, Seconds};
use domain::event::catalogue;
use resources::{Attempt, Delivery, Webhook, delivery::MAX_ATTEMPTS_KEPT};
use sender::signature;

/// A delivery as lists show it.
pub fn delivery(delivery: &Delivery) -> api::Delivery {
    let status = delivery.status.as_ref();
    let attempts = status
        .map(|status| status.attempts.as_slice())
        .unwrap_or_default();
    let first = attempts.len().saturating_sub(MAX_ATTEMPTS_KEPT);
    api::Delivery {
        id: delivery.id(),
        event_id: delivery.spec.event_id.clone(),
        event_type: delivery.spec.event_type,
        status: shown_phase(delivery).into(),
        created_at: Seconds(created_at(delivery)),
        next_attempt_at: next_attempt(delivery).map(Seconds),
        attempts: attempts[first..].iter().map(attempt).collect(),
        request: None,
    }
}

fn attempt(attempt: &Attempt) -> DeliveryAttempt {
    DeliveryAttempt {
        at: Milliseconds(attempt.at),
        duration_ms: attempt.duration_ms,
        status_code: attempt.status_code,
        error: attempt.error.clone(),
        response: attempt.response.clone(),
    }
}

/// A delivery of this webhook, with the request, as its detail shows it.
pub fn with_request(delivery: &Delivery, webhook: &Webhook) -> api::Delivery {
    let (spec, attempts) = (&delivery.spec, delivery.status.as_ref().map(|it| &it.attempts));
    let last = attempts.and_then(|attempts| attempts.last());
    let headers = DeliveryHeaders {
        content_type: "application/json".to_owned(),
        user_agent: signature::AGENT.to_owned(),
        accept: signature::ACCEPTED.to_owned(),
        event_id: spec.event_id.clone(),
        event_type: spec.event_type,
        timestamp: spec.event_created_at.as_second().to_string(),
        webhook_id: spec.event_id.clone(),
        webhook_timestamp: last.map(|attempt| attempt.at.as_second().to_string()),
    };
    api::Delivery {
        request: Some(DeliveryRequest {
            url: last
                .and_then(|attempt| attempt.url.as_ref())
                .unwrap_or(&webhook.spec.url)
                .clone(),
            headers,
            body: catalogue::body_of(spec).into_owned(),
        }),
        ..self::delivery(delivery)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use resources::delivery::ATTEMPT_REQUESTED_AT_ANNOTATION;

    fn delivery(phase: &str, finished: bool) -> Delivery {
        let mut object = json!({
            "metadata": {
                "name": "dlv-abcdefgh01234567", "namespace": "demo", "creationTimestamp": "2026-11-21T10:00:00Z",
                "labels": {},
            },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T09:59:59Z", "body": "{}",
            },
            "status": {
                "phase": phase, "nextAttemptAt": "2026-11-21T10:05:00.9Z", "attemptCount": 1,
                "attempts": [{ "at": "2026-11-21T10:00:00.1234Z", "durationMs": 7, "statusCode": 500, "error": "no", "response": "oops" }],
            },
        });
        if finished {
            object["metadata"]["labels"] = json!({ "stellage.dev/finished": "true" });
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn a_delivery_has_exactly_its_fields() {
        let shown = serde_json::to_value(super::delivery(&delivery("Pending", false))).unwrap();
        assert_eq!(
            shown,
            json!({
                "id": "dlv_abcdefgh01234567", "event_id": "evt_1", "event_type": "instance.created", "status": "pending",
                "created_at": "2026-11-21T09:59:59Z", "next_attempt_at": "2026-11-21T10:05:00Z",
                "attempts": [{
                    "at": "2026-11-21T10:00:00.123Z", "duration_ms": 7, "status_code": 500, "error": "no", "response": "oops",
                }],
            })
        );
    }

    #[test]
    fn a_delivery_whose_attempt_was_requested_shows_no_later_time() {
        let mut requested = delivery("Pending", false);
        let annotations = requested.metadata.annotations.get_or_insert_default();
        annotations.insert(
            ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(),
            "2026-11-21T10:01:00Z".to_owned(),
        );
        assert!(super::delivery(&requested).next_attempt_at.is_none());
        requested.status.as_mut().unwrap().attempt_requested_at = Some("2026-11-21T10:01:00Z".to_owned());
        assert!(super::delivery(&requested).next_attempt_at.is_some());
    }

    #[test]
    fn a_single_delivery_shows_the_request_without_signatures() {
        let webhook = serde_json::from_value(json!({
            "metadata": { "name": "orders" },
            "spec": { "url": "https://example.com/hook", "events": [], "secretRef": { "name": "s" } },
        }))
        .unwrap();
        let mut delivery = delivery("Pending", false);
        let shown = |delivery: &Delivery| serde_json::to_value(with_request(delivery, &webhook)).unwrap();
        let mut expected = json!({
            "url": "https://example.com/hook",
            "headers": {
                "Content-Type": "application/json", "User-Agent": signature::AGENT, "Accept": "*/*",
                "X-Service-Event-ID": "evt_1", "X-Service-Event-Type": "instance.created", "X-Service-Timestamp": "1795255199",
                "webhook-id": "evt_1", "webhook-timestamp": "1795255200",
            },
            "body": "{}",
        });
        assert_eq!(shown(&delivery)["request"], expected);
        // Every header that is sent, except for the signatures.
        let keys = signature::SigningKeys::new("s", None);
        let at = Timestamp::UNIX_EPOCH;
        let sent = signature::headers(&keys, "evt_1", "instance.created", at, at, b"{}");
        let signatures = [signature::SERVICE_SIGNATURE, signature::WEBHOOK_SIGNATURE];
        let sent = sent.keys().filter(|name| !signatures.contains(name));
        let mut sent: Vec<_> = sent.map(|name| name.as_str().to_owned()).collect();
        sent.sort_unstable();
        let shown_headers = expected["headers"].as_object().unwrap().keys();
        let mut names: Vec<_> = shown_headers.map(|name| name.to_ascii_lowercase()).collect();
        names.sort_unstable();
        assert_eq!(names, sent);
        // Once it has been sent, the URL is that of the attempt.
        let attempts = &mut delivery.status.as_mut().unwrap().attempts;
        attempts[0].url = Some("https://old.example.com/".to_owned());
        assert_eq!(shown(&delivery)["request"]["url"], "https://old.example.com/");
        delivery.status = None;
        expected["headers"]["webhook-timestamp"] = json!(null);
        assert_eq!(shown(&delivery)["request"], expected);
    }
}
