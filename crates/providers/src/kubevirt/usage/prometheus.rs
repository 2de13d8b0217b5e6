//! A client of the HTTP API of Prometheus, which Thanos, Mimir and VictoriaMetrics speak as well.

use std::{error::Error as _, path::Path, time::Duration};

use parking_lot::Mutex;
use reqwest::{Client, StatusCode, redirect};
use serde::Deserialize;
use thiserror::Error;
use url::Url;

use domain::catalogue::region::Prometheus as Settings;
use runtime::system_tls;

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Largest answer. That about 10,000 servers has 2 MB.
const LARGEST: usize = 64 << 20;
/// How much of a refusal is shown.
const SHOWN: usize = 200;

/// Why there is no answer.
#[derive(Debug, Error)]
pub(super) enum QueryError {
    #[error("cannot read {0}: {1}")]
    File(String, std::io::Error),
    #[error("cannot use the certificate authorities in {0}: {1}")]
    Authorities(String, rustls::Error),
    #[error("{0} cannot be the URL of Prometheus: {1}")]
    Url(String, url::ParseError),
    #[error("cannot use TLS: {0}")]
    Tls(rustls::Error),
    #[error("it does not answer: {0}")]
    Connection(String),
    #[error("it does not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
    /// Not an answer of Prometheus: that of a proxy in front of it, for example.
    #[error("it answers {0}: {1}")]
    Status(StatusCode, String),
    #[error("it refuses the query: {0}")]
    Refused(String),
    #[error("its answer is not that of Prometheus: {0}")]
    Nonsense(String),
}

impl From<reqwest::Error> for QueryError {
    fn from(error: reqwest::Error) -> Self {
        if error.is_timeout() {
            return Self::Timeout;
        }
        // The innermost says what is wrong, and not which URL was asked.
        let mut cause = error.source();
        while let Some(next) = cause.and_then(std::error::Error::source) {
            cause = Some(next);
        }
        Self::Connection(cause.map_or_else(|| error.to_string(), ToString::to_string))
    }
}

/// The times of a range.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    /// The first, in seconds since 1970.
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) step: i64,
}

/// A value of one server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Value<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// The time that it is about, in seconds since 1970.
    pub(super) at: f64,
    pub(super) number: f64,
}

/// The client of one server.
#[derive(Debug)]
pub(super) struct Prometheus {
    settings: Settings,
    /// The connections, and the certificate authorities that they trust.
    http: Mutex<Option<(Vec<u8>, Client)>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    status: &'a str,
    #[serde(default)]
    error: String,
    #[serde(borrow)]
    data: Option<Data<'a>>,
}

#[derive(Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    result: Vec<Series<'a>>,
}

#[derive(Deserialize)]
struct Series<'a> {
    #[serde(borrow)]
    metric: Labels<'a>,
    /// Of an instant.
    #[serde(borrow)]
    value: Option<(f64, &'a str)>,
    /// Of a range.
    #[serde(borrow, default)]
    values: Vec<(f64, &'a str)>,
}

#[derive(Deserialize)]
struct Labels<'a> {
    #[serde(default)]
    namespace: &'a str,
    #[serde(default)]
    name: &'a str,
}

impl Prometheus {
    pub(super) const fn new(settings: Settings) -> Self {
        Self {
            settings,
            http: Mutex::new(None),
        }
    }

    /// Evaluates an expression now, or at each time of a range.
    pub(super) async fn query(
        &self,
        expression: &str,
        range: Option<Range>,
        mut each: impl FnMut(Value<'_>),
    ) -> Result<(), QueryError> {
        let body = self.ask(expression, range).await?;
        let answer: Answer<'_> =
            serde_json::from_slice(&body).map_err(|error| QueryError::Nonsense(error.to_string()))?;
        if answer.status != "success" {
            return Err(QueryError::Refused(shown(&answer.error)));
        }
        let result = answer.data.map(|data| data.result).unwrap_or_default();
        for series in &result {
            for (at, value) in series.value.iter().chain(&series.values) {
                let number = value
                    .parse()
                    .map_err(|_| QueryError::Nonsense(format!("the value {:?}", shown(value))))?;
                each(Value {
                    namespace: series.metric.namespace,
                    name: series.metric.name,
                    at: *at,
                    number,
                });
            }
        }
        Ok(())
    }

    async fn ask(&self, expression: &str, range: Option<Range>) -> Result<Vec<u8>, QueryError> {
        let path = range.map_or("query", |_| "query_range");
        let address = format!("{}/api/v1/{path}", self.settings.url);
        let mut url = Url::parse(&address).map_err(|error| QueryError::Url(address, error))?;
        url.query_pairs_mut().append_pair("query", expression);
        if let Some(Range { start, end, step }) = range {
            url.query_pairs_mut()
                .append_pair("start", &start.to_string())
                .append_pair("end", &end.to_string())
                .append_pair("step", &step.to_string());
        }
        let mut request = self.client().await?.get(url);
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        if let Some(file) = &self.settings.bearer_token_file {
            let token = read(file).await?;
            request = request.bearer_auth(String::from_utf8_lossy(&token).trim());
        }
        let mut answer = request.send().await?;
        let status = answer.status();
        let mut body = Vec::new();
        while let Some(part) = answer.chunk().await? {
            if body.len() + part.len() > LARGEST {
                return Err(QueryError::Nonsense(format!("it has more than {LARGEST} bytes")));
            }
            body.extend_from_slice(&part);
        }
        // An error of Prometheus itself is in the body.
        if status.is_success() || serde_json::from_slice::<Answer<'_>>(&body).is_ok() {
            return Ok(body);
        }
        Err(QueryError::Status(status, shown(&String::from_utf8_lossy(&body))))
    }

    /// A client that trusts what the file with the certificate authorities names now.
    async fn client(&self) -> Result<Client, QueryError> {
        let authorities = match &self.settings.ca {
            Some(file) => read(file).await?,
            None => Vec::new(),
        };
        let mut http = self.http.lock();
        if let Some((trusted, client)) = &*http
            && *trusted == authorities
        {
            return Ok(client.clone());
        }
        let config = match &self.settings.ca {
            Some(file) => system_tls::client_config_of(&authorities)
                .map_err(|error| QueryError::Authorities(file.display().to_string(), error))?,
            None => system_tls::client_config().map_err(QueryError::Tls)?,
        };
        let client = Client::builder()
            .tls_backend_preconfigured(config)
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .user_agent(concat!("Stellage/", env!("CARGO_PKG_VERSION")))
            .build()?;
        *http = Some((authorities, client.clone()));
        Ok(client)
    }
}

async fn read(file: &Path) -> Result<Vec<u8>, QueryError> {
    let content = tokio::fs::read(file).await;
    content.map_err(|error| QueryError::File(file.display().to_string(), error))
}

/// The beginning of what a server says, on one line.
fn shown(text: &str) -> String {
    text.chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .take(SHOWN)
        .collect()
}
