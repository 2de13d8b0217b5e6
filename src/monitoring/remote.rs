//! Asks the leader about usage. The leader's address is in an annotation of the Lease, the key in a Secret; both are
//! read when needed, and again when the leader does not answer.
//!
//! Uses hyper's client rather than reqwest: this is plain HTTP to a pod of the same namespace, for which reqwest would
//! load the system's certificate authorities, and send the requests through a proxy set in the environment.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    series::{Measured, Window},
    wire::{
        ADDRESS_ANNOTATION, ANSWER_HEADER, Key, MAX_ANSWER, PATIENCE, Query, REQUEST_HEADER, SECRET_ENTRY,
        SECRET_NAME, Subject, Unavailable,
    },
};
use crate::{
    providers::Usage,
    resources::{Instance, origin},
    runtime::{Clock, FairPermits, client::bounded, lease::LEASE_NAME},
};

/// How long the leader's address is used before the Lease is read again.
const READ_EVERY: Duration = Duration::from_secs(10);
/// How long to wait after a failure before the Lease is read again.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long an idle connection is kept. Less than the leader keeps it.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of simultaneous questions, in total and from one account.
const AT_ONCE: usize = 128;
const BY_ONE: usize = 32;

/// Asks the leader.
pub struct Remote {
    http: HttpClient<HttpConnector, Empty<Bytes>>,
    leases: Api<Lease>,
    secrets: Api<Secret>,
    found: Mutex<Found>,
    permits: Arc<FairPermits>,
    clock: Arc<dyn Clock>,
}

/// What was last read about the leader.
#[derive(Default)]
struct Found {
    leader: Option<Leader>,
    read: Option<Instant>,
}

#[derive(Clone)]
struct Leader {
    address: Arc<str>,
    key: Key,
}

impl Remote {
    /// Asks the leader whose Lease is in `namespace`.
    pub fn new(client: &Client, namespace: &str, clock: Arc<dyn Clock>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(PATIENCE));
        let mut http = HttpClient::builder(TokioExecutor::new());
        http.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
        Self {
            http: http.build(connector),
            leases: Api::namespaced(client.clone(), namespace),
            secrets: Api::namespaced(client.clone(), namespace),
            found: Mutex::default(),
            permits: FairPermits::new(AT_ONCE, BY_ONE),
            clock,
        }
    }

    /// The current usage of an instance.
    pub async fn usage(&self, instance: &Instance) -> Result<Usage, Unavailable> {
        self.ask(instance, Query::Usage(subject(instance))).await
    }

    /// The series of an instance.
    pub async fn series(&self, instance: &Instance, window: Window) -> Result<Measured, Unavailable> {
        let series: Measured = self
            .ask(instance, Query::Series(subject(instance), window))
            .await?;
        if series.is_whole(window) {
            Ok(series)
        } else {
            Err(Unavailable)
        }
    }

    async fn ask<T: DeserializeOwned>(&self, instance: &Instance, query: Query) -> Result<T, Unavailable> {
        let account = instance.metadata.namespace.as_deref().unwrap_or_default();
        let asking = async {
            let _permit = self.permits.acquire(account).await;
            let path = query.to_string();
            loop {
                let leader = self.leader().await?;
                match self.request(&leader, &path).await {
                    Ok(answer) => return Some(answer),
                    Err(reason) => {
                        tracing::debug!(address = %leader.address, reason, "the leader did not answer about usage");
                        self.forget(&leader).await;
                    }
                }
            }
        };
        let answer = timeout(PATIENCE, asking).await.ok().flatten();
        let answer = answer.and_then(|body| serde_json::from_slice(&body).ok());
        answer.ok_or(Unavailable)
    }

    async fn request(&self, leader: &Leader, path: &str) -> Result<Bytes, &'static str> {
        let header = leader.key.sign_request(path, self.clock.now());
        let request = Request::get(format!("http://{}{path}", leader.address))
            .header(REQUEST_HEADER, &header)
            .body(Empty::new())
            .map_err(|_| "its address is wrong")?;
        let response = self.http.request(request).await.map_err(|_| "no answer")?;
        if response.status() != StatusCode::OK {
            return Err("it refused");
        }
        let (head, body) = response.into_parts();
        let code = head.headers.get(ANSWER_HEADER);
        let code = code.and_then(|code| code.to_str().ok()).unwrap_or_default();
        let body = Limited::new(body, MAX_ANSWER).collect().await;
        let body = body.map_err(|_| "half an answer, or too long a one")?.to_bytes();
        if leader.key.accepts_answer(&header, &body, code) {
            Ok(body)
        } else {
            Err("the answer is not the leader's")
        }
    }

    /// The leader, read again if the last read was long ago. One task reads for all.
    async fn leader(&self) -> Option<Leader> {
        let mut found = self.found.lock().await;
        let pause = match found.leader {
            Some(_) => READ_EVERY,
            None => AFTER_FAILURE,
        };
        let since = found.read.map(|read| read.elapsed());
        if let Some(since) = since.filter(|since| *since < pause) {
            if found.leader.is_none() {
                // There may be a leader in a moment.
                tokio::time::sleep(pause.saturating_sub(since)).await;
            } else {
                return found.leader.clone();
            }
        }
        let read = self.read().await;
        found.leader = read;
        found.read = Some(Instant::now());
        found.leader.clone()
    }

    async fn read(&self) -> Option<Leader> {
        let reading = async {
            tokio::try_join!(
                bounded(self.leases.get_opt(LEASE_NAME)),
                bounded(self.secrets.get_opt(SECRET_NAME)),
            )
        };
        match reading.await {
            Ok((lease, secret)) => {
                let (annotations, secret) = (lease?.metadata.annotations?, secret?.data?);
                Some(Leader {
                    address: annotations.get(ADDRESS_ANNOTATION)?.as_str().into(),
                    key: Key::of(&secret.get(SECRET_ENTRY)?.0)?,
                })
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read where the leader is");
                None
            }
        }
    }

    /// Makes everything be read again, unless another task has already done so.
    async fn forget(&self, leader: &Leader) {
        let mut found = self.found.lock().await;
        let is_current = found
            .leader
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(&current.address, &leader.address));
        if is_current {
            found.leader = None;
            found.read = Some(Instant::now());
        }
    }
}

fn subject(instance: &Instance) -> Subject {
    let metadata = &instance.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Subject {
        namespace: text(&metadata.namespace),
        name: text(&metadata.name),
        uid: origin::uid(metadata).to_owned(),
    }
}
