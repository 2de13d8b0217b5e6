//! Shares rate limits among replicas, and keeps them across restarts, in a ConfigMap in the operator's namespace. There, each replica has
//! an entry with what it has taken from the buckets that it uses notably, and every ten seconds it reads the entries of the others. Between
//! two reads, replicas count separately. An entry stays for two hours, in which every debt is worked off and every bucket refilled, so
//! an earlier process counts as another replica.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{ByHolder, FULL_AFTER, FULL_AFTER_DEBT, OthersShare, OwnShare, RateLimits};
use crate::{
    resources::ids,
    runtime::{
        Clock,
        client::{CallError, bounded},
    },
};

/// Name of the ConfigMap.
const NAME: &str = "stellage-rate-limits";
/// What was taken from a bucket is stored whenever it has grown by a twelfth of the bucket.
const NOTABLE: Duration = Duration::from_secs(300);
/// At the end, what was taken is stored if it has grown by this much: ten requests with the default limit of a key.
const NOTABLE_AT_END: Duration = Duration::from_secs(10);
/// Maximum size of all entries in bytes: the API server accepts a ConfigMap with 1 MiB of data.
const MOST_BYTES: usize = 1_000_000;
/// Number of entries that may each have an equal part of that. If there are more, each may have less, so that none is dropped for another.
const ROOMY: usize = 8;
/// Maximum number of entries. Each then has room for twenty keys and accounts.
const MOST_ENTRIES: usize = 500;
/// How old an entry must be to be dropped for another. A busy replica that misses its own writes all of it again.
const FRESH: Duration = Duration::from_secs(60);
/// Maximum length of a UID.
const UID: usize = 64;
/// How often to read what others have taken.
const EVERY: Duration = Duration::from_secs(10);
/// How much this may delay the start and the end of the process.
const PATIENCE: Duration = Duration::from_secs(5);
/// Attempts to store while other replicas store, too.
const MAX_ATTEMPTS: u32 = 5;

/// What a replica has taken from a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(into = "(i64, u64, i64)", from = "(i64, u64, i64)")]
struct Share {
    /// See [`OwnShare::bucket`].
    bucket: i64,
    /// See [`OwnShare::taken`]; in seconds.
    taken: u64,
    /// When the bucket is full, in Unix seconds.
    full_at: i64,
}

impl From<Share> for (i64, u64, i64) {
    fn from(share: Share) -> Self {
        (share.bucket, share.taken, share.full_at)
    }
}

impl From<(i64, u64, i64)> for Share {
    fn from((bucket, taken, full_at): (i64, u64, i64)) -> Self {
        Self {
            bucket,
            taken,
            full_at,
        }
    }
}

type Shares = BTreeMap<Box<str>, Share>;

/// What a replica has taken, by the UID of the key or account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
struct Entry {
    /// When it was written, in Unix seconds.
    at: i64,
    keys: Shares,
    accounts: Shares,
    /// Reads in the console, by account. Earlier versions did not store them.
    #[serde(default)]
    console: Shares,
}

impl Entry {
    fn of(taken: ByHolder<OwnShare>, now: Timestamp) -> Self {
        let shares = |taken: Vec<(Box<str>, OwnShare)>| {
            let share = |share: OwnShare| Share {
                bucket: share.bucket,
                taken: share.taken.as_secs(),
                full_at: now.as_second() + i64::try_from(share.full_after.as_secs()).unwrap_or(0),
            };
            taken.into_iter().map(|(uid, own)| (uid, share(own))).collect()
        };
        Self {
            at: now.as_second(),
            keys: shares(taken.keys),
            accounts: shares(taken.accounts),
            console: shares(taken.console),
        }
    }

