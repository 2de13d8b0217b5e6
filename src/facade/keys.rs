//! Who asks: API keys and the accounts that they belong to, fed by watches.

use std::{collections::HashMap, sync::Arc};

use governor::clock::DefaultClock;
use http::{HeaderMap, header::AUTHORIZATION};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{
    error::{ApiError, ErrorCode},
    limit::{Allowance, Bucket},
};
use crate::{
    resources::{Account, ApiKey, KeyScope},
    runtime::watch::{Change, Listener},
};

/// Longest key that is looked at; `stellage key create` makes much shorter ones.
const MAX_KEY: usize = 512;

type KeyDigest = [u8; 32];

/// The account of a request, and its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Name of the Account.
    pub account: Box<str>,
    /// UID of the Account.
    pub uid: Box<str>,
    /// The namespace that belongs to it.
    pub namespace: Box<str>,
    /// Webhooks that it may have.
    pub webhook_quota: u32,
    /// Whether the Account is being deleted: it serves what it has, and gets nothing new.
    is_leaving: bool,
    rate_limit: u32,
    age: Age,
}

impl Tenant {
    /// 409 while the Account is being deleted: what is created then would hold it back further.
    pub fn check_stays(&self) -> Result<(), ApiError> {
        if self.is_leaving {
            return Err(ApiError::new(
                ErrorCode::Conflict,
                "the account is being deleted; nothing can be created in it",
            ));
        }
        Ok(())
    }
}

/// A request's key, known and in force.
#[derive(Clone)]
pub struct Credential {
    /// Whose it is.
    pub tenant: Arc<Tenant>,
    key: Arc<Key>,
}

impl Credential {
    /// Whether the key may do more than read.
    pub fn may_write(&self) -> bool {
        self.key.scope == KeyScope::Write
    }

    /// Counts a request against the key's limit.
    pub fn spend(&self) -> Allowance {
        let limit = self.tenant.rate_limit;
        let mut bucket = self.key.bucket.lock();
        match bucket.as_ref().filter(|bucket| bucket.has_limit(limit)) {
            Some(bucket) => bucket.take(),
            None => bucket.insert(Bucket::new(limit, DefaultClock::default())).take(),
        }
    }
}

/// The oldest is the least.
type Age = (Timestamp, Box<str>);

fn age(metadata: &ObjectMeta) -> Age {
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    (
        created.unwrap_or(Timestamp::MAX),
        metadata.uid.as_deref().unwrap_or_default().into(),
    )
}

struct Key {
    digest: KeyDigest,
    namespace: Box<str>,
    age: Age,
    scope: KeyScope,
    expires_at: Option<Timestamp>,
    /// Made with the first request, and shared by all versions of the same object.
    bucket: Arc<Mutex<Option<Bucket>>>,
}

/// Every key and account.
#[derive(Default)]
pub struct Keys(RwLock<Tables>);

#[derive(Default)]
struct Tables {
    keys_listed: bool,
    accounts_listed: bool,
    /// By namespace and name.
    keys: HashMap<(Box<str>, Box<str>), Arc<Key>>,
    /// Oldest first, so that a copy of somebody's digest is never the one that counts.
    by_digest: HashMap<KeyDigest, Vec<Arc<Key>>>,
    /// By the Account's name.
    tenants: HashMap<Box<str>, Arc<Tenant>>,
    /// Oldest first.
    by_namespace: HashMap<Box<str>, Vec<Arc<Tenant>>>,
}

impl Keys {
    /// The listener for keys.
    pub fn key_listener(self: &Arc<Self>) -> Box<dyn Listener<ApiKey>> {
        let keys = self.clone();
        Box::new(move |change: &Change<ApiKey>| keys.keys_changed(change))
    }

    /// The listener for accounts.
    pub fn account_listener(self: &Arc<Self>) -> Box<dyn Listener<Account>> {
        let keys = self.clone();
        Box::new(move |change: &Change<Account>| keys.accounts_changed(change))
    }

