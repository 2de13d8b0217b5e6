//! Shares rate limits among replicas, and keeps them across restarts, in a ConfigMap of the operator's namespace: every ten seconds
//! each replica reads what the others have spent, and adds what it has notably spent itself since it last did. Between two reads
//! they count apart.

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
/// Buckets that are spent by less than a twelfth are not stored.
const NOTABLE: Duration = Duration::from_secs(300);
/// Keys that are stored, and accounts. Each takes 50 bytes, so both take less than 256 KiB.
const MOST: usize = 2000;
/// Characters of a UID.
const UID: usize = 64;
/// How often to read what others have spent.
const EVERY: Duration = Duration::from_secs(10);
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

    /// The times after adding to these, of all replicas, what a replica whose times are `own` has spent since it `knew` those. Times that
    /// have passed are left out, and at most [`MOST`] keys and as many accounts are kept, those with the latest times.
    fn adding(&self, own: &Self, knew: &Self, now: Timestamp) -> Self {
        type Times = BTreeMap<Box<str>, i64>;
        let now = now.as_second();
        let latest = now.saturating_add(i64::try_from(FULL_AFTER.as_secs()).unwrap_or(i64::MAX));
        let add = |all: &Times, own: &Times, knew: &Times| {
            let mut sums = all.clone();
            for (uid, own) in own {
                let spent = own - knew.get(uid).copied().unwrap_or(now).max(now);
                let sum = sums.entry(uid.clone()).or_insert(now);
                *sum = (*sum).max(now).saturating_add(spent.max(0)).min(latest);
            }
            let mut sums: Vec<_> = sums.into_iter().filter(|(_, at)| *at > now).collect();
            sums.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
            sums.truncate(MOST);
            sums.into_iter().collect()
        };
        Self {
            keys: add(&self.keys, &own.keys, &knew.keys),
            accounts: add(&self.accounts, &own.accounts, &knew.accounts),
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

    /// Shares the rate limits while the API is served: reads what is stored before that, and stores what is spent meanwhile and at
    /// its end.
    pub async fn during(&self, serving: impl Future<Output = ()>) {
        self.share().await;
        tokio::select! {
            () = serving => {}
            () = self.keep() => {}
        }
        self.share().await;
    }

    /// Shares what is spent again and again. Never ends.
    async fn keep(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.share().await;
        }
    }

    /// Reads what others have spent, and stores what this replica has notably spent.
    async fn share(&self) {
        let shared = tokio::time::timeout(PATIENCE, self.exchange()).await;
        if let Err(error) = shared.unwrap_or(Err(CallError::Timeout)) {
            tracing::warn!(%error, "cannot share rate limits in the ConfigMap {NAME}: this replica counts alone meanwhile");
        }
    }

    async fn exchange(&self) -> Result<(), CallError> {
        let mut attempt = 1;
        loop {
            match self.exchange_once().await {
                // Another replica was faster.
                Err(error) if error.is_conflict() && attempt < MAX_ATTEMPTS => attempt += 1,
                exchanged => return exchanged,
            }
        }
    }

    async fn exchange_once(&self) -> Result<(), CallError> {
        let found = bounded(self.api.get_opt(NAME)).await?;
        let now = self.clock.now();
        let there = found.as_ref().map(FullAt::read).unwrap_or_default();
        let own = FullAt::of(self.limits.spent(NOTABLE), now);
        let sums = there.adding(&own, &self.stored.lock(), now);
        self.limits.catch_up(sums.clone().spent(now));
        if !there.is_outdated_by(&sums) {
            *self.stored.lock() = there;
            return Ok(());
        }
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            resource_version: found.and_then(|found| found.metadata.resource_version),
            ..ObjectMeta::default()
        };
        let is_new = metadata.resource_version.is_none();
        let object = ConfigMap {
            metadata,
            data: Some([(ENTRY.to_owned(), json!(sums).to_string())].into()),
            ..ConfigMap::default()
        };
        let parameters = PostParams::default();
        if is_new {
            bounded(self.api.create(&parameters, &object)).await?;
        } else {
            bounded(self.api.replace(NAME, &parameters, &object)).await?;
        }
        *self.stored.lock() = sums;
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
    fn what_replicas_have_spent_is_added_once_and_no_more_is_stored_than_fits() {
        let now = at(1000);
        let none = FullAt::default();
        let first = none.adding(&full_at(&[("a", 1900)]), &none, now);
        assert_eq!(first, full_at(&[("a", 1900)]));
        let both = first.adding(&full_at(&[("a", 1600), ("b", 1400)]), &none, now);
        assert_eq!(both, full_at(&[("a", 2500), ("b", 1400)]));
        // The first replica has caught up since, and spent 300 s more; what it had spent is not added again.
        let later = both.adding(&full_at(&[("a", 2800), ("b", 1400)]), &both, at(1200));
        assert_eq!(later, full_at(&[("a", 2800), ("b", 1400)]));
        // What it knew has passed, and what it has spent since is added to what others have.
        let much_later = full_at(&[("a", 3300)]).adding(&full_at(&[("a", 3600)]), &later, at(3000));
        assert_eq!(much_later, full_at(&[("a", 3900)]));
        assert_eq!(
            full_at(&[("a", 4000)]).adding(&full_at(&[("a", 4000)]), &none, now),
            full_at(&[("a", 4600)]),
            "no more than everything is spent"
        );
        assert_eq!(
            later.adding(&none, &none, at(9000)),
            none,
            "what has passed is left out"
        );

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
        let sums = many.adding(&none, &none, at(10));
        assert_eq!((sums.keys.len(), sums.accounts.len()), (MOST, MOST));
        assert!(sums.keys.contains_key(uid(2999).as_str()) && !sums.keys.contains_key(uid(999).as_str()));
        assert!(json!(sums).to_string().len() < 256 << 10);
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
