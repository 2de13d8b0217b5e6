//! `EventLog`: a page of the events of an account, each with its body and the webhooks that it was delivered to at once.
//!
//! A page is written once and never changed. Its name begins with the time of writing, inverted, so that a list of pages in
//! the order of their names begins with the newest. An annotation repeats what lists and look-ups need, so that they read the
//! metadata of many pages and the contents of only a few.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::{CustomResource, KubeSchema, api::ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Attempt, Delivery, DeliveryPhase, DeliverySpec, DeliveryStatus,
    event::{EventType, MAX_BODY},
    ids, size, times, traceparent,
};

/// Most events on a page (decisions, section 1).
pub const MAX_EVENTS: usize = 200;
/// Most deliveries of an event on a page. An event that is delivered to more webhooks at once has the others as Deliveries.
pub const MAX_DELIVERIES: usize = 256;
/// Bytes of an event as it is stored, beside its body: with its place in the index.
const EVENT_BYTES: usize = 256;
/// Bytes of a page, beside its events.
const PAGE_BYTES: usize = 1024;
/// Annotation of a page with its [`PageIndex`] as JSON.
const INDEX_ANNOTATION: &str = "stellage.dev/index";
/// Annotation of a Delivery that was made from a page to send it again: the name of that page. The Delivery replaces what the
/// page tells of it.
pub const LOGGED_IN_ANNOTATION: &str = "stellage.dev/logged-in";

/// The page that a Delivery was, or is to be, made from.
pub fn page_of(metadata: &ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    let page = annotations.get(LOGGED_IN_ANNOTATION)?;
    // Account holders may write annotations, and callers keep these, and put them into paths.
    let (inverted, suffix) = page.strip_prefix(PREFIX)?.split_once('-')?;
    let is_name = inverted.len() == INVERTED
        && inverted.bytes().all(|byte| byte.is_ascii_digit())
        && suffix.len() == SUFFIX
        && suffix
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    is_name.then_some(page)
}

/// What pages' names begin with.
const PREFIX: &str = "evlog-";
/// What a page's time in milliseconds is subtracted from: its 13 digits last until the year 2286.
const LAST_MILLISECOND: i64 = 9_999_999_999_999;
/// Digits of that time.
const INVERTED: usize = 13;
/// Characters of the suffix of a page's name.
const SUFFIX: usize = 8;

/// A delivery that succeeded at the first attempt.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoggedDelivery {
    /// Name of the Webhook.
    pub webhook: String,
    /// UID of the Webhook.
    pub webhook_uid: String,
    /// The attempt.
    #[serde(flatten)]
    pub attempt: Attempt,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoggedEvent {
    /// Id of the event, `evt_…`.
    #[schemars(length(max = 64))]
    pub id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// When the event happened.
    #[schemars(schema_with = "times::time")]
    pub created_at: Timestamp,
    /// Sequence number of the event among those of its object.
    #[schemars(extend("format" = "int64"))]
    pub sequence: i64,
    /// UID of the object that the event is about.
    #[schemars(length(max = 64))]
    pub subject: String,
    /// The request body of its deliveries, byte for byte.
    #[schemars(length(max = MAX_BODY))]
    pub body: String,
    /// The W3C traceparent of the span that recorded the event, if it follows from a request that is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "traceparent::optional")]
    pub traceparent: Option<String>,
    /// The deliveries that succeeded at the first attempt, as the text of a JSON array of objects with webhook (its name),
    /// webhookUid, at, durationMs, statusCode, response and url. Others are Deliveries.
    // As objects, they would cost the API server several times what the rest of the page costs it: it checks each field.
    #[serde(
        default,
        rename = "deliveredTo",
        skip_serializing_if = "Vec::is_empty",
        with = "json_text"
    )]
    #[schemars(with = "String")]
    pub deliveries: Vec<LoggedDelivery>,
}

