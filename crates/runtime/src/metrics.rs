//! The metrics of the program, in Prometheus's text format. Label values are static words and the regions of the
//! catalogue, never names of objects, except in [`instance_metrics`](super::instance_metrics).

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use http::Method;
use jiff::Timestamp;
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

use super::instance_metrics::InstanceMetrics;

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

/// Label for metrics by outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct OutcomeLabels {
    /// The outcome, as a static word.
    pub outcome: &'static str,
}

/// Label for metrics by region, of regions whose servers run in a cluster with KubeVirt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RegionLabels {
    /// The region's code.
    pub region: String,
}

/// Every metric of the program. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// REST requests that got a response.
    pub requests: Family<RequestLabels, Counter>,
    /// Seconds from a request's head to its response's head.
    pub request_seconds: Family<RouteLabels, Histogram>,
    /// Finished reconciles.
    pub reconciles: Family<ReconcileLabels, Counter>,
    /// Seconds that a reconcile took.
    pub reconcile_seconds: Family<KindLabels, Histogram>,
    /// Reconciles that run or wait for their turn.
    pub queue_depth: Family<KindLabels, Gauge>,
    pub watch_errors: Family<KindLabels, Counter>,
    /// Unix time of the API server's last answer to a watch.
    pub watch_last_response: Family<ResourceLabels, Gauge<f64, AtomicU64>>,
    /// Requests to the API server, except for watches.
    pub kubernetes_requests: Family<KubernetesLabels, Counter>,
    /// Seconds until the head of the API server's answer.
    pub kubernetes_seconds: Family<MethodLabels, Histogram>,
    /// Objects seen that do not match their schema.
    pub invalid_objects: Family<KindLabels, Counter>,
    /// Objects held in memory.
    pub objects: Family<KindLabels, Gauge>,
    pub provider_calls: Family<ProviderLabels, Counter>,
    /// Seconds that a provider call took.
    pub provider_seconds: Histogram,
    /// Addresses that servers can still get, in the leader.
    addresses_free: Family<AddressLabels, Gauge>,
    /// Addresses that servers have, in the leader.
    addresses_used: Family<AddressLabels, Gauge>,
    /// Attempts to deliver an event.
    pub delivery_attempts: Family<OutcomeLabels, Counter>,
    /// Seconds that an attempt took.
    pub delivery_seconds: Histogram,
    /// Writes of Delivery objects.
    pub delivery_writes: Family<OutcomeLabels, Counter>,
    /// Writes of pages of the event log.
    pub event_log_writes: Family<OutcomeLabels, Counter>,
    /// Deliveries that wait for an attempt.
    pub deliveries_pending: Gauge,
    pub deliveries_held: Gauge,
    /// Deliveries dropped because there were too many.
    pub deliveries_dropped: Counter,
    pub webhooks_disabled: Gauge,
    /// Seconds for which the lock of the webhook controller's state was held.
    pub webhook_lock_seconds: Histogram,
    /// E-mails to account holders.
    pub mails: Family<OutcomeLabels, Counter>,
    /// 1 if there is a mail server or a folder for e-mails.
    pub mail_configured: Gauge,
    /// Changes of the catalogue's file: `ok`, or `invalid` if it could not be used.
    pub catalogue_reloads: Family<OutcomeLabels, Counter>,
    /// Requests to the receiver of traces.
    pub trace_exports: Family<OutcomeLabels, Counter>,
    /// Samples of the servers' usage.
    pub usage_samples: Family<OutcomeLabels, Counter>,
    /// Monitored instances, in the leader.
    pub monitored_instances: Gauge,
    /// The usage of instances, where it is shown.
    pub instances: InstanceMetrics,
    /// 1 while the cluster of a region can be reached and its state is known.
    pub region_up: Family<RegionLabels, Gauge>,
    /// Servers of this installation in a region.
    pub region_servers: Family<RegionLabels, Gauge>,
    /// Servers of this installation in a region that belong to no instance.
    pub orphan_servers: Family<RegionLabels, Gauge>,
    /// Starts that KubeVirt lost, and that were repeated.
    pub lost_starts: Family<RegionLabels, Counter>,
    /// Servers that were shut down because their node was drained or their Pod was deleted.
    pub servers_interrupted: Family<RegionLabels, Counter>,
    /// Servers that ended without being shut down.
    pub servers_crashed: Family<RegionLabels, Counter>,
    /// Operations that have not ended within their deadline, by region, or `simulated`.
    pub operations_overdue: Family<RegionLabels, Gauge>,
    /// 1 while this replica holds the Lease and writes.
    pub leader: Gauge,
}

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

