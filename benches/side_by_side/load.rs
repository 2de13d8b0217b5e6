//! The load generator: a closed loop over a fixed number of keep-alive connections, each of which sends its next request when
//! the last one has been answered. It uses two threads, one per core, each with a single-threaded runtime, so that it costs
//! little compared with the server on the same machine, and the same for every server.
//!
//! A [`Client`] generates the measured load in a separate process. A [`Load`] runs in this process and prepares what will be
//! measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{
    Result, client,
    latencies::{Latencies, as_f64},
    wire::{Connection, Server, Target},
};

/// The kind of a [`Client`]'s job.
pub const KIND: &str = "load";
/// The placeholder for a request's number, which is written with the same number of digits.
pub const NUMBER: &str = "################";

/// Number of connections, and so of concurrent requests, in all measurements of (a), (b) and (c).
pub const CONNECTIONS: usize = 16;

const THREADS: usize = 2;

/// Writes the n-th request of a load into an empty buffer.
pub type Requests = dyn Fn(u64, &mut Vec<u8>) + Send + Sync;

/// Requests that differ only in their number, which replaces each [`NUMBER`] and starts at `first`.
pub fn numbered(request: String, first: u64) -> Arc<Requests> {
    let width = NUMBER.len();
    if !request.contains(NUMBER) {
        return Arc::new(move |_, buffer| buffer.extend_from_slice(request.as_bytes()));
    }
    Arc::new(move |n, buffer| {
        let number = format!("{:0width$}", first + n);
        buffer.extend_from_slice(request.replace(NUMBER, &number).as_bytes());
    })
}

/// Duration or number of requests.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Extent {
    /// Runs for a time, after a warm-up.
    For {
        /// The warm-up, which is not measured.
        warm_up: Duration,
        /// The measured time.
        measured: Duration,
    },
    /// Sends requests 0 to n - 1, all of which are measured.
    Count(u64),
}

/// A load to put on a server.
#[derive(Clone)]
pub struct Load {
    /// The server.
    pub target: Target,
    /// Number of connections.
    pub connections: usize,
    /// The requests.
    pub requests: Arc<Requests>,
    /// The expected status of every answer.
    pub status: u16,
    /// Duration or number of requests.
    pub extent: Extent,
}

/// A load that runs in a process of its own.
#[derive(Clone, Serialize, Deserialize)]
pub struct Client {
    /// The server.
    pub server: Server,
    /// Number of connections.
    pub connections: usize,
    /// A request, with [`NUMBER`] as a placeholder for its number if that matters.
    pub request: String,
    /// The expected status of every answer.
    pub status: u16,
    /// Duration or number of requests.
    pub extent: Extent,
}

impl Client {
    /// Sends one request repeatedly for a time, and expects 200 each time.
    pub fn repeating(target: &Target, connections: usize, request: String, extent: Extent) -> Self {
        Self {
            server: target.server(),
            connections,
            request,
            status: 200,
            extent,
        }
    }

    /// Starts the process and returns its measurement.
    pub async fn run(&self) -> Result<Measured> {
        client::run(KIND, self).await
    }

    /// Runs in this process, which was started for it.
    pub async fn run_here(self) -> Result<Measured> {
        let load = Load {
            target: Target::of(self.server).await?,
            connections: self.connections,
            requests: numbered(self.request, 0),
            status: self.status,
            extent: self.extent,
        };
        load.run().await
    }
}

/// The result of a load.
#[derive(Serialize, Deserialize)]
pub struct Measured {
    /// Requests sent, including those of the warm-up.
    pub asked: u64,
    /// Requests answered in the measured time.
    pub answered: u64,
    /// The measured time.
    pub took: Duration,
    /// From sending to the last byte of the answer.
    pub latencies: Latencies,
}

impl Measured {
    /// Requests per second.
    pub fn rate(&self) -> f64 {
        as_f64(self.answered) / self.took.as_secs_f64()
    }

    /// A quantile of the latencies, in milliseconds.
    pub fn millis(&self, quantile: f64) -> f64 {
        self.latencies.millis(quantile)
    }
}

impl Load {
    /// Runs the load.
    pub async fn run(self) -> Result<Measured> {
        let next = Arc::new(AtomicU64::new(0));
        let begun = Instant::now();
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (load, next) = (self.clone(), Arc::clone(&next));
                let connections = (thread..self.connections).step_by(THREADS).count();
                tokio::task::spawn_blocking(move || load.on_this_thread(connections, &next, begun))
            })
            .collect();
        let mut latencies = Latencies::new()?;
        for thread in threads {
            latencies.add(&thread.await??)?;
        }
        let took = match self.extent {
            Extent::For { measured, .. } => measured,
            Extent::Count(_) => begun.elapsed(),
        };
        Ok(Measured {
            asked: next.load(Ordering::Relaxed),
            answered: latencies.len(),
            took,
            latencies,
        })
    }

    fn on_this_thread(&self, connections: usize, next: &Arc<AtomicU64>, begun: Instant) -> Result<Latencies> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for _ in 0..connections {
                let (load, next) = (self.clone(), Arc::clone(next));
                tasks.spawn(async move { load.on_one_connection(&next, begun).await });
            }
            let mut all = Latencies::new()?;
            while let Some(one) = tasks.join_next().await {
                all.add(&one??)?;
            }
            Ok(all)
        })
    }

    async fn on_one_connection(&self, next: &AtomicU64, begun: Instant) -> Result<Latencies> {
        let mut connection = self.target.connect().await?;
        let mut latencies = Latencies::new()?;
        let mut request = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if matches!(self.extent, Extent::Count(count) if number >= count) {
                return Ok(latencies);
            }
            request.clear();
            (self.requests)(number, &mut request);
            let sent = Instant::now();
            self.exchange(&mut connection, &request).await?;
            let answered = Instant::now();
            let counts = match self.extent {
                Extent::Count(_) => true,
                Extent::For { warm_up, measured } => {
                    if answered >= begun + warm_up + measured {
                        return Ok(latencies);
                    }
                    answered >= begun + warm_up
                }
            };
            if counts {
                latencies.record(answered - sent)?;
            }
        }
    }

    async fn exchange(&self, connection: &mut Connection, request: &[u8]) -> Result<()> {
        let status = connection.exchange(request).await?;
        if status == self.status {
            return Ok(());
        }
        let line = String::from_utf8_lossy(request);
        let line = line.lines().next().unwrap_or_default().to_owned();
        let body = connection.body();
        Err(format!(
            "{line} was answered with {status}: {}",
            String::from_utf8_lossy(&body)
        )
        .into())
    }
}
