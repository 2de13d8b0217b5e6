//! Authentication: an index of API keys and the accounts that they belong to, fed by watches.
//!
//! A key names its account, so one look-up finds the account's UID, which the digest covers, and another finds the digest, only
//! in that account's namespace.
//!
//! - [`key_use`]: records the day on which a key was last used.

pub mod key_use;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};

use super::{
    error::{Error, ErrorCode, suspended},
    index::{Object as _, Paging, Progress},
};
use resources::{
    Account, ApiKey, KeyScope,
    account::{DEFAULT_INSTANCE_QUOTA, Suspension},
    api_key, ids,
    invoice::Party,
    money::TaxRate,
    origin,
    quota::SizeQuotas,
    revision,
};
use runtime::{
    Health, audit,
    watch::{Change, Listener},
};

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
    /// Public id of the account holder, `usr_…`.
    pub id: Box<str>,
    /// Name of the installation, if it has one.
    pub installation: Option<Box<str>>,
    /// E-mail address of the account holder.
    pub email: Box<str>,
    /// The account holder, as invoices name it now.
    pub buyer: Party,
    /// Its tax rate, where that is not the general one.
    pub tax_rate: Option<TaxRate>,
    /// Why it pays no tax, or another one.
    pub tax_note: Option<Box<str>>,
    /// When the Account was created.
    pub created_at: Timestamp,
    /// Maximum number of instances.
    pub instance_quota: u32,
    /// Maximum number of webhooks.
    pub webhook_quota: u32,
    /// What its instances may have together.
    pub size_quotas: SizeQuotas,
    /// Why it is suspended, and what becomes of its servers; `None` if it is not.
    pub suspended: Option<Suspension>,
    /// Whether the Account is being deleted: existing objects are still served, but nothing can be created.
    is_terminating: bool,
    /// Requests that each of its keys may make per hour.
    pub rate_limit: u32,
    age: Age,
}

impl Tenant {
    /// `conflict` while the Account is being deleted: a new object would delay the deletion.
    pub fn check_not_terminating(&self) -> Result<(), Error> {
        if self.is_terminating {
            return Err(Error::new(
                ErrorCode::Conflict,
                "the account is being deleted; nothing can be created in it",
            ));
        }
        Ok(())
    }

    /// `account_suspended` while the Account is suspended.
    pub fn check_not_suspended(&self) -> Result<(), Error> {
        match &self.suspended {
            Some(suspension) => Err(suspended(&suspension.reason)),
            None => Ok(()),
        }
    }
}

/// Who asks for a change: an account, and its API key.
#[derive(Clone, Copy)]
pub struct Requester<'a> {
    pub tenant: &'a Tenant,
    /// Name of the `ApiKey`.
    pub key: &'a str,
}

/// A valid API key.
#[derive(Clone)]
pub struct Credential {
    /// The account that it belongs to.
    pub tenant: Arc<Tenant>,
    key: Arc<Key>,
    /// The person, as the OpenID Connect provider calls them (`sub`), in a session of the console that they began there.
    pub subject: Option<Arc<str>>,
}

impl Credential {
    /// Whether the key may do more than read.
    pub fn may_write(&self) -> bool {
        self.key.scope == KeyScope::Write
    }

    pub fn key_uid(&self) -> &str {
        &self.key.age.1
    }

    pub fn key_name(&self) -> &str {
        self.key.object.name()
    }

    /// Who asks, with this key.
    pub fn requester(&self) -> Requester<'_> {
        Requester {
            tenant: &self.tenant,
            key: self.key_name(),
        }
    }

    /// Writes into an audit line whose key it is, and who uses it if that is known.
    pub fn sign(&self, entry: &mut audit::Entry) {
        self.tenant.account.as_ref().clone_into(&mut entry.account);
        self.key_name().clone_into(&mut entry.key);
        entry.key_name = self.key.object.spec.name.clone().unwrap_or_default();
        entry.subject = self.subject.as_deref().map(str::to_owned).unwrap_or_default();
    }

    /// Whether a sign-in to the console created the key.
    pub fn is_sign_in(&self) -> bool {
        self.key.object.is_sign_in()
    }

    /// Notes that the key is used at this time. Returns whether this is its first use on that day, so that the day must be recorded.
    pub fn note_use(&self, now: Timestamp) -> bool {
        self.key.note_use(TimeZone::UTC.to_datetime(now).date())
    }

    /// The key's object, as the watch showed it.
    pub fn key_object(&self) -> &Arc<ApiKey> {
        &self.key.object
    }

    /// When the key expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.key.expires_at
    }
}

