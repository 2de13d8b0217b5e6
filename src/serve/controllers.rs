//! Standing for election, and running the controllers for a term as leader.

use std::{sync::Arc, time::Duration};

use kube::Client;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;

use super::ServeError;
use crate::settings::{CommonSettings, ControllerSettings};
use controllers::{
    account::{self, AccountController, AccountDirectory},
    api_key::ApiKeyController,
    backup::{self, BackupController, BackupIndex},
    census::Census,
    instance::InstanceController,
    invoice::{self, InvoiceController},
    ledger::Ledger,
    mail::Mailer,
    monitoring::{Monitor, MonitoringController},
    network::{NetworkController, Networks},
    notifier::{self, Notifier},
    webhook::{self, WebhookController},
};
use providers::{
    Clusters, Regions, UsageSource,
    simulator::{Faults, Pools, Simulator},
};
use resources::{Account, Backup, Delivery, Instance, Invoice, PrivateNetwork, Webhook};
use runtime::{
    ByNamespace, CheckedClock, Clock, Health, ReconcileQueue, ServerTime, Store,
    events::Events,
    installation_backup,
    lease::{self, LeaderElection, Leadership},
    shared_catalogue::SharedCatalogue,
    watch::{Listener, ListenerSlot, Watches},
    write_pressure::WritePressure,
};
use sender::{ReceiverClient, TargetRules};

/// The stores of the watches that the controllers need.
#[derive(Clone)]
pub(super) struct Stores {
    pub(super) accounts: Store<Account>,
    pub(super) instances: Store<Instance>,
    pub(super) networks: Store<PrivateNetwork>,
    pub(super) backups: Store<Backup>,
    pub(super) webhooks: Store<Webhook>,
    /// Unfinished deliveries.
    pub(super) deliveries: Store<Delivery>,
    /// Invoices that are not settled yet.
    pub(super) invoices: Store<Invoice>,
}

/// Where the controllers attach their listeners to these watches.
#[derive(Clone, Default)]
pub(super) struct Slots {
    pub(super) accounts: ListenerSlot<Account>,
    pub(super) instances: ListenerSlot<Instance>,
    pub(super) networks: ListenerSlot<PrivateNetwork>,
    pub(super) backups: ListenerSlot<Backup>,
    pub(super) webhooks: ListenerSlot<Webhook>,
    pub(super) deliveries: ListenerSlot<Delivery>,
    pub(super) invoices: ListenerSlot<Invoice>,
}

/// A replica that stands for election, leads when it is elected, and stands again when it has lost the Lease.
///
/// Each term starts afresh, with controllers that know only what the watches have shown: decisions of an earlier term that were
/// not written are forgotten, as after a restart. The watches and their stores stay.
pub(super) struct Candidate {
    pub(super) settings: ControllerSettings,
    pub(super) common: CommonSettings,
    /// The name of this process in Kubernetes Events.
    pub(super) identity: String,
    /// Where the controllers listen.
    pub(super) slots: Slots,
    /// Reports the usage of servers.
    usage: Arc<dyn UsageSource>,
    catalogue: SharedCatalogue,
    /// The clusters of the regions with real servers.
    clusters: Clusters,
    rules: TargetRules,
    receivers: ReceiverClient,
    mailer: Mailer,
    watches: Watches,
    clock: Arc<dyn Clock>,
    /// For times that are compared with the API server's.
    checked_clock: Arc<dyn Clock>,
    server_time: ServerTime,
}

impl Candidate {
    #[expect(clippy::too_many_arguments, reason = "the parts that it is made of")]
    pub(super) fn new(
        mut settings: ControllerSettings,
        common: &CommonSettings,
        catalogue: SharedCatalogue,
        usage: Arc<dyn UsageSource>,
        rules: TargetRules,
        watches: &Watches,
        clock: Arc<dyn Clock>,
        server_time: ServerTime,
    ) -> Result<Self, ServeError> {
        settings.delivery.delivery_log = common.delivery_log;
        settings.delivery.delivery_retention_hours = common.delivery_retention_hours;
        let mailer = Mailer::new(&settings.mail)?;
        watches.metrics.mail_configured.set(mailer.is_configured().into());
        Ok(Self {
            identity: lease::identity(settings.identity.as_deref()),
            receivers: ReceiverClient::new(common.receivers.client(), rules.clone())?,
            mailer,
            slots: Slots::default(),
            usage,
            settings,
            common: common.clone(),
            clusters: Clusters::new(catalogue.clone(), watches.metrics.clone(), clock.now()),
            catalogue,
            rules,
            watches: watches.clone(),
            checked_clock: Arc::new(CheckedClock::new(clock.clone(), server_time.clone())),
            clock,
            server_time,
        })
    }