    /// Keeps the emptiest buckets, as many as fit into this many bytes. One that was not `stored` replaces one that was only if it is
    /// notably emptier, so that buckets that are about equally empty are not stored by turns.
    fn cut_to(&mut self, bytes: usize, stored: &Self) {
        let kinds = [
            (&mut self.keys, &stored.keys),
            (&mut self.accounts, &stored.accounts),
            (&mut self.console, &stored.console),
        ];
        let notable = i64::try_from(NOTABLE.as_secs()).unwrap_or(0);
        // More than an entry takes without its shares.
        let mut size = 100;
        let mut shares = Vec::new();
        for (kind, (own, stored)) in kinds.iter().enumerate() {
            for (uid, share) in own.iter() {
                // The braces stand for the comma.
                let bytes = json!({ &**uid: share }).to_string().len();
                size += bytes;
                let advantage = if stored.contains_key(uid) { notable } else { 0 };
                shares.push((share.full_at.saturating_add(advantage), kind, uid.clone(), bytes));
            }
        }
        shares.sort_unstable();
        let mut fullest = shares.into_iter();
        while size > bytes
            && let Some((_, kind, uid, bytes)) = fullest.next()
        {
            kinds[kind].0.remove(&uid);
            size -= bytes;
        }
    }

    /// Whether this much more has since been taken from any bucket.
    fn is_outdated_by(&self, later: &Self, notable: Duration) -> bool {
        let more = |these: &Shares, later: &Shares| {
            later.iter().any(|(uid, later)| {
                let this = these.get(uid).filter(|this| this.bucket == later.bucket);
                this.is_none_or(|this| later.taken >= this.taken.saturating_add(notable.as_secs()))
            })
        };
        more(&self.keys, &later.keys)
            || more(&self.accounts, &later.accounts)
            || more(&self.console, &later.console)
    }
}

type Entries = BTreeMap<String, Entry>;

/// Drops the oldest entries if there is no room for one more.
fn drop_surplus(entries: &mut Entries, now: Timestamp) {
    let fresh = i64::try_from(FRESH.as_secs()).unwrap_or(i64::MAX);
    while entries.len() >= MOST_ENTRIES
        && let Some((replica, oldest)) = entries.iter().min_by_key(|(_, entry)| entry.at)
        && oldest.at.saturating_add(fresh) < now.as_second()
    {
        let replica = replica.clone();
        entries.remove(&replica);
    }
}

/// How many bytes each entry may have if there are this many.
fn room(entries: usize) -> usize {
    MOST_BYTES / entries.max(ROOMY)
}

/// The entries of a ConfigMap, by replica. Leaves out unreadable and expired ones.
fn entries(stored: &ConfigMap, now: Timestamp) -> Entries {
    let read = |(replica, text): (&String, &String)| match serde_json::from_str::<Entry>(text) {
        Ok(entry) => Some((replica.clone(), entry)),
        Err(error) => {
            tracing::warn!(replica, %error, "an entry of the ConfigMap {NAME} is unreadable");
            None
        }
    };
    let entries = stored.data.iter().flatten().filter_map(read);
    let lasts = i64::try_from(FULL_AFTER_DEBT.as_secs()).unwrap_or(i64::MAX);
    entries
        .filter(|(_, entry)| entry.at.saturating_add(lasts) > now.as_second())
        .collect()
}

/// What other replicas have taken since these entries were last read: all that is new and not refilled yet.
fn others(before: &Entries, entries: &Entries, now: Timestamp) -> ByHolder<OthersShare> {
    let add = |of: fn(&Entry) -> &Shares| {
        let mut sums: HashMap<Box<str>, OthersShare> = HashMap::new();
        for (replica, entry) in entries {
            let before = before.get(replica).map(of);
            for (uid, share) in of(entry).iter().filter(|(uid, _)| uid.len() <= UID) {
                let sum = sums.entry(uid.clone()).or_default();
                let after = u64::try_from(share.full_at.saturating_sub(now.as_second()));
                let after = Duration::from_secs(after.unwrap_or(0)).min(FULL_AFTER_DEBT);
                let known = before.and_then(|before| before.get(uid));
                if let Some(known) = known.filter(|known| known.bucket == share.bucket) {
                    // No more than is not refilled yet, however long ago it was last read.
                    let more = Duration::from_secs(share.taken.saturating_sub(known.taken)).min(after);
                    sum.more = sum.more.saturating_add(more).min(FULL_AFTER);
                    // A debt there is a debt here.
                    if after > FULL_AFTER {
                        sum.full_after = sum.full_after.max(after);
                    }
                } else {
                    sum.full_after = sum.full_after.max(after);
                }
            }
        }
        let is_any = |(_, share): &(Box<str>, OthersShare)| *share != OthersShare::default();
        sums.into_iter().filter(is_any).collect()
    };
    ByHolder {
        keys: add(|entry| &entry.keys),
        accounts: add(|entry| &entry.accounts),
        console: add(|entry| &entry.console),
    }
}