/// Identifies the key with which a session began, without containing the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyIdentity<'a> {
    /// UID of the Account that the key belonged to.
    pub account_uid: &'a str,
    /// Namespace of the ApiKey.
    pub namespace: &'a str,
    /// Name of the ApiKey.
    pub name: &'a str,
    /// UID of the ApiKey.
    pub uid: &'a str,
}

/// Creation time and UID; sorts oldest first.
type Age = (Timestamp, Box<str>);

fn age(metadata: &ObjectMeta) -> Age {
    let created = origin::created_at(metadata);
    (created.unwrap_or(Timestamp::MAX), origin::uid(metadata).into())
}

struct Key {
    digest: KeyDigest,
    namespace: Box<str>,
    age: Age,
    scope: KeyScope,
    expires_at: Option<Timestamp>,
    /// The latest day, in UTC, on which the key was used. Shared with earlier and later versions of the key.
    last_use: Arc<Mutex<Option<Date>>>,
    /// Shared with the watch's store.
    object: Arc<ApiKey>,
}

impl Key {
    fn is_alive(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| end > now)
    }

    /// Notes a use on this day. Returns whether it is later than all before; it is never set back, whatever the clock does.
    fn note_use(&self, day: Date) -> bool {
        let mut last = self.last_use.lock();
        let is_later = *last < Some(day);
        if is_later {
            *last = Some(day);
        }
        is_later
    }
}

/// Newest first, then by name.
type ListKey = (Reverse<Timestamp>, Box<str>);

/// The index of keys and accounts.
pub struct Credentials {
    tables: RwLock<Tables>,
    /// Instances that an account may have unless its spec says otherwise.
    instance_quota: u32,
    /// How far the watch of keys has come.
    progress: Progress,
    /// Whether these watches go on.
    health: Health,
}

#[derive(Default)]
struct Tables {
    keys_listed: bool,
    accounts_listed: bool,
    /// By namespace and name.
    keys: HashMap<(Box<str>, Box<str>), Arc<Key>>,
    /// In the order of lists, by namespace.
    listed: HashMap<Box<str>, BTreeMap<ListKey, Arc<Key>>>,
    /// By namespace and digest. Several keys of a namespace may have one digest; the oldest comes first.
    by_digest: HashMap<Box<str>, HashMap<KeyDigest, Vec<Arc<Key>>>>,
    /// By name of the Account.
    tenants: HashMap<Box<str>, Arc<Tenant>>,
    /// By public id of the account holder, without its prefix.
    by_id: HashMap<Box<str>, Arc<Tenant>>,
    /// Oldest first.
    by_namespace: HashMap<Box<str>, Vec<Arc<Tenant>>>,
}

impl Default for Credentials {
    fn default() -> Self {
        Self::new(DEFAULT_INSTANCE_QUOTA, Health::default())
    }
}

impl Credentials {
    /// An empty index. `instance_quota` applies to accounts that set none; `health` knows whether the watches go on.
    pub fn new(instance_quota: u32, health: Health) -> Self {
        for resource in ["apikeys", "accounts"] {
            health.require_watch(resource);
        }
        Self {
            health,
            tables: RwLock::default(),
            instance_quota,
            progress: Progress::default(),
        }
    }

    pub fn key_listener(self: &Arc<Self>) -> Box<dyn Listener<ApiKey>> {
        let keys = self.clone();
        Box::new(move |change: &Change<ApiKey>| keys.keys_changed(change))
    }

    pub fn account_listener(self: &Arc<Self>) -> Box<dyn Listener<Account>> {
        let keys = self.clone();
        Box::new(move |change: &Change<Account>| keys.accounts_changed(change))
    }

