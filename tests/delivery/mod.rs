//! Deliveries over real TLS on loopback.

mod answers;
mod client;
mod hostile;
mod proxied;
mod targets;

use std::{io::Write as _, time::Duration};

use bytes::Bytes;
use http::HeaderMap;
use sender::{AttemptOutcome, ClientSettings, ReceiverClient, TargetRules};
use tempfile::NamedTempFile;

use crate::support::receivers::Receiver;

/// A client that trusts the receivers of the tests.
struct Sender {
    client: ReceiverClient,
    _ca: NamedTempFile,
}

/// Deadlines short enough for tests of endless answers, and long enough for normal ones on a busy machine.
fn short() -> ClientSettings {
    ClientSettings {
        timeout: Duration::from_secs(15),
        connect_timeout: Duration::from_secs(12),
        response_timeout: Duration::from_millis(500),
        ..ClientSettings::default()
    }
}

/// Keep-alive long enough for two requests on a busy machine.
fn keeping() -> ClientSettings {
    ClientSettings {
        idle_timeout: Duration::from_mins(1),
        ..ClientSettings::default()
    }
}

/// Allows loopback in addition to public addresses.
fn loopback() -> TargetRules {
    TargetRules {
        allow: vec!["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()],
        ..TargetRules::default()
    }
}

impl Sender {
    fn new(settings: ClientSettings, rules: TargetRules) -> Self {
        let mut ca = NamedTempFile::new().unwrap();
        ca.write_all(Receiver::ca_pem().as_bytes()).unwrap();
        let settings = ClientSettings {
            extra_ca: Some(ca.path().to_owned()),
            ..settings
        };
        Self {
            client: ReceiverClient::new(settings, rules).unwrap(),
            _ca: ca,
        }
    }

    /// Uses deadlines that a normal receiver meets even on a busy machine.
    fn patient(rules: TargetRules) -> Self {
        Self::new(ClientSettings::default(), rules)
    }

    async fn post(&self, url: &str) -> AttemptOutcome {
        self.client
            .post(url, HeaderMap::new(), Bytes::from_static(b"{\"event\":1}"))
            .await
    }
}
