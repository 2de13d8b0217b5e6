//! The REST model of Stellage: every request, answer and error of `/v1`, each once. The server answers with these types, its OpenAPI
//! document is generated from them, and clients read and write them. No I/O: bring your own HTTP client.
//!
//! # Example
//!
//! Creates an instance, and waits until it is running:
//!
//! ```no_run
//! use std::{env, error::Error, time::Duration};
//!
//! use stellage_api::{CreateInstance, ErrorAnswer, Instance, InstanceState, NewInstance, Plan, Single};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn Error>> {
//! let (url, key) = (env::var("STELLAGE_URL")?, env::var("STELLAGE_API_KEY")?);
//! let client = reqwest::Client::new();
//!
//! let answer = client
//!     .post(format!("{url}/v1/instances"))
//!     .bearer_auth(&key)
//!     // However often it is sent, there is one instance.
//!     .header("Idempotency-Key", "my-first-instance")
//!     .json(&CreateInstance::new("web-1", Plan::Starter, "fr-par-1", "debian-13"))
//!     .send()
//!     .await?;
//! if !answer.status().is_success() {
//!     let refused: ErrorAnswer = answer.json().await?;
//!     return Err(refused.error.message.into());
//! }
//! let created: Single<NewInstance> = answer.json().await?;
//!
//! let path = format!("{url}/v1/instances/{}", created.data.id);
//! loop {
//!     let answer = client.get(&path).bearer_auth(&key).send().await?.error_for_status()?;
//!     let shown: Single<Instance> = answer.json().await?;
//!     match shown.data.status {
//!         InstanceState::Provisioning => tokio::time::sleep(Duration::from_secs(5)).await,
//!         InstanceState::Running => break println!("running at {:?}", shown.data.ip_address),
//!         other => return Err(format!("it is {other}: {:?}", shown.data.status_message).into()),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Modules
//!
//! - [`envelope`]: what is around every answer; [`error`]: errors; [`time`]: times;
//! - [`instance`]: servers; [`console`]: access to their consoles; [`backup`]: their backups; [`monitoring`]: their usage, and alerts;
//!   [`network`]: private networks;
//! - [`catalogue`]: what can be ordered;
//! - [`webhook`]: receivers; [`delivery`]: what is sent to them; [`event`]: what has happened;
//! - [`account`]: the account; [`key`]: its API keys; [`invoice`]: what it is billed; [`money`]: amounts and prices;
//! - [`schema`]: schemas of the OpenAPI document that have no Rust type.

#![warn(missing_docs)]

pub mod account;
pub mod backup;
pub mod catalogue;
pub mod console;
pub mod delivery;
pub mod envelope;
pub mod error;
pub mod event;
pub mod instance;
pub mod invoice;
pub mod key;
pub mod money;
pub mod monitoring;
pub mod network;
pub mod schema;
pub mod time;
pub mod webhook;

pub use account::{Account, AccountQuotas, Quota, Suspension};
pub use backup::{Backup, BackupError, BackupStatus, CreateBackup};
pub use catalogue::{ImageOffer, PlanOffer, RegionOffer};
pub use console::{Console, ConsoleType, OpenConsole};
pub use delivery::{Delivery, DeliveryAttempt, DeliveryHeaders, DeliveryRequest, DeliveryStatus, Retry};
pub use envelope::{CursorList, CursorPagination, List, Pagination, Single};
pub use error::{Detail, ErrorAnswer, ErrorBody, ErrorCode};
pub use event::Event;
pub use instance::{
    ChangeInstance, CreateInstance, Instance, InstanceMetrics, InstanceSummary, NewInstance, RebuildInstance,
    WantedPower,
};
pub use invoice::{
    Corrected, Hours, Invoice, InvoiceAnswer, InvoiceHours, InvoiceLine, InvoicePeriod, InvoiceStatus,
    InvoiceType, Party,
};
pub use key::{CreateKey, Key, NewKey};
pub use money::{Money, UnitMoney};
pub use monitoring::{Alert, AlertStatus, InstanceSeries, InstanceSeriesPoints};
pub use network::{ChangeNetwork, CreateNetwork, PrivateNetwork};
pub use resources::{AlertMetric, EventType, InstanceState, KeyScope, Plan};
pub use time::{Milliseconds, Seconds};
pub use webhook::{
    ChangeWebhook, CreateWebhook, DisableReason, RecoverWebhook, Recovery, RotateSecret, TestWebhook,
    Webhook, WebhookDisabled, WebhookHealth, WebhookWithSecret,
};
