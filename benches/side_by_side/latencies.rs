//! Latencies, which a client's process sends to the bench as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::Result;

/// A histogram of latencies in microseconds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// No latencies.
    pub fn new() -> Result<Self> {
        Ok(Self(Histogram::new(3)?))
    }

    /// Adds a latency.
    pub fn record(&mut self, latency: Duration) -> Result<()> {
        Ok(self.0.record(u64::try_from(latency.as_micros())?)?)
    }

    /// Adds the latencies of another histogram.
    pub fn add(&mut self, other: &Self) -> Result<()> {
        Ok(self.0.add(&other.0)?)
    }

    /// The number of latencies.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// A quantile in milliseconds. NaN, which meets no target, if there are no latencies.
    pub fn millis(&self, quantile: f64) -> f64 {
        if self.0.is_empty() {
            return f64::NAN;
        }
        as_f64(self.0.value_at_quantile(quantile)) / 1000.0
    }
}

/// Counts here stay far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "see above")]
pub const fn as_f64(count: u64) -> f64 {
    count as f64
}

impl From<Latencies> for Vec<(u64, u64)> {
    fn from(latencies: Latencies) -> Self {
        let recorded = latencies.0.iter_recorded();
        recorded
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }
}

impl TryFrom<Vec<(u64, u64)>> for Latencies {
    type Error = crate::Error;

    fn try_from(counts: Vec<(u64, u64)>) -> Result<Self> {
        let mut latencies = Self::new()?;
        for (value, count) in counts {
            latencies.0.record_n(value, count)?;
        }
        Ok(latencies)
    }
}