/// Buckets from a microsecond to a second.
fn short_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_001, 2.0, 21))
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
        ] {
            gauge.remove(&labels);
        }
        for counter in [
            &self.lost_starts,
            &self.servers_interrupted,
            &self.servers_crashed,
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

    /// Resets what only the leader knows: from now on another replica shows it.
    pub fn resign(&self) {
        for gauge in [
            &self.leader,
            &self.deliveries_pending,
            &self.deliveries_held,
            &self.webhooks_disabled,
            &self.monitored_instances,
        ] {
            gauge.set(0);
        }
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
        let metrics = Self {
            registry: Arc::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(seconds),
            reconciles: Family::default(),
            reconcile_seconds: Family::new_with_constructor(seconds),
            queue_depth: Family::default(),
            watch_errors: Family::default(),
            watch_last_response: Family::default(),
            kubernetes_requests: Family::default(),
            kubernetes_seconds: Family::new_with_constructor(seconds),
            invalid_objects: Family::default(),
            objects: Family::default(),
            provider_calls: Family::default(),
            provider_seconds: seconds(),
            addresses_free: Family::default(),
            addresses_used: Family::default(),
            delivery_attempts: Family::default(),
            delivery_seconds: seconds(),
            delivery_writes: Family::default(),
            event_log_writes: Family::default(),
            deliveries_pending: Gauge::default(),
            deliveries_held: Gauge::default(),
            deliveries_dropped: Counter::default(),
            webhooks_disabled: Gauge::default(),
            webhook_lock_seconds: short_seconds(),
            mails: Family::default(),
            mail_configured: Gauge::default(),
            catalogue_reloads: Family::default(),
            trace_exports: Family::default(),
            usage_samples: Family::default(),
            monitored_instances: Gauge::default(),
            instances: InstanceMetrics::default(),
            region_up: Family::default(),
            operations_overdue: Family::default(),
            region_servers: Family::default(),
            orphan_servers: Family::default(),
            lost_starts: Family::default(),
            servers_interrupted: Family::default(),
            servers_crashed: Family::default(),
            leader: Gauge::default(),
        };
        let mut registry = Registry::with_prefix("stellage");
        metrics.register_common(&mut registry);
        if facade {
            metrics.register_facade(&mut registry);
        }
        if controllers {
            metrics.register_controllers(&mut registry);
            metrics.register_deliveries(&mut registry);
            metrics.register_monitoring(&mut registry);
            metrics.register_regions(&mut registry);
        }
        Self {
            registry: Arc::new(registry),
            ..metrics
        }
    }

    fn register_common(&self, registry: &mut Registry) {
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the program", version);
        registry.register("watch_errors", "Errors of watches", self.watch_errors.clone());
        registry.register(
            "watch_last_response_timestamp_seconds",
            "Unix time of the API server's last answer to a watch",
            self.watch_last_response.clone(),
        );
        registry.register(
            "kubernetes_requests",
            "Requests to the API server of Kubernetes, but for watches",
            self.kubernetes_requests.clone(),
        );
        registry.register(
            "kubernetes_request_duration_seconds",
            "Time until the head of the API server's answer",
            self.kubernetes_seconds.clone(),
        );
        registry.register(
            "invalid_objects",
            "Objects seen that do not match their schema",
            self.invalid_objects.clone(),
        );
        registry.register("objects", "Objects held in memory", self.objects.clone());
        registry.register(
            "catalogue_reloads",
            "Changes of the catalogue's file",
            self.catalogue_reloads.clone(),
        );
        registry.register(
            "trace_exports",
            "Requests to the receiver of traces",
            self.trace_exports.clone(),
        );
    }

    fn register_facade(&self, registry: &mut Registry) {
        registry.register("http_requests", "REST requests answered", self.requests.clone());
        registry.register(
            "http_request_duration_seconds",
            "Time until the head of a REST response",
            self.request_seconds.clone(),
        );
    }

    fn register_controllers(&self, registry: &mut Registry) {
        registry.register("reconciles", "Reconciles finished", self.reconciles.clone());
        registry.register(
            "reconcile_duration_seconds",
            "Time of a reconcile",
            self.reconcile_seconds.clone(),
        );
        registry.register(
            "reconcile_queue_depth",
            "Reconciles that run or wait for their turn",
            self.queue_depth.clone(),
        );
        registry.register("provider_calls", "Provider calls", self.provider_calls.clone());
        registry.register(
            "provider_call_duration_seconds",
            "Time of a provider call",
            self.provider_seconds.clone(),
        );
        registry.register(
            "addresses_free",
            "Addresses that servers can still get",
            self.addresses_free.clone(),
        );
        registry.register(
            "addresses_used",
            "Addresses that servers have",
            self.addresses_used.clone(),
        );
        registry.register(
            "mails",
            "E-mails to account holders about their webhooks",
            self.mails.clone(),
        );
        registry.register(
            "mail_configured",
            "1 if there is a mail server",
            self.mail_configured.clone(),
        );
        registry.register(
            "leader",
            "1 while this replica is the leader",
            self.leader.clone(),
        );
    }

    fn register_monitoring(&self, registry: &mut Registry) {
        registry.register(
            "usage_samples",
            "Samples of the usage of monitored instances",
            self.usage_samples.clone(),
        );
        registry.register(
            "monitored_instances",
            "Monitored instances",
            self.monitored_instances.clone(),
        );
        registry.register_collector(Box::new(self.instances.clone()));
    }

    fn register_regions(&self, registry: &mut Registry) {
        registry.register(
            "region_up",
            "1 while the cluster of a region can be reached and its state is known",
            self.region_up.clone(),
        );
        registry.register(
            "region_servers",
            "Servers in the cluster of a region",
            self.region_servers.clone(),
        );
        registry.register(
            "orphan_servers",
            "Servers in the cluster of a region that belong to no instance",
            self.orphan_servers.clone(),
        );
        registry.register(
            "operations_overdue",
            "Operations that have not ended within their deadline",
            self.operations_overdue.clone(),
        );
        registry.register(
            "kubevirt_lost_starts",
            "Starts that KubeVirt lost, and that were repeated",
            self.lost_starts.clone(),
        );
        registry.register(
            "servers_interrupted",
            "Servers shut down because their node was drained or their Pod was deleted",
            self.servers_interrupted.clone(),
        );
        registry.register(
            "servers_crashed",
            "Servers that ended without being shut down",
            self.servers_crashed.clone(),
        );
    }

    fn register_deliveries(&self, registry: &mut Registry) {
        registry.register(
            "delivery_attempts",
            "Attempts to deliver an event",
            self.delivery_attempts.clone(),
        );
        registry.register(
            "delivery_attempt_duration_seconds",
            "Time of an attempt to deliver",
            self.delivery_seconds.clone(),
        );
        registry.register(
            "delivery_writes",
            "Writes of Deliveries",
            self.delivery_writes.clone(),
        );
        registry.register(
            "event_log_writes",
            "Writes of pages of the event log",
            self.event_log_writes.clone(),
        );
        registry.register(
            "deliveries_pending",
            "Deliveries that wait for an attempt",
            self.deliveries_pending.clone(),
        );
        registry.register(
            "deliveries_held",
            "Deliveries held until their webhook can receive them",
            self.deliveries_held.clone(),
        );
        registry.register(
            "deliveries_dropped",
            "Deliveries dropped because there were too many",
            self.deliveries_dropped.clone(),
        );
        registry.register(
            "webhooks_disabled",
            "Disabled webhooks",
            self.webhooks_disabled.clone(),
        );
        registry.register(
            "webhook_lock_hold_seconds",
            "Time for which the lock of the webhook controller's state was held",
            self.webhook_lock_seconds.clone(),
        );
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
}
