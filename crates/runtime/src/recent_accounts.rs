//! Counts the accounts to which something has happened lately.

use std::{
    collections::HashMap,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder},
    metrics::MetricType,
};

/// How long an account counts.
const LATELY: Duration = Duration::from_secs(6 * 3600);

/// A gauge of the accounts to which something has happened within the last six hours: what happens to one or two only, they may have
/// brought about themselves. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct RecentAccounts(Arc<Mutex<HashMap<Box<str>, Instant>>>);

impl RecentAccounts {
    /// Notes that it has happened to this account.
    pub fn note(&self, account: &str) {
        self.note_at(account, Instant::now());
    }

    fn note_at(&self, account: &str, now: Instant) {
        self.0.lock().insert(account.into(), now);
    }

    fn count(&self, now: Instant) -> usize {
        let mut accounts = self.0.lock();
        accounts.retain(|_, last| now.duration_since(*last) < LATELY);
        accounts.len()
    }
}

impl EncodeMetric for RecentAccounts {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&self.count(Instant::now()))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_counts_once_and_until_six_hours_have_passed_since_the_last_time() {
        let accounts = RecentAccounts::default();
        let begin = Instant::now();
        let hours = |hours: u64| begin + Duration::from_secs(3600 * hours);
        accounts.note_at("ada", begin);
        accounts.note_at("ada", hours(1));
        accounts.note_at("bob", hours(2));
        let counted = [2, 6, 7, 8].map(|at| accounts.count(hours(at)));
        assert_eq!(counted, [2, 2, 1, 0]);
    }
}
