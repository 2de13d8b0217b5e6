//! Event types, the outbox entry that keeps an event in the status of its object until every webhook has received it, and what
//! the kinds with an outbox have in common.

use jiff::Timestamp;
use kube::Resource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{times, traceparent};

/// The type of an event (specification, section 6.1).
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
    utoipa::ToSchema,
    clap::ValueEnum,
    strum::IntoStaticStr,
    strum::VariantArray,
    strum::Display,
)]
#[schema(description = "Type of an event.")]
pub enum EventType {
    /// An instance was created.
    #[serde(rename = "instance.created")]
    #[value(name = "instance.created")]
    #[strum(serialize = "instance.created")]
    InstanceCreated,
    /// An instance was deleted.
    #[serde(rename = "instance.deleted")]
    #[value(name = "instance.deleted")]
    #[strum(serialize = "instance.deleted")]
    InstanceDeleted,
    /// An instance started.
    #[serde(rename = "instance.started")]
    #[value(name = "instance.started")]
    #[strum(serialize = "instance.started")]
    InstanceStarted,
    /// An instance stopped.
    #[serde(rename = "instance.stopped")]
    #[value(name = "instance.stopped")]
    #[strum(serialize = "instance.stopped")]
    InstanceStopped,
    /// A backup finished.
    #[serde(rename = "backup.completed")]
    #[value(name = "backup.completed")]
    #[strum(serialize = "backup.completed")]
    BackupCompleted,
    /// A backup failed.
    #[serde(rename = "backup.failed")]
    #[value(name = "backup.failed")]
    #[strum(serialize = "backup.failed")]
    BackupFailed,
    /// An alert fired.
    #[serde(rename = "alert.triggered")]
    #[value(name = "alert.triggered")]
    #[strum(serialize = "alert.triggered")]
    AlertTriggered,
    /// An invoice was generated.
    #[serde(rename = "invoice.created")]
    #[value(name = "invoice.created")]
    #[strum(serialize = "invoice.created")]
    InvoiceCreated,
}

impl EventType {
    /// Every type, in the order of the specification.
    pub const ALL: [Self; 8] = [
        Self::InstanceCreated,
        Self::InstanceDeleted,
        Self::InstanceStarted,
        Self::InstanceStopped,
        Self::BackupCompleted,
        Self::BackupFailed,
        Self::AlertTriggered,
        Self::InvoiceCreated,
    ];

    /// The type as receivers see it, such as `instance.created`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The type with this name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == text)
    }
}

/// Longest body of an event, in characters. The longest of an instance has some 2,000.
pub const MAX_BODY: usize = 16_384;

/// An event in the outbox of the object that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutboxEntry {
    /// Id of the event, `evt_…`, derived from the object's UID and `sequence`.
    #[schemars(length(max = 64))]
    pub id: String,
    /// Type of the event.
    #[serde(rename = "type")]
    pub event_type: EventType,
    /// Sequence number among the events of the object, starting at 1.
    #[schemars(extend("format" = "int64"))]
    pub sequence: i64,
    /// When the event happened.
    #[schemars(schema_with = "times::time")]
    pub created_at: Timestamp,
    /// The request body of the deliveries, byte for byte.
    #[schemars(length(max = MAX_BODY))]
    pub body: String,
    /// The W3C traceparent of the span that recorded the event, if it follows from a request that is traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "traceparent::optional")]
    pub traceparent: Option<String>,
}

/// A kind whose objects record events: each in `status.outbox`, with the change that it reports.
pub trait HasOutbox: Resource<DynamicType = ()> + Clone + Send + Sync + 'static {
    /// Name of the kind, such as `Instance`.
    const KIND: &'static str;

    /// The events that have not been handed to all webhooks yet.
    fn outbox(&self) -> &[OutboxEntry];

    /// The namespace of the account whose webhooks are told.
    fn account_namespace(&self) -> &str {
        self.meta().namespace.as_deref().unwrap_or_default()
    }
}
