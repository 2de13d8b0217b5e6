//! The usage of real servers: what it takes to ask a region's Prometheus about all of them, which happens once a minute at most. The
//! answers were made before, so that only asking is measured; the server that sends them runs in this process.

use std::{path::Path, time::Instant};

use axum::{Router, extract::State};
use bytes::Bytes;
use domain::catalogue::Catalogue;
use jiff::{SignedDuration, Timestamp};
use providers::{RegionalUsage, UsageSource as _, simulator::SimulatedUsage};
use resources::Instance;
use runtime::shared_catalogue::SharedCatalogue;
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    Result,
    processes::{allocated_mib, processor_time},
    samples::{MEBIBYTES, MEGABYTES, MILLIS, Samples},
    sizes::Sizes,
    table::{Aim, Table},
};

const ROUNDS: usize = 5;
/// Most time that asking may take, in milliseconds.
const TIME: Aim = Aim::AtMost(2000.0);
/// Most memory that what is known may take, in MiB.
const MEMORY: Aim = Aim::AtMost(16.0);

pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let servers = sizes.large;
    let now = Timestamp::now();
    let answer = Bytes::from(answer(servers, now));
    let megabytes = 6.0 * f64::from(u32::try_from(answer.len())?) / 1e6;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let router = Router::new()
        .fallback(async |State(answer): State<Bytes>| answer)
        .with_state(answer);
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let region = json!({ "regions": [{ "code": "de-fra-1", "kubevirt": {
        "kubeconfig": "/kubeconfig", "installation": "prod-1", "storageClass": "disks",
        "images": { "debian-13": { "pvc": "images/debian-13", "user": "debian" } },
        "network": { "profile": "pod" }, "prometheus": { "url": url },
    } }] });
    let catalogue = Catalogue::parse(&region.to_string(), Path::new("bench"))?;
    let source = RegionalUsage::new(SharedCatalogue::new(catalogue), SimulatedUsage::default());
    let instance: Instance = serde_json::from_value(json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": { "namespace": "account-000001", "name": name(1), "uid": "1" },
        "spec": { "region": "de-fra-1", "plan": "starter", "image": "debian-13" },
        "status": { "id": name(1), "power": "Running", "state": "running" },
    }))?;
    let process = std::process::id();
    let before = allocated_mib(process)?;
    let (mut time, mut cpu) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let asked = now + SignedDuration::from_mins(i64::try_from(round)?);
        let (begun, begun_cpu) = (Instant::now(), processor_time(process)?);
        let usage = source.usage(&instance, asked).await?;
        if usage.cpu_usage.is_none() {
            return Err("the usage is not known".into());
        }
        time.push(begun.elapsed().as_secs_f64() * 1000.0);
        cpu.push((processor_time(process)? - begun_cpu) * 1000.0);
    }
    let memory: Samples = [allocated_mib(process)? - before].into_iter().collect();
    serving.abort();
    table.note(&format!(
        "a region with {servers} servers: six questions about all of them"
    ));
    table.value(
        "time until they are answered",
        &time.into_iter().collect(),
        MILLIS,
        Some(TIME),
    );
    table.value(
        "CPU time, that of sending the answers included",
        &cpu.into_iter().collect(),
        MILLIS,
        None,
    );
    let bytes: Samples = [megabytes].into_iter().collect();
    table.value("size of the answers", &bytes, MEGABYTES, None);
    table.value(
        "memory of what is known, and of asking",
        &memory,
        MEBIBYTES,
        Some(MEMORY),
    );
    Ok(())
}

fn name(server: u64) -> String {
    format!("i-{server:016}")
}

/// The same answer serves for each figure: the time of the last scrape, in processors and bytes.
fn answer(servers: u64, now: Timestamp) -> String {
    let now = now.as_second();
    let all = (0..servers).map(|server| {
        let metric = json!({ "name": name(server), "namespace": format!("stellage-account-{server:06}") });
        json!({ "metric": metric, "value": [now, format!("{}.125", now - 5)] })
    });
    let all: Vec<_> = all.collect();
    json!({ "status": "success", "data": { "resultType": "vector", "result": all } }).to_string()
}