    /// Publishes the Kubernetes Events of a controller.
    pub(super) fn events(&self, controller: &'static str) -> Events {
        self.events_behind(WritePressure::default(), controller)
    }

    /// The same, for one whose Events give way to what else it has to write.
    fn events_behind(&self, write_pressure: WritePressure, controller: &'static str) -> Events {
        let client = self.watches.client.clone();
        Events::behind(write_pressure, client, controller, &self.identity)
            .limited_to(self.common.process.kubernetes_events)
    }

    /// Watches that end with a term. Readiness does not wait for them: a replica that does not lead serves without them, and a
    /// leader that cannot list what they watch still serves the facade.
    pub(super) fn watches_of(&self, term: &CancellationToken) -> Watches {
        Watches {
            health: Health::default(),
            shutdown: term.clone(),
            ..self.watches.clone()
        }
    }

    /// Leads whenever this replica holds the Lease, until shutdown.
    pub(super) async fn stand(
        self,
        for_lease: Client,
        stores: Stores,
        own_ranges_read: Arc<SetOnce<()>>,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let metrics = &self.watches.metrics;
        let namespace = &self.common.process.namespace;
        // They are watched by every replica, so that a new leader knows at once what is there.
        tokio::spawn(self.clusters.clone().follow(self.watches.shutdown.clone()));
        let mut election = LeaderElection::new(for_lease, namespace, &self.identity, metrics.clone())
            .with_times(self.settings.lease_times());
        loop {
            // Ends everything that the controllers have started, however they end.
            let term = shutdown.child_token();
            let _over = term.clone().drop_guard();
            let controllers = Controllers::new(&self, &term);
            controllers.listen(&self.slots, &stores);
            // Fill the caches before writing: an Account not listed yet must not be taken for a missing one.
            let warm = async {
                // Until these are read, receivers could have addresses of the cluster.
                own_ranges_read.wait().await;
                stores
                    .accounts
                    .wait_until_ready()
                    .await
                    .and(stores.instances.wait_until_ready().await)
                    .and(stores.networks.wait_until_ready().await)
                    .and(stores.backups.wait_until_ready().await)
                    .and(stores.webhooks.wait_until_ready().await)
                    .and(stores.deliveries.wait_until_ready().await)
                    .and(stores.invoices.wait_until_ready().await)
            };
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                ready = warm => ready.map_err(|_| ServeError::Ended("a watch"))?,
            }
            let Some(leadership) = election.acquire(&shutdown).await else {
                return Ok(());
            };
            // On the heap, because it is large; there is only one.
            let leading = Box::pin(controllers.lead(leadership, stores.clone(), &term));
            match leading.await? {
                Term::Lost => {
                    tracing::warn!(
                        "lost the Lease: this replica has stopped all writing, and stands for election again"
                    );
                    metrics.resign();
                    // Requests that this term has sent may still arrive: wait like any other replica until its Lease has expired.
                    election = election.renamed(&lease::identity(self.settings.identity.as_deref()));
                }
                Term::Over => return Ok(()),
            }
        }
    }
}

/// How a term as leader ends.
enum Term {
    /// The Lease is lost: another replica may be writing.
    Lost,
    /// Everything was shut down in order.
    Over,
}

/// The controllers of one term, and what they need to run.
struct Controllers<'a> {
    candidate: &'a Candidate,
    accounts: AccountController,
    directory: AccountDirectory,
    queue: ReconcileQueue<Instance>,
    instances: ByNamespace<Instance>,
    networks: Networks,
    network_queue: ReconcileQueue<PrivateNetwork>,
    backups: BackupIndex,
    backup_queue: ReconcileQueue<Backup>,
    ledger: Ledger,
    invoices: InvoiceController,
    invoice_queue: ReconcileQueue<Invoice>,
    webhooks: WebhookController,
    notifier: Notifier,
    monitor: Arc<Monitor>,
    /// They end with the term.
    watches: Watches,
}