    /// Whose request this is. 401 if the key is missing, malformed, unknown or expired; 503 until keys and accounts have
    /// been read for the first time.
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        now: impl FnOnce() -> Timestamp,
    ) -> Result<Credential, ApiError> {
        let digest = KeyDigest::from(Sha256::digest(bearer(headers)?.as_bytes()));
        let tables = self.0.read();
        if !(tables.keys_listed && tables.accounts_listed) {
            return Err(ApiError::unavailable("the service is starting; try again"));
        }
        tables.find(&digest, now).ok_or_else(|| {
            ApiError::new(
                ErrorCode::Unauthorized,
                "the API key is not valid: it is unknown, expired or revoked",
            )
        })
    }

    fn keys_changed(&self, change: &Change<ApiKey>) {
        let mut tables = self.0.write();
        match change {
            Change::Replaced(keys) => {
                let before = std::mem::take(&mut tables.keys);
                tables.by_digest.clear();
                tables.keys_listed = true;
                for key in keys {
                    let old = before.get(&name_of(&key.metadata));
                    tables.insert_key(key, old);
                }
            }
            Change::Applied(key) => {
                let old = tables.remove_key(&name_of(&key.metadata));
                tables.insert_key(key, old.as_ref());
            }
            Change::Deleted(key) => {
                tables.remove_key(&name_of(&key.metadata));
            }
            Change::Unreadable(_) => {}
        }
    }

    fn accounts_changed(&self, change: &Change<Account>) {
        let mut tables = self.0.write();
        match change {
            Change::Replaced(accounts) => {
                tables.tenants.clear();
                tables.by_namespace.clear();
                tables.accounts_listed = true;
                for account in accounts {
                    tables.insert_tenant(account);
                }
            }
            Change::Applied(account) => {
                tables.remove_tenant(account);
                tables.insert_tenant(account);
            }
            Change::Deleted(account) => tables.remove_tenant(account),
            Change::Unreadable(_) => {}
        }
    }
}

impl Tables {
    fn find(&self, digest: &KeyDigest, now: impl FnOnce() -> Timestamp) -> Option<Credential> {
        let key = self.by_digest.get(digest)?.first()?;
        if !bool::from(key.digest.ct_eq(digest)) || key.expires_at.is_some_and(|end| end <= now()) {
            return None;
        }
        let tenant = self.by_namespace.get(&key.namespace)?.first()?;
        Some(Credential {
            tenant: tenant.clone(),
            key: key.clone(),
        })
    }

    fn insert_key(&mut self, object: &ApiKey, old: Option<&Arc<Key>>) {
        let mut digest = KeyDigest::default();
        // A key that is being deleted is revoked, whatever holds it back.
        if object.metadata.deletion_timestamp.is_some()
            || hex::decode_to_slice(&object.spec.sha256, &mut digest).is_err()
        {
            return;
        }
        let name = name_of(&object.metadata);
        let age = age(&object.metadata);
        let bucket = old
            .filter(|old| old.age == age)
            .map_or_else(Arc::default, |old| old.bucket.clone());
        let key = Arc::new(Key {
            digest,
            namespace: name.0.clone(),
            age,
            scope: object.spec.scope,
            expires_at: object.spec.expires_at,
            bucket,
        });
        let same = self.by_digest.entry(digest).or_default();
        same.push(key.clone());
        same.sort_by(|a, b| a.age.cmp(&b.age));
        self.keys.insert(name, key);
    }

    fn remove_key(&mut self, name: &(Box<str>, Box<str>)) -> Option<Arc<Key>> {
        let key = self.keys.remove(name)?;
        if let Some(same) = self.by_digest.get_mut(&key.digest) {
            same.retain(|other| !Arc::ptr_eq(other, &key));
            if same.is_empty() {
                self.by_digest.remove(&key.digest);
            }
        }
        Some(key)
    }

    fn insert_tenant(&mut self, account: &Account) {
        // An account that is held back in deletion still has its instances, and keeps serving them.
        let Some(namespace) = account.owned_namespace() else {
            return;
        };
        let tenant = Arc::new(Tenant {
            account: account.metadata.name.as_deref().unwrap_or_default().into(),
            uid: account.metadata.uid.as_deref().unwrap_or_default().into(),
            namespace: namespace.into(),
            webhook_quota: account.webhook_quota(),
            is_leaving: account.metadata.deletion_timestamp.is_some(),
            rate_limit: account.rate_limit_per_hour(),
            age: age(&account.metadata),
        });
        let same = self.by_namespace.entry(namespace.into()).or_default();
        same.push(tenant.clone());
        same.sort_by(|a, b| a.age.cmp(&b.age));
        self.tenants.insert(tenant.account.clone(), tenant);
    }

    fn remove_tenant(&mut self, account: &Account) {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        if let Some(tenant) = self.tenants.remove(name)
            && let Some(same) = self.by_namespace.get_mut(&tenant.namespace)
        {
            same.retain(|other| !Arc::ptr_eq(other, &tenant));
            if same.is_empty() {
                self.by_namespace.remove(&tenant.namespace);
            }
        }
    }
}

