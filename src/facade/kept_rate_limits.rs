//! Keeps rate limits across restarts: what is notably spent is stored in a ConfigMap of the operator's namespace, at the end and
//! at most once a minute. All replicas share it; each stores the more spent of its own state and what is there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::rate_limit::{FULL_AFTER, RateLimits, Spent};
use crate::runtime::{
    Clock,
    client::{CallError, bounded},
};

/// Name of the ConfigMap.
const NAME: &str = "stellage-rate-limits";
/// Its only entry.
const ENTRY: &str = "full-at";
/// Buckets that are spent by less than half are not stored.
const NOTABLE: Duration = Duration::from_secs(1800);
/// Keys that are stored, and accounts. Each takes 50 bytes, so both take less than 256 KiB.
const MOST: usize = 2000;
/// Characters of a UID.
const UID: usize = 64;
/// How often to look for changes.
const EVERY: Duration = Duration::from_secs(60);
/// A bucket is stored again once it takes so many seconds longer to be full than was stored.
const CHANGE: i64 = 300;
/// How long the start and the end of the process may take because of this.
const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts to store while other replicas do so, too.
const MAX_ATTEMPTS: u32 = 5;

/// When buckets are full again, in Unix seconds by the UID of the key or account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
struct FullAt {
    keys: BTreeMap<Box<str>, i64>,
    accounts: BTreeMap<Box<str>, i64>,
}

impl FullAt {
    fn of(spent: Spent, now: Timestamp) -> Self {
        let at = |spent: Vec<(Box<str>, Duration)>| {
            let at =
                |after: Duration| i64::try_from(after.as_secs()).map_or(0, |after| now.as_second() + after);
            spent.into_iter().map(|(uid, after)| (uid, at(after))).collect()
        };
        Self {
            keys: at(spent.keys),
            accounts: at(spent.accounts),
        }
    }

    /// What is still spent. Nothing takes longer than an hour.
    fn spent(self, now: Timestamp) -> Spent {
        let after = |at: BTreeMap<Box<str>, i64>| {
            let after = |at: i64| u64::try_from(at.saturating_sub(now.as_second())).unwrap_or(0);
            let all = at.into_iter().map(|(uid, at)| (uid, after(at)));
            all.filter(|(uid, after)| *after > 0 && uid.len() <= UID)
                .map(|(uid, after)| (uid, Duration::from_secs(after).min(FULL_AFTER)))
                .collect()
        };
        Spent {
            keys: after(self.keys),
            accounts: after(self.accounts),
        }
    }

    /// The times of both; of a bucket that is in both, the later one. Times that have passed are left out, and at most [`MOST`]
    /// keys and as many accounts are kept, those with the latest times.
    fn merged(self, other: Self, now: Timestamp) -> Self {
        let merged = |one: BTreeMap<Box<str>, i64>, other: BTreeMap<Box<str>, i64>| {
            let mut merged = one;
            for (uid, at) in other {
                let latest = merged.entry(uid).or_insert(at);
                *latest = at.max(*latest);
            }
            let mut latest: Vec<_> = merged
                .into_iter()
                .filter(|(_, at)| *at > now.as_second())
                .collect();
            latest.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
            latest.truncate(MOST);
            latest.into_iter().collect()
        };
        Self {
            keys: merged(self.keys, other.keys),
            accounts: merged(self.accounts, other.accounts),
        }
    }

    /// Whether some times are much later than these, or not among them.
    fn is_outdated_by(&self, other: &Self) -> bool {
        let later = |these: &BTreeMap<Box<str>, i64>, others: &BTreeMap<Box<str>, i64>| {
            others.iter().any(|(uid, at)| {
                let this = these.get(uid);
                this.is_none_or(|this| *at >= this.saturating_add(CHANGE))
            })
        };
        later(&self.keys, &other.keys) || later(&self.accounts, &other.accounts)
    }

    /// What a ConfigMap has; nothing if it is unreadable.
    fn read(stored: &ConfigMap) -> Self {
        let text = stored.data.as_ref().and_then(|data| data.get(ENTRY));
        let parsed = text.map(|text| serde_json::from_str(text)).transpose();
        match parsed {
            Ok(stored) => stored.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "the ConfigMap {NAME} is unreadable: rate limits begin afresh");
                Self::default()
            }
        }
    }
}

/// The rate limits, and where they are kept.
pub struct KeptRateLimits {
    limits: Arc<RateLimits>,
    api: Api<ConfigMap>,
    clock: Arc<dyn Clock>,
    /// What is stored, as far as this process knows.
    stored: Mutex<FullAt>,
}

