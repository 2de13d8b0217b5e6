//! The metrics of the program, in Prometheus's text format. Label values are static words and the regions of the
//! catalogue, never names of objects, except in [`instance_metrics`](super::instance_metrics).

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use http::Method;
use jiff::{SignedDuration, Timestamp};
use prometheus_client::{
    encoding::{EncodeLabelSet, prometheus_text, text},
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};

use resources::InstanceState;

use super::{instance_metrics::InstanceMetrics, recent_accounts::RecentAccounts};

/// Labels of a REST request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// HTTP method.
    pub method: &'static str,
    /// Route with placeholders, such as `/v1/instances/{id}`.
    pub route: &'static str,
    /// Status code.
    pub status: u16,
}

/// Labels of a REST route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// Route with placeholders.
    pub route: &'static str,
}

/// Label for metrics by kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KindLabels {
    /// The kind, such as `Instance`.
    pub kind: &'static str,
}

/// Labels of a finished reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReconcileLabels {
    /// The kind, such as `Instance`.
    pub kind: &'static str,
    /// `ok`, or the static label of the error.
    pub outcome: &'static str,
}

/// Labels of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AddressLabels {
    /// Code of the region, or `simulated`.
    region: String,
    /// `ipv4`.
    family: &'static str,
}

/// Labels of a provider call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ProviderLabels {
    /// The provider.
    pub provider: &'static str,
    /// `ok`, or the reason of the error.
    pub outcome: &'static str,
}

/// Label for metrics by HTTP method.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct MethodLabels {
    /// HTTP method.
    pub method: &'static str,
}

/// Labels of a request to the API server of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct KubernetesLabels {
    /// HTTP method.
    pub method: &'static str,
    /// Status code; 0 if there was no answer in time.
    pub status: u16,
}

/// Label for metrics by resource of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResourceLabels {
    /// The resource as it is in paths, such as `instances`.
    pub resource: String,
}

/// Label of the receipts of events.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReceiverLabels {
    /// `healthy`, or `failing` if the receiver or its account holder delayed it.
    pub receiver: &'static str,
}

/// Label of dropped deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabels {
    /// The limit that left no room: that of the `webhook`, of the `account` or of `all`.
    pub limit: &'static str,
}

/// Labels of the numbers of instances.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct StateLabels {
    /// Code of the region, or `simulated`.
    pub region: String,
    pub state: &'static str,
}

/// Label for metrics by outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// The outcome, as a static word.
    pub outcome: &'static str,
}

/// Label for metrics by region: the code of one whose servers run in a cluster with KubeVirt, or `simulated` for all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RegionLabels {
    pub region: String,
}

/// The time within which a server has to run after its creation was requested, for the objective of the chart's alerts.
pub const CREATED_IN_TIME: Duration = Duration::from_mins(5);

/// The method as a label; `other` for methods that are not expected, since anybody can make them up.
pub fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Buckets from a tenth of a millisecond to half a minute.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.5, 14))
}

/// Buckets from a tenth of a second, for what may wait behind others, to the end of the retry schedule.
fn receipt_seconds() -> Histogram {
    Histogram::new([
        0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43_200.0,
    ])
}

/// Buckets from a second to an hour.
fn create_seconds() -> Histogram {
    let in_time = CREATED_IN_TIME.as_secs_f64();
    Histogram::new([
        1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 180.0, in_time, 600.0, 900.0, 1800.0, 3600.0,
    ])
}

/// Buckets from a microsecond to a second.
fn short_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_001, 2.0, 21))
}

