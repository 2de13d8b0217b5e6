//! `stellage console-gateway`.

use std::sync::Arc;

use kube::runtime::watcher;
use tokio_util::sync::CancellationToken;

use super::{ANNOUNCEMENT, ServeError, announce, bind, catalogue, reload, shutdown_on_signals, url, wait};
use crate::settings::{GatewaySettings, ProcessSettings};
use resources::{ApiKey, Instance, tracking};
use runtime::{
    CheckedClock, Health, Metrics, ServerTime, SystemClock, client::Observers, events::Events,
    kubeconfig::ClusterArgs, ops, telemetry, watch::Watches,
};
use server::console_gateway::{Dependencies, Gateway};

/// Serves the consoles of instances until SIGTERM or SIGINT, and then closes them.
pub async fn serve_gateway(
    cluster: &ClusterArgs,
    process: ProcessSettings,
    settings: GatewaySettings,
) -> Result<(), ServeError> {
    telemetry::init(process.log_json);
    let shutdown = shutdown_on_signals()?;
    let (catalogue, catalogue_file) = catalogue(&process)?;
    let config = cluster.choose().await?.config;
    tracing::info!(api_server = %config.cluster_url, version = env!("CARGO_PKG_VERSION"), "starting");
    let (health, metrics, time) = (
        Health::starting(),
        Metrics::of(false, false),
        ServerTime::default(),
    );
    let ops_listener = bind(process.metrics_listen, "--metrics-listen")?;
    let metrics_url = url(&ops_listener, false);
    let observers = Observers {
        health: health.clone(),
        metrics: metrics.clone(),
        time: time.clone(),
    };
    let watches = Watches::connect(config, observers, CancellationToken::new())?;
    let _ended_last = watches.shutdown.clone().drop_guard();
    tokio::spawn(ops::serve(
        ops_listener,
        health.clone(),
        metrics.clone(),
        watches.shutdown.clone(),
    ));
    let listener = bind(settings.listen, "--console-listen")?;
    let certificate = settings.tls.certificate(&metrics)?;
    let gateway_url = url(&listener, certificate.is_some());
    let (gateway, listeners) = Gateway::new(Dependencies {
        client: watches.client.clone(),
        namespace: process.namespace.clone(),
        catalogue,
        clock: Arc::new(CheckedClock::new(Arc::new(SystemClock), time)),
        health: health.clone(),
        events: Events::new(watches.client.clone(), "console-gateway", "console-gateway")
            .limited_to(process.kubernetes_events),
        limits: settings.limits,
    });
    let forget_unused = |instance: &mut Instance| {
        tracking::forget_foreign(instance);
        instance.shrink_to_fit();
    };
    let instances = watches.spawn_without(
        watcher::Config::default(),
        forget_unused,
        vec![listeners.instances],
    );
    let keys = watches.spawn_without(
        watcher::Config::default(),
        tracking::forget_foreign::<ApiKey>,
        vec![listeners.keys],
    );
    gateway.attach(instances.clone(), keys);
    if let Some(file) = catalogue_file {
        let ignore = |_: &str| ();
        tokio::spawn(reload(
            file,
            instances,
            None,
            ignore,
            watches.shutdown.clone(),
            metrics,
        ));
    }
    health.started();
    let (serving, grace) = (shutdown.clone(), process.shutdown_grace());
    let tasks = vec![
        (
            "the gateway",
            tokio::spawn(async move {
                gateway.serve(listener, certificate, serving, grace).await;
                Ok(())
            }),
        ),
        (
            ANNOUNCEMENT,
            tokio::spawn(announce(
                health,
                process.ready_file,
                Some(gateway_url),
                metrics_url,
                shutdown.clone(),
            )),
        ),
    ];
    wait(tasks, &shutdown).await
}