/// A list as the text of a JSON array.
mod json_text {
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer, ser::Error as _};

    use super::LoggedDelivery;

    pub(super) fn serialize<S: Serializer>(
        list: &[LoggedDelivery],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text = serde_json::to_string(list).map_err(S::Error::custom)?;
        text.serialize(serializer)
    }

    /// A list that somebody has tampered with is empty: it must not hide the other events.
    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<LoggedDelivery>, D::Error> {
        let text = String::deserialize(deserializer)?;
        Ok(serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::warn!(%error, "the deliveries of an event on a page of the event log cannot be read");
            Vec::new()
        }))
    }
}

/// A page of events.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "EventLog",
    plural = "eventlogs",
    shortname = "evlog",
    category = "stellage",
    namespaced,
    derive = "PartialEq",
    doc = "A page of the events of an account, each with its body and the webhooks that it was delivered to at the first attempt. Written once by the operator, and deleted after a day. To read the events of an account: stellage events --account NAME",
    printcolumn(name = "From", type_ = "string", json_path = ".spec.from"),
    printcolumn(name = "To", type_ = "string", json_path = ".spec.to"),
    printcolumn(name = "Events", type_ = "integer", json_path = ".spec.count"),
    printcolumn(name = "Delivered", type_ = "integer", json_path = ".spec.delivered"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct EventLogSpec {
    /// UID of the Account whose events these are.
    #[schemars(length(max = 64))]
    pub account: String,
    /// When the earliest of the events happened.
    #[schemars(schema_with = "times::time")]
    pub from: Timestamp,
    /// When the latest of the events happened.
    #[schemars(schema_with = "times::time")]
    pub to: Timestamp,
    /// Number of events.
    #[schemars(extend("format" = "int32"))]
    pub count: u32,
    /// Number of deliveries that succeeded at the first attempt.
    #[schemars(extend("format" = "int32"))]
    pub delivered: u32,
    /// The events, in their order.
    #[schemars(length(max = MAX_EVENTS))]
    pub events: Vec<LoggedEvent>,
}

/// What lists and look-ups need of a page, in its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct PageIndex {
    /// UID of the Account.
    pub account: String,
    /// When the earliest of the events happened.
    pub from: Timestamp,
    /// When the latest of the events happened.
    pub to: Timestamp,
    /// Size of the page as it is stored, in bytes, approximately.
    pub bytes: u64,
    /// Ids of the events, without `evt_`.
    pub ids: Vec<String>,
    /// Number of events of each type.
    pub events: BTreeMap<EventType, u32>,
    /// Number of delivered events of each type, by UID of the Webhook.
    pub delivered: BTreeMap<String, BTreeMap<EventType, u32>>,
}

impl EventLogSpec {
    /// Size of the page as it is stored, in bytes, approximately.
    pub fn bytes(&self) -> u64 {
        (PAGE_BYTES + self.events.iter().map(LoggedEvent::bytes).sum::<usize>()) as u64
    }
}

impl PageIndex {
    fn of(spec: &EventLogSpec) -> Self {
        let mut index = Self {
            account: spec.account.clone(),
            from: spec.from,
            to: spec.to,
            bytes: spec.bytes(),
            ids: Vec::new(),
            events: BTreeMap::new(),
            delivered: BTreeMap::new(),
        };
        for event in &spec.events {
            index.ids.push(short(&event.id).to_owned());
            *index.events.entry(event.event_type).or_default() += 1;
            for delivery in &event.deliveries {
                let of_webhook = index.delivered.entry(delivery.webhook_uid.clone()).or_default();
                *of_webhook.entry(event.event_type).or_default() += 1;
            }
        }
        index
    }

    /// The index in a page's metadata; `None` if it was tampered with.
    pub fn read(metadata: &ObjectMeta) -> Option<Self> {
        let text = metadata.annotations.as_ref()?.get(INDEX_ANNOTATION)?;
        serde_json::from_str(text).ok()
    }

    /// Whether the page has the event with this id.
    pub fn has(&self, event_id: &str) -> bool {
        self.ids.iter().any(|id| id == short(event_id))
    }

