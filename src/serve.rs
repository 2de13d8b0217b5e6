//! `stellage run`, `stellage api` and `stellage controller`: puts the parts together, serves until SIGTERM, and stops in
//! order.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use kube::{Client, Config, runtime::reflector::Store};
use thiserror::Error;
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    controllers::{
        account::{self, AccountController, AccountDirectory},
        instance::{InstanceController, InstanceQueue},
    },
    facade::{self, Facade},
    providers::simulator::{SimulatedUsage, Simulator},
    resources::{Account, ApiKey, Instance},
    runtime::{
        Clock, Health, Metrics, SystemClock, client,
        events::Events,
        lease::{self, LeaderElection},
        ops, telemetry,
        watch::{Listener, Watches},
    },
    settings::{ApiSettings, CommonSettings, ControllerSettings},
};

/// How long after the start it is said what is still awaited, and how often from then on.
const SAY_WHAT_IS_AWAITED_EVERY: Duration = Duration::from_secs(10);

/// Why serving ended before it was asked to, or never began.
#[derive(Debug, Error)]
pub enum ServeError {
    /// No usable kubeconfig, and not in a cluster either.
    #[error("no way to the API server: {0}; set KUBECONFIG to a kubeconfig, or run in a cluster")]
    Config(#[from] kube::config::InferConfigError),
    /// The client could not be built.
    #[error("the kubeconfig cannot be used: {0}")]
    Client(#[from] kube::Error),
    /// A port is taken or not ours.
    #[error("cannot listen on {address}: {source}; choose another with {flag}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The flag that says so.
        flag: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The ready file could not be written.
    #[error("cannot write --ready-file: {0}")]
    ReadyFile(std::io::Error),
    /// Signals could not be listened for.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    /// Another replica writes now; only a fresh start may try again.
    #[error("the Lease was lost: another replica may be writing, so this one ends")]
    LeaseLost,
    /// A part ended although nobody asked it to.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// Serves what has settings: the facade, the controllers, or both. Returns when SIGTERM or SIGINT has been handled: no
/// more requests are taken, what is under way is finished within the grace, the Lease is released.
pub async fn serve(
    common: CommonSettings,
    api: Option<ApiSettings>,
    controller: Option<ControllerSettings>,
) -> Result<(), ServeError> {
    telemetry::init(common.log_json);
    let shutdown = shutdown_on_signals()?;
    let (health, metrics) = (Health::default(), Metrics::new());
    let config = Config::infer().await?;
    tracing::info!(api_server = %config.cluster_url, version = env!("CARGO_PKG_VERSION"), "starting");
    let client = client::connect(config, health.clone())?;
    let ops_listener = bind(common.metrics_listen, "--metrics-listen").await?;
    let metrics_url = url(&ops_listener);
    tokio::spawn(ops::serve(ops_listener, health.clone(), metrics.clone(), shutdown.clone()));
    let api_listener = match &api {
        Some(settings) => Some(bind(settings.listen, "--listen").await?),
        None => None,
    };
    let api_url = api_listener.as_ref().map(url);

    let mut parts = Parts::new(&client, &common, api.as_ref(), controller.as_ref(), &metrics);
    // Watches outlive the serving, so that requests and reconciles under way can still see their own writes.
    let watching = CancellationToken::new();
    let watches =
        Watches { client: client.clone(), health: health.clone(), metrics: metrics.clone(), shutdown: watching.clone() };
    let accounts = watches.spawn::<Account>(std::mem::take(&mut parts.account_listeners));
    let instances = watches.spawn::<Instance>(std::mem::take(&mut parts.instance_listeners));
    if parts.facade.is_some() {
        watches.spawn::<ApiKey>(std::mem::take(&mut parts.key_listeners));
    }

    let grace = Duration::from_secs(common.shutdown_grace_seconds);
    let mut tasks: Vec<(&'static str, JoinHandle<Result<(), ServeError>>)> = Vec::new();
    if let (Some(facade), Some(listener)) = (parts.facade.take(), api_listener) {
        let shutdown = shutdown.clone();
        tasks.push(("the facade", tokio::spawn(async move {
            facade::serve(facade, listener, shutdown, grace).await;
            Ok(())
        })));
    }
    if let Some(controllers) = parts.controllers.take() {
        let election = LeaderElection::new(client.clone(), &controllers.settings.namespace, &controllers.identity, metrics);
        let run = controllers.lead(election, accounts, instances, shutdown.clone(), grace);
        tasks.push(("the controllers", tokio::spawn(run)));
    }
    tokio::spawn(announce(health, common.ready_file, api_url, metrics_url, shutdown.clone()));

    let result = wait(tasks, &shutdown).await;
    watching.cancel();
    result
}

/// The first part to end early ends all; otherwise each is waited for after the signal.
async fn wait(
    tasks: Vec<(&'static str, JoinHandle<Result<(), ServeError>>)>,
    shutdown: &CancellationToken,
) -> Result<(), ServeError> {
    let mut result = Ok(());
    let mut running = tasks
        .into_iter()
        .map(|(name, task)| Box::pin(async move { (name, task.await) }))
        .collect::<futures::stream::FuturesUnordered<_>>();
    while let Some((name, ended)) = futures::StreamExt::next(&mut running).await {
        let ended = match ended {
            Ok(Ok(())) if shutdown.is_cancelled() => Ok(()),
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Err(ServeError::Ended(name)),
        };
        shutdown.cancel();
        result = result.and(ended);
    }
    result
}

/// The parts that the settings ask for, and what they want to hear.
struct Parts {
    facade: Option<Facade<SimulatedUsage>>,
    controllers: Option<Controllers>,
    account_listeners: Vec<Box<dyn Listener<Account>>>,
    instance_listeners: Vec<Box<dyn Listener<Instance>>>,
    key_listeners: Vec<Box<dyn Listener<ApiKey>>>,
}