impl<'a> Controllers<'a> {
    /// Controllers that do nothing until they [listen](Self::listen) and [lead](Self::lead).
    fn new(candidate: &'a Candidate, term: &CancellationToken) -> Self {
        let Candidate {
            settings,
            common,
            catalogue,
            clock,
            server_time,
            ..
        } = candidate;
        let watches = candidate.watches_of(term);
        let (directory, queue) = (AccountDirectory::default(), ReconcileQueue::default());
        let backup_queue = ReconcileQueue::default();
        let webhooks = WebhookController::new(webhook::Deps {
            client: watches.client.clone(),
            receivers: candidate.receivers.clone(),
            rules: candidate.rules.clone(),
            directory: directory.clone(),
            settings: settings.delivery.clone(),
            write_concurrency: settings.write_concurrency,
            metrics: watches.metrics.clone(),
            clock: clock.clone(),
            server_time: server_time.clone(),
        });
        let notifier = Notifier::new(notifier::Deps {
            client: watches.client.clone(),
            mailer: candidate.mailer.clone(),
            limits: settings.mail.limits(),
            directory: directory.clone(),
            metrics: watches.metrics.clone(),
            clock: clock.clone(),
        });
        let (ledger, instances) = (Ledger::default(), ByNamespace::default());
        let backups = BackupIndex::new(backup_queue.clone());
        let invoices = InvoiceController::new(invoice::Deps {
            client: watches.client.clone(),
            namespace: common.process.namespace.clone(),
            directory: directory.clone(),
            ledger: ledger.clone(),
            instances: instances.clone(),
            settings: settings.invoices.settings(),
            backups: backups.clone(),
            outbox: webhooks.outbox(),
            catalogue: catalogue.clone(),
            clock: clock.clone(),
            server_time: server_time.clone(),
            metrics: watches.metrics.clone(),
            events: candidate.events("invoice-controller"),
        });
        Self {
            candidate,
            accounts: AccountController::new(account::Deps {
                client: watches.client.clone(),
                namespace: common.process.namespace.clone(),
                installation: settings.installation.clone(),
                service_account: settings.service_account.clone(),
                api_service_account: settings.api_service_account.clone(),
                quotas: account::DefaultQuotas {
                    instances: common.default_instance_quota,
                    api_keys: common.api_keys_per_account,
                    private_networks: common.private_networks_per_account,
                    backups: common.backups_per_account,
                    unfinished_deliveries: settings.delivery.pending_deliveries_per_account
                        + settings.delivery.held_deliveries_per_account,
                    finished_deliveries: settings.delivery.delivery_retention,
                },
                clusters: candidate.clusters.clone(),
                ledger: ledger.clone(),
                has_mail: candidate.mailer.is_configured(),
                events: candidate.events("account-controller"),
                metrics: watches.metrics.clone(),
                clock: clock.clone(),
            }),
            monitor: Monitor::new(clock.now()),
            directory,
            queue,
            networks: Networks::new(instances.clone()),
            network_queue: ReconcileQueue::default(),
            instances,
            backups,
            backup_queue,
            ledger,
            invoices,
            invoice_queue: ReconcileQueue::default(),
            webhooks,
            notifier,
            watches,
        }
    }

    /// Attaches these controllers to the watches, and detaches those of an earlier term.
    fn listen(&self, slots: &Slots, stores: &Stores) {
        let listeners = self.webhooks.listeners();
        let [untold, changed] = self.notifier.listeners();
        slots
            .webhooks
            .fill(vec![listeners.webhooks, untold, changed], &stores.webhooks);
        slots
            .deliveries
            .fill(vec![listeners.deliveries], &stores.deliveries);
        slots.invoices.fill(self.on_invoices(), &stores.invoices);
        slots.instances.fill(self.on_instances(), &stores.instances);
        slots.networks.fill(self.on_networks(), &stores.networks);
        slots.backups.fill(self.on_backups(), &stores.backups);
        slots.accounts.fill(self.on_accounts(), &stores.accounts);
    }

    /// The listeners for the watch of Instances.
    fn on_instances(&self) -> Vec<Box<dyn Listener<Instance>>> {
        let [invoices_before, invoices_after] = self.invoices.instance_listeners();
        vec![
            self.webhooks.outbox_listener(),
            self.accounts.content_listener(),
            Box::new(self.queue.clone()),
            invoices_before,
            Box::new(self.instances.clone()),
            self.networks.instance_listener(self.network_queue.clone()),
            self.monitor.listener(),
            invoices_after,
            backup::instance_listener(self.backups.clone(), self.backup_queue.clone()),
        ]
    }

    /// The listeners for the watch of `PrivateNetworks`. The index comes first: the others look networks up in it.
    fn on_networks(&self) -> Vec<Box<dyn Listener<PrivateNetwork>>> {
        let [index, waiting] = self
            .networks
            .listeners(self.network_queue.clone(), self.queue.clone());
        vec![
            index,
            self.accounts.content_listener(),
            Box::new(self.network_queue.clone()),
            waiting,
        ]
    }