    /// `Unavailable` until keys and accounts have been listed once, and while their watches are lost: a key may have been revoked
    /// since.
    fn check(&self, tables: &Tables) -> Result<(), Error> {
        if !(tables.keys_listed && tables.accounts_listed) {
            return Err(Error::unavailable("the service is starting; try again"));
        }
        if self.health.is_stale() {
            return Err(Error::unavailable(
                "the service cannot tell at the moment whether the API key is still valid; try again",
            ));
        }
        Ok(())
    }

    /// Authenticates a key. `Unauthorized` if it is unknown, expired or revoked; `Unavailable` as `check` says.
    pub fn authenticate(&self, key: &str, now: impl FnOnce() -> Timestamp) -> Result<Credential, Error> {
        let tables = self.tables.read();
        self.check(&tables)?;
        tables.find(key, now).ok_or_else(|| {
            Error::new(
                ErrorCode::Unauthorized,
                "the API key is not valid: it is unknown, expired or revoked",
            )
        })
    }

    /// Finds the key of a session again. `Unauthorized` if the key is revoked or expired, or if its namespace now belongs to another
    /// account; `Unavailable` as `check` says.
    pub fn resume(&self, identity: &KeyIdentity<'_>, now: Timestamp) -> Result<Credential, Error> {
        let tables = self.tables.read();
        self.check(&tables)?;
        tables.resume(identity, now).ok_or_else(|| {
            Error::new(
                ErrorCode::Unauthorized,
                "the API key of this session is revoked or has expired",
            )
        })
    }

    /// The Account of this name, if its namespace belongs to it.
    pub fn account_named(&self, name: &str) -> Option<Arc<Tenant>> {
        let tables = self.tables.read();
        let tenant = tables.tenants.get(name)?;
        let owner = tables.owner(&tenant.namespace)?;
        (owner.uid == tenant.uid).then(|| tenant.clone())
    }

    /// The Accounts with this e-mail address that own their namespaces. The case of ASCII letters is ignored. `Unavailable` as
    /// `check` says.
    pub fn accounts_with_email(&self, email: &str) -> Result<Vec<Arc<Tenant>>, Error> {
        let tables = self.tables.read();
        self.check(&tables)?;
        let owners = tables.by_namespace.values().filter_map(|tenants| tenants.first());
        Ok(owners
            .filter(|tenant| tenant.email.eq_ignore_ascii_case(email))
            .cloned()
            .collect())
    }

    /// The keys in a namespace that sign-ins to the console created, newest first.
    pub fn sign_ins(&self, namespace: &str) -> Vec<Arc<ApiKey>> {
        let tables = self.tables.read();
        let keys = tables.listed.get(namespace).into_iter().flatten();
        keys.filter(|(_, key)| key.object.is_sign_in())
            .map(|(_, key)| key.object.clone())
            .collect()
    }

    /// One page of the keys in a namespace, newest first, and their total number.
    pub fn page(&self, namespace: &str, paging: Paging) -> (Vec<Arc<ApiKey>>, usize) {
        let tables = self.tables.read();
        let keys = tables.listed.get(namespace).into_iter().flatten();
        paging.cut(keys.map(|(_, key)| key.object.clone()))
    }

    /// The number of keys in a namespace that have not expired at `now`.
    pub fn count(&self, namespace: &str, now: Timestamp) -> usize {
        let tables = self.tables.read();
        let keys = tables.listed.get(namespace).into_iter().flatten();
        keys.filter(|(_, key)| key.is_alive(now)).count()
    }

