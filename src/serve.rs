//! `stellage run`, `stellage api`, `stellage controller` and `stellage console-gateway`: connects the parts, serves until SIGTERM, and shuts down in
//! order.

mod controllers;
mod gateway;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt::Debug,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{Resource, runtime::watcher};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{net::TcpListener, sync::SetOnce, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::controllers::{Candidate, Slots, Stores};
pub use self::gateway::serve_gateway;
use crate::settings::{ApiSettings, CommonSettings, ControllerSettings, ProcessSettings};
use ::controllers::mail::MailError;
use domain::{
    backup::BackupLimits, catalogue::file::CatalogueError, delivery::DeliveryLog, provider::PROVIDER,
};
use providers::{
    RegionalUsage, UsageSource,
    simulator::{Faults, SimulatedUsage},
};
use resources::{
    Account, ApiKey, Backup, Delivery, Instance, Invoice, OperationKind, PrivateNetwork, Webhook,
    delivery::FINISHED_LABEL, invoice::SETTLED_LABEL, tracking,
};
use runtime::{
    CheckedClock, Clock, Health, Metrics, ServerTime, Store, SystemClock,
    client::{self, Observers},
    cluster_addresses::ClusterAddresses,
    http::{self, tls::CertificateError},
    kubeconfig::{ClusterArgs, KubeconfigFailure},
    lease, open_files, ops,
    restored::{self, Restored},
    shared_catalogue::{CatalogueFile, SharedCatalogue},
    telemetry, traces,
    traces::TraceError,
    watch::{Listener, Watches},
};
use sender::{ClientError, ReceiverUrl, TargetRules};
use server::{
    console,
    facade::Facade,
    service::{self, Service, credentials::key_use},
};

/// The only task that may end before the shutdown.
const ANNOUNCEMENT: &str = "the announcement";
/// How often to check whether everything is ready.
const CHECK_EVERY: Duration = Duration::from_millis(10);
/// Number of checks, ten seconds' worth, after which to log what is still missing.
const CHECKS_PER_LOG: u32 = 1000;

/// Why serving failed to start, or ended before a shutdown was requested.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no usable kubeconfig, and the process does not run in a cluster.
    #[error("cannot find an API server: {0}; set KUBECONFIG to a kubeconfig, or run in a cluster")]
    Config(#[from] KubeconfigFailure),
    /// The client could not be built.
    #[error("cannot use the kubeconfig: {0}")]
    Client(#[from] kube::Error),
    /// The catalogue file cannot be used.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
    /// Traces cannot be sent.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// The certificate of the REST API cannot be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The address is in use or not available.
    #[error("cannot listen on {address}: {source}; choose another with {flag}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The flag that sets it.
        flag: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The settings of OpenID Connect are invalid.
    #[error(transparent)]
    Oidc(#[from] console::OidcError),
    /// The client for receivers cannot be built.
    #[error(transparent)]
    Receivers(#[from] ClientError),
    /// The mail settings are invalid.
    #[error(transparent)]
    Mail(#[from] MailError),
    /// The ready file could not be written.
    #[error("cannot write --ready-file: {0}")]
    ReadyFile(std::io::Error),
    /// The signal handlers could not be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    /// The API server's data was put back to an older state.
    #[error(transparent)]
    Restored(#[from] Restored),
    /// A part ended before the shutdown.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// Serves the parts that have settings: the facade, the controllers, or both. On SIGTERM or SIGINT it accepts no more
/// requests (after `--shutdown-delay-seconds`), finishes running work within the grace period, releases the Lease, and returns.
#[expect(clippy::too_many_lines, reason = "it connects the parts, one after the other")]
pub async fn serve(
    cluster: &ClusterArgs,
    common: CommonSettings,
    api: Option<ApiSettings>,
    controller: Option<ControllerSettings>,
) -> Result<(), ServeError> {
    telemetry::init(common.process.log_json);
    let shutdown = shutdown_on_signals()?;
    let (catalogue, catalogue_file) = catalogue(&common.process)?;
    let config = cluster.choose().await?.config;
    tracing::info!(api_server = %config.cluster_url, version = env!("CARGO_PKG_VERSION"), "starting");
    let api_server = config.cluster_url.host().map(ToOwned::to_owned);
    let (health, metrics, server_time) = (
        Health::starting(),
        Metrics::of(api.is_some(), controller.is_some()),
        ServerTime::default(),
    );
    let service_name = match (&api, &controller) {
        (Some(_), None) => "stellage-api",
        (None, Some(_)) => "stellage-controller",
        _ => "stellage",
    };
    let sending = traces::start(&common.traces, service_name, &metrics)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ops_listener = bind(common.process.metrics_listen, "--metrics-listen")?;
    let metrics_url = url(&ops_listener, false);
    let mut tasks: Tasks = Vec::new();
    // Watches run until the end, so that requests and reconciles that are finishing still see their own writes.
    let observers = Observers {
        health: health.clone(),
        metrics: metrics.clone(),
        time: server_time.clone(),
    };
    // A connection of its own: large lists on that of the watches may be in its way.
    let for_lease = client::connect_with_pings(config.clone(), observers.clone())?;
    let watches = Watches::connect(config, observers, CancellationToken::new())?;
    let _ended_last = watches.shutdown.clone().drop_guard();
    tokio::spawn(ops::serve(
        ops_listener,
        health.clone(),
        metrics.clone(),
        watches.shutdown.clone(),
    ));

    let (rules, own_ranges_read) = rules(&common, &watches, api_server);
    let usage = usage(&common, catalogue.clone());
    let mut on_accounts: Vec<Box<dyn Listener<Account>>> = Vec::new();
    let mut on_instances: Vec<Box<dyn Listener<Instance>>> = Vec::new();
    let mut on_networks: Vec<Box<dyn Listener<PrivateNetwork>>> = Vec::new();
    let mut on_backups: Vec<Box<dyn Listener<Backup>>> = Vec::new();
    let mut on_webhooks: Vec<Box<dyn Listener<Webhook>>> = Vec::new();
    let mut api_url = None;
    if let Some(settings) = api {
        let listener = bind(settings.listen, "--listen")?;
        let certificate = settings.tls.certificate(&metrics)?;
        api_url = Some(url(&listener, certificate.is_some()));
        let catalogue = catalogue.clone();
        let clock = Arc::new(CheckedClock::new(clock.clone(), server_time.clone()));
        let service = service(
            &common,
            &settings,
            catalogue,
            usage.clone(),
            &rules,
            &watches,
            clock,
        );
        let listeners = service.listeners();
        let provisioning = common.timings().duration(OperationKind::Create);
        let facade = Facade::new(
            service.clone(),
            provisioning,
            settings.public_url.clone(),
            &metrics,
        );
        on_accounts.push(listeners.accounts);
        on_instances.push(listeners.instances);
        on_networks.push(listeners.networks);
        on_backups.push(listeners.backups);
        on_webhooks.push(listeners.webhooks);
        watch_tenant_objects::<ApiKey>(&watches, vec![listeners.keys]);
        tokio::spawn(key_use::record(&service, watches.shutdown.clone()));
        let facade = with_console(facade, service, &settings, &common.process.namespace, &watches)?;
        let leaving = Arc::new(AtomicBool::new(false));
        let shutdown = after_load_balancers(&shutdown, settings.shutdown_delay(), &health, leaving.clone());
        let grace = common.process.shutdown_grace();
        let limits = open_files::fitting(settings.limits());
        tasks.push((
            "the facade",
            tokio::spawn(async move {
                facade
                    .serve(listener, limits, certificate, leaving, shutdown, grace)
                    .await;
                Ok(())
            }),
        ));
    }
    let candidate = controller
        .map(|settings| {
            Candidate::new(
                settings,
                &common,
                catalogue,
                usage,
                rules,
                &watches,
                clock,
                server_time,
            )
        })
        .transpose()?;
    let complain = complain(candidate.as_ref());
    if let Some(Candidate { slots, .. }) = &candidate {
        on_accounts.push(Box::new(slots.accounts.clone()));
        on_instances.push(Box::new(slots.instances.clone()));
        on_networks.push(Box::new(slots.networks.clone()));
        on_backups.push(Box::new(slots.backups.clone()));
        on_webhooks.push(Box::new(slots.webhooks.clone()));
    }
    let forget_unused = |instance: &mut Instance| {
        tracking::forget_foreign(instance);
        instance.shrink_to_fit();
    };
    let instances = watches.spawn_without(watcher::Config::default(), forget_unused, on_instances);
    let backups = watch_tenant_objects(&watches, on_backups);
    let networks = watch_tenant_objects(&watches, on_networks);
    if let Some(file) = catalogue_file {
        tokio::spawn(reload(
            file,
            instances.clone(),
            Some((backups.clone(), networks.clone())),
            complain,
            watches.shutdown.clone(),
            metrics,
        ));
    }
    let webhooks = watch_tenant_objects(&watches, on_webhooks);
    let accounts = watches.spawn(on_accounts);
    if let Some(candidate) = candidate {
        let Slots {
            deliveries, invoices, ..
        } = candidate.slots.clone();
        let namespace = candidate.common.process.namespace.clone();
        let unfinished = watcher::Config::default().labels(&format!("!{FINISHED_LABEL}"));
        let unsettled = watcher::Config::default().labels(&format!("!{SETTLED_LABEL}"));
        // Small pages, because invoices carry their lines until these are left out.
        let unsettled = unsettled.page_size(100);
        let stores = Stores {
            accounts,
            instances,
            networks,
            backups,
            webhooks,
            deliveries: watches.spawn_selected::<Delivery>(unfinished, vec![Box::new(deliveries)]),
            invoices: watches.spawn_in(
                &namespace,
                unsettled,
                Invoice::forget_lines,
                vec![Box::new(invoices)],
            ),
        };
        tasks.push((
            "the controllers",
            tokio::spawn(candidate.stand(for_lease, stores, own_ranges_read, shutdown.clone())),
        ));
    }
    // A leader starts more watches, but readiness does not wait for these.
    health.started();
    let announcement = announce(
        health,
        common.process.ready_file,
        api_url,
        metrics_url,
        shutdown.clone(),
    );
    tasks.push((ANNOUNCEMENT, tokio::spawn(announcement)));
    let ended = tokio::select! {
        ended = wait(tasks, &shutdown) => ended,
        // Nothing is finished: it would be decided on what is no longer so.
        restored = restored::noticed(watches.client.clone()) => Err(restored.into()),
    };
    if let Some(sending) = sending {
        sending.finish().await;
    }
    ended
}

/// Watches objects that account holders write, without the metadata that the program does not read.
fn watch_tenant_objects<K>(watches: &Watches, listeners: Vec<Box<dyn Listener<K>>>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    watches.spawn_without(watcher::Config::default(), tracking::forget_foreign, listeners)
}

/// The catalogue, and its file if it has one.
fn catalogue(process: &ProcessSettings) -> Result<(SharedCatalogue, Option<CatalogueFile>), CatalogueError> {
    let file = process.catalogue.clone().map(CatalogueFile::load).transpose()?;
    let catalogue = file.as_ref().map(CatalogueFile::catalogue);
    Ok((catalogue.unwrap_or_default(), file))
}

/// Keeps the catalogue up to date with its file.
async fn reload(
    file: CatalogueFile,
    instances: Store<Instance>,
    others: Option<(Store<Backup>, Store<PrivateNetwork>)>,
    complain: impl Fn(&str) + Send,
    shutdown: CancellationToken,
    metrics: Metrics,
) {
    // Until all are known, it is not known which regions are used.
    if instances.wait_until_ready().await.is_err() {
        return;
    }
    if let Some((backups, networks)) = &others
        && (backups.wait_until_ready().await.is_err() || networks.wait_until_ready().await.is_err())
    {
        return;
    }
    let used = || {
        let others = others.as_ref();
        let others = others.map(|(backups, networks)| (backups.state(), networks.state()));
        let (backups, networks) = others.unwrap_or_default();
        used_regions(&instances.state(), &backups, &networks)
    };
    file.reload_until(shutdown, metrics, used, complain).await;
}

/// The codes of the regions that have something: what was refused has nothing there.
fn used_regions(
    instances: &[Arc<Instance>],
    backups: &[Arc<Backup>],
    networks: &[Arc<PrivateNetwork>],
) -> BTreeSet<String> {
    let of_instances = instances.iter().filter_map(|instance| {
        instance.status.as_ref()?.state.as_ref()?;
        Some(instance.spec.region.clone())
    });
    // Those of simulated servers are nowhere.
    let of_backups = backups.iter().filter_map(|backup| {
        let status = backup.status.as_ref()?;
        let source = status.source.as_ref()?;
        let is_real = status.provider_state.contains_key(PROVIDER);
        is_real.then(|| source.region.clone())
    });
    // It gets its prefix before anything is made.
    let of_networks = networks.iter().filter_map(|network| {
        network.status.as_ref()?.prefix.as_ref()?;
        Some(network.spec.region.clone())
    });
    of_instances.chain(of_backups).chain(of_networks).collect()
}

/// When the catalogue's file cannot be used, a process that runs the controllers also publishes a Kubernetes Event about the Lease.
fn complain(candidate: Option<&Candidate>) -> impl Fn(&str) + Send + use<> {
    let lease = candidate.map(|candidate| {
        let events = candidate.events("catalogue");
        (events, lease::named_in(&candidate.common.process.namespace))
    });
    move |reason: &str| {
        if let Some((events, lease)) = &lease {
            events.publish(lease, true, "InvalidCatalogue", "ReadCatalogue", reason);
        }
    }
}

/// The rules for receivers, kept up to date with the cluster's own addresses, and whether these have been read.
fn rules(
    common: &CommonSettings,
    watches: &Watches,
    api_server: Option<String>,
) -> (TargetRules, Arc<SetOnce<()>>) {
    let rules = common.receivers.rules();
    let read = Arc::new(SetOnce::new());
    if common.receivers.receiver_allow_cluster {
        let _ = read.set(());
    } else {
        let addresses = ClusterAddresses {
            client: watches.client.clone(),
            api_server,
            given: common.receivers.own_addresses.clone(),
        };
        rules.own.replace(addresses.known_at_once());
        let own = rules.own.clone();
        let told = read.clone();
        let learned = move |ranges, is_complete| {
            own.replace(ranges);
            if is_complete {
                let _ = told.set(());
            }
        };
        tokio::spawn(addresses.follow(learned, watches.shutdown.clone()));
    }
    (rules, read)
}

/// The source of the usage of servers, which all parts share.
fn usage(common: &CommonSettings, catalogue: SharedCatalogue) -> Arc<dyn UsageSource> {
    let simulated = SimulatedUsage {
        faults: Faults::new(common.simulator_faults),
    };
    Arc::new(RegionalUsage::new(catalogue, simulated))
}

fn service(
    common: &CommonSettings,
    settings: &ApiSettings,
    catalogue: SharedCatalogue,
    usage: Arc<dyn UsageSource>,
    rules: &TargetRules,
    watches: &Watches,
    clock: Arc<dyn Clock>,
) -> Arc<Service> {
    let rules = rules.clone();
    let dependencies = service::Dependencies {
        client: watches.client.clone(),
        health: watches.health.clone(),
        usage,
        catalogue,
        clock,
        receiver_check: Arc::new(move |url| match ReceiverUrl::parse(url, &rules) {
            Ok(_) => Ok(()),
            Err(complaint) => Err(complaint.to_string()),
        }),
    };
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let configured = service::Settings {
        max_calls: settings.max_api_calls.into(),
        instance_quota: common.default_instance_quota,
        key_quota: size(common.api_keys_per_account),
        network_quota: common.private_networks_per_account,
        backup_limits: BackupLimits {
            per_instance: size(common.backups_per_instance),
            per_account: size(common.backups_per_account),
        },
        has_event_log: common.delivery_log == DeliveryLog::All,
        log_retention_hours: common.delivery_retention_hours,
        operator_namespace: common.process.namespace.clone(),
    };
    let service = Service::new(dependencies, configured);
    Arc::new(match &settings.console_gateway_url {
        Some(url) => service.with_console_gateway(url.clone(), watches.client.clone()),
        None => service,
    })
}

/// The facade, with the customer console beside it unless that is switched off.
fn with_console(
    facade: Facade,
    service: Arc<Service>,
    settings: &ApiSettings,
    namespace: &str,
    watches: &Watches,
) -> Result<Facade, ServeError> {
    if !settings.console {
        return Ok(facade);
    }
    let pages = console::router(console::Dependencies {
        facade: facade.clone(),
        service,
        client: watches.client.clone(),
        namespace: namespace.to_owned(),
        insecure_cookie: settings.console_insecure_cookie,
        provider: console::Provider::new(&settings.oidc, settings.public_url.as_ref())?,
        metrics: watches.metrics.clone(),
    });
    Ok(facade.mounting(console::PREFIX, pages))
}

type Tasks = Vec<(&'static str, JoinHandle<Result<(), ServeError>>)>;

/// Waits for all parts to end. If one ends early, shuts down the others.
async fn wait(tasks: Tasks, shutdown: &CancellationToken) -> Result<(), ServeError> {
    let mut result = Ok(());
    let mut running = tasks
        .into_iter()
        .map(|(name, task)| Box::pin(async move { (name, task.await) }))
        .collect::<futures::stream::FuturesUnordered<_>>();
    while let Some((name, ended)) = futures::StreamExt::next(&mut running).await {
        let ended = match ended {
            Ok(Ok(())) if shutdown.is_cancelled() || name == ANNOUNCEMENT => {
                continue;
            }
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) | Err(_) => Err(ServeError::Ended(name)),
        };
        shutdown.cancel();
        result = result.and(ended);
    }
    result
}

/// A token that is cancelled `delay` after `shutdown`. Until then `/readyz` fails, so that load balancers open no more connections,
/// requests that they still send are answered, and `leaving` is set.
fn after_load_balancers(
    shutdown: &CancellationToken,
    delay: Duration,
    health: &Health,
    leaving: Arc<AtomicBool>,
) -> CancellationToken {
    if delay.is_zero() {
        return shutdown.clone();
    }
    let delayed = CancellationToken::new();
    let (shutdown, health, cancel) = (shutdown.clone(), health.clone(), delayed.clone());
    tokio::spawn(async move {
        shutdown.cancelled().await;
        health.expect("shutdown", "load balancers to stop sending requests");
        leaving.store(true, Ordering::Relaxed);
        tokio::time::sleep(delay).await;
        cancel.cancel();
    });
    delayed
}

fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    http::listen(address).map_err(|source| ServeError::Bind {
        address,
        flag,
        source,
    })
}

/// The URL under which a listener can be reached from this machine.
fn url(listener: &TcpListener, is_tls: bool) -> String {
    let scheme = if is_tls { "https" } else { "http" };
    listener.local_addr().map_or_else(
        |_| String::new(),
        |address| {
            let host = if address.ip().is_unspecified() {
                "127.0.0.1".to_owned()
            } else {
                address.ip().to_string()
            };
            let host = if host.contains(':') {
                format!("[{host}]")
            } else {
                host
            };
            format!("{scheme}://{host}:{}", address.port())
        },
    )
}

/// Logs what is still missing until everything is ready, then writes the ready file.
async fn announce(
    health: Health,
    ready_file: Option<PathBuf>,
    api_url: Option<String>,
    metrics_url: String,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let mut checks = 0_u32;
    loop {
        let waiting_for = health.not_ready();
        if waiting_for.is_empty() {
            break;
        }
        checks += 1;
        if checks.is_multiple_of(CHECKS_PER_LOG) {
            tracing::warn!(?waiting_for, "not ready yet");
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = tokio::time::sleep(CHECK_EVERY) => {}
        }
    }
    tracing::info!(api = api_url, metrics = metrics_url, "ready");
    let Some(path) = ready_file else { return Ok(()) };
    // Write and rename, so that no reader sees half of the file.
    let partial = path.with_extension("part");
    let text = serde_json::json!({ "url": api_url, "metrics_url": metrics_url }).to_string();
    let written = async {
        tokio::fs::write(&partial, text).await?;
        tokio::fs::rename(&partial, &path).await
    };
    written.await.map_err(ServeError::ReadyFile)
}

/// A token that SIGTERM and SIGINT cancel. A second signal ends the process at once.
fn shutdown_on_signals() -> Result<CancellationToken, ServeError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let shutdown = CancellationToken::new();
    let cancel = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("shutting down: finishing requests and reconciles; a second signal exits immediately");
        cancel.cancel();
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        std::process::exit(1);
    });
    Ok(shutdown)
}