impl KeptRateLimits {
    pub(super) fn new(
        limits: Arc<RateLimits>,
        client: Client,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            limits,
            api: Api::namespaced(client, namespace),
            clock,
            stored: Mutex::default(),
        }
    }

    /// Keeps the rate limits while the API is served: reads what is stored before that, and stores what is spent meanwhile and at
    /// its end.
    pub async fn during(&self, serving: impl Future<Output = ()>) {
        self.restore().await;
        tokio::select! {
            () = serving => {}
            () = self.keep() => {}
        }
        self.save().await;
    }

    /// Spends what was spent before the start, as far as it is stored and can be read within seconds.
    async fn restore(&self) {
        let read = tokio::time::timeout(PATIENCE, bounded(self.api.get_opt(NAME)));
        match read.await.unwrap_or(Err(CallError::Timeout)) {
            Ok(None) => tracing::info!("no rate limits are stored: they begin afresh"),
            Ok(Some(stored)) => {
                let stored = FullAt::read(&stored);
                *self.stored.lock() = stored.clone();
                self.limits.restore(stored.spent(self.clock.now()));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the ConfigMap {NAME}: rate limits begin afresh");
            }
        }
    }

    /// Stores what is notably spent again and again. Never ends.
    async fn keep(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.save().await;
        }
    }

    /// Stores what is notably spent, if that has changed notably.
    async fn save(&self) {
        let stored = tokio::time::timeout(PATIENCE, self.store()).await;
        if let Err(error) = stored.unwrap_or(Err(CallError::Timeout)) {
            tracing::warn!(%error, "cannot store rate limits in the ConfigMap {NAME}: what was spent is forgotten at the next start");
        }
    }

    async fn store(&self) -> Result<(), CallError> {
        let mut attempt = 1;
        loop {
            let now = self.clock.now();
            let own = FullAt::of(self.limits.spent(NOTABLE), now);
            if !self.stored.lock().is_outdated_by(&own) {
                return Ok(());
            }
            match self.store_once(own, now).await {
                // Another replica was faster.
                Err(error) if error.is_conflict() && attempt < MAX_ATTEMPTS => attempt += 1,
                stored => return stored,
            }
        }
    }

    async fn store_once(&self, own: FullAt, now: Timestamp) -> Result<(), CallError> {
        let found = bounded(self.api.get_opt(NAME)).await?;
        let there = found.as_ref().map(FullAt::read).unwrap_or_default();
        let merged = own.merged(there, now);
        let text = json!(merged).to_string();
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            resource_version: found.and_then(|found| found.metadata.resource_version),
            ..ObjectMeta::default()
        };
        let is_new = metadata.resource_version.is_none();
        let object = ConfigMap {
            metadata,
            data: Some([(ENTRY.to_owned(), text)].into()),
            ..ConfigMap::default()
        };
        let parameters = PostParams::default();
        if is_new {
            bounded(self.api.create(&parameters, &object)).await?;
        } else {
            bounded(self.api.replace(NAME, &parameters, &object)).await?;
        }
        *self.stored.lock() = merged;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn full_at(keys: &[(&str, i64)]) -> FullAt {
        FullAt {
            keys: keys.iter().map(|(uid, at)| ((*uid).into(), *at)).collect(),
            accounts: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_spent_is_stored_as_times_and_read_back_as_what_is_left_of_it() {
        let spent = Spent {
            keys: vec![
                ("a".into(), Duration::from_secs(3600)),
                ("b".into(), Duration::from_secs(1800)),
            ],
            accounts: vec![("c".into(), Duration::from_secs(2400))],
        };
        let stored = FullAt::of(spent, at(10_000));
        let left = stored.clone().spent(at(11_900));
        assert_eq!(left.keys, [("a".into(), Duration::from_secs(1700))]);
        assert_eq!(left.accounts, [("c".into(), Duration::from_secs(500))]);
        // The clock was wrong before.
        assert_eq!(stored.spent(at(0)).keys[0].1, FULL_AFTER);
    }

    #[test]
    fn replicas_store_the_later_times_of_all_and_no_more_than_fit() {
        let merged =
            full_at(&[("a", 50), ("b", 70)]).merged(full_at(&[("a", 60), ("b", 20), ("c", 9)]), at(10));
        assert_eq!(merged, full_at(&[("a", 60), ("b", 70)]));
        let uid = |number: i64| format!("00000000-0000-0000-0000-{number:012}");
        let many = |accounts: bool| -> BTreeMap<Box<str>, i64> {
            let first = i64::from(accounts) * 10_000;
            let all = (first..first + 3000).map(|number| (uid(number).into(), 1_800_000_000 + number));
            all.collect()
        };
        let many = FullAt {
            keys: many(false),
            accounts: many(true),
        };
        let merged = many.merged(FullAt::default(), at(10));
        assert_eq!((merged.keys.len(), merged.accounts.len()), (MOST, MOST));
        assert!(merged.keys.contains_key(uid(2999).as_str()) && !merged.keys.contains_key(uid(999).as_str()));
        assert!(json!(merged).to_string().len() < 256 << 10);
    }

    #[test]
    fn only_notable_changes_are_written() {
        let stored = full_at(&[("a", 1000), ("b", 1000)]);
        assert!(!stored.is_outdated_by(&full_at(&[])));
        assert!(!stored.is_outdated_by(&full_at(&[("a", 1299), ("b", 500)])));
        assert!(stored.is_outdated_by(&full_at(&[("a", 1300)])));
        assert!(stored.is_outdated_by(&full_at(&[("c", 1)])));
    }

    #[test]
    fn an_unreadable_object_counts_as_none() {
        let with = |text: &str| ConfigMap {
            data: Some([(ENTRY.to_owned(), text.to_owned())].into()),
            ..ConfigMap::default()
        };
        for stored in [with("no JSON"), with("{\"keys\":7}"), ConfigMap::default()] {
            assert_eq!(FullAt::read(&stored), FullAt::default());
        }
        let stored = full_at(&[("a", 1000)]);
        assert_eq!(FullAt::read(&with(&json!(stored).to_string())), stored);
    }
}