/// Declares the metrics of each group, and the function that registers the group: each with its initial value if that is not the
/// default, its name without prefix and suffix, and its help.
macro_rules! metrics {
    (@initial $type:ty) => { <$type>::default() };
    (@initial $type:ty, $value:expr) => { $value };
    ($($register:ident {
        $($vis:vis $field:ident: $type:ty $(= $value:expr)? => $name:literal, $help:literal;)*
    })*) => {
        /// Every metric of the program. Cheap to clone.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            registry: Arc<Registry>,
            /// The usage of instances, where it is shown.
            pub instances: InstanceMetrics,
            $($(#[doc = $help] $vis $field: $type,)*)*
        }

        impl Metrics {
            fn unregistered() -> Self {
                Self {
                    registry: Arc::default(),
                    instances: InstanceMetrics::default(),
                    $($($field: metrics!(@initial $type $(, $value)?),)*)*
                }
            }

            $(fn $register(&self, registry: &mut Registry) {
                $(registry.register($name, $help, self.$field.clone());)*
            })*
        }
    };
}

metrics! {
    register_common {
        pub watch_errors: Family<KindLabels, Counter> => "watch_errors", "Errors of watches";
        pub watch_last_response: Family<ResourceLabels, Gauge<f64, AtomicU64>> =>
            "watch_last_response_timestamp_seconds", "Unix time of the API server's last answer to a watch";
        pub kubernetes_requests: Family<KubernetesLabels, Counter> =>
            "kubernetes_requests", "Requests to the API server of Kubernetes, but for watches";
        pub kubernetes_seconds: Family<MethodLabels, Histogram> = Family::new_with_constructor(seconds) =>
            "kubernetes_request_duration_seconds", "Time until the head of the API server's answer";
        pub invalid_objects: Family<KindLabels, Counter> =>
            "invalid_objects", "Objects seen that do not match their schema";
        pub objects: Family<KindLabels, Gauge> => "objects", "Objects held in memory";
        pub catalogue_reloads: Family<OutcomeLabels, Counter> =>
            "catalogue_reloads", "Changes of the catalogue's file";
        pub trace_exports: Family<OutcomeLabels, Counter> =>
            "trace_exports", "Requests to the receiver of traces";
        certificate_expiry: Family<Vec<(String, String)>, Gauge> =>
            "certificate_expiry_timestamp_seconds", "Unix time of the end of the certificate that is served";
    }
    register_facade {
        pub requests: Family<RequestLabels, Counter> => "http_requests", "REST requests answered";
        pub request_seconds: Family<RouteLabels, Histogram> = Family::new_with_constructor(seconds) =>
            "http_request_duration_seconds", "Time until the head of a REST response";
        pub accounts_with_failed_requests: RecentAccounts =>
            "accounts_with_failed_requests", "Accounts of which a REST request got a status of 500 or more within that time";
        pub accounts_with_slow_requests: RecentAccounts =>
            "accounts_with_slow_requests", "Accounts of which a REST request took more than two seconds within that time";
        pub api_ready: Gauge => "api_ready", "1 while /readyz of this replica of the REST API answers 200";
    }
    register_controllers {
        pub reconciles: Family<ReconcileLabels, Counter> => "reconciles", "Reconciles finished";
        pub reconcile_seconds: Family<KindLabels, Histogram> = Family::new_with_constructor(seconds) =>
            "reconcile_duration_seconds", "Time of a reconcile";
        pub queue_depth: Family<KindLabels, Gauge> =>
            "reconcile_queue_depth", "Reconciles that run or wait for their turn";
        pub provider_calls: Family<ProviderLabels, Counter> => "provider_calls", "Provider calls";
        pub provider_seconds: Histogram = seconds() =>
            "provider_call_duration_seconds", "Time of a provider call";
        addresses_free: Family<AddressLabels, Gauge> =>
            "addresses_free", "Addresses that servers can still get";
        addresses_used: Family<AddressLabels, Gauge> => "addresses_used", "Addresses that servers have";
        pub mails: Family<OutcomeLabels, Counter> =>
            "mails", "E-mails to account holders about their webhooks";
        pub mail_configured: Gauge => "mail_configured", "1 if there is a mail server";
        pub leader: Gauge => "leader", "1 while this replica is the leader";
        pub lease_transitions: Gauge => "lease_transitions", "How often the Lease has changed its holder";

        pub instance_states: Family<StateLabels, Gauge> =>
            "instances", "Accepted instances by region and state";
        pub create_seconds: Family<RegionLabels, Histogram> = Family::new_with_constructor(create_seconds) =>
            "instance_create_duration_seconds", "Time from the request for a server until it runs";
        pub creates_late: Family<RegionLabels, Counter> =>
            "instance_creates_late", "Servers that did not run within five minutes of the request";
        pub accounts_with_late_creates: RecentAccounts =>
            "accounts_with_late_creates", "Accounts with a server that became late within that time";
        pub accounts_with_provider_failures: Family<RegionLabels, Gauge> =>
            "accounts_with_provider_failures", "Accounts with an instance whose last provider call failed";
        pub accounts_not_ready: Gauge => "accounts_not_ready", "Accounts that are not ready";
        pub accounts_with_failed_backups: Gauge =>
            "accounts_with_failed_backups", "Accounts with a backup that failed within six hours, and not because of the customer";
        pub backups: Family<OutcomeLabels, Counter> => "backups", "Backups that ended";
        pub last_backup: Family<RegionLabels, Gauge<f64, AtomicU64>> =>
            "backup_last_completed_timestamp_seconds", "Unix time of the last completed backup";
        installation_backup_age: Family<Vec<(String, String)>, Gauge<f64, AtomicU64>> =>
            "installation_backup_age_seconds", "Time since the last good backup of the installation, or since backups were set up";
        pub invoices_overdue: Gauge =>
            "invoices_overdue", "Invoices that should have been issued an hour ago";

        pub delivery_attempts: Family<OutcomeLabels, Counter> =>
            "delivery_attempts", "Attempts to deliver an event";
        pub delivery_seconds: Histogram = seconds() =>
            "delivery_attempt_duration_seconds", "Time of an attempt to deliver";
        pub delivery_writes: Family<OutcomeLabels, Counter> => "delivery_writes", "Writes of Deliveries";
        pub event_log_writes: Family<OutcomeLabels, Counter> =>
            "event_log_writes", "Writes of pages of the event log";
        pub deliveries_pending: Gauge => "deliveries_pending", "Deliveries that wait for an attempt";
        pub deliveries_held: Gauge =>
            "deliveries_held", "Deliveries held until their webhook can receive them";
        pub deliveries_dropped: Family<LimitLabels, Counter> =>
            "deliveries_dropped", "Deliveries dropped because there were too many";
        pub event_receipt_seconds: Family<ReceiverLabels, Histogram> = Family::new_with_constructor(receipt_seconds) =>
            "event_receipt_delay_seconds", "Time from an event to its receipt by a webhook";
        pub accounts_with_late_events: RecentAccounts =>
            "accounts_with_late_events", "Accounts with a healthy receiver that got an event late within that time";
        pub oldest_owed_seconds: Gauge<f64, AtomicU64> =>
            "oldest_owed_delivery_age_seconds", "Time since the oldest event that is owed to a webhook";
        pub accounts_with_disabled_webhooks: Gauge =>
            "accounts_with_disabled_webhooks", "Accounts with a disabled webhook";
        pub webhooks_disabled: Gauge => "webhooks_disabled", "Disabled webhooks";
        pub webhook_lock_seconds: Histogram = short_seconds() =>
            "webhook_lock_hold_seconds", "Time for which the lock of the webhook controller's state was held";

        pub usage_samples: Family<OutcomeLabels, Counter> =>
            "usage_samples", "Samples of the usage of monitored instances";
        pub monitored_instances: Gauge => "monitored_instances", "Monitored instances";

        pub region_up: Family<RegionLabels, Gauge> =>
            "region_up", "1 while the cluster of a region can be reached and its state is known";
        pub region_servers: Family<RegionLabels, Gauge> =>
            "region_servers", "Servers in the cluster of a region";
        pub orphan_servers: Family<RegionLabels, Gauge> =>
            "orphan_servers", "Servers in the cluster of a region that belong to no instance";
        pub operations_overdue: Family<RegionLabels, Gauge> =>
            "operations_overdue", "Operations that have not ended within their deadline";
        pub lost_starts: Family<RegionLabels, Counter> =>
            "kubevirt_lost_starts", "Starts that KubeVirt lost, and that were repeated";
        pub servers_interrupted: Family<RegionLabels, Counter> =>
            "servers_interrupted", "Servers shut down because their node was drained or their Pod was deleted";
        pub servers_crashed: Family<RegionLabels, Counter> =>
            "servers_crashed", "Servers that ended without being shut down";
    }
}

impl Metrics {
    /// Counts a reconcile of an object of this kind, and how long it took. `outcome` is `ok` or the label of an error.
    pub fn reconciled(&self, kind: &'static str, took: Duration, outcome: &'static str) {
        self.reconcile_seconds
            .get_or_create_owned(&KindLabels { kind })
            .observe(took.as_secs_f64());
        self.reconciles
            .get_or_create_owned(&ReconcileLabels { kind, outcome })
            .inc();
    }

    /// Counts a call of a provider, and how long it took. `outcome` is `ok` or the reason of an error.
    pub fn provider_called(&self, provider: &'static str, took: Duration, outcome: &'static str) {
        self.provider_seconds.observe(took.as_secs_f64());
        self.provider_calls
            .get_or_create_owned(&ProviderLabels { provider, outcome })
            .inc();
    }

    /// Shows how many addresses of a region, or of all simulated servers, are free, and how many servers have.
    pub fn show_addresses(&self, region: &str, family: &'static str, free: u64, used: u64) {
        let labels = AddressLabels {
            region: region.to_owned(),
            family,
        };
        for (gauge, number) in [(&self.addresses_free, free), (&self.addresses_used, used)] {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            gauge.get_or_create(&labels).set(number);
        }
    }

    /// Counts a server that runs, this long after it was requested.
    pub fn created(&self, region: &str, took: Duration) {
        let region = region.to_owned();
        self.create_seconds
            .get_or_create_owned(&RegionLabels { region })
            .observe(took.as_secs_f64());
    }

    /// Shows a completed backup, unless there is a later one.
    pub fn backed_up(&self, region: &str, at: Timestamp) {
        let region = region.to_owned();
        let gauge = self.last_backup.get_or_create_owned(&RegionLabels { region });
        gauge.set(gauge.get().max(at.as_duration().as_secs_f64()));
    }

    /// Shows when the certificate of this process ends.
    pub fn certificate_ends(&self, at: Timestamp) {
        self.certificate_expiry
            .get_or_create_owned(&Vec::new())
            .set(at.as_second());
    }

    /// Shows nothing more of a region, whose cluster the catalogue does not name any more.
    pub fn forget_region(&self, region: &str) {
        let labels = RegionLabels {
            region: region.to_owned(),
        };
        for gauge in [
            &self.region_up,
            &self.region_servers,
            &self.orphan_servers,
            &self.operations_overdue,
            &self.accounts_with_provider_failures,
        ] {
            gauge.remove(&labels);
        }
        self.create_seconds.remove(&labels);
        self.last_backup.remove(&labels);
        for state in InstanceState::ALL {
            self.instance_states.remove(&StateLabels {
                region: region.to_owned(),
                state: state.as_str(),
            });
        }
        for counter in [
            &self.lost_starts,
            &self.servers_interrupted,
            &self.servers_crashed,
            &self.creates_late,
        ] {
            counter.remove(&labels);
        }
        let labels = AddressLabels {
            region: region.to_owned(),
            family: "ipv4",
        };
        for gauge in [&self.addresses_free, &self.addresses_used] {
            gauge.remove(&labels);
        }
    }

    /// Shows how old the last good backup of the installation is; `None` if none is planned.
    pub fn backup_age(&self, age: Option<SignedDuration>) {
        match age {
            Some(age) => {
                let shown = self.installation_backup_age.get_or_create_owned(&Vec::new());
                shown.set(age.as_secs_f64());
            }
            None => self.installation_backup_age.clear(),
        }
    }

    /// Resets what only the leader knows: from now on another replica shows it.
    pub fn resign(&self) {
        for gauge in [
            &self.leader,
            &self.deliveries_pending,
            &self.deliveries_held,
            &self.webhooks_disabled,
            &self.accounts_with_disabled_webhooks,
            &self.accounts_not_ready,
            &self.accounts_with_failed_backups,
            &self.invoices_overdue,
            &self.monitored_instances,
        ] {
            gauge.set(0);
        }
        self.oldest_owed_seconds.set(0.0);
        self.instance_states.clear();
        self.accounts_with_provider_failures.clear();
        self.last_backup.clear();
        self.installation_backup_age.clear();
        self.queue_depth.clear();
        self.orphan_servers.clear();
        self.operations_overdue.clear();
        self.addresses_free.clear();
        self.addresses_used.clear();
        self.instances.hide();
    }

    /// Counts a request to the API server. `status` is `None` if there was no answer in time.
    pub fn kubernetes_answered(&self, method: &Method, status: Option<u16>, took: Duration) {
        let method = method_label(method);
        let status = status.unwrap_or(0);
        self.kubernetes_seconds
            .get_or_create_owned(&MethodLabels { method })
            .observe(took.as_secs_f64());
        self.kubernetes_requests
            .get_or_create_owned(&KubernetesLabels { method, status })
            .inc();
    }

    /// Records that the API server answered a watch of this resource.
    pub fn watch_answered(&self, resource: &str) {
        let labels = ResourceLabels {
            resource: resource.to_owned(),
        };
        let now = Timestamp::now().as_duration().as_secs_f64();
        self.watch_last_response.get_or_create_owned(&labels).set(now);
    }

    /// Clears what a watch has shown: one that was ended on purpose is not late, and its objects are no longer up to date.
    pub fn watch_ended(&self, kind: &'static str, resource: &str) {
        self.objects.remove(&KindLabels { kind });
        let labels = ResourceLabels {
            resource: resource.to_owned(),
        };
        self.watch_last_response.remove(&labels);
    }

    /// All metrics at zero.
    pub fn new() -> Self {
        Self::of(true, true)
    }

    /// The metrics of a process that serves the facade, runs the controllers, or both. Metrics that would always be
    /// zero are not shown.
    pub fn of(facade: bool, controllers: bool) -> Self {
        let metrics = Self::unregistered();
        let mut registry = Registry::default();
        #[cfg(target_os = "linux")]
        registry
            .sub_registry_with_prefix("process")
            .register_collector(Box::new(super::process_metrics::ProcessMetrics));
        let ours = registry.sub_registry_with_prefix("stellage");
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        ours.register("build", "The version of the program", version);
        metrics.register_common(ours);
        if facade {
            metrics.register_facade(ours);
        }
        if controllers {
            metrics.register_controllers(ours);
            ours.register_collector(Box::new(metrics.instances.clone()));
        }
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }

    /// All metrics in this format.
    pub fn render(&self, format: Format) -> Result<String, std::fmt::Error> {
        let mut page = String::new();
        match format {
            Format::OpenMetrics => text::encode(&mut page, &self.registry)?,
            Format::Prometheus => prometheus_text::encode(&mut page, &self.registry)?,
        }
        Ok(page)
    }
}

/// A text format for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.0.
    OpenMetrics,
    /// That of Prometheus, version 0.0.4, which every scraper reads.
    Prometheus,
}

