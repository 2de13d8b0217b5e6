//! The REST model of Stellage: every request, answer and error of `/v1`, each once. The server answers with these types, its OpenAPI
//! document is generated from them, and clients read and write them. No I/O.
//!
//! - [`envelope`]: what is around every answer; [`error`]: errors; [`time`]: times;
//! - [`instance`]: servers; [`backup`]: their backups; [`monitoring`]: their usage, and alerts; [`catalogue`]: what can be ordered;
//! - [`webhook`]: receivers; [`delivery`]: what is sent to them; [`event`]: what has happened;
//! - [`account`]: the account; [`key`]: its API keys; [`invoice`]: what it is billed; [`money`]: amounts and prices;
//! - [`schema`]: what the OpenAPI document has besides.

#![warn(missing_docs)]

pub mod account;
pub mod backup;
pub mod catalogue;
pub mod delivery;
pub mod envelope;
pub mod error;
pub mod event;
pub mod instance;
pub mod invoice;
pub mod key;
pub mod money;
pub mod monitoring;
pub mod schema;
pub mod time;
pub mod webhook;

pub use account::{Account, AccountQuotas, Quota};
pub use backup::{Backup, BackupError, BackupStatus, CreateBackup};
pub use catalogue::{ImageOffer, PlanOffer, RegionOffer};
pub use delivery::{Delivery, DeliveryAttempt, DeliveryHeaders, DeliveryRequest, DeliveryStatus, Retry};
pub use envelope::{List, Pagination, Single};
pub use error::{Detail, ErrorAnswer, ErrorBody, ErrorCode};
pub use event::Event;
pub use instance::{
    ChangeInstance, CreateInstance, Instance, InstanceMetrics, InstanceSummary, NewInstance, RebuildInstance,
};
pub use invoice::{Invoice, InvoiceAnswer, InvoiceHours, InvoiceLine, InvoicePeriod, InvoiceStatus};
pub use key::{CreateKey, Key, NewKey};
pub use money::{Money, UnitMoney};
pub use monitoring::{Alert, AlertStatus, InstanceSeries, InstanceSeriesPoints};
pub use resources::{AlertMetric, EventType, InstanceState, KeyScope, Plan};
pub use time::{Milliseconds, Seconds};
pub use webhook::{
    ChangeWebhook, CreateWebhook, DisableReason, RecoverWebhook, Recovery, RotateSecret, TestWebhook,
    Webhook, WebhookDisabled, WebhookHealth, WebhookWithSecret,
};