/// The rate limits, and where they are kept.
pub struct KeptRateLimits {
    limits: Arc<RateLimits>,
    api: Api<ConfigMap>,
    clock: Arc<dyn Clock>,
    /// The name of this process's entry.
    replica: String,
    /// The entries of the other replicas, as last read.
    others: Mutex<Entries>,
}

impl KeptRateLimits {
    pub(in crate::facade) fn new(
        limits: Arc<RateLimits>,
        client: Client,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            limits,
            api: Api::namespaced(client, namespace),
            clock,
            replica: ids::random_suffix(),
            others: Mutex::default(),
        }
    }

    /// Shares the rate limits while the API is served: first reads what is stored, then stores what is taken during that time and at
    /// its end.
    pub async fn during(&self, serving: impl Future<Output = ()>) {
        self.share(NOTABLE).await;
        tokio::select! {
            () = serving => {}
            () = self.keep() => {}
        }
        // The next process starts from what is stored.
        self.share(NOTABLE_AT_END).await;
    }

    /// Shares what is taken, again and again. Never returns.
    async fn keep(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.share(NOTABLE).await;
        }
    }

    /// Reads what others have taken, and stores what this replica has taken if it is at least this much more for any bucket.
    async fn share(&self, notable: Duration) {
        let shared = tokio::time::timeout(PATIENCE, self.exchange(notable)).await;
        if let Err(error) = shared.unwrap_or(Err(CallError::Timeout)) {
            tracing::warn!(%error, "cannot share rate limits in the ConfigMap {NAME}: this replica counts alone meanwhile");
        }
    }

    async fn exchange(&self, notable: Duration) -> Result<(), CallError> {
        let mut attempt = 1;
        loop {
            match self.exchange_once(notable).await {
                // Another replica was faster.
                Err(error) if error.is_conflict() && attempt < MAX_ATTEMPTS => attempt += 1,
                exchanged => return exchanged,
            }
        }
    }

    async fn exchange_once(&self, notable: Duration) -> Result<(), CallError> {
        let found = bounded(self.api.get_opt(NAME)).await?;
        let now = self.clock.now();
        let mut entries = found
            .as_ref()
            .map(|found| entries(found, now))
            .unwrap_or_default();
        let stored = entries.remove(&self.replica).unwrap_or_default();
        let before = std::mem::replace(&mut *self.others.lock(), entries.clone());
        self.limits.others_took(others(&before, &entries, now));
        drop_surplus(&mut entries, now);
        let room = room(entries.len() + 1);
        let mut own = Entry::of(self.limits.taken(notable), now);
        own.cut_to(room, &stored);
        if !stored.is_outdated_by(&own, notable) {
            return Ok(());
        }
        for other in entries.values_mut() {
            other.cut_to(room, &Entry::default());
        }
        entries.insert(self.replica.clone(), own);
        let metadata = ObjectMeta {
            name: Some(NAME.to_owned()),
            resource_version: found.and_then(|found| found.metadata.resource_version),
            ..ObjectMeta::default()
        };
        let is_new = metadata.resource_version.is_none();
        let data = entries
            .into_iter()
            .map(|(replica, entry)| (replica, json!(entry).to_string()));
        let object = ConfigMap {
            metadata,
            data: Some(data.collect()),
            ..ConfigMap::default()
        };
        let parameters = PostParams::default();
        if is_new {
            bounded(self.api.create(&parameters, &object)).await?;
        } else {
            bounded(self.api.replace(NAME, &parameters, &object)).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::runtime::{SystemClock, client::answered_by};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// An entry with these keys: for each its bucket, what was taken, and when it is full.
    fn entry(keys: &[(&str, i64, u64, i64)]) -> Entry {
        let share = |&(uid, bucket, taken, full_at): &(&str, _, _, _)| {
            let share = Share {
                bucket,
                taken,
                full_at,
            };
            (uid.into(), share)
        };
        Entry {
            at: 1000,
            keys: keys.iter().map(share).collect(),
            ..Entry::default()
        }
    }

    fn named<const N: usize>(entries: [(&str, Entry); N]) -> Entries {
        let named = entries.map(|(replica, entry)| (replica.to_owned(), entry));
        named.into()
    }

    fn seconds(full_after: u64, more: u64) -> OthersShare {
        OthersShare {
            full_after: Duration::from_secs(full_after),
            more: Duration::from_secs(more),
        }
    }

    fn sorted(shares: ByHolder<OthersShare>) -> Vec<(Box<str>, OthersShare)> {
        let mut keys = shares.keys;
        keys.sort_by(|one, other| one.0.cmp(&other.0));
        keys
    }

    #[test]
    fn what_an_earlier_process_took_counts_as_far_as_it_is_not_refilled() {
        let left = named([
            ("one", entry(&[("a", 1, 3600, 1900), ("b", 2, 900, 1100)])),
            ("two", entry(&[("a", 3, 300, 2000), ("c", 4, 9000, 99_999)])),
        ]);
        let none = Entries::new();
        assert_eq!(
            sorted(others(&none, &left, at(1200))),
            [
                ("a".into(), seconds(800, 0)),
                // The clock was wrong before.
                ("c".into(), seconds(7200, 0))
            ]
        );
    }

    #[test]
    fn what_other_replicas_have_taken_since_is_added_once() {
        let before = named([
            ("one", entry(&[("a", 1, 600, 1600)])),
            ("two", entry(&[("a", 7, 100, 1600)])),
        ]);
        let now = named([
            ("one", entry(&[("a", 1, 900, 1900)])),
            ("two", entry(&[("a", 7, 500, 1900), ("b", 8, 300, 1300)])),
        ]);
        assert_eq!(
            sorted(others(&before, &now, at(1000))),
            [("a".into(), seconds(0, 700)), ("b".into(), seconds(300, 0))]
        );
        assert!(sorted(others(&now, &now, at(1000))).is_empty());
        // A different bucket, since the limit of the key was changed.
        let anew = named([("one", entry(&[("a", 2, 300, 1300)]))]);
        assert_eq!(
            sorted(others(&now, &anew, at(1000))),
            [("a".into(), seconds(300, 0))]
        );
    }

    #[test]
    fn a_debt_at_another_replica_is_one_here_as_long_as_it_is_one() {
        let before = named([("one", entry(&[("a", 1, 600, 1600)]))]);
        let now = named([("one", entry(&[("a", 1, 5000, 6000)]))]);
        assert_eq!(
            sorted(others(&before, &now, at(1000))),
            [("a".into(), seconds(5000, 3600))]
        );
        assert_eq!(
            sorted(others(&now, &now, at(1100))),
            [("a".into(), seconds(4900, 0))]
        );
        assert!(sorted(others(&now, &now, at(2400))).is_empty());
    }

    /// A UID of the maximum length.
    fn uid(number: u64) -> Box<str> {
        format!("{number:0UID$}").into()
    }

    /// An entry with this many keys, accounts, and accounts in the console, with the longest UIDs and the largest numbers.
    fn full(count: u64) -> Entry {
        let share = |number: u64| OwnShare {
            bucket: i64::MIN,
            taken: Duration::from_secs(u64::MAX),
            full_after: Duration::from_secs(number),
        };
        let many = |first: u64| (first..first + count).map(|n| (uid(n), share(n))).collect();
        let taken = ByHolder {
            keys: many(1),
            accounts: many(10_000),
            console: many(20_000),
        };
        Entry::of(taken, at(1_800_000_000))
    }

    #[test]
    fn the_entries_of_any_number_of_replicas_fit_into_an_object() {
        for replicas in [1, ROOMY, 12, 200, MOST_ENTRIES] {
            let mut entry = full(1000);
            entry.cut_to(room(replicas), &Entry::default());
            // The API server takes 1 MiB.
            let bytes = json!(entry).to_string().len() * replicas;
            assert!(bytes < 1 << 20, "{replicas} replicas: {bytes}");
            let room_for = [&entry.keys, &entry.accounts, &entry.console].map(BTreeMap::len);
            assert!(room_for.iter().sum::<usize>() >= 15, "{replicas}: {room_for:?}");
            assert!(
                bytes > 800_000 || replicas < ROOMY,
                "{replicas} replicas: {bytes}"
            );
        }
    }

    #[test]
    fn an_entry_that_is_cut_keeps_the_emptiest_buckets_and_what_was_stored_if_the_others_are_hardly_emptier()
    {
        let none = Entry::default();
        let mut whole = full(20);
        whole.console.clear();
        let size = json!(whole).to_string().len();
        let cut = |bytes, stored: &Entry| {
            let mut entry = whole.clone();
            entry.cut_to(bytes, stored);
            entry
        };
        assert_eq!(cut(size + 200, &none), whole);
        // The accounts take longer to be full.
        let half = cut(size / 2, &none);
        assert!(half.keys.is_empty() && half.accounts.contains_key(&uid(10_019)));
        assert!((15..20).contains(&half.accounts.len()), "{}", half.accounts.len());
        let of_accounts = |uids: std::ops::Range<u64>| Entry {
            accounts: uids.map(|n| (uid(n), whole.accounts[&uid(n)])).collect(),
            ..Entry::default()
        };
        let stored = cut(size / 3, &of_accounts(10_000..10_005));
        assert!(stored.accounts.contains_key(&uid(10_000)) && stored.accounts.contains_key(&uid(10_019)));
        let keys_stored = Entry {
            keys: whole.keys.clone(),
            ..Entry::default()
        };
        assert_eq!(cut(size / 2, &keys_stored), half, "accounts are notably emptier");
    }

    #[test]
    fn too_many_entries_leave_out_the_oldest_but_none_of_the_last_minute() {
        let aged = |number: usize, age: i64| {
            let entry = Entry {
                at: 5000 - age,
                ..Entry::default()
            };
            (format!("{number}"), entry)
        };
        let many = |age: i64| -> Entries { (0..MOST_ENTRIES).map(|number| aged(number, age)).collect() };
        let mut fresh = many(60);
        drop_surplus(&mut fresh, at(5000));
        assert_eq!(fresh.len(), MOST_ENTRIES);
        let mut older = many(61);
        older.extend([aged(7, 62)]);
        drop_surplus(&mut older, at(5000));
        assert!(older.len() == MOST_ENTRIES - 1 && !older.contains_key("7"));
    }

    #[test]
    fn only_notable_changes_are_written() {
        let stored = entry(&[("a", 1, 1000, 0), ("b", 2, 1000, 0)]);
        let is_outdated = |later: &[(&str, i64, u64, i64)]| stored.is_outdated_by(&entry(later), NOTABLE);
        assert!(!is_outdated(&[]));
        assert!(!is_outdated(&[("a", 1, 1299, 9999), ("b", 2, 500, 0)]));
        assert!(is_outdated(&[("a", 1, 1300, 0)]));
        assert!(is_outdated(&[("a", 9, 300, 0)]));
        assert!(is_outdated(&[("c", 1, 300, 0)]));
    }

    /// An API server with one ConfigMap, and how often it was written.
    fn api_server() -> (Client, Arc<Mutex<usize>>) {
        let writes = Arc::new(Mutex::new(0));
        let (stored, counted) = (Arc::new(Mutex::new(None)), writes.clone());
        let client = answered_by(move |method, _, body| {
            let mut stored = stored.lock();
            if method != Method::GET {
                let values = body["data"].as_object().unwrap().values();
                let bytes: usize = values.map(|value| value.as_str().unwrap().len()).sum();
                assert!(bytes < 1 << 20, "the API server refuses {bytes}");
                *counted.lock() += 1;
                *stored = Some(body);
            }
            let found = stored.clone();
            async move {
                let missing = json!({ "status": "Failure", "code": 404, "reason": "NotFound" });
                found.map_or((404, missing), |found| (200, found))
            }
        });
        (client, writes)
    }

    /// A process that serves the REST API.
    fn replica(client: &Client) -> (Arc<RateLimits>, KeptRateLimits) {
        let limits = Arc::<RateLimits>::default();
        let kept = KeptRateLimits::new(limits.clone(), client.clone(), "x", Arc::new(SystemClock));
        (limits, kept)
    }

    /// The replicas are more than [`ROOMY`].
    #[tokio::test]
    async fn a_dozen_busy_replicas_forget_nothing_of_each_other_and_write_only_what_is_new() {
        let (client, writes) = api_server();
        let replicas: Vec<_> = (0..12).map(|_| replica(&client)).collect();
        for (number, (limits, kept)) in (0..).zip(&replicas) {
            for _ in 0..10 {
                limits.keys.take(&format!("busy-{number}"), 12);
            }
            for other in 0..900 {
                limits.keys.take(&uid(1000 * number + other), 12);
            }
            kept.share(NOTABLE).await;
        }
        let written = *writes.lock();
        for (_, kept) in &replicas {
            kept.share(NOTABLE).await;
        }
        assert_eq!(*writes.lock() - written, 0, "nothing is new");
        let (limits, kept) = replica(&client);
        kept.share(NOTABLE).await;
        for number in 0..12 {
            let left = limits.keys.take(&format!("busy-{number}"), 12).remaining;
            assert_eq!(left, 1, "replica {number}");
        }
    }

    #[tokio::test]
    async fn a_restart_forgets_nothing_of_what_keys_accounts_and_the_console_have_taken() {
        let (client, _) = api_server();
        let (limits, kept) = replica(&client);
        kept.during(async {
            for _ in 0..100 {
                limits.keys.take("key", 3600);
                limits.accounts.take("account", 3600);
                limits.console.take("account", 3600);
            }
        })
        .await;
        let (limits, kept) = replica(&client);
        kept.during(async {
            let left = [
                limits.keys.take("key", 3600),
                limits.accounts.take("account", 3600),
                limits.console.take("account", 3600),
            ];
            for left in left {
                assert!((3499..3510).contains(&left.remaining), "{}", left.remaining);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_debt_is_one_at_other_replicas_too_and_outlasts_a_restart() {
        let (client, _) = api_server();
        let [(first, of_first), (second, of_second)] = [replica(&client), replica(&client)];
        for _ in 0..600 {
            first.keys.take("key", 3600);
        }
        of_first.share(NOTABLE).await;
        of_second.share(NOTABLE).await;
        assert_eq!(second.keys.take("key", 3600).retry_after, None);
        first.keys.with("key", 3600, |bucket| bucket.charge(4000));
        of_first.share(NOTABLE).await;
        of_second.share(NOTABLE).await;
        let (third, of_third) = replica(&client);
        of_third.share(NOTABLE).await;
        for limits in [first, second, third] {
            let wait = limits.keys.take("key", 3600).retry_after;
            assert!(wait.is_some_and(|wait| (900..=1001).contains(&wait)), "{wait:?}");
        }
    }

    #[test]
    fn unreadable_entries_and_those_that_are_over_are_left_out() {
        let whole = entry(&[("a", 1, 1000, 0)]);
        let text = json!(whole).to_string();
        let data = [
            ("one", "no JSON"),
            ("two", "{\"keys\":7}"),
            ("three", text.as_str()),
        ];
        let data = data.map(|(replica, entry)| (replica.to_owned(), entry.to_owned()));
        let stored = ConfigMap {
            data: Some(data.into()),
            ..ConfigMap::default()
        };
        assert_eq!(entries(&stored, at(8199)), named([("three", whole)]));
        assert!(entries(&stored, at(8200)).is_empty());
        assert!(entries(&ConfigMap::default(), at(0)).is_empty());
    }
}
