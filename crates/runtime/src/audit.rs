//! Who did what: a line in the log for each write that somebody asked for, which can also be sent over OTLP, as
//! [traces](super::traces) are.
//!
//! The lines are in the log whatever `RUST_LOG` says, with the target [`TARGET`] and the field `audit=true`.

use std::{net::IpAddr, sync::OnceLock};

use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry_sdk::logs::{SdkLogger, SdkLoggerProvider};

/// The target of the lines.
pub const TARGET: &str = "stellage::audit";

/// Where the lines are sent to besides; none without an OTLP receiver.
static LOGGER: OnceLock<SdkLogger> = OnceLock::new();

/// What somebody did, or tried to do. An empty text is not shown.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Name of the Account.
    pub account: String,
    /// Id of the API key.
    pub key: String,
    /// The name that the account holder gave the key.
    pub key_name: String,
    /// The person, as the OpenID Connect provider calls them (`sub`), if they have signed in there.
    pub subject: String,
    /// The address that the request came from.
    pub client: Option<IpAddr>,
    /// Method and route, such as `POST /v1/instances/{id}/start`, or `sign-in`.
    pub operation: String,
    /// The path of the object, which is the new one's if one was created.
    pub object: String,
    /// Status code of the answer.
    pub status: u16,
    /// Code of the answer's error.
    pub error: String,
    /// The request's id.
    pub request_id: String,
}

impl Entry {
    /// Writes the line.
    pub fn record(&self) {
        tracing::info!(
            target: TARGET,
            audit = true,
            account = shown(&self.account),
            key = shown(&self.key),
            key_name = shown(&self.key_name),
            subject = shown(&self.subject),
            client = self.client.map(|client| client.to_string()),
            operation = shown(&self.operation),
            object = shown(&self.object),
            status = self.status,
            error = shown(&self.error),
            request_id = shown(&self.request_id),
            "a write"
        );
        if let Some(logger) = LOGGER.get() {
            self.send(logger);
        }
    }

    fn send(&self, logger: &SdkLogger) {
        let client = self.client.map(|client| client.to_string()).unwrap_or_default();
        let mut record = logger.create_log_record();
        record.set_event_name("stellage.audit");
        record.set_target(TARGET);
        record.set_severity_number(Severity::Info);
        record.set_severity_text("INFO");
        record.set_body(AnyValue::from("a write"));
        record.add_attribute("status", i64::from(self.status));
        for (name, text) in [
            ("account", &self.account),
            ("key", &self.key),
            ("key_name", &self.key_name),
            ("subject", &self.subject),
            ("client", &client),
            ("operation", &self.operation),
            ("object", &self.object),
            ("error", &self.error),
            ("request_id", &self.request_id),
        ] {
            if let Some(text) = shown(text) {
                record.add_attribute(name, text.to_owned());
            }
        }
        logger.emit(record);
    }
}

fn shown(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Sends the lines of this process from now on.
pub(super) fn send(provider: &SdkLoggerProvider) {
    let _ = LOGGER.set(provider.logger("stellage"));
}
