//! `Delivery`: one event for one webhook, with the exact bytes to send and every attempt.
//!
//! Like the core Event kind, it has no status subresource, so that one write can create it with its first outcome.

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema, ResourceExt as _, api::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{event::EventType, ids, names, origin, size, times, traceparent, webhook::Webhook};

/// Label with the name of the Webhook.
pub const WEBHOOK_LABEL: &str = "stellage.dev/webhook";
/// Label with the [`DeliveryPhase`] in lower case, for finding deliveries.
pub const PHASE_LABEL: &str = "stellage.dev/phase";
/// Label with the type of the event.
pub const EVENT_TYPE_LABEL: &str = "stellage.dev/event-type";
/// Label, `true`, on deliveries that are delivered or exhausted: the controller no longer watches them. Removing the label
/// sends the delivery again.
pub const FINISHED_LABEL: &str = "stellage.dev/finished";
/// Annotation with the time at which a delivery was delivered or exhausted. Its retention starts then.
pub const FINISHED_AT_ANNOTATION: &str = "stellage.dev/finished-at";
/// Annotation with the approximate size in bytes of a delivery that was delivered or exhausted, so that lists of metadata show it.
const BYTES_ANNOTATION: &str = "stellage.dev/bytes";
/// Bytes of a Delivery as it is stored, beside its texts. What others write into its metadata is not counted: the policy
/// `metadata-bounds` leaves them 2 KiB of labels and annotations, and 4 KiB of managedFields.
const DELIVERY_BYTES: usize = 1024;
/// Bytes of an attempt as it is stored, beside its texts.
const ATTEMPT_BYTES: usize = 128;
/// Annotation with the place of a delivery among those of its webhook: see [`event_order`].
const EVENT_ORDER_ANNOTATION: &str = "stellage.dev/event-order";
/// Annotation that requests an attempt at an unfinished delivery now. Its value is a nonce, by convention the RFC 3339 time of
/// the request: a value that differs from [`DeliveryStatus::attempt_requested_at`] is a new request.
pub const ATTEMPT_REQUESTED_AT_ANNOTATION: &str = "stellage.dev/attempt-requested-at";

/// Number of characters of a nonce that are compared and copied to the status.
const MAX_NONCE_CHARS: usize = 64;

/// Most attempts kept in a Delivery: as many as the longest schedule has. After that the oldest are dropped.
pub const MAX_ATTEMPTS_KEPT: usize = 21;
/// Most bytes of a response body that the operator may be set to keep, as the API server stores them.
pub const MAX_RESPONSE_BYTES: u16 = 4096;

/// The state of a delivery.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum DeliveryPhase {
    /// Waiting for its next attempt.
    Pending,
    /// Kept until its webhook can receive deliveries again and there is room for it.
    Held,
    /// The receiver responded with 2xx.
    Delivered,
    /// Its last retry failed, or the receiver responded with 410 Gone.
    Exhausted,
}

impl DeliveryPhase {
    /// Every phase.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Held, Self::Delivered, Self::Exhausted];

    /// The phase as REST and [`PHASE_LABEL`] spell it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether nothing more is sent unless a redelivery is requested.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Delivered | Self::Exhausted)
    }
}

/// One POST to the receiver and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// When it began.
    #[schemars(schema_with = "times::time")]
    pub at: Timestamp,
    /// Time until the status line or the failure, in milliseconds.
    #[schemars(extend("format" = "int64"))]
    pub duration_ms: i64,
    /// Status code of the response, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub status_code: Option<i32>,
    /// Why the attempt failed; absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub error: Option<String>,
    /// The start of the response body, at most 1 KiB by default, not decompressed; only of the last attempt. Bytes that are not UTF-8 and
    /// control characters are replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub response: Option<String>,
    /// The URL that it was sent to; only of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub url: Option<String>,
}

/// Whether a Delivery has no owner: its webhook was deleted with `--cascade=orphan`. It belongs to no webhook, so nobody sends it, and
/// Kubernetes does not delete it.
pub fn is_unowned(metadata: &ObjectMeta) -> bool {
    metadata.owner_references.iter().flatten().next().is_none()
}

/// When a Delivery was finished, if it has a valid [`FINISHED_AT_ANNOTATION`].
pub fn finished_at(metadata: &ObjectMeta) -> Option<Timestamp> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(FINISHED_AT_ANNOTATION)?.parse().ok()
}

/// The size of a finished Delivery as it is stored, in bytes, approximately. Without a valid annotation, it counts as an empty one.
pub fn finished_bytes(metadata: &ObjectMeta) -> u64 {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|annotations| annotations.get(BYTES_ANNOTATION));
    text.and_then(|text| text.parse().ok())
        .unwrap_or(DELIVERY_BYTES as u64)
}

