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

/// How long an account counts: for alerts that look at hours, and for those that look at days.
const WITHIN: [(&str, Duration); 2] = [("6h", SIX_HOURS), ("3d", THREE_DAYS)];
const SIX_HOURS: Duration = Duration::from_secs(6 * 3600);
const THREE_DAYS: Duration = Duration::from_secs(72 * 3600);

/// A gauge, by the label `within`, of the accounts to which something has happened within six hours and within three days: what happens
/// to one or two only, they may have brought about themselves. Cheap to clone.
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

    fn count(&self, within: Duration, now: Instant) -> usize {
        let mut accounts = self.0.lock();
        accounts.retain(|_, last| now.duration_since(*last) < THREE_DAYS);
        let lately = accounts
            .values()
            .filter(|last| now.duration_since(**last) < within);
        lately.count()
    }
}

impl EncodeMetric for RecentAccounts {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for (name, within) in WITHIN {
            let count = self.count(within, Instant::now());
            encoder.encode_family(&[("within", name)])?.encode_gauge(&count)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_counts_once_and_until_the_time_has_passed_since_the_last_time() {
        let accounts = RecentAccounts::default();
        let begin = Instant::now();
        let hours = |hours: u64| begin + Duration::from_secs(3600 * hours);
        accounts.note_at("ada", begin);
        accounts.note_at("ada", hours(1));
        accounts.note_at("bob", hours(2));
        let counted =
            [2, 6, 7, 8, 72, 73, 74].map(|at| WITHIN.map(|(_, within)| accounts.count(within, hours(at))));
        assert_eq!(counted, [[2, 2], [2, 2], [1, 2], [0, 2], [0, 2], [0, 1], [0, 0]]);
    }
}