    /// The listeners for the watch of Backups. The index comes first: the others look backups up in it.
    fn on_backups(&self) -> Vec<Box<dyn Listener<Backup>>> {
        vec![
            self.backups.listener(),
            backup::backup_listener(self.instances.clone(), self.queue.clone()),
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
            self.invoices.invoice_listener(),
            Box::new(self.invoice_queue.clone()),
        ]
    }

    /// The listeners for the watch of Accounts.
    fn on_accounts(&self) -> Vec<Box<dyn Listener<Account>>> {
        let owner_changed = self.webhooks.owner_changed();
        let (queue, backup_queue) = (self.queue.clone(), self.backup_queue.clone());
        let (instances, backups) = (self.instances.clone(), self.backups.clone());
        let (networks, network_queue) = (self.networks.clone(), self.network_queue.clone());
        let directory = self.directory.listener(move |namespace| {
            owner_changed(namespace);
            queue.again(instances.of(namespace));
            network_queue.again(networks.of(namespace));
            backup_queue.again(backups.within(namespace));
        });
        vec![
            self.accounts.account_listener(),
            directory,
            self.invoices.account_listener(),
        ]
    }

    /// The provider of all regions. The addresses of the known instances count as taken.
    fn provider(&self, instances: &Store<Instance>) -> Arc<Regions> {
        let pools = Pools {
            ipv4: self.candidate.settings.simulator_ipv4,
            ipv6: self.candidate.settings.simulator_ipv6,
        };
        let faults = Faults::new(self.candidate.common.simulator_faults);
        let known = instances.state();
        let known = known.iter().map(|instance| &**instance);
        let simulator = Simulator::new(self.candidate.common.timings(), pools, faults, known)
            .with_metrics(&self.watches.metrics);
        Arc::new(Regions::new(simulator, self.candidate.clusters.clone()))
    }

    fn provider_timeout(&self) -> Duration {
        Duration::from_secs(self.candidate.settings.provider_timeout_seconds)
    }

    fn instance_controller(&self, provider: Arc<Regions>) -> InstanceController<Regions> {
        let client = self.watches.client.clone();
        let write_pressure = WritePressure::default();
        InstanceController {
            provider,
            directory: self.directory.clone(),
            instances: self.instances.clone(),
            backups: self.backups.clone(),
            networks: self.networks.clone(),
            monitor: self.monitor.clone(),
            ledger: self.ledger.clone(),
            invoices: self.candidate.settings.invoices.settings(),
            outbox: self.webhooks.outbox(),
            catalogue: self.candidate.catalogue.clone(),
            clock: self.candidate.checked_clock.clone(),
            metrics: self.watches.metrics.clone(),
            events: self
                .candidate
                .events_behind(write_pressure.clone(), "instance-controller"),
            write_pressure,
            client,
            concurrency: self.candidate.settings.concurrency,
            write_concurrency: self.candidate.settings.write_concurrency,
            provider_timeout: self.provider_timeout(),
        }
    }

    fn backup_controller(
        &self,
        provider: Arc<Regions>,
        instances: Store<Instance>,
    ) -> BackupController<Regions> {
        let client = self.watches.client.clone();
        BackupController {
            provider,
            directory: self.directory.clone(),
            outbox: self.webhooks.outbox(),
            index: self.backups.clone(),
            instances,
            instances_of: self.instances.clone(),
            instance_queue: self.queue.clone(),
            catalogue: self.candidate.catalogue.clone(),
            limits: domain::backup::BackupLimits {
                per_instance: usize::try_from(self.candidate.common.backups_per_instance)
                    .unwrap_or(usize::MAX),
                per_account: usize::try_from(self.candidate.common.backups_per_account).unwrap_or(usize::MAX),
            },
            clock: self.candidate.checked_clock.clone(),
            metrics: self.watches.metrics.clone(),
            events: self.candidate.events("backup-controller"),
            client,
            concurrency: self.candidate.settings.concurrency,
            write_concurrency: self.candidate.settings.write_concurrency,
            provider_timeout: self.provider_timeout(),
        }
    }