impl Format {
    /// The format for a request with this `Accept`: OpenMetrics for those who ask for it, and do not prefer plain text.
    pub fn accepted(accept: &str) -> Self {
        let weight = |kind: &str| {
            let ranges = accept.split(',').filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_kind = parts.next().is_some_and(|it| it.eq_ignore_ascii_case(kind));
                let mut weight = 1.0;
                for parameter in parts {
                    match parameter.split_once('=') {
                        Some(("q", value)) => weight = value.parse::<f32>().unwrap_or(0.0),
                        // Of an early version there is no encoder.
                        Some(("version", "0.0.1")) => return None,
                        _ => {}
                    }
                }
                is_kind.then_some(weight)
            });
            ranges.fold(0.0, f32::max)
        };
        let wanted = weight("application/openmetrics-text");
        if wanted > 0.0 && wanted >= weight("text/plain") {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    /// Its media type.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_regions_go_with_the_region_and_only_the_leader_shows_orphans() {
        let metrics = Metrics::new();
        let fra = RegionLabels {
            region: "de-fra-1".to_owned(),
        };
        for gauge in [
            &metrics.region_up,
            &metrics.region_servers,
            &metrics.orphan_servers,
        ] {
            gauge.get_or_create_owned(&fra).set(1);
        }
        for counter in [
            &metrics.lost_starts,
            &metrics.servers_interrupted,
            &metrics.servers_crashed,
        ] {
            counter.get_or_create_owned(&fra).inc();
        }
        let shown = || metrics.render(Format::OpenMetrics).unwrap();
        let line = |name: &str| format!("\nstellage_{name}{{region=\"de-fra-1\"}} 1\n");
        metrics.show_addresses("de-fra-1", "ipv4", 1, 1);
        let of_all = [
            "region_up",
            "region_servers",
            "kubevirt_lost_starts_total",
            "servers_interrupted_total",
            "servers_crashed_total",
        ];
        for name in of_all.into_iter().chain(["orphan_servers"]) {
            assert!(shown().contains(&line(name)), "{name}: {}", shown());
        }
        metrics.resign();
        assert!(of_all.iter().all(|name| shown().contains(&line(name))));
        assert!(!shown().contains(&line("orphan_servers")));
        metrics.forget_region("de-fra-1");
        assert!(!shown().contains("de-fra-1"), "{}", shown());
    }

    #[test]
    fn every_process_shows_what_it_uses_under_the_usual_names() {
        let page = Metrics::of(false, false).render(Format::Prometheus).unwrap();
        let value = |name: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("{page}"))
                .trim()
                .parse::<f64>()
                .unwrap()
        };
        assert!(value("process_cpu_seconds_total ") >= 0.0);
        let resident = value("process_resident_memory_bytes ");
        assert!(
            resident > 1e6 && resident < value("process_virtual_memory_bytes "),
            "{page}"
        );
        assert!(value("process_open_fds ") >= 3.0 && value("process_threads ") >= 1.0);
        let age = Timestamp::now().as_duration().as_secs_f64() - value("process_start_time_seconds ");
        assert!((0.0..3600.0 * 24.0).contains(&(age + 2.0)), "{age}");
    }

    #[test]
    fn what_only_the_leader_counts_goes_with_it() {
        let metrics = Metrics::new();
        metrics.accounts_not_ready.set(7);
        metrics.oldest_owed_seconds.set(7.0);
        metrics.backed_up("simulated", Timestamp::from_second(7).unwrap());
        metrics.backed_up("simulated", Timestamp::from_second(5).unwrap());
        let shown = || metrics.render(Format::OpenMetrics).unwrap();
        let last = "stellage_backup_last_completed_timestamp_seconds{region=\"simulated\"} 7.0\n";
        assert!(shown().contains(last), "{}", shown());
        metrics.resign();
        assert!(shown().contains("\nstellage_accounts_not_ready 0\n"));
        assert!(shown().contains("\nstellage_oldest_owed_delivery_age_seconds 0.0\n"));
        assert!(!shown().contains("stellage_backup_last_completed_timestamp_seconds{"));
    }
}
