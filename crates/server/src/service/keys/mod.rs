//! API keys: list, create, revoke. Only the digest of a key is stored, so a key can be shown only once.
//!
//! - [`console_links`]: one-time links that sign in to the console; [`console_sign_ins`]: sign-ins through OpenID Connect.

pub mod console_links;
pub mod console_sign_ins;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::api::ObjectMeta;

use super::{
    Service,
    credentials::Tenant,
    error::{Detail, Error, ErrorCode, quota_used_up},
    idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
    index::{Object as _, Paging},
    precondition::Precondition,
    store::{MAX_ATTEMPTS, contended, pause},
};
use api::CreateKey;
use resources::{ApiKey, api_key::new_key, ids, quota, revision};
use runtime::client::CallError;

/// The name of the kind in messages.
const WORD: &str = "API key";

/// How long the quota of Kubernetes may take to notice that a key is gone.
const NOTICED_WITHIN: Duration = Duration::from_secs(5);

/// A key that was created.
pub struct CreatedKey {
    pub object: Arc<ApiKey>,
    /// The key itself; `None` if an earlier request with the same idempotency key created it and showed it.
    pub key: Option<String>,
}

impl Service {
    /// One page of an account's keys, newest first, and their total number.
    pub fn list_keys(&self, namespace: &str, paging: Paging) -> (Vec<Arc<ApiKey>>, usize) {
        self.credentials.page(namespace, paging)
    }

    /// The key with this name; `not_found` if it is not in the namespace.
    pub async fn key(&self, namespace: &str, name: Option<&str>) -> Result<Arc<ApiKey>, Error> {
        let name = name.ok_or_else(unknown)?;
        match self.credentials.get(namespace, name) {
            Some(key) => Ok(key),
            None => self.fetch_key(namespace, name).await,
        }
    }

    async fn fetch_key(&self, namespace: &str, name: &str) -> Result<Arc<ApiKey>, Error> {
        let key: Option<ApiKey> = self.calls.get(namespace, name).await?;
        let key = key.filter(|key| !key.is_terminating()).ok_or_else(unknown)?;
        Ok(Arc::new(key))
    }

