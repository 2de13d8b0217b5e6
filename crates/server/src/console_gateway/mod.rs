//! The console gateway: takes a ticket, and carries bytes between a client's WebSocket and the console of a server. A process of its own,
//! whose service accounts can do nothing else: the REST API never talks to a region, and whoever takes over the gateway can delete
//! nothing.
//!
//! - [`ticket`]: what clients bring; `sessions`: those that are open, and when they must end; `relay`: one of them.

mod relay;
mod sessions;
pub mod ticket;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{
        Extension, FromRequestParts as _, Request, State,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use clap::Args;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;
use url::form_urlencoded;

pub use self::ticket::{GatewayUrl, Ticket};
use self::{
    sessions::{Opening, Sessions},
    ticket::{PARAMETER, PATH, TicketBox},
};
use crate::{
    facade::{error_answer, unreadable_answer},
    sealing_key::{Sealed, SealingKey},
    service::error::{Error, ErrorCode},
};
use providers::consoles::Consoles;
use resources::{ApiKey, Instance};
use runtime::{
    Clock, Health, Store,
    events::Events,
    http::{self as server, ConnectionLimits, Peer, tls::Certificate},
    shared_catalogue::SharedCatalogue,
    watch::Listener,
};

/// Connections whose request has not been answered yet.
const MAX_CONNECTIONS: usize = 1024;
/// Largest message of a client.
const LARGEST: usize = 1 << 20;

/// How many consoles may be open, and for how long.
#[derive(Args, Clone, Copy, Debug)]
pub struct ConsoleLimits {
    /// Consoles that may be open at the same time
    #[arg(long, env = "STELLAGE_MAX_CONSOLES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_consoles: u32,

    /// Consoles of one account that may be open at the same time
    #[arg(long, env = "STELLAGE_MAX_CONSOLES_PER_ACCOUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub max_consoles_per_account: u32,

    /// Consoles of one instance that may be open at the same time
    #[arg(long, env = "STELLAGE_MAX_CONSOLES_PER_INSTANCE", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub max_consoles_per_instance: u32,

    /// Seconds after which a console is closed in which neither side has sent anything
    #[arg(long, env = "STELLAGE_CONSOLE_IDLE_SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub console_idle_seconds: u32,

    /// Seconds after which a console is closed in any case; it can be opened again
    #[arg(long, env = "STELLAGE_CONSOLE_SECONDS", default_value_t = 43_200, value_parser = clap::value_parser!(u32).range(1..=604_800))]
    pub console_seconds: u32,
}

/// What the gateway works with.
pub struct Dependencies {
    /// Client of the API server, for the Secret with the key of tickets.
    pub client: Client,
    /// The operator's namespace, which contains the Secret.
    pub namespace: String,
    /// What regions there are.
    pub catalogue: SharedCatalogue,
    /// Clock for tickets and the expiry of keys.
    pub clock: Arc<dyn Clock>,
    /// Whether the watches go on.
    pub health: Health,
    /// Tells `kubectl describe` who has opened which console.
    pub events: Events,
    /// How many consoles may be open, and for how long.
    pub limits: ConsoleLimits,
}

/// The gateway. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    key: SealingKey,
    tickets: TicketBox,
    sessions: Arc<Sessions>,
    consoles: Consoles,
    clock: Arc<dyn Clock>,
    health: Health,
    /// The sessions that are running.
    running: TaskTracker,
}

/// The listeners that the gateway needs on the program's watches.
pub struct Listeners {
    /// For the watch of instances.
    pub instances: Box<dyn Listener<Instance>>,
    /// For the watch of keys.
    pub keys: Box<dyn Listener<ApiKey>>,
}

