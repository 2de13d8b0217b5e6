//! Sign-ins to the console through OpenID Connect. Each has an ApiKey whose key nobody knows, so that the sign-in can be listed and revoked
//! like any other key, and ends when that key does.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::service::{
    Service,
    credentials::{Credential, KeyIdentity, Tenant},
    error::{Error, quota_used_up},
    index::Object as _,
    precondition::Precondition,
};
use resources::{
    ApiKey, KeyScope,
    api_key::{KEY_LASTS, SIGN_IN_LABEL, new_key},
    ids, revision,
};

/// Maximum number of concurrent sign-ins to one account, as far as its quota of keys has room for them; another one ends the oldest.
const MOST: usize = 10;

impl Service {
    /// Begins a sign-in to an account.
    pub async fn begin_sign_in(&self, tenant: &Tenant) -> Result<Credential, Error> {
        let namespace = &tenant.namespace;
        tenant.check_not_terminating()?;
        // Serialised, so that concurrent sign-ins do not exceed the limit.
        let _lock = self.key_locks.lock(namespace).await?;
        self.make_room(namespace).await?;
        self.delete_expired(namespace).await?;
        let now = self.now();
        // Whole seconds, as the API shows times.
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let expires_at = now.saturating_add(KEY_LASTS).unwrap_or(now);
        let (_, mut spec) = new_key(None, &tenant.uid, KeyScope::Write, Some(expires_at));
        spec.last_characters = None;
        let name = format!("signin-{}", &ids::random_suffix()[..8]);
        let mut object = ApiKey::new(&name, spec);
        let labels = BTreeMap::from([(SIGN_IN_LABEL.to_owned(), "openid-connect".to_owned())]);
        object.metadata.labels = Some(labels);
        let made = self.store_key(namespace, &object, true).await?;
        self.credentials.progress().wait_for(revision(&made)).await;
        let identity = KeyIdentity {
            account_uid: &tenant.uid,
            namespace,
            name: &name,
            uid: made.uid(),
        };
        self.credentials.resume(&identity, self.now())
    }

    /// Ends a sign-in, if the key belongs to one. Nobody can use the key again.
    pub async fn end_sign_in(&self, credential: &Credential) -> Result<(), Error> {
        if !credential.is_sign_in() {
            return Ok(());
        }
        let namespace = &credential.tenant.namespace;
        self.revoke_key(namespace, Some(credential.key_name()), &Precondition::default())
            .await
    }

    /// Deletes the keys of sign-ins that have expired, and the oldest beyond the limit.
    async fn make_room(&self, namespace: &str) -> Result<(), Error> {
        let now = self.now();
        let sign_ins = self.credentials.sign_ins(namespace);
        let valid = sign_ins.iter().filter(|key| !key.is_expired(now)).count();
        let others = self.credentials.count(namespace, now).saturating_sub(valid);
        let room = MOST.min(self.settings.key_quota.saturating_sub(others));
        if room == 0 {
            return Err(quota_used_up("API keys"));
        }
        let mut kept = 0;
        for key in sign_ins {
            if kept + 1 < room && !key.is_expired(now) {
                kept += 1;
                continue;
            }
            self.delete_key(&key).await?;
        }
        Ok(())
    }
}
