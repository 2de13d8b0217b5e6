//! Arguments, then run.
use std::{sync::Arc, time::Duration};
use stellage::{controllers::instance::{InstanceController, InstanceQueue}, providers::simulator::Simulator, resources::Instance, runtime::{Metrics, Health, SystemClock, events::Events, watch::Watches}, lifecycle::Timings};
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    if std::env::args().nth(1).as_deref() == Some("crds") { for c in stellage::resources::crds() { println!("---\n{}", serde_saphyr::to_string(&c)?); } println!("---\n{}", stellage::resources::DELETION_PROTECTION_POLICY); return Ok(()); }
    let health = Health::default();
    let client = stellage::runtime::client::connect(kube::Config::infer().await?, health.clone())?;
    let metrics = Metrics::new();
    let shutdown = tokio_util::sync::CancellationToken::new();
    let queue = InstanceQueue::default();
    let watches = Watches { client: client.clone(), health, metrics: metrics.clone(), shutdown: shutdown.clone() };
    let store = watches.spawn::<Instance>(vec![Box::new(queue.clone())]);
    store.wait_until_ready().await?;
    let timings = Timings::for_provisioning(std::env::var("P").ok().and_then(|p| p.parse().ok()).unwrap_or(150.0));
    let known = store.state();
    let provider = Arc::new(Simulator::new(timings, known.iter().map(|i| &**i)));
    let c = InstanceController { client: client.clone(), provider, owns_namespace: Arc::new(|_| true), catalogue: Default::default(), timings, clock: Arc::new(SystemClock), metrics, events: Events::new(client, "instance-controller", "x"), concurrency: 256, write_concurrency: 16, provider_timeout: Duration::from_secs(10) };
    c.run(queue, store, shutdown).await;
    Ok(())
}
