//! Creates: with an `Idempotency-Key` the name follows from it, so that the names in etcd tell whether it has been done.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::Store;
use crate::{
    resources::ids,
    runtime::client::CallError,
    service::{
        error::{Error, ErrorKind, is_not_counted},
        id::PublicId,
        idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
        index::{Index, Indexed, Object as _, ObjectOf},
    },
};

/// Names tried for a create: a random one is taken once in 2⁸², one from an Idempotency-Key may become free meanwhile.
const MAX_NAMES: u32 = 3;

/// A create with an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedCreate<I> {
    /// The id of what it makes, which follows from the key.
    id: I,
    /// Digest of the body, for an annotation.
    hash: String,
}

impl<I: PublicId> KeyedCreate<I> {
    /// The create that an account asks for, if it has a key.
    pub fn of(request: Option<&IdempotentRequest>, account_uid: &str) -> Result<Option<Self>, Error> {
        let Some(request) = request else { return Ok(None) };
        Ok(Some(Self {
            id: I::of_suffix(&request.name_suffix(account_uid)).ok_or_else(Error::fault)?,
            hash: request.visible_hash().to_owned(),
        }))
    }
}

/// How long a create waits for Kubernetes to count a new quota, and how often it looks.
const COUNTED_WITHIN: Duration = Duration::from_secs(3);
const COUNT_POLL: Duration = Duration::from_millis(100);

/// What a create made.
pub struct Created<E> {
    /// The object as it is now.
    pub item: Arc<E>,
    /// Whether an earlier request with the same key made it.
    pub before: bool,
}

impl<X: Index> Store<X> {
    /// Creates the object that `build` makes for a name and the digest of the request's body, or finds what the same
    /// request made before. 422 if the key was used with another body, 409 while what it made is being deleted.
    pub async fn create_once(
        &self,
        namespace: &str,
        keyed: Option<&KeyedCreate<<X::Item as Indexed>::Id>>,
        check: impl Fn() -> Result<(), Error> + Send + Sync,
        build: impl Fn(&str, Option<String>) -> ObjectOf<X> + Send + Sync,
    ) -> Result<Created<X::Item>, Error> {
        // One at a time: Kubernetes counts every attempt against the quota, and those that come to nothing for minutes.
        let _lock = match keyed {
            Some(keyed) => Some(self.locks.lock(&(namespace, keyed.id)).await),
            None => None,
        };
        if let Some(keyed) = keyed
            && let Some(item) = self.index().get(namespace, keyed.id)
        {
            return made_before(item, keyed);
        }
        check()?;
        for _ in 0..MAX_NAMES {
            let random = || PublicId::of_suffix(&ids::random_suffix()).ok_or_else(Error::fault);
            let id: <X::Item as Indexed>::Id = keyed.map_or_else(random, |keyed| Ok(keyed.id))?;
            let object = build(&id.name(), keyed.map(|keyed| keyed.hash.clone()));
            let refusal = match self.create_counted(namespace, &object).await {
                Ok(item) => {
                    return Ok(Created {
                        item: Arc::new(item),
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
                    Some(found) if found.is_terminating() => {
                        let word = X::Item::WORD;
                        return Err(Error::new(
                            ErrorKind::Conflict,
                            format!("the {word} that was created with this Idempotency-Key is being deleted"),
                        ));
                    }
                    Some(found) => return made_before(Arc::new(X::Item::of(Arc::new(found))), keyed),
                    None => {}
                }
            }
            if !is_taken {
                return Err(refusal.into());
            }
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "the Idempotency-Key is in use by another request; try again",
        ))
    }
}

impl<X: Index> Store<X> {
    /// Creates an object; where its quota is new, once Kubernetes has counted it, which takes tenths of a second.
    async fn create_counted(&self, namespace: &str, object: &ObjectOf<X>) -> Result<X::Item, CallError> {
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

fn made_before<E: Indexed>(item: Arc<E>, keyed: &KeyedCreate<E::Id>) -> Result<Created<E>, Error> {
    if item.object().annotation_of(REQUEST_HASH_ANNOTATION) != Some(keyed.hash.as_str()) {
        return Err(idempotency::reused());
    }
    Ok(Created { item, before: true })
}
