//! `stellage run`, `stellage api` and `stellage controller`: connects the parts, serves until SIGTERM, and shuts down in
//! order.

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Config,
    runtime::{reflector::Store, watcher},
};
use thiserror::Error;
use tokio::{net::TcpListener, sync::SetOnce, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::{
    backups,
    catalogue::{SharedCatalogue, file::CatalogueError, shared::CatalogueFile},
    console,
    controllers::{
        account::{self, AccountController, AccountDirectory},
        backup::{self, BackupController, BackupIndex},
        instance::InstanceController,
        invoice::{self, InvoiceController},
        key_copies,
        ledger::Ledger,
        monitoring::{self, MonitoringController},
        webhook::{self, WebhookController},
    },
    delivery::{ClientError, DeliveryLog, ReceiverClient, ReceiverUrl, TargetRules},
    facade::Facade,
    mail::{MailError, Mailer},
    monitoring::{LeaderSlot, Monitor, measurements::Anywhere, remote::Remote, wire::ADDRESS_ANNOTATION},
    providers::simulator::{Faults, Pools, SimulatedUsage, Simulator},
    resources::{
        Account, ApiKey, Backup, Delivery, Instance, Invoice, OperationKind, Webhook,
        delivery::FINISHED_LABEL, invoice::SETTLED_LABEL,
    },
    runtime::{
        ByNamespace, Clock, Health, Metrics, ReconcileQueue, ServerTime, SystemClock, client,
        cluster_addresses::ClusterAddresses,
        events::Events,
        http::tls::CertificateError,
        lease::{self, LeaderElection},
        open_files, ops, telemetry,
        watch::{Listener, Watches},
    },
    service::{self, Service},
    settings::{ApiSettings, CommonSettings, ControllerSettings},
};

/// The only task that may end before the shutdown.
const ANNOUNCEMENT: &str = "the announcement";
/// How often to check whether everything is ready.
const CHECK_EVERY: Duration = Duration::from_millis(50);
/// Number of checks, ten seconds' worth, after which to log what is still missing.
const CHECKS_PER_LOG: u32 = 200;

/// Why serving failed to start, or ended before a shutdown was requested.
#[derive(Debug, Error)]
pub enum ServeError {
    /// There is no usable kubeconfig, and the process does not run in a cluster.
    #[error("cannot find an API server: {0}; set KUBECONFIG to a kubeconfig, or run in a cluster")]
    Config(#[from] kube::config::InferConfigError),
    /// The client could not be built.
    #[error("cannot use the kubeconfig: {0}")]
    Client(#[from] kube::Error),
    /// The file of the catalogue cannot be used.
    #[error(transparent)]
    Catalogue(#[from] CatalogueError),
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
    /// The delivery settings are invalid.
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
    /// Another replica may be writing; this one must be restarted before it writes again.
    #[error("lost the Lease: another replica may be writing, so this one exits")]
    LeaseLost,
    /// A part ended before the shutdown.
    #[error("{0} ended unexpectedly")]
    Ended(&'static str),
}

/// Serves the parts that have settings: the facade, the controllers, or both. On SIGTERM or SIGINT it accepts no more
/// requests (after `--shutdown-delay-seconds`), finishes running work within the grace period, releases the Lease, and returns.
#[expect(clippy::too_many_lines, reason = "it connects the parts, one after the other")]
pub async fn serve(
    common: CommonSettings,
    api: Option<ApiSettings>,
    controller: Option<ControllerSettings>,
) -> Result<(), ServeError> {
    telemetry::init(common.log_json);
    let shutdown = shutdown_on_signals()?;
    let (catalogue, catalogue_file) = catalogue(&common)?;
    let config = Config::infer().await?;
    tracing::info!(api_server = %config.cluster_url, version = env!("CARGO_PKG_VERSION"), "starting");
    let api_server = config.cluster_url.host().map(ToOwned::to_owned);
    let (health, metrics, server_time) = (
        Health::default(),
        Metrics::of(api.is_some(), controller.is_some()),
        ServerTime::default(),
    );
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let ops_listener = bind(common.metrics_listen, "--metrics-listen").await?;
    let metrics_url = url(&ops_listener, false);
    let mut tasks: Tasks = Vec::new();
    // Watches run until the end, so that requests and reconciles that are finishing still see their own writes.
    let watches = Watches {
        client: client::connect(config, health.clone(), metrics.clone(), server_time.clone())?,
        health: health.clone(),
        metrics: metrics.clone(),
        shutdown: CancellationToken::new(),
    };
    let _ended_last = watches.shutdown.clone().drop_guard();
    tokio::spawn(ops::serve(
        ops_listener,
        health.clone(),
        metrics.clone(),
        watches.shutdown.clone(),
    ));

    let (rules, own_ranges_read) = rules(&common, &watches, api_server);
    let mut on_accounts: Vec<Box<dyn Listener<Account>>> = Vec::new();
    let own_answers = LeaderSlot::default();
    let mut on_instances: Vec<Box<dyn Listener<Instance>>> = Vec::new();
    let mut on_backups: Vec<Box<dyn Listener<Backup>>> = Vec::new();
    let mut on_webhooks: Vec<Box<dyn Listener<Webhook>>> = Vec::new();
    let mut api_url = None;
    if let Some(settings) = api {
        let listener = bind(settings.listen, "--listen").await?;
        let certificate = settings.certificate()?;
        api_url = Some(url(&listener, certificate.is_some()));
        let catalogue = catalogue.clone();
        let measurements = Anywhere {
            own: own_answers.clone(),
            remote: Remote::new(&watches.client, &common.namespace, clock.clone()),
        };
        let service = service(
            &common,
            &settings,
            catalogue,
            measurements,
            &rules,
            &watches,
            clock.clone(),
        );
        let listeners = service.listeners();
        let provisioning = common.timings().duration(OperationKind::Create);
        let facade = Facade::new(service.clone(), provisioning, &metrics);
        let (used_keys, used_accounts) = facade.listeners();
        on_accounts.extend([listeners.accounts, used_accounts]);
        on_instances.push(listeners.instances);
        on_backups.push(listeners.backups);
        on_webhooks.push(listeners.webhooks);
        watches.spawn::<ApiKey>(vec![listeners.keys, used_keys]);
        let kept = facade.kept_rate_limits(watches.client.clone(), &common.namespace, clock.clone());
        let facade = with_console(facade, service, &settings, &common.namespace, &watches);
        let shutdown = after_load_balancers(&shutdown, settings.shutdown_delay(), &health);
        let grace = common.shutdown_grace();
        let limits = open_files::fitting(settings.limits());
        tasks.push((
            "the facade",
            tokio::spawn(async move {
                kept.during(facade.serve(listener, limits, certificate, shutdown, grace))
                    .await;
                Ok(())
            }),
        ));
    }
    let mut controllers = controller
        .map(|settings| Controllers::new(settings, &common, catalogue, rules, &watches, clock, server_time))
        .transpose()?;
    let mut usage_listener = None;
    if let Some(controllers) = &mut controllers {
        controllers.own_answers = own_answers;
        let address = controllers.settings.monitoring.usage_listen;
        usage_listener = Some(bind(address, "--usage-listen").await?);
    }
    reload(catalogue_file, &watches, controllers.as_ref());
    let mut deliveries = None;
    let mut invoices = None;
    if let Some(controllers) = &controllers {
        let listeners = controllers.webhooks.listeners();
        on_webhooks.push(listeners.webhooks);
        let unfinished = watcher::Config::default().labels(&format!("!{FINISHED_LABEL}"));
        deliveries = Some(watches.spawn_selected::<Delivery>(unfinished, vec![listeners.deliveries]));
        let unsettled = watcher::Config::default().labels(&format!("!{SETTLED_LABEL}"));
        invoices = Some(watches.spawn_selected::<Invoice>(unsettled, controllers.on_invoices()));
        let instances_by_namespace = controllers.instances.clone();
        on_instances.extend(controllers.on_instances(&instances_by_namespace));
        on_backups.extend(controllers.on_backups());
        on_accounts.extend(controllers.on_accounts(instances_by_namespace));
    }
    let instances = watches.spawn(on_instances);
    let backups = watches.spawn(on_backups);
    let webhooks = watches.spawn(on_webhooks);
    let accounts = watches.spawn(on_accounts);
    if let Some(((controllers, (deliveries, invoices)), usage_listener)) =
        controllers.zip(deliveries.zip(invoices)).zip(usage_listener)
    {
        let stores = Stores {
            accounts,
            instances,
            backups,
            webhooks,
            deliveries,
            invoices,
        };
        tasks.push((
            "the controllers",
            tokio::spawn(controllers.lead(stores, usage_listener, own_ranges_read, shutdown.clone())),
        ));
    }
    let announcement = announce(health, common.ready_file, api_url, metrics_url, shutdown.clone());
    tasks.push((ANNOUNCEMENT, tokio::spawn(announcement)));
    wait(tasks, &shutdown).await
}

/// The catalogue, and its file if it has one.
fn catalogue(common: &CommonSettings) -> Result<(SharedCatalogue, Option<CatalogueFile>), CatalogueError> {
    let file = common.catalogue.clone().map(CatalogueFile::load).transpose()?;
    let catalogue = file.as_ref().map(CatalogueFile::catalogue);
    Ok((catalogue.unwrap_or_default(), file))
}

/// Keeps the catalogue up to date with its file, if it has one. Whoever runs the controllers also publishes a Kubernetes Event, about the Lease,
/// when the file cannot be used.
fn reload(file: Option<CatalogueFile>, watches: &Watches, controllers: Option<&Controllers>) {
    let Some(file) = file else { return };
    let lease = controllers.map(|controllers| {
        let events = Events::new(watches.client.clone(), "catalogue", &controllers.identity);
        (events, lease::named_in(&controllers.common.namespace))
    });
    let complain = move |reason: &str| {
        if let Some((events, lease)) = &lease {
            events.publish(lease, true, "InvalidCatalogue", "ReadCatalogue", reason);
        }
    };
    tokio::spawn(file.reload_until(watches.shutdown.clone(), watches.metrics.clone(), complain));
}

/// The rules for receivers, which are kept up to date with the cluster's own addresses, and whether these have been read.
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

fn service(
    common: &CommonSettings,
    settings: &ApiSettings,
    catalogue: SharedCatalogue,
    measurements: Anywhere,
    rules: &TargetRules,
    watches: &Watches,
    clock: Arc<dyn Clock>,
) -> Arc<Service> {
    let rules = rules.clone();
    let dependencies = service::Dependencies {
        client: watches.client.clone(),
        catalogue,
        clock,
        measurements: Box::new(measurements),
        receiver_check: Arc::new(move |url| match ReceiverUrl::parse(url, &rules) {
            Ok(_) => Ok(()),
            Err(complaint) => Err(complaint.to_string()),
        }),
    };
    let service = Service::with_calls(dependencies, settings.max_api_calls.into())
        .with_instance_quota(common.default_instance_quota)
        .with_key_quota(common.api_keys_per_account)
        .with_backup_limits(common.backups_per_instance, common.backups_per_account)
        .with_event_log(common.delivery_log == DeliveryLog::All)
        .with_log_retention(common.delivery_retention_hours)
        .with_operator_namespace(&common.namespace);
    Arc::new(service)
}

/// The facade, with the customer console beside it unless that is switched off.
fn with_console(
    facade: Facade,
    service: Arc<Service>,
    settings: &ApiSettings,
    namespace: &str,
    watches: &Watches,
) -> Facade {
    if !settings.console {
        return facade;
    }
    let pages = console::router(console::Dependencies {
        facade: facade.clone(),
        service,
        client: watches.client.clone(),
        namespace: namespace.to_owned(),
        insecure_cookie: settings.console_insecure_cookie,
        trusted_proxies: settings.trusted_proxies.clone(),
        metrics: watches.metrics.clone(),
    });
    facade.mounting(console::PREFIX, pages)
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

/// The stores of the watches that the controllers need.
#[derive(Clone)]
struct Stores {
    accounts: Store<Account>,
    instances: Store<Instance>,
    backups: Store<Backup>,
    webhooks: Store<Webhook>,
    /// Unfinished ones.
    deliveries: Store<Delivery>,
    /// Those about which something is left to do.
    invoices: Store<Invoice>,
}

/// The controllers, and what they need to run.
struct Controllers {
    settings: ControllerSettings,
    common: CommonSettings,
    catalogue: SharedCatalogue,
    identity: String,
    accounts: AccountController,
    directory: AccountDirectory,
    queue: ReconcileQueue<Instance>,
    instances: ByNamespace<Instance>,
    backups: BackupIndex,
    backup_queue: ReconcileQueue<Backup>,
    ledger: Ledger,
    invoices: InvoiceController,
    open_invoices: ByNamespace<Invoice>,
    invoice_queue: ReconcileQueue<Invoice>,
    webhooks: WebhookController,
    monitor: Arc<Monitor>,
    /// Where the facade of this process finds what the leader knows.
    own_answers: LeaderSlot,
    watches: Watches,
    clock: Arc<dyn Clock>,
}

impl Controllers {
    fn new(
        mut settings: ControllerSettings,
        common: &CommonSettings,
        catalogue: SharedCatalogue,
        rules: TargetRules,
        watches: &Watches,
        clock: Arc<dyn Clock>,
        server_time: ServerTime,
    ) -> Result<Self, ServeError> {
        settings.delivery.delivery_log = common.delivery_log;
        settings.delivery.delivery_retention_hours = common.delivery_retention_hours;
        let identity = lease::identity(settings.identity.as_deref());
        let (directory, queue) = (AccountDirectory::default(), ReconcileQueue::default());
        let backup_queue = ReconcileQueue::default();
        let mailer = Mailer::new(&settings.mail)?;
        let has_mail = mailer.is_configured();
        watches.metrics.mail_configured.set(has_mail.into());
        let webhooks = WebhookController::new(webhook::Deps {
            client: watches.client.clone(),
            receivers: ReceiverClient::new(common.receivers.client(), rules.clone())?,
            rules,
            mailer,
            mail_limits: settings.mail.limits(),
            directory: directory.clone(),
            settings: settings.delivery.clone(),
            write_concurrency: settings.write_concurrency,
            metrics: watches.metrics.clone(),
            clock: clock.clone(),
            server_time: server_time.clone(),
        });
        let (ledger, instances, open_invoices) =
            (Ledger::default(), ByNamespace::default(), ByNamespace::default());
        let backups = BackupIndex::new(backup_queue.clone());
        let invoices = InvoiceController::new(invoice::Deps {
            client: watches.client.clone(),
            namespace: common.namespace.clone(),
            directory: directory.clone(),
            ledger: ledger.clone(),
            instances: instances.clone(),
            invoices: open_invoices.clone(),
            backups: backups.clone(),
            outbox: webhooks.outbox(),
            catalogue: catalogue.clone(),
            clock: clock.clone(),
            server_time,
            metrics: watches.metrics.clone(),
            events: Events::new(watches.client.clone(), "invoice-controller", &identity),
        });
        Ok(Self {
            accounts: AccountController::new(account::Deps {
                client: watches.client.clone(),
                namespace: common.namespace.clone(),
                service_account: settings.service_account.clone(),
                api_service_account: settings.api_service_account.clone(),
                quotas: account::DefaultQuotas {
                    instances: common.default_instance_quota,
                    api_keys: common.api_keys_per_account,
                    backups: common.backups_per_account,
                    unfinished_deliveries: settings.delivery.pending_deliveries_per_account
                        + settings.delivery.held_deliveries_per_account,
                    finished_deliveries: settings.delivery.delivery_retention,
                },
                ledger: ledger.clone(),
                has_mail,
                identity: identity.clone(),
                metrics: watches.metrics.clone(),
                clock: clock.clone(),
            }),
            monitor: Monitor::new(
                usize::try_from(settings.monitoring.monitoring_series).unwrap_or(usize::MAX),
                clock.now(),
            ),
            own_answers: LeaderSlot::default(),
            settings,
            common: common.clone(),
            catalogue,
            identity,
            directory,
            queue,
            instances,
            backups,
            backup_queue,
            ledger,
            invoices,
            open_invoices,
            invoice_queue: ReconcileQueue::default(),
            webhooks,
            watches: watches.clone(),
            clock,
        })
    }

    /// The listeners for the watch of Instances. They include `by_namespace`.
    fn on_instances(&self, by_namespace: &ByNamespace<Instance>) -> [Box<dyn Listener<Instance>>; 8] {
        let [invoices_before, invoices_after] = self.invoices.instance_listeners();
        [
            self.webhooks.outbox_listener(),
            self.accounts.content_listener(),
            Box::new(self.queue.clone()),
            invoices_before,
            Box::new(by_namespace.clone()),
            self.monitor.listener(),
            invoices_after,
            backup::instance_listener(self.backups.clone(), self.backup_queue.clone()),
        ]
    }

    /// The listeners for the watch of Backups. The index comes first: the others look backups up in it.
    fn on_backups(&self) -> [Box<dyn Listener<Backup>>; 5] {
        [
            self.backups.listener(),
            self.webhooks.outbox_listener(),
            self.accounts.content_listener(),
            Box::new(self.backup_queue.clone()),
            self.invoices.backup_listener(),
        ]
    }

    /// The listeners for the watch of Invoices.
    fn on_invoices(&self) -> Vec<Box<dyn Listener<Invoice>>> {
        vec![
            self.webhooks.outbox_listener(),
            Box::new(self.open_invoices.clone()),
            Box::new(self.invoice_queue.clone()),
        ]
    }

    /// The listeners for the watch of Accounts.
    fn on_accounts(&self, instances: ByNamespace<Instance>) -> [Box<dyn Listener<Account>>; 3] {
        let owner_changed = self.webhooks.owner_changed();
        let (queue, backup_queue) = (self.queue.clone(), self.backup_queue.clone());
        let backups = self.backups.clone();
        let directory = self.directory.listener(move |namespace| {
            owner_changed(namespace);
            queue.again(instances.of(namespace));
            backup_queue.again(backups.within(namespace));
        });
        [
            self.accounts.account_listener(),
            directory,
            self.invoices.account_listener(),
        ]
    }

    /// The simulator; the addresses of the known instances are taken.
    fn simulator(&self, instances: &Store<Instance>) -> Arc<Simulator> {
        let pools = Pools {
            ipv4: self.settings.simulator_ipv4,
            ipv6: self.settings.simulator_ipv6,
        };
        let faults = Faults::new(self.common.simulator_faults);
        let known = instances.state();
        let known = known.iter().map(|instance| &**instance);
        Arc::new(Simulator::new(self.common.timings(), pools, faults, known))
    }

    fn provider_timeout(&self) -> Duration {
        Duration::from_secs(self.settings.provider_timeout_seconds)
    }

    fn instance_controller(&self, provider: Arc<Simulator>) -> InstanceController<Simulator> {
        let (client, directory) = (self.watches.client.clone(), self.directory.clone());
        InstanceController {
            provider,
            holder_of: Arc::new(move |namespace| directory.holder_of(namespace)),
            backups: self.backups.clone(),
            monitor: self.monitor.clone(),
            ledger: self.ledger.clone(),
            outbox: self.webhooks.outbox(),
            catalogue: self.catalogue.clone(),
            timings: self.common.timings(),
            clock: self.clock.clone(),
            metrics: self.watches.metrics.clone(),
            events: Events::new(client.clone(), "instance-controller", &self.identity),
            client,
            concurrency: self.settings.concurrency,
            write_concurrency: self.settings.write_concurrency,
            provider_timeout: self.provider_timeout(),
        }
    }

    fn backup_controller(
        &self,
        provider: Arc<Simulator>,
        instances: Store<Instance>,
    ) -> BackupController<Simulator> {
        let client = self.watches.client.clone();
        BackupController {
            provider,
            directory: self.directory.clone(),
            outbox: self.webhooks.outbox(),
            index: self.backups.clone(),
            instances,
            instance_queue: self.queue.clone(),
            limits: backups::Limits {
                per_instance: usize::try_from(self.common.backups_per_instance).unwrap_or(usize::MAX),
                per_account: usize::try_from(self.common.backups_per_account).unwrap_or(usize::MAX),
            },
            clock: self.clock.clone(),
            metrics: self.watches.metrics.clone(),
            events: Events::new(client.clone(), "backup-controller", &self.identity),
            client,
            concurrency: self.settings.concurrency,
            write_concurrency: self.settings.write_concurrency,
            provider_timeout: self.provider_timeout(),
        }
    }

    fn monitoring_controller(&self, instances: Store<Instance>) -> MonitoringController<SimulatedUsage> {
        let faults = Faults::new(self.common.simulator_faults);
        let settings = &self.settings.monitoring;
        MonitoringController {
            client: self.watches.client.clone(),
            namespace: self.common.namespace.clone(),
            usage: Arc::new(SimulatedUsage { faults }),
            monitor: self.monitor.clone(),
            catalogue: self.catalogue.clone(),
            queue: self.queue.clone(),
            instances,
            clock: self.clock.clone(),
            metrics: self.watches.metrics.clone(),
            concurrency: settings.sampling_concurrency,
            provider_timeout: self.provider_timeout(),
            shown: settings
                .instance_metrics
                .then(|| usize::try_from(settings.instance_metrics_limit).unwrap_or(usize::MAX)),
        }
    }

    /// Waits for the Lease, and runs the controllers while it is held.
    async fn lead(
        self,
        stores: Stores,
        usage_listener: TcpListener,
        own_ranges_read: Arc<SetOnce<()>>,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let Stores {
            accounts,
            instances,
            backups,
            webhooks,
            deliveries,
            invoices,
        } = stores;
        let Watches { client, metrics, .. } = self.watches.clone();
        let namespace = &self.common.namespace;
        let mut election = LeaderElection::new(client.clone(), namespace, &self.identity, metrics.clone())
            .with_times(self.settings.lease_times());
        let given = self.settings.monitoring.usage_address.as_deref();
        if let Some(address) = monitoring::advertised(&usage_listener, given) {
            election = election.with_annotation(ADDRESS_ANNOTATION, &address);
        }
        // Fill the caches before writing: an Account not listed yet must not be taken for a missing one.
        let warm = async {
            // Before that, receivers could have addresses of the cluster.
            own_ranges_read.wait().await;
            accounts
                .wait_until_ready()
                .await
                .and(instances.wait_until_ready().await)
                .and(backups.wait_until_ready().await)
                .and(webhooks.wait_until_ready().await)
                .and(deliveries.wait_until_ready().await)
                .and(invoices.wait_until_ready().await)
        };
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            ready = warm => ready.map_err(|_| ServeError::Ended("a watch"))?,
        }
        let Some(leadership) = election.acquire(&shutdown).await else {
            return Ok(());
        };

        let provider = self.simulator(&instances);
        let controller = self.instance_controller(provider.clone());
        let backup_controller = self.backup_controller(provider, instances.clone());
        let monitoring = self.monitoring_controller(instances.clone());
        let usage = monitoring.answers();
        self.own_answers.lead(usage.clone());
        let grace = self.common.shutdown_grace();
        let webhook_events = Events::new(client.clone(), "webhook-controller", &self.identity);
        let stores = webhook::Stores {
            webhooks,
            deliveries,
            sources: vec![
                webhook::Source::new(instances.clone(), self.queue.clone()),
                webhook::Source::new(backups.clone(), self.backup_queue.clone()),
                webhook::Source::new(invoices.clone(), self.invoice_queue.clone()),
            ],
        };
        // Open before the first instance is reconciled, so that its first event is already taken over.
        tokio::select! {
            () = shutdown.cancelled() => {
                leadership.release().await;
                return Ok(());
            }
            () = leadership.lost.cancelled() => return Err(ServeError::LeaseLost),
            () = self.webhooks.open(&stores, leadership.tenure.clone()) => {}
        }
        let work = async {
            tokio::join!(
                self.webhooks.run(webhook_events, shutdown.clone(), grace),
                self.invoices
                    .run(accounts.clone(), self.invoice_queue, invoices, shutdown.clone()),
                self.accounts.run(accounts, &self.watches, shutdown.clone()),
                controller.run(self.queue, instances, shutdown.clone()),
                backup_controller.run(self.backup_queue, backups, shutdown.clone()),
                key_copies::run(client, shutdown.clone()),
                monitoring.run(usage, usage_listener, shutdown.clone()),
            )
        };
        let overdue = async {
            shutdown.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            () = leadership.lost.cancelled() => return Err(ServeError::LeaseLost),
            _ = work => if !shutdown.is_cancelled() { return Err(ServeError::Ended("the controllers")) },
            () = overdue => tracing::warn!(?grace, "reconciles were still running when the grace period ended; the next leader repeats them"),
        }
        leadership.release().await;
        Ok(())
    }
}

/// A token that is cancelled `delay` after `shutdown`. Meanwhile `/readyz` fails, so that load balancers send no more requests, and
/// those that they have still sent are answered.
fn after_load_balancers(shutdown: &CancellationToken, delay: Duration, health: &Health) -> CancellationToken {
    if delay.is_zero() {
        return shutdown.clone();
    }
    let delayed = CancellationToken::new();
    let (shutdown, health, cancel) = (shutdown.clone(), health.clone(), delayed.clone());
    tokio::spawn(async move {
        shutdown.cancelled().await;
        health.expect("shutdown", "load balancers to stop sending requests");
        tokio::time::sleep(delay).await;
        cancel.cancel();
    });
    delayed
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind {
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
