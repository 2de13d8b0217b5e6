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
        let tenant = self.credentials.account_named(account).ok_or_else(refused)?;
        let mut object = match self.credentials.get(&tenant.namespace, key) {
            Some(object) => object,
            // The link may be too new for the index.
            None => self.fetch_linked(&tenant, key).await?,
        };
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
                Err(error) if error.is_conflict() => object = self.fetch_linked(&tenant, key).await?,
                Err(error) if error.is_not_found() => return Err(refused()),
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::unavailable(
            "the link cannot be used at the moment; try again",
        ))
    }

    async fn fetch_linked(&self, tenant: &Tenant, key: &str) -> Result<Arc<ApiKey>, Error> {
        let object: Option<ApiKey> = self.calls.get(&tenant.namespace, key).await?;
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
