//! The Secret with the user data of a new instance. It is created once, right after the instance, which owns it; afterwards only the
//! controller reads it.

use std::collections::BTreeMap;

use super::IndexedInstance;
use crate::service::{
    Service,
    error::{Error, ErrorCode},
    idempotency::{self, IdempotentRequest, REQUEST_HASH_ANNOTATION},
    index::Object as _,
    store::Created,
};
use domain::{instance::user_data, user_data::UserData};
use k8s_openapi::api::core::v1::Secret;

impl Service {
    /// Stores the user data of a created instance. An instance that this request has created is deleted again if that fails: nobody
    /// else would store them.
    pub(super) async fn with_user_data(
        &self,
        created: Created<IndexedInstance>,
        user_data: Option<&str>,
        request: Option<&IdempotentRequest>,
    ) -> Result<Created<IndexedInstance>, Error> {
        let Some(user_data) = user_data else {
            return Ok(created);
        };
        let stored = self.store_user_data(&created, user_data, request).await;
        if stored.is_err()
            && !created.replayed
            && let Err(error) = self.instances.delete(&created.item, false).await
        {
            tracing::warn!(instance = %created.item.id, %error, "cannot delete an instance without its user data");
        }
        stored.map(|()| created)
    }

    /// Of requests with the same key, whichever creates the Secret first decides its content; the others must have the same. If it is
    /// missing, the first one has not been answered.
    async fn store_user_data(
        &self,
        created: &Created<IndexedInstance>,
        user_data: &str,
        request: Option<&IdempotentRequest>,
    ) -> Result<(), Error> {
        let instance = &*created.item.instance;
        let hash =
            request.map(|request| (REQUEST_HASH_ANNOTATION.to_owned(), request.body_hash().to_owned()));
        let annotations: BTreeMap<_, _> = hash.into_iter().collect();
        let Some(secret) = user_data::secret(instance, user_data, annotations.clone()) else {
            // Somebody with kubectl has made another instance of this name.
            return Err(idempotency::reused());
        };
        let (namespace, name) = (instance.namespace(), secret.name());
        if created.replayed {
            if let Some(existing) = self.calls.get::<Secret>(namespace, name).await? {
                return check_same(&existing, &annotations);
            }
            UserData::parse(user_data.as_bytes())
                .map_err(|problem| Error::invalid_value("user_data", problem.to_string()))?;
        }
        match self.calls.create(namespace, &secret).await {
            Ok(_) => Ok(()),
            // Its name is random, so that a request with the same key, or an earlier try of this one, has created it.
            Err(taken) if taken.is_conflict() => match self.calls.get::<Secret>(namespace, name).await? {
                Some(existing) if instance.owns(&existing) => check_same(&existing, &annotations),
                _ => Err(Error::new(
                    ErrorCode::Conflict,
                    "another Secret already has the name of the instance's user data; try again",
                )),
            },
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether a Secret has the content of a request with these annotations.
fn check_same(existing: &Secret, annotations: &BTreeMap<String, String>) -> Result<(), Error> {
    let was = existing.annotation_of(REQUEST_HASH_ANNOTATION);
    let is = annotations.get(REQUEST_HASH_ANNOTATION).map(String::as_str);
    if was.is_some() && was != is {
        return Err(idempotency::reused());
    }
    Ok(())
}