fn name_of(metadata: &ObjectMeta) -> (Box<str>, Box<str>) {
    (
        metadata.namespace.as_deref().unwrap_or_default().into(),
        metadata.name.as_deref().unwrap_or_default().into(),
    )
}

/// The key in `Authorization: Bearer <API_KEY>` (specification, section 5).
fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (header, another) = (values.next(), values.next());
    let Some(header) = header else {
        return Err(ApiError::new(
            ErrorCode::Unauthorized,
            "the API key is missing; send the header Authorization: Bearer <API_KEY>",
        ));
    };
    // Which one counts is what a proxy and we could see differently.
    if another.is_some() {
        return Err(ApiError::new(
            ErrorCode::Unauthorized,
            "there are several Authorization headers; send one",
        ));
    }
    header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim_ascii())
        .filter(|key| !key.is_empty() && key.len() <= MAX_KEY && !key.contains(' '))
        .ok_or_else(|| {
            ApiError::new(
                ErrorCode::Unauthorized,
                "the Authorization header is malformed; it must be Authorization: Bearer <API_KEY>",
            )
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-21T10:00:00Z";

    fn key(namespace: &str, name: &str, text: &str, created: &str) -> ApiKey {
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "creationTimestamp": created },
            "spec": { "sha256": hex::encode(Sha256::digest(text)), "scope": "write" },
        }))
        .unwrap()
    }

    fn account(name: &str, namespace: &str, created: &str) -> Account {
        serde_json::from_value(json!({
            "metadata": { "name": name, "uid": format!("uid-{name}"), "creationTimestamp": created },
            "spec": { "email": "ada@example.com", "namespace": namespace },
            "status": { "namespace": namespace, "conditions": [
                { "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": NOW }
            ] },
        }))
        .unwrap()
    }

    fn table(keys: Vec<ApiKey>, accounts: Vec<Account>) -> Keys {
        let table = Keys::default();
        table.keys_changed(&Change::Replaced(keys.into_iter().map(Arc::new).collect()));
        table.accounts_changed(&Change::Replaced(accounts.into_iter().map(Arc::new).collect()));
        table
    }

    fn ask(keys: &Keys, authorization: &str) -> Result<Credential, ApiError> {
        ask_at(keys, authorization, NOW)
    }

    fn ask_at(keys: &Keys, authorization: &str, now: &str) -> Result<Credential, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization.parse().unwrap());
        keys.authenticate(&headers, || now.parse().unwrap())
    }

    fn refusal(answer: Result<Credential, ApiError>) -> String {
        let error = answer.err().unwrap();
        assert_eq!(error.code, ErrorCode::Unauthorized);
        error.message.into_owned()
    }

    #[test]
    fn two_authorization_headers_open_nothing() {
        let keys = table(
            vec![key("demo", "a", "secret", NOW)],
            vec![account("acme", "demo", NOW)],
        );
        let mut headers = HeaderMap::new();
        for _ in 0..2 {
            headers.append(AUTHORIZATION, "Bearer secret".parse().unwrap());
        }
        let answer = keys.authenticate(&headers, || NOW.parse().unwrap());
        assert_eq!(
            refusal(answer),
            "there are several Authorization headers; send one"
        );
    }

    #[test]
    fn a_key_opens_its_accounts_namespace_and_nothing_else_does() {
        let keys = table(
            vec![key("demo", "a", "secret", NOW)],
            vec![account("acme", "demo", NOW)],
        );
        for form in ["Bearer secret", "bearer secret", "BEARER  secret "] {
            assert_eq!(
                &*ask(&keys, form).ok().unwrap().tenant.namespace,
                "demo",
                "{form}"
            );
        }
        for form in ["secret", "Basic secret", "Bearer", "Bearer ", "Bearer a b"] {
            assert!(refusal(ask(&keys, form)).contains("malformed"), "{form}");
        }
        assert!(refusal(ask(&keys, &format!("Bearer {}", "x".repeat(600)))).contains("malformed"));
        assert!(refusal(ask(&keys, "Bearer other")).contains("not valid"));
        let missing = keys.authenticate(&HeaderMap::new(), || NOW.parse().unwrap());
        assert!(refusal(missing).contains("missing"));
    }

    #[test]
    fn a_copied_digest_steals_nothing() {
        let original = key("demo", "a", "secret", "2026-11-01T00:00:00Z");
        let copy = key("evil", "a", "secret", "2026-11-02T00:00:00Z");
        let accounts = vec![account("acme", "demo", NOW), account("evil", "evil", NOW)];
        for order in [vec![original.clone(), copy.clone()], vec![copy, original]] {
            let keys = table(order, accounts.clone());
            assert_eq!(
                &*ask(&keys, "Bearer secret").ok().unwrap().tenant.namespace,
                "demo"
            );
        }
    }

    #[test]
    fn a_namespace_without_an_account_and_a_later_claim_on_one_open_nothing() {
        let keys = table(vec![key("demo", "a", "secret", NOW)], vec![]);
        refusal(ask(&keys, "Bearer secret"));
        let later = account("later", "demo", "2026-11-02T00:00:00Z");
        let older = account("older", "demo", "2026-11-01T00:00:00Z");
        keys.accounts_changed(&Change::Applied(Arc::new(later)));
        keys.accounts_changed(&Change::Applied(Arc::new(older.clone())));
        assert_eq!(
            &*ask(&keys, "Bearer secret").ok().unwrap().tenant.account,
            "older"
        );
        keys.accounts_changed(&Change::Deleted(Arc::new(older)));
        assert_eq!(
            &*ask(&keys, "Bearer secret").ok().unwrap().tenant.account,
            "later"
        );
    }

    #[test]
    fn an_account_without_its_namespace_opens_nothing_and_one_in_deletion_does() {
        let mut waiting = account("acme", "demo", NOW);
        waiting.status = None;
        let keys = table(vec![key("demo", "a", "secret", NOW)], vec![waiting]);
        refusal(ask(&keys, "Bearer secret"));
        let mut leaving = account("acme", "demo", NOW);
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        keys.accounts_changed(&Change::Applied(Arc::new(leaving)));
        let tenant = ask(&keys, "Bearer secret").ok().unwrap().tenant;
        assert!(tenant.check_stays().is_err(), "but nothing new");
    }

    #[test]
    fn expiry_and_revocation_hold_at_once() {
        let mut expiring = key("demo", "a", "secret", NOW);
        expiring.spec.expires_at = Some("2026-11-21T12:00:00Z".parse().unwrap());
        let keys = table(vec![expiring.clone()], vec![account("acme", "demo", NOW)]);
        assert!(ask_at(&keys, "Bearer secret", "2026-11-21T11:59:59Z").is_ok());
        refusal(ask_at(&keys, "Bearer secret", "2026-11-21T12:00:00Z"));
        let mut ending = expiring.clone();
        ending.metadata.deletion_timestamp = ending.metadata.creation_timestamp.clone();
        keys.keys_changed(&Change::Applied(Arc::new(ending)));
        refusal(ask(&keys, "Bearer secret"));
        keys.keys_changed(&Change::Applied(Arc::new(expiring.clone())));
        assert!(ask(&keys, "Bearer secret").is_ok());
        keys.keys_changed(&Change::Deleted(Arc::new(expiring)));
        refusal(ask(&keys, "Bearer secret"));
        assert!(keys.0.read().by_digest.is_empty());
    }

    #[test]
    fn nothing_is_said_before_keys_and_accounts_are_known() {
        let keys = Keys::default();
        assert_eq!(
            ask(&keys, "Bearer secret").err().unwrap().code,
            ErrorCode::ServiceUnavailable
        );
        keys.keys_changed(&Change::Replaced(Vec::new()));
        assert_eq!(
            ask(&keys, "Bearer secret").err().unwrap().code,
            ErrorCode::ServiceUnavailable
        );
        keys.accounts_changed(&Change::Replaced(Vec::new()));
        refusal(ask(&keys, "Bearer secret"));
    }

    #[test]
    fn a_limit_survives_other_changes_and_is_replaced_by_another_limit() {
        let object = key("demo", "a", "secret", NOW);
        let keys = table(vec![object.clone()], vec![account("acme", "demo", NOW)]);
        let spend = || ask(&keys, "Bearer secret").ok().unwrap().spend();
        assert_eq!(spend().remaining, 3599);
        keys.keys_changed(&Change::Applied(Arc::new(object.clone())));
        keys.keys_changed(&Change::Replaced(vec![Arc::new(object.clone())]));
        keys.accounts_changed(&Change::Applied(Arc::new(account("acme", "demo", NOW))));
        assert_eq!(spend().remaining, 3598);
        let mut other = account("acme", "demo", NOW);
        other.spec.rate_limit_per_hour = Some(2);
        keys.accounts_changed(&Change::Applied(Arc::new(other)));
        assert_eq!(
            (
                spend().remaining,
                spend().remaining,
                spend().retry_after.is_some()
            ),
            (1, 0, true)
        );
    }
}