    fn network_controller(&self, provider: Arc<Regions>) -> NetworkController<Regions> {
        NetworkController {
            client: self.watches.client.clone(),
            provider,
            directory: self.directory.clone(),
            networks: self.networks.clone(),
            catalogue: self.candidate.catalogue.clone(),
            clock: self.candidate.checked_clock.clone(),
            metrics: self.watches.metrics.clone(),
            concurrency: self.candidate.settings.concurrency,
            provider_timeout: self.provider_timeout(),
        }
    }

    fn api_key_controller(&self) -> ApiKeyController {
        ApiKeyController {
            client: self.watches.client.clone(),
            directory: self.directory.clone(),
            metrics: self.watches.metrics.clone(),
            clock: self.candidate.clock.clone(),
        }
    }

    fn monitoring_controller(&self) -> MonitoringController {
        let settings = &self.candidate.settings.monitoring;
        MonitoringController {
            usage: self.candidate.usage.clone(),
            monitor: self.monitor.clone(),
            catalogue: self.candidate.catalogue.clone(),
            queue: self.queue.clone(),
            clock: self.candidate.clock.clone(),
            metrics: self.watches.metrics.clone(),
            concurrency: settings.sampling_concurrency,
            provider_timeout: self.provider_timeout(),
            shown: settings
                .instance_metrics
                .then(|| usize::try_from(settings.instance_metrics_limit).unwrap_or(usize::MAX)),
        }
    }

    /// Runs the controllers while the Lease is held, until shutdown ends the `term`.
    async fn lead(
        self,
        leadership: Leadership,
        stores: Stores,
        term: &CancellationToken,
    ) -> Result<Term, ServeError> {
        let Stores {
            accounts,
            instances,
            networks,
            backups,
            webhooks,
            deliveries,
            invoices,
        } = stores;
        let provider = self.provider(&instances);
        let controller = self.instance_controller(provider.clone());
        let network_controller = self.network_controller(provider.clone());
        let backup_controller = self.backup_controller(provider.clone(), instances.clone());
        let census = Census {
            accounts: accounts.clone(),
            instances: instances.clone(),
            backups: backups.clone(),
            invoices: invoices.clone(),
            catalogue: self.candidate.catalogue.clone(),
            provider,
            clock: self.candidate.clock.clone(),
            metrics: self.watches.metrics.clone(),
        };
        let monitoring = self.monitoring_controller();
        let api_keys = self.api_key_controller();
        let grace = self.candidate.common.process.shutdown_grace();
        let webhook_events = self.candidate.events("webhook-controller");
        let notifier_events = self.candidate.events("notifier");
        let (shown_webhooks, tenure) = (webhooks.clone(), leadership.tenure.clone());
        let vacant_since = leadership.vacant_since;
        let stores = webhook::Stores {
            webhooks,
            deliveries,
            sources: vec![
                webhook::Source::new(instances.clone(), self.queue.clone()),
                webhook::Source::new(backups.clone(), self.backup_queue.clone()),
                webhook::Source::new(invoices.clone(), self.invoice_queue.clone()),
            ],
        };
        // Open the webhooks before the first instance is reconciled, so that its first event is already taken over.
        tokio::select! {
            () = term.cancelled() => {
                leadership.release().await;
                return Ok(Term::Over);
            }
            () = leadership.lost.cancelled() => return Ok(Term::Lost),
            () = self.webhooks.open(&stores, leadership.tenure.clone()) => {}
        }
        let work = async {
            tokio::join!(
                self.webhooks.run(webhook_events, term.clone(), grace),
                self.notifier
                    .run(shown_webhooks, tenure, notifier_events, term.clone()),
                self.invoices
                    .run(accounts.clone(), self.invoice_queue, invoices, term.clone()),
                self.accounts.run(accounts, &self.watches, term.clone()),
                api_keys.run(&self.watches, term.clone()),
                controller.run(self.queue, instances, term.clone()),
                network_controller.run(self.network_queue, networks, term.clone()),
                backup_controller.run(self.backup_queue, backups, term.clone()),
                monitoring.run(term.clone()),
                census.run(vacant_since, term),
                installation_backup::show_age(
                    &self.watches.client,
                    &self.candidate.common.process.namespace,
                    &*self.candidate.clock,
                    &self.watches.metrics,
                    term,
                ),
            )
        };
        let overdue = async {
            term.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            () = leadership.lost.cancelled() => return Ok(Term::Lost),
            _ = work => if !term.is_cancelled() { return Err(ServeError::Ended("the controllers")) },
            () = overdue => tracing::warn!(?grace, "reconciles were still running when the grace period ended; the next leader repeats them"),
        }
        leadership.release().await;
        Ok(Term::Over)
    }
}
