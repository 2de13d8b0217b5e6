//! Deliveries as text.

use std::fmt::Write as _;

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    cli::{
        duration,
        output::{self, cell, or_dash, printable},
    },
    delivery::signature::{self, SERVICE_SIGNATURE, SigningKeys, WEBHOOK_SIGNATURE},
    events::catalogue,
    resources::{Attempt, Delivery},
    service::deliveries::{created_at, next_attempt, shown_phase},
};

/// Longest error that a table shows in full.
const LONGEST_ERROR: usize = 60;

/// Deliveries as a table: the columns of `kubectl get`, and the error.
pub(super) fn table(deliveries: &[Delivery], now: Timestamp) -> String {
    let head = [
        "NAME",
        "EVENT",
        "WEBHOOK",
        "PHASE",
        "ATTEMPTS",
        "NEXT-ATTEMPT",
        "LAST-STATUS",
        "AGE",
        "ERROR",
    ];
    let rows: Vec<_> = deliveries.iter().map(|delivery| row(delivery, now)).collect();
    output::table(&head, &rows)
}

fn row(delivery: &Delivery, now: Timestamp) -> [String; 9] {
    let status = delivery.status.as_ref();
    let error = status.and_then(|status| status.last_error.as_deref());
    [
        delivery.name_any(),
        delivery.spec.event_type.to_string(),
        delivery.spec.webhook.clone(),
        shown_phase(delivery).as_str().to_owned(),
        or_dash(status.map(|status| status.attempt_count)),
        or_dash(next_attempt(delivery).map(|next| format!("{next:.0}"))),
        or_dash(status.and_then(|status| status.last_status_code)),
        duration::age(created_at(delivery), now),
        or_dash(error.map(|error| cell(error, LONGEST_ERROR))),
    ]
}

/// One delivery in full: the request, and every attempt with its answer.
pub(super) fn description(delivery: &Delivery, now: Timestamp) -> String {
    let ago = |time: Timestamp| format!("{time:.0} ({} ago)", duration::age(time, now));
    let spec = &delivery.spec;
    let status = delivery.status.as_ref();
    let attempts = status
        .map(|status| status.attempts.as_slice())
        .unwrap_or_default();
    let mut fields = vec![
        ("Name", delivery.name_any()),
        ("Namespace", delivery.namespace().unwrap_or_default()),
        ("ID", delivery.id()),
        ("Webhook", spec.webhook.clone()),
        ("Event", format!("{} {}", spec.event_type, spec.event_id)),
        ("Happened", ago(spec.event_created_at)),
        ("Status", shown_phase(delivery).as_str().to_owned()),
        (
            "Attempts",
            status.map_or(0, |status| status.attempt_count).to_string(),
        ),
        (
            "Next attempt",
            or_dash(next_attempt(delivery).map(|next| format!("{next:.0}"))),
        ),
    ];
    if spec.test {
        fields.push(("Test", "sent without retries".to_owned()));
    }
    let mut text = output::description(&fields);
    text.push_str("\nRequest:\n");
    for line in request(delivery, attempts.last()) {
        let _ = writeln!(text, "  {line}");
    }
    text.push('\n');
    for line in printable(&catalogue::body_of(spec)).lines() {
        let _ = writeln!(text, "  {line}");
    }
    if attempts.is_empty() {
        text.push_str("Answers: none yet");
        return text;
    }
    text.push_str("Answers:");
    for attempt in attempts {
        let _ = write!(text, "\n  {}", answer(attempt));
        for line in printable(attempt.response.as_deref().unwrap_or_default()).lines() {
            let _ = write!(text, "\n    {line}");
        }
    }
    text
}

/// The headers of the last attempt, or of the first if there was none, without the signatures, which need the secret.
fn request(delivery: &Delivery, last: Option<&Attempt>) -> Vec<String> {
    let spec = &delivery.spec;
    let headers = signature::headers(
        &SigningKeys::new("", None),
        &spec.event_id,
        spec.event_type.as_str(),
        spec.event_created_at,
        last.map_or(spec.event_created_at, |attempt| attempt.at),
        catalogue::body_of(spec).as_bytes(),
    );
    let lines = headers.iter().map(|(name, value)| {
        let value = if *name == SERVICE_SIGNATURE || *name == WEBHOOK_SIGNATURE {
            "(made with the signing secret)"
        } else {
            value.to_str().unwrap_or_default()
        };
        format!("{name}: {value}")
    });
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines
}

fn answer(attempt: &Attempt) -> String {
    let outcome = match (attempt.status_code, &attempt.error) {
        (Some(code), Some(error)) if !error.contains(&code.to_string()) => {
            format!("{code}, {}", printable(error))
        }
        (_, Some(error)) => printable(error),
        (Some(code), None) => code.to_string(),
        (None, None) => "no answer".to_owned(),
    };
    format!("{:.3}   {} ms   {outcome}", attempt.at, attempt.duration_ms)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn delivery() -> Delivery {
        serde_json::from_value(json!({
            "metadata": {
                "name": "dlv-abcdefgh01234567", "namespace": "ada", "creationTimestamp": "2026-11-21T10:00:00Z",
            },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{\"id\":\"evt_1\"}",
            },
            "status": {
                "phase": "Pending", "attemptCount": 1, "nextAttemptAt": "2026-11-21T10:06:00Z", "lastStatusCode": 503,
                "lastError": "the receiver answered 503",
                "attempts": [{
                    "at": "2026-11-21T10:00:01Z", "durationMs": 12, "statusCode": 503, "error": "the receiver answered 503",
                    "response": "try \u{1b}[2Jlater",
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_description_has_the_request_and_every_answer_and_no_signature() {
        let now = "2026-11-21T10:05:00Z".parse().unwrap();
        let text = description(&delivery(), now);
        for line in [
            "ID:            dlv_abcdefgh01234567",
            "Event:         instance.created evt_1",
            "Status:        pending",
            "Next attempt:  2026-11-21T10:06:00Z",
            "  content-type: application/json",
            "  webhook-timestamp: 1795255201",
            "  x-service-event-id: evt_1",
            "  x-service-signature: (made with the signing secret)",
            "  x-service-timestamp: 1795255200",
            "  {\"id\":\"evt_1\"}",
            "  2026-11-21T10:00:01.000Z   12 ms   the receiver answered 503",
            "    try \\u{1b}[2Jlater",
        ] {
            assert!(text.lines().any(|text| text == line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_list_has_the_columns_of_kubectl_and_the_error() {
        let now = "2026-11-21T10:05:00Z".parse().unwrap();
        assert_eq!(
            table(&[delivery()], now),
            "NAME                   EVENT              WEBHOOK   PHASE     ATTEMPTS   NEXT-ATTEMPT           LAST-STATUS   AGE   ERROR\n\
             dlv-abcdefgh01234567   instance.created   orders    pending   1          2026-11-21T10:06:00Z   503           5m    the receiver answered 503"
        );
    }
}
