//! One-time sign-in links to the console. An administrator creates a link for an account: an ApiKey whose key nobody knows, with an
//! annotation that holds the digest of the link's token. Opening the link removes the annotation and thereby starts a session.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::json;
use subtle::ConstantTimeEq as _;

use crate::service::{
    Service,
    credentials::{Credential, KeyIdentity, Tenant},
    error::{Error, ErrorCode},
    index::Object as _,
};
use resources::{
    ApiKey,
    api_key::{self, ConsoleLink, LINK_ANNOTATION},
    revision,
};

/// Attempts to use a link whose ApiKey others keep changing.
const MAX_ATTEMPTS: u32 = 5;

impl Service {
    /// Uses the link of an ApiKey, once: the first caller with its token gets the rights of the ApiKey. `Unauthorized` if the link has
    /// been used, is too old, or never existed.
    pub async fn use_console_link(&self, account: &str, key: &str, token: &str) -> Result<Credential, Error> {
        let tenant = self.credentials.account_named(account);
        let indexed = tenant
            .as_ref()
            .and_then(|tenant| self.credentials.get(&tenant.namespace, key).zip(Some(tenant)))
            .filter(|(object, tenant)| check(object, tenant, token, self.now()).is_ok());
        let mut object = if let Some((object, _)) = indexed {
            object
        } else {
            // The link may be too new for the index. Whatever it is that does not exist, it costs this one call, so that the time of the
            // answer does not tell either which accounts and keys there are.
            let namespace = tenant.as_ref().map_or(account, |tenant| &*tenant.namespace);
            self.fetch_linked(namespace, key).await?
        };
        let tenant = tenant.ok_or_else(refused)?;
        for _ in 0..MAX_ATTEMPTS {
            check(&object, &tenant, token, self.now())?;
            let patch = json!({ "metadata": {
                "uid": object.uid(),
                "resourceVersion": object.metadata.resource_version,
                "annotations": { LINK_ANNOTATION: null },
            } });
            let used: Result<ApiKey, _> = self.calls.patch(&tenant.namespace, key, &patch).await;
            match used {
                Ok(used) => {
                    self.credentials.progress().wait_for(revision(&used)).await;
                    let identity = KeyIdentity {
                        account_uid: &tenant.uid,
                        namespace: &tenant.namespace,
                        name: key,
                        uid: used.origin_uid(),
                    };
                    return self.credentials.resume(&identity, self.now());
                }
                // Somebody else has used it, or has changed something else.
                Err(error) if error.is_conflict() => {
                    object = self.fetch_linked(&tenant.namespace, key).await?;
                }
                Err(error) if error.is_not_found() => return Err(refused()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::unavailable(
            "the link cannot be used at the moment; try again",
        ))
    }

    async fn fetch_linked(&self, namespace: &str, key: &str) -> Result<Arc<ApiKey>, Error> {
        let object: Option<ApiKey> = self.calls.get(namespace, key).await?;
        object.map(Arc::new).ok_or_else(refused)
    }
}

fn check(object: &ApiKey, tenant: &Tenant, token: &str, now: Timestamp) -> Result<(), Error> {
    let link = ConsoleLink::of(object).ok_or_else(refused)?;
    let is_right = bool::from(link.digest.ct_eq(&api_key::digest(&tenant.uid, token)));
    if is_right && link.deadline > now && !object.is_terminating() {
        Ok(())
    } else {
        Err(refused())
    }
}

/// The same error for every reason, so that nothing can be learnt from it.
fn refused() -> Error {
    Error::new(
        ErrorCode::Unauthorized,
        "this link has been used already, or is too old: it works once, within 15 minutes",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use resources::{
        KeyScope,
        api_key::{new_key, new_link},
    };
    use runtime::{testing::answered_by, watch::Change};

    #[tokio::test]
    async fn a_link_that_is_refused_costs_one_call_whether_or_not_its_account_and_key_exist() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let service = Service::with_client(answered_by(move |_, _, _| {
            counted.fetch_add(1, Ordering::Relaxed);
            let missing = json!({
                "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found",
                "details": { "name": "link" },
            });
            async move { (404, missing) }
        }));
        service.show_demo_account();
        let now = service.now();
        let (_, spec) = new_key(None, "uid", KeyScope::Write, None);
        let mut object = ApiKey::new("link", spec);
        object.metadata.namespace = Some("demo".to_owned());
        object.metadata.uid = Some("key".to_owned());
        let (_, link) = new_link("uid", now);
        object.metadata.annotations = Some([(LINK_ANNOTATION.to_owned(), link.annotation())].into());
        let mut listeners = service.listeners();
        listeners.keys.changed(&Change::Replaced(vec![Arc::new(object)]));
        for (account, key) in [("demo", "link"), ("demo", "nope"), ("nope", "link")] {
            let before = asked.load(Ordering::Relaxed);
            let refusal = service.use_console_link(account, key, "wrong").await;
            assert_eq!(refusal.err().unwrap().message, refused().message);
            assert_eq!(asked.load(Ordering::Relaxed) - before, 1, "{account} {key}");
        }
    }
}