impl Gateway {
    /// A gateway, and the listeners to attach to the program's watches.
    pub fn new(dependencies: Dependencies) -> (Self, Listeners) {
        let sessions = Arc::new(Sessions::new(dependencies.limits, dependencies.events));
        let listeners = Listeners {
            instances: Box::new({
                let sessions = sessions.clone();
                move |change: &_| sessions.instances_changed(change)
            }),
            keys: Box::new({
                let sessions = sessions.clone();
                move |change: &_| sessions.keys_changed(change)
            }),
        };
        for resource in ["instances", "apikeys"] {
            dependencies.health.require_watch(resource);
        }
        let key = SealingKey::new(dependencies.client, &dependencies.namespace, Sealed::Tickets);
        let inner = Inner {
            key: key.read_only(),
            tickets: TicketBox::new(dependencies.clock.now()),
            sessions,
            consoles: Consoles::new(dependencies.catalogue),
            clock: dependencies.clock,
            health: dependencies.health,
            running: TaskTracker::new(),
        };
        (Self(Arc::new(inner)), listeners)
    }

    /// Gives it what the watches have shown.
    pub fn attach(&self, instances: Store<Instance>, keys: Store<ApiKey>) {
        self.0.sessions.attach(instances, keys);
    }

    /// Serves until `shutdown`, over TLS if there is a certificate. Then all consoles are closed, and clients told so.
    pub async fn serve(
        &self,
        listener: TcpListener,
        certificate: Option<Certificate>,
        shutdown: CancellationToken,
        grace: Duration,
    ) {
        let router = Router::new().fallback(open).with_state(self.clone());
        let service = hyper::service::service_fn(move |request: http::Request<server::Arriving>| {
            router.clone().call(request.map(Body::new))
        });
        let options = server::Options {
            limits: ConnectionLimits::of(MAX_CONNECTIONS, MAX_CONNECTIONS / 2),
            unreadable: unreadable_answer,
            certificate,
            grace,
            leaving: Arc::new(AtomicBool::new(false)),
        };
        server::connections(listener, service, options, shutdown).await;
        self.0.sessions.close_all();
        self.0.running.close();
        let _ = tokio::time::timeout(grace, self.0.running.wait()).await;
    }

    /// What a ticket opens.
    async fn take(&self, text: &str) -> Result<(Ticket, Arc<Instance>), Error> {
        let inner = &*self.0;
        let unavailable = || Error::unavailable("no console can be opened at the moment; try again");
        if !inner.health.not_ready().is_empty() || inner.health.is_stale() {
            return Err(unavailable());
        }
        let seal = inner.key.seal().await.ok_or_else(unavailable)?;
        let now = inner.clock.now();
        let ticket = inner.tickets.take(seal, text, now);
        let ticket = ticket.ok_or_else(|| {
            Error::new(
                ErrorCode::Unauthorized,
                "the token is not valid: it is unknown, has been used, or is older than a minute; ask for another with POST /v1/instances/<id>/console",
            )
        })?;
        let instance = inner
            .sessions
            .check(&ticket, now)
            .map_err(|ending| Error::new(ErrorCode::InvalidState, ending.reason()))?;
        Ok((ticket, instance))
    }
}

/// Answers a request: with a console, if it has a ticket.
async fn open(State(gateway): State<Gateway>, peer: Option<Extension<Peer>>, request: Request) -> Response {
    let (mut parts, _) = request.into_parts();
    let asked = parts.uri.path();
    // A proxy may serve it below a path.
    if !asked.ends_with(PATH) {
        return refused(&Error::new(ErrorCode::NotFound, "this path does not exist"));
    }
    let upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection> =
        WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    let Ok(upgrade) = upgrade else {
        let message = "this is a WebSocket: open it with a client for WebSockets, over HTTP/1.1";
        return refused(&Error::new(ErrorCode::BadRequest, message));
    };
    let query = parts.uri.query().unwrap_or_default();
    let token = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == PARAMETER);
    let (ticket, instance) = match gateway.take(token.as_ref().map_or("", |(_, token)| token)).await {
        Ok(valid) => valid,
        Err(error) => return refused(&error),
    };
    let opening = Opening {
        peer: peer.map(|Extension(Peer(address))| address),
        now: gateway.0.clock.now(),
        ticket,
        instance,
    };
    let running = gateway.0.running.token();
    upgrade
        .protocols(["binary", "plain.kubevirt.io"])
        .max_message_size(LARGEST)
        .max_frame_size(LARGEST)
        .on_upgrade(async move |socket| {
            relay::run(&gateway.0, socket, opening).await;
            drop(running);
        })
}

fn refused(error: &Error) -> Response {
    error_answer(error).map(Body::from)
}