/// The place of a Delivery among those of its webhook: the time of its event, then the event's sequence number. It is in the
/// metadata, so that a list is put in order without reading bodies. Without a valid annotation, the creation counts.
pub fn event_order(metadata: &ObjectMeta) -> (Timestamp, i64) {
    let annotations = metadata.annotations.as_ref();
    let text = annotations.and_then(|annotations| annotations.get(EVENT_ORDER_ANNOTATION));
    let order = text.and_then(|text| {
        let (at, sequence) = text.split_once(' ')?;
        Some((at.parse().ok()?, sequence.parse().ok()?))
    });
    order.unwrap_or_else(|| (origin::created_at(metadata).unwrap_or(Timestamp::UNIX_EPOCH), 0))
}

/// Writes down what [`event_order`] reads.
pub fn set_event_order(metadata: &mut ObjectMeta, at: Timestamp, sequence: i64) {
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert(EVENT_ORDER_ANNOTATION.to_owned(), format!("{at} {sequence}"));
}

/// What to send, and to which webhook.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Delivery",
    plural = "deliveries",
    shortname = "dlv",
    category = "stellage",
    namespaced,
    status = "DeliveryStatus",
    derive = "PartialEq",
    doc = "One event for one webhook: the exact bytes to send, and every attempt. Created by the operator. To send a pending or held one now: kubectl annotate delivery NAME --overwrite stellage.dev/attempt-requested-at=TIME, with a new TIME for each request. To send a finished one again, remove its label: kubectl label delivery NAME stellage.dev/finished-. To send one again that is only in the event log: stellage delivery redeliver NAME",
    printcolumn(name = "Event", type_ = "string", json_path = ".spec.eventType"),
    printcolumn(name = "Webhook", type_ = "string", json_path = ".spec.webhook"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Attempts", type_ = "integer", json_path = ".status.attemptCount"),
    printcolumn(name = "Next-Attempt", type_ = "string", json_path = ".status.nextAttemptAt"),
    printcolumn(name = "Last-Status", type_ = "integer", json_path = ".status.lastStatusCode"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Event-ID",
        type_ = "string",
        json_path = ".spec.eventId",
        priority = 1
    ),
    printcolumn(
        name = "Error",
        type_ = "string",
        json_path = ".status.lastError",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
// The operator completes a request: see `Delivery::is_request`.
#[x_kube(validation = Rule::new("self == oldSelf || oldSelf.body == '' && !(has(oldSelf.test) && oldSelf.test)").message("is immutable: the bytes of an event are the same in every attempt"))]
pub struct DeliverySpec {
    /// Name of the Webhook, in the same namespace.
    #[schemars(length(max = 63))]
    #[x_kube(validation = names::of_object())]
    pub webhook: String,
    /// Id of the event, `evt_…`.
    #[schemars(length(max = 64))]
    pub event_id: String,
    /// Type of the event.
    pub event_type: EventType,
    /// When the event happened.
    #[schemars(schema_with = "times::time")]
    pub event_created_at: Timestamp,
    /// Sequence number of the event among those of its object.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub sequence: i64,
    /// UID of the object that the event is about. First attempts of an object's events are made in order.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub subject: String,
    /// The request body, byte for byte.
    #[schemars(length(max = 65536))]
    pub body: String,
    /// The W3C traceparent of the span that recorded the event, if it follows from a request that is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "traceparent::optional")]
    pub traceparent: Option<String>,
    /// Whether this is a test event, which is never retried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub test: bool,
}

/// The outcome so far.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeliveryStatus {
    /// Pending, Held, Delivered or Exhausted.
    pub phase: DeliveryPhase,
    /// Total number of attempts.
    #[serde(default)]
    #[schemars(extend("format" = "int32"))]
    pub attempt_count: i32,
    /// Number of retries in the current run of the retry schedule. An attempt that was requested before the next retry was due
    /// does not count. A redelivery of a finished delivery starts again at 0.
    #[serde(default)]
    #[schemars(extend("format" = "int32"))]
    pub retries: i32,
    /// When the next attempt is due, while the phase is Pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub next_attempt_at: Option<Timestamp>,
    /// The value of the annotation stellage.dev/attempt-requested-at that was last acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub attempt_requested_at: Option<String>,
    /// Status code of the last response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub last_status_code: Option<i32>,
    /// Why the last attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub last_error: Option<String>,
    /// The attempts, oldest first; the last 21 are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 21))]
    pub attempts: Vec<Attempt>,
}

impl DeliveryStatus {
    /// A delivery without attempts.
    pub const fn new(phase: DeliveryPhase, next_attempt_at: Option<Timestamp>) -> Self {
        Self {
            phase,
            attempt_count: 0,
            retries: 0,
            next_attempt_at,
            attempt_requested_at: None,
            last_status_code: None,
            last_error: None,
            attempts: Vec::new(),
        }
    }
}

impl Delivery {
    /// Sets the status, and the labels and annotations that lists select and sort by. A finished one was finished `now`. Test
    /// events are created without the order.
    pub fn set_status(&mut self, status: DeliveryStatus, now: Timestamp) {
        let (at, sequence) = (self.spec.event_created_at, self.spec.sequence);
        set_event_order(&mut self.metadata, at, sequence);
        let labels = self.metadata.labels.get_or_insert_default();
        labels.insert(PHASE_LABEL.to_owned(), status.phase.as_str().to_owned());
        labels.insert(WEBHOOK_LABEL.to_owned(), self.spec.webhook.clone());
        labels.insert(
            EVENT_TYPE_LABEL.to_owned(),
            self.spec.event_type.as_str().to_owned(),
        );
        let annotations = self.metadata.annotations.get_or_insert_default();
        if status.phase.is_finished() {
            labels.insert(FINISHED_LABEL.to_owned(), "true".to_owned());
            annotations.insert(FINISHED_AT_ANNOTATION.to_owned(), format!("{now:.3}"));
        } else {
            labels.remove(FINISHED_LABEL);
            annotations.remove(FINISHED_AT_ANNOTATION);
            annotations.remove(BYTES_ANNOTATION);
        }
        let is_finished = status.phase.is_finished();
        self.status = Some(status);
        if is_finished {
            let bytes = self.bytes().to_string();
            let annotations = self.metadata.annotations.get_or_insert_default();
            annotations.insert(BYTES_ANNOTATION.to_owned(), bytes);
        }
    }

    /// Its size as it is stored, in bytes, approximately.
    pub fn bytes(&self) -> u64 {
        let attempts = self.status.iter().flat_map(|status| &status.attempts);
        let of_attempt = |attempt: &Attempt| {
            let texts = [&attempt.error, &attempt.response, &attempt.url];
            ATTEMPT_BYTES
                + texts
                    .into_iter()
                    .flatten()
                    .map(|text| size::of_text(text))
                    .sum::<usize>()
        };
        let attempts: usize = attempts.map(of_attempt).sum();
        (DELIVERY_BYTES + size::of_text(&self.spec.body) + attempts) as u64
    }

    /// The nonce of the last request to send this delivery now, answered or not.
    pub fn requested_attempt(&self) -> Option<&str> {
        let annotations = self.metadata.annotations.as_ref()?;
        let nonce = annotations.get(ATTEMPT_REQUESTED_AT_ANNOTATION)?;
        // Users can write any text here, and its copy must fit into the status.
        let end = nonce.char_indices().nth(MAX_NONCE_CHARS);
        Some(end.map_or(nonce, |(end, _)| &nonce[..end]))
    }

    /// Whether an attempt is requested that has not been recorded yet.
    pub fn is_attempt_requested(&self) -> bool {
        let status = self.status.as_ref();
        let answered = status.and_then(|status| status.attempt_requested_at.as_deref());
        self.requested_attempt()
            .is_some_and(|nonce| answered != Some(nonce))
    }

    /// The public id, `dlv_…`, a pure function of the name.
    pub fn id(&self) -> String {
        ids::delivery_id(self.metadata.name.as_deref().unwrap_or_default())
    }

    /// Whether it only asks for a delivery in the event log to be sent again: an account holder or the facade has created it, and the
    /// controller completes it with what the page has that it names.
    pub fn is_request(&self) -> bool {
        !self.spec.test && self.spec.body.is_empty() && self.status.is_none()
    }

    /// A finished delivery as it is to be sent again to its webhook, as the request with this nonce asks.
    #[must_use]
    pub fn requested_again(mut self, webhook: &Webhook, nonce: String) -> Self {
        let metadata = &mut self.metadata;
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(), nonce);
        // Without this label, the controller sends it.
        metadata.labels.get_or_insert_default().remove(FINISHED_LABEL);
        metadata.owner_references = Some(vec![Webhook::owner_reference(
            &webhook.name_any(),
            webhook.metadata.uid.as_deref().unwrap_or_default(),
        )]);
        self
    }

    /// Whether the controller is done with it: it is finished, and [`FINISHED_LABEL`] was not removed to send it again.
    pub fn is_finished(&self) -> bool {
        self.metadata
            .labels
            .as_ref()
            .is_some_and(|labels| labels.contains_key(FINISHED_LABEL))
            && self
                .status
                .as_ref()
                .is_some_and(|status| status.phase.is_finished())
    }
}