    /// The ids of its events.
    pub fn event_ids(&self) -> impl Iterator<Item = String> {
        self.ids.iter().map(|id| format!("evt_{id}"))
    }

    /// The number of its events, or of those of one type.
    pub fn count(&self, event_type: Option<EventType>) -> usize {
        sum(&self.events, event_type)
    }

    /// The number of its events, or of those of one type, that were delivered to the Webhook with this UID.
    pub fn delivered_to(&self, webhook_uid: &str, event_type: Option<EventType>) -> usize {
        self.delivered
            .get(webhook_uid)
            .map_or(0, |delivered| sum(delivered, event_type))
    }
}

fn short(event_id: &str) -> &str {
    event_id.strip_prefix("evt_").unwrap_or(event_id)
}

fn sum(counts: &BTreeMap<EventType, u32>, event_type: Option<EventType>) -> usize {
    let counts = counts
        .iter()
        .filter(|(counted, _)| event_type.is_none_or(|wanted| wanted == **counted));
    counts.map(|(_, count)| *count as usize).sum()
}

impl EventLog {
    /// The delivery of one of its events to the Webhook with this UID, if it is there: see [`LoggedEvent::delivery_to`].
    pub fn delivery_of(&self, event_id: &str, webhook_uid: &str) -> Option<Delivery> {
        let event = self.spec.events.iter().find(|event| event.id == event_id)?;
        event.delivery_to(webhook_uid, self)
    }

    /// A page of these events, written at `at`; `None` without events. They must not be more than [`MAX_EVENTS`].
    pub fn page(namespace: &str, account: &str, at: Timestamp, mut events: Vec<LoggedEvent>) -> Option<Self> {
        events.sort_by(|a, b| a.order().cmp(&b.order()));
        let (first, last) = (events.first()?, events.last()?);
        let delivered: usize = events.iter().map(|event| event.deliveries.len()).sum();
        let spec = EventLogSpec {
            account: account.to_owned(),
            from: first.created_at,
            to: last.created_at,
            count: u32::try_from(events.len()).unwrap_or(u32::MAX),
            delivered: u32::try_from(delivered).unwrap_or(u32::MAX),
            events,
        };
        let seed: String = spec.events.iter().map(|event| event.id.as_str()).collect();
        let suffix = &ids::derived_suffix(seed.as_bytes())[..SUFFIX];
        let inverted = LAST_MILLISECOND - at.as_millisecond();
        let index = serde_json::to_string(&PageIndex::of(&spec)).unwrap_or_default();
        let mut page = Self::new(&format!("{PREFIX}{inverted:0INVERTED$}-{suffix}"), spec);
        page.metadata.namespace = Some(namespace.to_owned());
        page.metadata.annotations = Some(BTreeMap::from([(INDEX_ANNOTATION.to_owned(), index)]));
        Some(page)
    }
}

/// How much the clocks of the operator, of the one before it and of the API server may differ.
pub const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(2);

/// When the page with this name was written; `None` if it is not the name of a page.
pub fn written_at(name: &str) -> Option<Timestamp> {
    let (inverted, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
    Timestamp::from_millisecond(LAST_MILLISECOND - inverted.parse::<i64>().ok()?).ok()
}

/// Bytes of an event with this body as it is stored, without its deliveries, approximately.
pub fn event_bytes(body: &str) -> usize {
    EVENT_BYTES + size::of_text(body)
}

impl LoggedDelivery {
    /// Its bytes as it is stored: JSON in a JSON string, so that escapes are escaped again.
    pub fn bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |text| size::of_text(&text))
    }
}

impl LoggedEvent {
    fn bytes(&self) -> usize {
        let deliveries = self.deliveries.iter().map(LoggedDelivery::bytes);
        event_bytes(&self.body) + deliveries.sum::<usize>()
    }