    /// The key with this name, as the watch shows it.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<ApiKey>> {
        let tables = self.tables.read();
        let key = tables.keys.get(&(namespace.into(), name.into()))?;
        Some(key.object.clone())
    }

    /// The key with this name and the day of its last use, if the watch does not show that day yet.
    pub fn unrecorded_use(&self, namespace: &str, name: &str) -> Option<(Arc<ApiKey>, Date)> {
        let tables = self.tables.read();
        let key = tables.keys.get(&(namespace.into(), name.into()))?;
        let day = (*key.last_use.lock())?;
        (Some(day) > key.object.last_used_on()).then(|| (key.object.clone(), day))
    }

    /// How far the watch of keys has come.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    fn keys_changed(&self, change: &Change<ApiKey>) {
        self.update_keys(change);
        // After the update: waiting requests read the index as soon as they wake up.
        match change {
            Change::Replaced(keys) => {
                let newest = keys.iter().map(|key| revision(&**key)).max();
                self.progress.listed(newest.unwrap_or(0));
            }
            Change::Applied(key) => {
                if key.is_terminating() {
                    self.progress.removed(key.uid());
                }
                self.progress.reached(revision(&**key));
            }
            Change::Deleted(key) => {
                self.progress.removed(key.uid());
                self.progress.reached(revision(&**key));
            }
            Change::Unreadable(_) => {}
        }
    }

    fn update_keys(&self, change: &Change<ApiKey>) {
        let mut tables = self.tables.write();
        match change {
            Change::Replaced(keys) => {
                let former = std::mem::take(&mut tables.keys);
                tables.listed.clear();
                tables.by_digest.clear();
                tables.keys_listed = true;
                for key in keys {
                    let before = former.get(&name_of(&key.metadata));
                    tables.insert_key(key, before);
                }
            }
            Change::Applied(key) => {
                let before = tables.remove_key(&name_of(&key.metadata));
                tables.insert_key(key, before.as_ref());
            }
            Change::Deleted(key) => {
                tables.remove_key(&name_of(&key.metadata));
            }
            Change::Unreadable(_) => {}
        }
    }

    fn accounts_changed(&self, change: &Change<Account>) {
        let mut tables = self.tables.write();
        match change {
            Change::Replaced(accounts) => {
                tables.tenants.clear();
                tables.by_id.clear();
                tables.by_namespace.clear();
                tables.accounts_listed = true;
                for account in accounts {
                    tables.insert_tenant(account, self.instance_quota);
                }
            }
            Change::Applied(account) => {
                tables.remove_tenant(account);
                tables.insert_tenant(account, self.instance_quota);
            }
            Change::Deleted(account) => tables.remove_tenant(account),
            Change::Unreadable(_) => {}
        }
    }
}

impl Tables {
    fn find(&self, text: &str, now: impl FnOnce() -> Timestamp) -> Option<Credential> {
        let named = self.by_id.get(api_key::account_of(text)?)?;
        let tenant = self.owner(&named.namespace)?;
        let digest = api_key::digest(&tenant.uid, text);
        let key = self.by_digest.get(&tenant.namespace)?.get(&digest)?.first()?;
        key.is_alive(now()).then(|| Credential {
            tenant: tenant.clone(),
            key: key.clone(),
            subject: None,
        })
    }

    fn resume(&self, identity: &KeyIdentity<'_>, now: Timestamp) -> Option<Credential> {
        let tenant = self.owner(identity.namespace)?;
        let key = self
            .keys
            .get(&(identity.namespace.into(), identity.name.into()))?;
        let is_same = *key.age.1 == *identity.uid && *tenant.uid == *identity.account_uid;
        (is_same && key.is_alive(now)).then(|| Credential {
            tenant: tenant.clone(),
            key: key.clone(),
            subject: None,
        })
    }

    /// The account that a namespace belongs to.
    fn owner(&self, namespace: &str) -> Option<&Arc<Tenant>> {
        self.by_namespace.get(namespace)?.first()
    }

    /// Inserts a key. `before` is the previous key of this name.
    fn insert_key(&mut self, object: &Arc<ApiKey>, before: Option<&Arc<Key>>) {
        let mut digest = KeyDigest::default();
        // A key that is being deleted is revoked, even if a finalizer delays the deletion.
        if object.metadata.deletion_timestamp.is_some()
            || hex::decode_to_slice(object.sha256().unwrap_or_default(), &mut digest).is_err()
        {
            return;
        }
        let name = name_of(&object.metadata);
        let age = age(&object.metadata);
        let last_use = before
            .filter(|before| before.age == age)
            .map_or_else(Arc::default, |before| before.last_use.clone());
        let key = Arc::new(Key {
            digest,
            namespace: name.0.clone(),
            age,
            scope: object.spec.scope,
            expires_at: object.spec.expires_at,
            last_use,
            object: object.clone(),
        });
        if let Some(day) = object.last_used_on() {
            key.note_use(day);
        }
        let in_namespace = self.listed.entry(key.namespace.clone()).or_default();
        in_namespace.insert(list_key(object), key.clone());
        let by_digest = self.by_digest.entry(key.namespace.clone()).or_default();
        let same = by_digest.entry(digest).or_default();
        same.push(key.clone());
        same.sort_by(|a, b| a.age.cmp(&b.age));
        self.keys.insert(name, key);
    }