    /// Creates a key, once per idempotency key.
    pub async fn create_key(
        &self,
        tenant: &Tenant,
        new: &CreateKey,
        request: Option<&IdempotentRequest>,
    ) -> Result<CreatedKey, Error> {
        let namespace = &tenant.namespace;
        // Serialised, so that concurrent creates cannot exceed the quota.
        let _lock = self.key_locks.lock(namespace).await?;
        for _ in 0..MAX_ATTEMPTS {
            let suffix = request.map_or_else(ids::random_suffix, |request| request.name_suffix(&tenant.uid));
            let name = format!("key-{suffix}");
            if let Some(request) = request
                && let Some(object) = self.credentials.get(namespace, &name)
            {
                return replayed(object, request);
            }
            if let Err(refusal) = self.check_new_key(tenant, new) {
                // The watch may lag behind.
                if let Some(request) = request
                    && let Some(object) = self.calls.get(namespace, &name).await?
                {
                    return replayed(Arc::new(object), request);
                }
                return Err(refusal);
            }
            let (key, mut spec) = new_key(
                tenant.installation.as_deref(),
                &tenant.uid,
                new.scope,
                new.expires_at,
            );
            spec.name = new.name.clone().filter(|text| !text.is_empty());
            let object = ApiKey {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    annotations: request.map(|request| {
                        let hash = request.visible_hash().to_owned();
                        BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)])
                    }),
                    ..ObjectMeta::default()
                },
                spec,
                status: None,
            };
            let has_made_room = self.delete_expired(namespace).await?;
            match (self.store_key(namespace, &object, has_made_room).await, request) {
                (Ok(object), _) => {
                    self.credentials.progress().wait_for(revision(&object)).await;
                    return Ok(CreatedKey {
                        object: Arc::new(object),
                        key: Some(key),
                    });
                }
                (Err(error), Some(request)) if error.is_conflict() => {
                    // Another replica has created the key. If it has been revoked since, its name is free again.
                    if let Some(object) = self.calls.get(namespace, &name).await? {
                        return replayed(Arc::new(object), request);
                    }
                }
                (Err(error), _) => return Err(error.into()),
            }
        }
        Err(contended(WORD))
    }

    /// Whether the account may have another key, with this expiry.
    fn check_new_key(&self, tenant: &Tenant, new: &CreateKey) -> Result<(), Error> {
        tenant.check_not_terminating()?;
        let now = self.clock.now();
        if new.expires_at.is_some_and(|end| end <= now) {
            let detail = Detail::new("expires_at", "invalid_value", "must be in the future");
            return Err(Error::invalid(vec![detail]));
        }
        if self.credentials.count(&tenant.namespace, now) >= self.settings.key_quota {
            return Err(quota_used_up("API keys"));
        }
        Ok(())
    }

    /// Deletes the expired keys, which Kubernetes counts in the quota, if there is no room for another key. Returns whether there were
    /// any.
    async fn delete_expired(&self, namespace: &str) -> Result<bool, Error> {
        let (keys, count) = self.credentials.page(namespace, Paging::first(usize::MAX));
        if count < self.settings.key_quota {
            return Ok(false);
        }
        let now = self.now();
        let mut has_made_room = false;
        for key in keys.iter().filter(|key| key.is_expired(now)) {
            self.delete_key(key).await?;
            has_made_room = true;
        }
        Ok(has_made_room)
    }

    /// Deletes a key, and waits until this replica has seen that.
    async fn delete_key(&self, key: &ApiKey) -> Result<(), Error> {
        self.calls.delete(key, false).await?;
        let is_gone = || self.credentials.get(key.namespace(), key.name()).is_none();
        self.credentials
            .progress()
            .wait_for_removal(key.uid(), is_gone)
            .await;
        Ok(())
    }

    /// Creates the object of a new key. If that is refused although an earlier attempt stored it, returns what is stored: the client
    /// retries when the API server answers 503 or 504. If room has been made for it, waits until Kubernetes has counted that.
    async fn store_key(
        &self,
        namespace: &str,
        object: &ApiKey,
        has_made_room: bool,
    ) -> Result<ApiKey, CallError> {
        let begun = Instant::now();
        let mut attempt = 0;
        let refusal = loop {
            attempt += 1;
            match self.calls.create(namespace, object).await {
                Err(refusal)
                    if has_made_room
                        && refusal.status().is_some_and(quota::is_exceeded)
                        && begun.elapsed() < NOTICED_WITHIN =>
                {
                    pause(attempt).await;
                }
                Err(refusal) if refusal.status().is_some() => break refusal,
                outcome => return outcome,
            }
        };
        let stored: Option<ApiKey> = self.calls.get(namespace, object.name()).await?;
        // No other key has the digest of this one.
        stored
            .filter(|stored| stored.spec.sha256 == object.spec.sha256)
            .ok_or(refusal)
    }

    /// Revokes a key. It stops working at once on this replica, and within a second on others.
    pub async fn revoke_key(
        &self,
        namespace: &str,
        name: Option<&str>,
        precondition: &Precondition,
    ) -> Result<(), Error> {
        let mut key = self.key(namespace, name).await?;
        for attempt in 1..=MAX_ATTEMPTS {
            if precondition.check(&*key).is_err() {
                // The watch may lag behind: check the current object before refusing.
                key = self.fetch_key(namespace, key.name()).await?;
                precondition.check(&*key)?;
            }
            match self.calls.delete(&*key, precondition.is_some()).await {
                Ok(_) => {
                    let is_gone = || self.credentials.get(namespace, key.name()).is_none();
                    self.credentials
                        .progress()
                        .wait_for_removal(key.uid(), is_gone)
                        .await;
                    return Ok(());
                }
                Err(error) if error.is_conflict() => {
                    pause(attempt).await;
                    key = self.fetch_key(namespace, key.name()).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(contended(WORD))
    }
}

fn unknown() -> Error {
    Error::no_such(WORD)
}

fn replayed(object: Arc<ApiKey>, request: &IdempotentRequest) -> Result<CreatedKey, Error> {
    if object.is_terminating() {
        return Err(Error::new(
            ErrorCode::Conflict,
            "the API key that was created with this Idempotency-Key is being deleted",
        ));
    }
    if object.annotation_of(REQUEST_HASH_ANNOTATION) != Some(request.visible_hash()) {
        return Err(idempotency::reused());
    }
    Ok(CreatedKey { object, key: None })
}

#[cfg(test)]
mod tests {
    use sha2::Digest as _;

    use super::*;
    use resources::{KeyScope, api_key};
    use runtime::{
        testing::{first_create_answered_with_504, refusals_of_a_second_try},
        watch::Change,
    };

    #[tokio::test]
    async fn a_key_is_shown_although_its_create_was_refused_because_the_first_try_was_carried_out() {
        let keyed = IdempotentRequest::new("/v1/keys", "k", b"{}", b"{}");
        for (refusal, request) in refusals_of_a_second_try().into_iter().zip([None, Some(&keyed)]) {
            let (client, stored) = first_create_answered_with_504(Vec::new(), refusal);
            let service = Service::with_client(client);
            service.show_demo_account();
            let tenant = service.credentials().account_named("demo").unwrap();
            let created = service.create_key(&tenant, &CreateKey::default(), request).await;
            let key = created.unwrap().key.unwrap();
            let stored = stored.lock();
            assert_eq!(stored.len(), 1, "{stored:?}");
            assert_eq!(
                stored[0]["spec"]["sha256"],
                hex::encode(api_key::digest("uid", &key))
            );
        }
    }

    #[tokio::test]
    async fn a_repeated_create_is_answered_although_the_quota_is_used_up_or_the_key_has_expired() {
        let keyed = IdempotentRequest::new("/v1/keys", "k", b"{}", b"{}");
        let [taken, _] = refusals_of_a_second_try();
        let (client, stored) = first_create_answered_with_504(Vec::new(), taken);
        let create = async |quota, expires_at| {
            // Its watch has not shown anything yet.
            let mut service = Service::with_client(client.clone());
            service.settings.key_quota = quota;
            service.show_demo_account();
            let tenant = service.credentials().account_named("demo").unwrap();
            service
                .create_key(
                    &tenant,
                    &CreateKey {
                        expires_at,
                        ..CreateKey::default()
                    },
                    Some(&keyed),
                )
                .await
        };
        assert!(create(1, None).await.unwrap().key.is_some());
        for (quota, expires_at) in [(0, None), (1, Some(jiff::Timestamp::UNIX_EPOCH))] {
            let again = create(quota, expires_at).await.unwrap();
            assert_eq!(again.key, None);
        }
        assert_eq!(stored.lock().len(), 1);
    }

    #[tokio::test]
    async fn an_account_has_as_many_keys_as_the_operator_allows() {
        let mut service = Service::without_cluster();
        service.settings.key_quota = 1;
        let (key, spec) = new_key(None, "uid", KeyScope::Write, None);
        let mut object = ApiKey::new("key-1", spec);
        object.metadata.namespace = Some("demo".to_owned());
        object.metadata.uid = Some("key".to_owned());
        service.show_demo_account();
        let mut listeners = service.listeners();
        listeners.keys.changed(&Change::Replaced(vec![Arc::new(object)]));
        let credential = service
            .credentials()
            .authenticate(&key, || service.now())
            .unwrap();
        let tenant = &credential.tenant;
        let quota = service.quotas(tenant).api_keys;
        assert_eq!((quota.used, quota.limit), (1, Some(1)));
        let refusal = service.create_key(tenant, &CreateKey::default(), None).await;
        assert_eq!(refusal.err().unwrap().code, ErrorCode::ResourceLimitExceeded);
    }

    #[test]
    fn keys_are_random_easy_to_select_name_their_account_and_are_stored_as_a_digest() {
        let new = || new_key(None, "uid", KeyScope::Read, None);
        let ((a, spec), (b, _)) = (new(), new());
        assert_ne!(a, b);
        assert_eq!(a.len(), 63);
        let rest = a.strip_prefix("stl_").unwrap();
        assert!(rest.bytes().all(|c| c.is_ascii_alphanumeric()));
        assert_eq!(
            api_key::account_of(&a),
            Some(ids::suffix_of_account(&ids::account_id("uid")))
        );
        let digest = sha2::Sha256::digest(format!("uid\n{a}"));
        assert_eq!(spec.sha256, Some(hex::encode(digest)));
        assert_eq!(spec.last_characters.as_deref(), Some(&a[59..]));
        for other in [
            &a[..62],
            "secret",
            "stl_",
            &a.replace("stl_", "key_"),
            &a.replace(&a[60..], "-_-"),
        ] {
            assert_eq!(api_key::account_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_key_begins_with_the_installation_that_has_a_name_and_names_its_account_all_the_same() {
        let (key, _) = new_key(Some("eu1"), "uid", KeyScope::Read, None);
        let account = ids::account_id("uid");
        let account = ids::suffix_of_account(&account);
        assert_eq!(key.len(), 67);
        assert!(key.starts_with(&format!("stl_eu1_{account}")), "{key}");
        assert_eq!(api_key::account_of(&key), Some(account));
        for other in [
            "stl__",
            "stl_EU1_",
            "stl_1eu_",
            "stl_e-u_",
            "stl_eu1_eu1_",
            "stl_abcdefghijklm_",
        ] {
            let key = key.replace("stl_eu1_", other);
            assert_eq!(api_key::account_of(&key), None, "{key}");
        }
    }
}