    /// The place of the event among those of its account.
    pub fn order(&self) -> (Timestamp, i64, &str) {
        (self.created_at, self.sequence, &self.id)
    }

    /// Its delivery to the Webhook with this UID, if it succeeded at the first attempt: as the Delivery that it would be, with
    /// [`LOGGED_IN_ANNOTATION`].
    pub fn delivery_to(&self, webhook_uid: &str, page: &EventLog) -> Option<Delivery> {
        let delivered = self.deliveries.iter().find(|it| it.webhook_uid == webhook_uid)?;
        let mut delivery = Delivery::new(
            &ids::delivery_name(webhook_uid, &self.id),
            DeliverySpec {
                webhook: delivered.webhook.clone(),
                event_id: self.id.clone(),
                event_type: self.event_type,
                event_created_at: self.created_at,
                sequence: self.sequence,
                subject: self.subject.clone(),
                body: self.body.clone(),
                traceparent: self.traceparent.clone(),
                test: false,
            },
        );
        let metadata = &mut delivery.metadata;
        metadata.namespace.clone_from(&page.metadata.namespace);
        let name = page.metadata.name.clone().unwrap_or_default();
        metadata.annotations = Some(BTreeMap::from([(LOGGED_IN_ANNOTATION.to_owned(), name)]));
        let attempt = &delivered.attempt;
        let took = SignedDuration::from_millis(attempt.duration_ms);
        let finished_at = attempt.at.checked_add(took).unwrap_or(attempt.at);
        let mut status = DeliveryStatus::new(DeliveryPhase::Delivered, None);
        status.attempt_count = 1;
        status.last_status_code = attempt.status_code;
        status.attempts.push(attempt.clone());
        delivery.set_status(status, finished_at);
        Some(delivery)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn event() -> LoggedEvent {
        LoggedEvent {
            id: "evt_0123456789abcdef".to_owned(),
            event_type: EventType::InstanceStarted,
            created_at: "2026-11-26T10:00:00Z".parse().unwrap(),
            sequence: 1,
            subject: "uid".to_owned(),
            body: "{}".to_owned(),
            traceparent: None,
            deliveries: vec![LoggedDelivery {
                webhook: "hook".to_owned(),
                webhook_uid: "hook-uid".to_owned(),
                attempt: Attempt {
                    at: "2026-11-26T10:00:01Z".parse().unwrap(),
                    duration_ms: 12,
                    status_code: Some(200),
                    error: None,
                    response: Some("<p class=\"ok\">\\</p>\n".to_owned()),
                    url: Some("https://example.com/hook".to_owned()),
                },
            }],
        }
    }

    #[test]
    fn the_deliveries_of_an_event_are_stored_as_one_text() {
        let stored = serde_json::to_value(event()).unwrap();
        let objects: Value = serde_json::from_str(stored["deliveredTo"].as_str().unwrap()).unwrap();
        assert_eq!(objects[0]["webhook"], "hook");
        assert_eq!(serde_json::from_value::<LoggedEvent>(stored).unwrap(), event());
    }

    #[test]
    fn a_text_of_deliveries_that_cannot_be_read_hides_no_event() {
        let mut stored = serde_json::to_value(event()).unwrap();
        stored["deliveredTo"] = json!("[{");
        let read: LoggedEvent = serde_json::from_value(stored).unwrap();
        assert_eq!((read.id, read.deliveries), (event().id, Vec::new()));
    }

    #[test]
    fn the_size_of_a_delivery_counts_what_is_escaped_twice() {
        let stored = serde_json::to_string(&event()).unwrap();
        // As Go writes it.
        let stored = stored.replace('<', "\\u003c").replace('>', "\\u003e");
        let without = serde_json::to_string(&LoggedEvent {
            deliveries: Vec::new(),
            ..event()
        })
        .unwrap();
        let frame = r#","deliveredTo":"[]""#.len();
        assert_eq!(
            event().deliveries[0].bytes(),
            stored.len() - without.len() - frame
        );
    }
}