    fn remove_key(&mut self, name: &(Box<str>, Box<str>)) -> Option<Arc<Key>> {
        let key = self.keys.remove(name)?;
        if let Some(in_namespace) = self.listed.get_mut(&key.namespace) {
            in_namespace.remove(&list_key(&key.object));
            if in_namespace.is_empty() {
                self.listed.remove(&key.namespace);
            }
        }
        if let Some(by_digest) = self.by_digest.get_mut(&key.namespace) {
            if let Some(same) = by_digest.get_mut(&key.digest) {
                same.retain(|other| !Arc::ptr_eq(other, &key));
                if same.is_empty() {
                    by_digest.remove(&key.digest);
                }
            }
            if by_digest.is_empty() {
                self.by_digest.remove(&key.namespace);
            }
        }
        Some(key)
    }

    fn insert_tenant(&mut self, account: &Account, instance_quota: u32) {
        // An account that is being deleted is still served until its instances are gone.
        let Some(namespace) = account.owned_namespace() else {
            return;
        };
        let billing = account.spec.billing.as_ref();
        let tenant = Arc::new(Tenant {
            account: account.metadata.name.as_deref().unwrap_or_default().into(),
            uid: origin::uid(&account.metadata).into(),
            namespace: namespace.into(),
            id: ids::account_id(origin::uid(&account.metadata)).into(),
            email: account.spec.email.as_str().into(),
            buyer: account.buyer(),
            tax_rate: billing.and_then(|billing| billing.tax_rate),
            tax_note: billing
                .and_then(|billing| billing.tax_note.as_deref())
                .map(Box::from),
            created_at: age(&account.metadata).0,
            installation: account.installation().map(Into::into),
            instance_quota: account.instance_quota(instance_quota),
            webhook_quota: account.webhook_quota(),
            size_quotas: account.size_quotas(),
            suspended: account.spec.suspended.clone(),
            is_terminating: account.metadata.deletion_timestamp.is_some(),
            rate_limit: account.rate_limit_per_hour(),
            age: age(&account.metadata),
        });
        let same = self.by_namespace.entry(namespace.into()).or_default();
        same.push(tenant.clone());
        same.sort_by(|a, b| a.age.cmp(&b.age));
        self.by_id
            .insert(ids::suffix_of_account(&tenant.id).into(), tenant.clone());
        self.tenants.insert(tenant.account.clone(), tenant);
    }

    fn remove_tenant(&mut self, account: &Account) {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let Some(tenant) = self.tenants.remove(name) else {
            return;
        };
        self.by_id.remove(ids::suffix_of_account(&tenant.id));
        if let Some(same) = self.by_namespace.get_mut(&tenant.namespace) {
            same.retain(|other| !Arc::ptr_eq(other, &tenant));
            if same.is_empty() {
                self.by_namespace.remove(&tenant.namespace);
            }
        }
    }
}

fn list_key(key: &ApiKey) -> ListKey {
    let created = origin::created_at(&key.metadata);
    (Reverse(created.unwrap_or(Timestamp::MIN)), key.name().into())
}

