//! The HTTP client of the exporter. The exporter has its own thread; its requests run in the program's runtime.

use std::{
    error::Error as StdError,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use opentelemetry_http::{HttpClient, HttpError};
use parking_lot::Mutex;
use reqwest::redirect;
use tokio::runtime::Handle;

use super::{Metrics, TraceError};
use crate::{metrics::OutcomeLabels, system_tls};

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How much of an answer is read, in bytes. One with an error message has some hundred.
const MAX_ANSWER: usize = 64 * 1024;
/// How often to log that a receiver takes no traces.
const COMPLAIN_EVERY: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Handle,
    metrics: Metrics,
    complained_at: Arc<Mutex<Option<Instant>>>,
}

impl Client {
    pub(super) fn new(metrics: Metrics) -> Result<Self, TraceError> {
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(system_tls::client_config()?)
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .build()?;
        Ok(Self {
            http,
            runtime: Handle::current(),
            metrics,
            complained_at: Arc::default(),
        })
    }

    fn count(&self, outcome: &'static str) {
        let labels = OutcomeLabels { outcome };
        self.metrics.trace_exports.get_or_create(&labels).inc();
    }

    fn complain(&self, reason: &str) {
        let mut complained_at = self.complained_at.lock();
        if complained_at.is_none_or(|at| at.elapsed() >= COMPLAIN_EVERY) {
            *complained_at = Some(Instant::now());
            tracing::warn!(
                reason,
                "cannot send traces or audit lines; they are dropped after some retries"
            );
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        let answer = self.runtime.spawn(send(self.http.clone(), request)).await?;
        match &answer {
            Ok(answer) if answer.status().is_success() => self.count("ok"),
            Ok(answer) => {
                self.count("failed");
                self.complain(&format!("the receiver answers {}", answer.status()));
            }
            Err(error) => {
                self.count("failed");
                let mut cause: &dyn StdError = error;
                while let Some(source) = cause.source() {
                    cause = source;
                }
                self.complain(&cause.to_string());
            }
        }
        Ok(answer?)
    }
}

async fn send(http: reqwest::Client, request: reqwest::Request) -> Result<Response<Bytes>, reqwest::Error> {
    let mut answer = http.execute(request).await?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await? {
        if body.len() + part.len() > MAX_ANSWER {
            break;
        }
        body.extend_from_slice(&part);
    }
    let mut whole = Response::new(body.into());
    *whole.status_mut() = answer.status();
    // Includes `Retry-After`.
    *whole.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(whole)
}
