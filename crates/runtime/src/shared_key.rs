//! Random keys that all replicas share, each in a Secret that is installed empty together with the operator's
//! permissions, so that the permissions need not include creating Secrets.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, api::PostParams};
use thiserror::Error;

use super::client::{CallError, bounded};

/// Attempts to write a key while other replicas do the same.
const MAX_ATTEMPTS: u32 = 5;

/// Why there is no key.
#[derive(Debug, Error)]
pub enum SharedKeyError {
    /// The Secret does not exist.
    #[error("it does not exist; apply deploy/rbac.yaml, or upgrade the chart")]
    NoSecret,
    /// Others change the Secret all the time.
    #[error("others keep changing it")]
    Contended,
    /// The API server did not answer, or refused.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The value of an entry of the Secret with this name. If the entry is empty, it gets the value that `make` returns,
/// unless another replica is faster: then all replicas get that replica's value.
pub async fn read_or_make(
    api: &Api<Secret>,
    name: &str,
    entry: &str,
    make: impl Fn() -> Vec<u8>,
) -> Result<Vec<u8>, SharedKeyError> {
    for _ in 0..MAX_ATTEMPTS {
        let found = bounded(api.get_opt(name)).await?;
        let mut secret = found.ok_or(SharedKeyError::NoSecret)?;
        let data = secret.data.get_or_insert_default();
        if let Some(key) = data.remove(entry) {
            return Ok(key.0);
        }
        let key = make();
        data.insert(entry.to_owned(), ByteString(key.clone()));
        secret.metadata.managed_fields = None;
        // Guarded by the resourceVersion that was read: of several replicas, only one writes its key.
        match bounded(api.replace(name, &PostParams::default(), &secret)).await {
            Ok(_) => return Ok(key),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SharedKeyError::Contended)
}