fn name_of(metadata: &ObjectMeta) -> (Box<str>, Box<str>) {
    (
        metadata.namespace.as_deref().unwrap_or_default().into(),
        metadata.name.as_deref().unwrap_or_default().into(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-11-21T10:00:00Z";

    /// A key of the account `acme`.
    fn key(namespace: &str, name: &str, secret: &str, created: &str) -> ApiKey {
        let digest = api_key::digest("uid-acme", &api_key::test_key("uid-acme", secret));
        serde_json::from_value(json!({
            "metadata": { "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"), "creationTimestamp": created },
            "spec": { "sha256": hex::encode(digest), "scope": "write" },
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

    fn table(keys: Vec<ApiKey>, accounts: Vec<Account>) -> Credentials {
        let table = Credentials::default();
        table.keys_changed(&Change::Replaced(keys.into_iter().map(Arc::new).collect()));
        table.accounts_changed(&Change::Replaced(accounts.into_iter().map(Arc::new).collect()));
        table
    }

    /// Asks with a key of the account `acme`.
    fn ask(keys: &Credentials, secret: &str) -> Result<Credential, Error> {
        ask_at(keys, secret, NOW)
    }

    fn ask_at(keys: &Credentials, secret: &str, now: &str) -> Result<Credential, Error> {
        ask_with(keys, &api_key::test_key("uid-acme", secret), now)
    }

    fn ask_with(keys: &Credentials, text: &str, now: &str) -> Result<Credential, Error> {
        keys.authenticate(text, || now.parse().unwrap())
    }

    fn refusal(answer: Result<Credential, Error>) -> String {
        let error = answer.err().unwrap();
        assert_eq!(error.code, ErrorCode::Unauthorized);
        error.message.into_owned()
    }

    #[test]
    fn no_key_is_accepted_while_the_watch_that_would_show_its_revocation_is_lost_for_long() {
        let health = Health::default();
        let table = Credentials::new(DEFAULT_INSTANCE_QUOTA, health.clone());
        table.keys_changed(&Change::Replaced(vec![Arc::new(key("acme", "k", "s", NOW))]));
        table.accounts_changed(&Change::Replaced(vec![Arc::new(account("acme", "acme", NOW))]));
        let authenticate = || {
            let text = api_key::test_key("uid-acme", "s");
            let found = table.authenticate(&text, || NOW.parse().unwrap());
            found.map(drop).map_err(|error| error.code)
        };
        assert_eq!(authenticate(), Ok(()));
        for watch in ["apikeys", "accounts"] {
            health.lose_watch_for_long(watch);
            assert_eq!(authenticate(), Err(ErrorCode::ServiceUnavailable));
            health.watch_answered(watch);
            assert_eq!(authenticate(), Ok(()));
        }
    }

    #[test]
    fn a_key_gives_access_to_the_namespace_of_its_account_only() {
        let keys = table(
            vec![key("demo", "a", "secret", NOW)],
            vec![account("acme", "demo", NOW)],
        );
        assert_eq!(&*ask(&keys, "secret").ok().unwrap().tenant.namespace, "demo");
        assert!(refusal(ask(&keys, "other")).contains("not valid"));
    }

    #[test]
    fn of_keys_with_one_digest_the_oldest_counts_and_each_can_be_revoked() {
        let oldest = key("demo", "b", "secret", "2026-11-01T00:00:00Z");
        let mut younger = key("demo", "a", "secret", "2026-11-02T00:00:00Z");
        younger.spec.scope = KeyScope::Read;
        for order in [
            [oldest.clone(), younger.clone()],
            [younger.clone(), oldest.clone()],
        ] {
            let keys = table(order.to_vec(), vec![account("acme", "demo", NOW)]);
            assert!(ask(&keys, "secret").ok().unwrap().may_write());
            keys.keys_changed(&Change::Deleted(Arc::new(oldest.clone())));
            assert!(!ask(&keys, "secret").ok().unwrap().may_write());
            keys.keys_changed(&Change::Deleted(Arc::new(younger.clone())));
            refusal(ask(&keys, "secret"));
        }
    }

    /// A key as `stellage key create` makes it.
    fn new_key(account: &Account, namespace: &str) -> (String, ApiKey) {
        let uid = account.metadata.uid.as_deref().unwrap();
        let (text, spec) = resources::api_key::new_key(None, uid, KeyScope::Write, None);
        let mut object = key(namespace, "a", "", NOW);
        object.spec = spec;
        (text, object)
    }

    #[test]
    fn a_digest_planted_in_another_namespace_is_dead_also_after_the_original_was_revoked() {
        let (acme, evil) = (account("acme", "demo", NOW), account("evil", "evil", NOW));
        let (text, original) = new_key(&acme, "demo");
        let mut planted = original.clone();
        planted.metadata.namespace = Some("evil".to_owned());
        let keys = table(vec![original.clone(), planted.clone()], vec![acme.clone(), evil]);
        let ask = || ask_with(&keys, &text, NOW);
        assert_eq!(&*ask().ok().unwrap().tenant.namespace, "demo");
        keys.keys_changed(&Change::Deleted(Arc::new(original.clone())));
        refusal(ask());
        keys.keys_changed(&Change::Deleted(Arc::new(planted)));
        keys.keys_changed(&Change::Applied(Arc::new(original)));
        assert!(ask().is_ok());
        // Another account with the same namespace has another UID.
        keys.accounts_changed(&Change::Deleted(Arc::new(acme)));
        refusal(ask());
        keys.accounts_changed(&Change::Applied(Arc::new(account("next", "demo", NOW))));
        refusal(ask());
    }

    #[test]
    fn a_namespace_without_an_account_and_a_later_claim_to_a_namespace_give_no_access() {
        let later = account("later", "demo", "2026-11-02T00:00:00Z");
        let older = account("older", "demo", "2026-11-01T00:00:00Z");
        let (of_later, later_key) = new_key(&later, "demo");
        let (of_older, mut older_key) = new_key(&older, "demo");
        older_key.metadata.name = Some("b".to_owned());
        let keys = table(vec![later_key, older_key], vec![]);
        let ask = |text| ask_with(&keys, text, NOW);
        refusal(ask(&of_older));
        keys.accounts_changed(&Change::Applied(Arc::new(later)));
        keys.accounts_changed(&Change::Applied(Arc::new(older.clone())));
        assert_eq!(&*ask(&of_older).ok().unwrap().tenant.account, "older");
        refusal(ask(&of_later));
        keys.accounts_changed(&Change::Deleted(Arc::new(older)));
        refusal(ask(&of_older));
        assert_eq!(&*ask(&of_later).ok().unwrap().tenant.account, "later");
    }

    #[test]
    fn an_account_without_its_namespace_gives_no_access_and_one_in_deletion_does() {
        let mut waiting = account("acme", "demo", NOW);
        waiting.status = None;
        let keys = table(vec![key("demo", "a", "secret", NOW)], vec![waiting]);
        refusal(ask(&keys, "secret"));
        let mut leaving = account("acme", "demo", NOW);
        leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
        keys.accounts_changed(&Change::Applied(Arc::new(leaving)));
        let tenant = ask(&keys, "secret").ok().unwrap().tenant;
        assert!(tenant.check_not_terminating().is_err(), "nothing can be created");
    }

    #[test]
    fn expiry_and_revocation_take_effect_at_once() {
        let mut expiring = key("demo", "a", "secret", NOW);
        expiring.spec.expires_at = Some("2026-11-21T12:00:00Z".parse().unwrap());
        let keys = table(vec![expiring.clone()], vec![account("acme", "demo", NOW)]);
        assert!(ask_at(&keys, "secret", "2026-11-21T11:59:59Z").is_ok());
        refusal(ask_at(&keys, "secret", "2026-11-21T12:00:00Z"));
        let mut ending = expiring.clone();
        ending.metadata.deletion_timestamp = ending.metadata.creation_timestamp.clone();
        keys.keys_changed(&Change::Applied(Arc::new(ending)));
        refusal(ask(&keys, "secret"));
        keys.keys_changed(&Change::Applied(Arc::new(expiring.clone())));
        assert!(ask(&keys, "secret").is_ok());
        keys.keys_changed(&Change::Deleted(Arc::new(expiring)));
        refusal(ask(&keys, "secret"));
        assert!(keys.tables.read().by_digest.is_empty());
    }

    #[test]
    fn a_session_lasts_as_long_as_its_key_and_its_account() {
        let own = key("demo", "a", "secret", NOW);
        let acme = account("acme", "demo", NOW);
        let keys = table(vec![own.clone()], vec![acme.clone()]);
        let identity = KeyIdentity {
            account_uid: "uid-acme",
            namespace: "demo",
            name: "a",
            uid: "demo-a",
        };
        let now: Timestamp = NOW.parse().unwrap();
        let resumed = |identity: &KeyIdentity<'_>| keys.resume(identity, now);
        let found = resumed(&identity).ok().unwrap();
        assert_eq!((found.key_name(), found.key_uid()), ("a", "demo-a"));
        for wrong in [
            KeyIdentity {
                uid: "other",
                ..identity
            },
            KeyIdentity {
                account_uid: "other",
                ..identity
            },
            KeyIdentity {
                namespace: "evil",
                ..identity
            },
        ] {
            refusal(resumed(&wrong));
        }
        let mut expiring = own.clone();
        expiring.spec.expires_at = Some(now);
        keys.keys_changed(&Change::Applied(Arc::new(expiring)));
        refusal(resumed(&identity));
        keys.keys_changed(&Change::Applied(Arc::new(own.clone())));
        assert!(resumed(&identity).is_ok());
        keys.keys_changed(&Change::Deleted(Arc::new(own)));
        refusal(resumed(&identity));
    }

    /// An ApiKey whose last use was recorded.
    fn last_used_on(key: &ApiKey, day: &str) -> Arc<ApiKey> {
        let mut key = key.clone();
        key.status = Some(serde_json::from_value(json!({ "lastUsedOn": day })).unwrap());
        Arc::new(key)
    }

    #[test]
    fn a_use_is_to_be_recorded_until_the_watch_shows_its_day() {
        let own = key("demo", "a", "secret", NOW);
        let keys = table(vec![own.clone()], vec![account("acme", "demo", NOW)]);
        let unrecorded = || keys.unrecorded_use("demo", "a").map(|(_, day)| day.to_string());
        let note = |now: &str| {
            let credential = ask(&keys, "secret").ok().unwrap();
            credential.note_use(now.parse().unwrap())
        };
        assert_eq!(unrecorded(), None, "it was never used");
        assert!(note("2026-11-21T23:59:59Z"));
        assert_eq!(unrecorded().as_deref(), Some("2026-11-21"));
        assert!(!note("2026-11-21T00:00:00Z"), "once a day");
        // The use is remembered when something else about the key changes, or when all keys are listed again.
        keys.keys_changed(&Change::Applied(Arc::new(own.clone())));
        keys.keys_changed(&Change::Replaced(vec![Arc::new(own.clone())]));
        assert!(!note("2026-11-21T12:00:00Z"));
        assert_eq!(unrecorded().as_deref(), Some("2026-11-21"));
        keys.keys_changed(&Change::Applied(last_used_on(&own, "2026-11-21")));
        assert_eq!(unrecorded(), None);
        assert!(!note("2026-11-21T12:00:00Z"));
        // Another replica has recorded a later day, by its clock.
        keys.keys_changed(&Change::Applied(last_used_on(&own, "2026-11-22")));
        assert!(!note("2026-11-21T12:00:00Z") && !note("2026-11-22T12:00:00Z"));
        assert_eq!(unrecorded(), None);
        assert!(note("2026-11-23T00:00:00Z"));
        assert_eq!(unrecorded().as_deref(), Some("2026-11-23"));
        assert!(!note("2026-11-22T12:00:00Z"), "the clock was set back");
        keys.keys_changed(&Change::Applied(last_used_on(&own, "2026-11-01")));
        assert_eq!(unrecorded().as_deref(), Some("2026-11-23"));
    }

    #[test]
    fn a_use_is_forgotten_with_its_key_and_does_not_become_that_of_another_with_its_name() {
        let own = key("demo", "a", "secret", NOW);
        let keys = table(vec![own.clone()], vec![account("acme", "demo", NOW)]);
        let credential = ask(&keys, "secret").ok().unwrap();
        assert!(credential.note_use(NOW.parse().unwrap()));
        let mut other = own.clone();
        other.metadata.uid = Some("other".to_owned());
        keys.keys_changed(&Change::Applied(Arc::new(other.clone())));
        assert!(keys.unrecorded_use("demo", "a").is_none());
        keys.keys_changed(&Change::Deleted(Arc::new(other)));
        assert!(keys.unrecorded_use("demo", "a").is_none());
    }

    #[test]
    fn requests_are_unavailable_until_keys_and_accounts_are_listed() {
        let keys = Credentials::default();
        assert_eq!(
            ask(&keys, "secret").err().unwrap().code,
            ErrorCode::ServiceUnavailable
        );
        keys.keys_changed(&Change::Replaced(Vec::new()));
        assert_eq!(
            ask(&keys, "secret").err().unwrap().code,
            ErrorCode::ServiceUnavailable
        );
        keys.accounts_changed(&Change::Replaced(Vec::new()));
        refusal(ask(&keys, "secret"));
    }
}
