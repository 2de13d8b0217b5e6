//! Forwards events with the bodies and headers of deliveries, but without retries.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use jiff::Timestamp;
use reqwest::{Client, redirect};
use tokio::time::Instant;
use url::Url;

use super::outboxes::Recorded;
use crate::{CliError, connect::innermost, http};
use sender::signature::{self, SigningKeys};

/// How long a receiver may take, as for a delivery (specification, section 8).
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent requests; a receiver on a laptop is one process.
const MAX_IN_FLIGHT: usize = 16;
/// Maximum number of queued events.
const MAX_WAITING: usize = 1_000;

/// Sends events to one URL: one at a time and in order for each instance, concurrently for different instances.
pub(super) struct Forwarder {
    http: Client,
    url: Url,
    keys: SigningKeys,
    waiting: VecDeque<Recorded>,
    /// UIDs of the objects whose events are in flight.
    in_flight_objects: HashSet<String>,
    sending: FuturesUnordered<BoxFuture<'static, (String, String)>>,
}

impl Forwarder {
    /// A forwarder to `url` that signs with `secret` and trusts the system's root certificates.
    pub(super) fn new(url: Url, secret: &str) -> Result<Self, CliError> {
        let http = http::builder(&url)?
            // Like a delivery: directly to the receiver, without following redirects.
            .no_proxy()
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            // No keep-alive: receivers under development are often restarted.
            .pool_max_idle_per_host(0)
            .build()
            .map_err(|error| http::refused(&error))?;
        Ok(Self {
            http,
            url,
            keys: SigningKeys::new(secret, None),
            waiting: VecDeque::new(),
            in_flight_objects: HashSet::new(),
            sending: FuturesUnordered::new(),
        })
    }

    /// Queues an event; returns `false` if the queue is full.
    pub(super) fn push(&mut self, event: Recorded) -> bool {
        let room = self.waiting.len() < MAX_WAITING;
        if room {
            self.waiting.push_back(event);
            self.start();
        }
        room
    }

    /// The outcome of the next event that was sent, as a message. Never returns while nothing is being sent.
    pub(super) async fn next(&mut self) -> String {
        let Some((object, outcome)) = self.sending.next().await else {
            return std::future::pending().await;
        };
        self.in_flight_objects.remove(&object);
        self.start();
        outcome
    }

    fn start(&mut self) {
        while self.sending.len() < MAX_IN_FLIGHT {
            let free = |event: &Recorded| !self.in_flight_objects.contains(&event.object);
            let Some(event) = self
                .waiting
                .iter()
                .position(free)
                .and_then(|at| self.waiting.remove(at))
            else {
                return;
            };
            self.in_flight_objects.insert(event.object.clone());
            let sent = send(self.http.clone(), self.url.clone(), self.keys.clone(), event);
            self.sending.push(sent.boxed());
        }
    }
}

/// Sends one event. Returns the UID of its object, and the outcome.
async fn send(http: Client, url: Url, keys: SigningKeys, event: Recorded) -> (String, String) {
    let Recorded { object, entry } = event;
    let headers = signature::headers(
        &keys,
        &entry.id,
        entry.event_type.as_str(),
        entry.created_at,
        Timestamp::now(),
        entry.body.as_bytes(),
    );
    let began = Instant::now();
    let outcome = match http.post(url).headers(headers).body(entry.body).send().await {
        Ok(answer) => format!("{} in {} ms", answer.status(), began.elapsed().as_millis()),
        Err(error) if error.is_timeout() => format!("no answer within {} s", TIMEOUT.as_secs()),
        Err(error) => format!("not delivered: {}", innermost(&error)),
    };
    (object, format!("{}: {outcome}", entry.id))
}

/// Parses a URL to forward events to.
pub(super) fn target(text: &str) -> Result<Url, String> {
    let example = "such as http://localhost:8080/hook";
    let url = Url::parse(text).map_err(|error| format!("{error}; must be a URL, {example}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("must begin with http:// or https://, {example}"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not have a user name or password; forwarded events are signed instead".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_http_url_without_a_user() {
        for good in [
            "http://localhost:8080/hook",
            "https://[::1]:8443",
            "http://127.0.0.1/a?b=c",
        ] {
            assert!(target(good).is_ok(), "{good}");
        }
        for bad in [
            "localhost:8080",
            "/hook",
            "ftp://localhost",
            "http://",
            "http://me:pw@localhost",
            "",
        ] {
            assert!(target(bad).is_err(), "{bad}");
        }
    }
}
