//! The leader's port, on which other replicas ask about usage.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use http_body_util::Full;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::key::SharedKey;
use crate::{
    monitoring::{
        Measurements,
        wire::{ANSWER_HEADER, Key, Query, REQUEST_HEADER, Subject},
    },
    resources::{Instance, origin},
    runtime::{
        Clock, Store,
        http::{Arriving, Limits, Options, connections},
    },
};

/// Maximum number of connections, in total and from one address.
const CONNECTIONS: usize = 1024;
const CONNECTIONS_PER_PEER: usize = 256;

/// The address at which other replicas reach a listener: the `given` one, else the listener's own. If it listens on all
/// addresses, the first non-loopback address of this machine, as in a pod.
pub fn advertised(listener: &TcpListener, given: Option<&str>) -> Option<String> {
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    let own = listener.local_addr().ok()?;
    if !own.ip().is_unspecified() {
        return Some(own.to_string());
    }
    let interfaces = if_addrs::get_if_addrs().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the network interfaces");
        Vec::new()
    });
    let mut addresses: Vec<_> = interfaces
        .into_iter()
        .map(|interface| interface.ip())
        .filter(|ip| own.is_ipv6() || ip.is_ipv4())
        .collect();
    addresses.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    let ip = addresses.first()?;
    Some(SocketAddr::new(*ip, own.port()).to_string())
}

/// Answers questions about usage.
pub(super) struct Port<M> {
    pub(super) answers: Arc<M>,
    pub(super) instances: Store<Instance>,
    pub(super) key: SharedKey,
    pub(super) clock: Arc<dyn Clock>,
}

impl<M: Measurements> Port<M> {
    /// Serves until shutdown.
    pub(super) async fn serve(self, listener: TcpListener, shutdown: CancellationToken) {
        let port = Arc::new(self);
        let service = hyper::service::service_fn(move |request: Request<Arriving>| {
            let port = port.clone();
            async move { Ok::<_, Infallible>(port.answer(&request).await) }
        });
        let options = Options {
            limits: Limits::of(CONNECTIONS, CONNECTIONS_PER_PEER),
            unreadable: |status| empty(status).map(|_| Bytes::new()),
            certificate: None,
            grace: Duration::from_secs(1),
            leaving: Arc::default(),
        };
        connections(listener, service, options, shutdown).await;
    }

    async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let Some(key) = self.key.get() else {
            return empty(StatusCode::SERVICE_UNAVAILABLE);
        };
        let path = request.uri().path();
        let header = request.headers().get(REQUEST_HEADER);
        let header = header.and_then(|header| header.to_str().ok()).unwrap_or_default();
        if !key.accepts_request(path, header, self.clock.now()) {
            return empty(StatusCode::UNAUTHORIZED);
        }
        if request.method() != Method::GET {
            let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
            response
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET"));
            return response;
        }
        match Query::parse(path) {
            None => empty(StatusCode::NOT_FOUND),
            Some(Query::Usage(subject)) => match self.find(&subject) {
                Some(instance) => signed(key, header, &self.answers.usage(&instance).await),
                // This replica's watch may lag behind.
                None => signed(key, header, &crate::providers::Usage::default()),
            },
            Some(Query::Series(subject, window)) => {
                let series = match self.find(&subject) {
                    Some(instance) => self.answers.series(&instance, window).await.ok(),
                    None => None,
                };
                let nothing = || crate::monitoring::Measured::nothing(window, self.clock.now());
                signed(key, header, &series.unwrap_or_else(nothing))
            }
        }
    }

    fn find(&self, subject: &Subject) -> Option<Arc<Instance>> {
        let found = self.instances.named(&subject.namespace, &subject.name)?;
        (origin::uid(&found.metadata) == subject.uid).then_some(found)
    }
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

fn signed(key: &Key, request: &str, answer: &impl Serialize) -> Response<Full<Bytes>> {
    let Ok(body) = serde_json::to_vec(answer) else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let Ok(code) = HeaderValue::try_from(key.sign_answer(request, &body)) else {
        return empty(StatusCode::INTERNAL_SERVER_ERROR);
    };
    let mut response = Response::new(Full::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ANSWER_HEADER, code);
    response
}
