//! The metrics of the process that every client library of Prometheus has, under their usual names. Linux only.

use std::fmt;

use procfs::{ProcResult, process::Process};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

/// Reads `/proc/self` each time that the metrics are read.
#[derive(Debug)]
pub(crate) struct ProcessMetrics;

struct Seen {
    cpu_seconds: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    started_at: f64,
    threads: i64,
    open_files: u64,
    /// `None` for no limit.
    most_open_files: Option<u64>,
}

#[expect(clippy::cast_precision_loss, reason = "ticks of a process are far below 2^52")]
fn look() -> ProcResult<Seen> {
    let process = Process::myself()?;
    let (stat, limits) = (process.stat()?, process.limits()?);
    let ticks = procfs::ticks_per_second() as f64;
    let most = match limits.max_open_files.soft_limit {
        procfs::process::LimitValue::Value(most) => Some(most),
        procfs::process::LimitValue::Unlimited => None,
    };
    Ok(Seen {
        cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
        resident_bytes: stat.rss * procfs::page_size(),
        virtual_bytes: stat.vsize,
        started_at: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / ticks,
        threads: stat.num_threads,
        open_files: u64::try_from(process.fd_count()?).unwrap_or(u64::MAX),
        most_open_files: most,
    })
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Ok(seen) = look() else { return Ok(()) };
        let help = "User and system CPU time";
        let cpu = encoder.encode_descriptor("cpu", help, Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(seen.cpu_seconds).encode(cpu)?;
        let mut gauge = |name, help, unit: Option<&Unit>, value: &dyn EncodeMetric| {
            let encoder = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            value.encode(encoder)
        };
        let number = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let bytes = Some(&Unit::Bytes);
        gauge(
            "resident_memory",
            "Resident memory",
            bytes,
            &number(seen.resident_bytes),
        )?;
        gauge(
            "virtual_memory",
            "Virtual memory",
            bytes,
            &number(seen.virtual_bytes),
        )?;
        let started_at = ConstGauge::new(seen.started_at);
        gauge(
            "start_time",
            "Unix time of the start",
            Some(&Unit::Seconds),
            &started_at,
        )?;
        gauge("threads", "Threads", None, &ConstGauge::new(seen.threads))?;
        gauge(
            "open_fds",
            "Open file descriptors",
            None,
            &number(seen.open_files),
        )?;
        if let Some(most) = seen.most_open_files {
            gauge("max_fds", "Limit of open file descriptors", None, &number(most))?;
        }
        Ok(())
    }
}
