//! Creates: with an `Idempotency-Key` the name follows from it, so that the names in etcd tell whether it has been done.

use std::{
    hash::{DefaultHasher, Hash, Hasher as _},
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{Mutex, MutexGuard};

use super::{
    entry::{Entry, Index, Kept as _, ObjectOf},
    error::{ApiError, ErrorCode, is_not_counted},
    id::PublicId,
    idempotency::{self, REQUEST_HASH_ANNOTATION},
    store::Store,
};
use crate::{resources::ids, runtime::client::CallError};

/// Names tried for a create: a random one is taken once in 2⁸², one from an Idempotency-Key may become free meanwhile.
const MAX_NAMES: u32 = 3;

/// A create with an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCreate<I> {
    /// The id of what it makes.
    id: I,
    /// Digest of the body.
    hash: String,
}

impl<I: PublicId> KeyedCreate<I> {
    /// The create whose key gives names that end like this, if it has one, with this body.
    pub fn of(suffix: Option<String>, canonical_body: &[u8]) -> Result<Option<Self>, ApiError> {
        let Some(suffix) = suffix else { return Ok(None) };
        Ok(Some(Self {
            id: I::of_suffix(&suffix).ok_or_else(ApiError::fault)?,
            hash: idempotency::body_hash(canonical_body),
        }))
    }
}

/// How long a create waits for Kubernetes to count a new quota, and how often it looks.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);
const COUNT_POLL: Duration = Duration::from_millis(100);
/// Turns of requests with the same key; others rarely share one.
const TURNS: usize = 1024;

/// Lets the requests with one key, or those that compete for one object, through one by one.
pub struct Turns(Box<[Mutex<()>]>);

impl Default for Turns {
    fn default() -> Self {
        Self((0..TURNS).map(|_| Mutex::new(())).collect())
    }
}

impl Turns {
    pub(super) async fn of(&self, key: &impl Hash) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let turn = usize::try_from(hasher.finish()).unwrap_or_default() % self.0.len();
        self.0[turn].lock().await
    }
}

/// What a create made.
pub struct Made<E> {
    /// The object as it is now.
    pub entry: Arc<E>,
    /// Whether an earlier request with the same key made it.
    pub before: bool,
}

impl<X: Index> Store<X> {
    /// Creates the object that `build` makes for a name and the digest of the request's body, or finds what the same
    /// request made before. 422 if the key was used with another body, 409 while what it made is being deleted.
    pub async fn create_once(
        &self,
        namespace: &str,
        keyed: Option<&KeyedCreate<<X::Entry as Entry>::Id>>,
        check: impl Fn() -> Result<(), ApiError> + Send + Sync,
        build: impl Fn(&str, Option<String>) -> ObjectOf<X> + Send + Sync,
    ) -> Result<Made<X::Entry>, ApiError> {
        // One at a time: Kubernetes counts every attempt against the quota, and those that come to nothing for minutes.
        let _turn = match keyed {
            Some(keyed) => Some(self.turns().of(&(namespace, keyed.id)).await),
            None => None,
        };
        if let Some(keyed) = keyed
            && let Some(entry) = self.index().get(namespace, keyed.id)
        {
            return made_before(entry, keyed);
        }
        check()?;
        for _ in 0..MAX_NAMES {
            let random = || PublicId::of_suffix(&ids::random_suffix()).ok_or_else(ApiError::fault);
            let id: <X::Entry as Entry>::Id = keyed.map_or_else(random, |keyed| Ok(keyed.id))?;
            let object = build(&id.name(), keyed.map(|keyed| keyed.hash.clone()));
            let refusal = match self.create_counted(namespace, &object).await {
                Ok(entry) => {
                    return Ok(Made {
                        entry: Arc::new(entry),
                        before: false,
                    });
                }
                Err(refusal) => refusal,
            };
            let is_taken = refusal
                .status()
                .is_some_and(kube::core::Status::is_already_exists);
            // Whatever the API server has against another one (a quota that the first one used up, say), the first one may
            // be there.
            if let (Some(keyed), true) = (keyed, refusal.status().is_some()) {
                match self.get(namespace, &id.name()).await? {
                    Some(found) if found.is_leaving() => {
                        let word = X::Entry::WORD;
                        return Err(ApiError::new(
                            ErrorCode::Conflict,
                            format!("the {word} that was created with this Idempotency-Key is being deleted"),
                        ));
                    }
                    Some(found) => return made_before(Arc::new(X::Entry::of(Arc::new(found))), keyed),
                    None => {}
                }
            }
            if !is_taken {
                return Err(refusal.into());
            }
        }
        Err(ApiError::new(
            ErrorCode::Conflict,
            "the Idempotency-Key is in use by another request; try again",
        ))
    }
}

impl<X: Index> Store<X> {
    /// Creates an object; where its quota is new, once Kubernetes has counted it, which takes tenths of a second.
    async fn create_counted(&self, namespace: &str, object: &ObjectOf<X>) -> Result<X::Entry, CallError> {
        let begun = Instant::now();
        loop {
            match self.create(namespace, object).await {
                Err(refusal) if is_not_counted(&refusal) && begun.elapsed() < COUNTED_WITHIN => {
                    tokio::time::sleep(COUNT_POLL).await;
                }
                outcome => return outcome,
            }
        }
    }
}

fn made_before<E: Entry>(entry: Arc<E>, keyed: &KeyedCreate<E::Id>) -> Result<Made<E>, ApiError> {
    if entry.object().annotation_of(REQUEST_HASH_ANNOTATION) != Some(keyed.hash.as_str()) {
        return Err(idempotency::reused());
    }
    Ok(Made { entry, before: true })
}
