//! Reads the user data of an instance when an operation may install its server. The Secret is not watched, because the operator may not
//! watch Secrets, and is read at no other time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::{observe::LookAgain, reconcile::Reconciler};
use domain::{
    instance::user_data::{Installs, awaits_secret, of_secret},
    provider::Trouble,
    user_data::UserData,
};
use providers::Provider;
use resources::Instance;
use runtime::client::{CallError, bounded};

/// How often a new instance whose Secret is probably about to be created is looked at.
const AWAITED: Duration = Duration::from_millis(250);
/// The longest time after which an instance that waits for its user data is looked at again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(30);

impl<P: Provider> Reconciler<P> {
    /// The user data for a step of the operation in the status, or why it cannot be had; `None` if there is none, or if the step needs
    /// none. An operation that installs a server only if it is missing goes on without what cannot be had. The Secret of a new
    /// instance is probably about to be created, so that nobody needs to know.
    pub(super) async fn user_data_of(
        &self,
        instance: &Instance,
    ) -> Result<Result<Result<Option<UserData>, Trouble>, LookAgain>, CallError> {
        let installs = Installs::of(instance);
        let reference = instance.spec.user_data_ref.as_ref();
        let Some(reference) = reference.filter(|_| installs != Installs::No) else {
            return Ok(Ok(Ok(None)));
        };
        let namespace = instance.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<Secret> = Api::namespaced(self.controller.client.clone(), namespace);
        let secret = bounded(api.get_opt(&reference.name)).await?;
        Ok(match of_secret(instance, reference, secret.as_ref()) {
            Ok(user_data) => Ok(Ok(Some(user_data))),
            Err(_) if installs == Installs::IfMissing => Ok(Ok(None)),
            Err(_) if secret.is_none() && awaits_secret(instance, self.controller.clock.now()) => {
                Err(LookAgain(AWAITED))
            }
            Err(trouble) => Ok(Err(trouble)),
        })
    }
}
