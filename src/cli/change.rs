//! One guarded patch: written for the version that it was decided on, and decided again if that is no longer the one that is
//! there.

use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::Value;

use super::{
    CliError,
    connect::Cluster,
    objects::{self, Named},
};

/// Decisions on one command before it gives way to whoever else changes the same object.
const MAX_ATTEMPTS: u32 = 10;

/// Changes the object with this name or id as `decide` says: a merge patch with the version that it is for, or `None` if it is
/// as wanted already. `verb` says what for, as in "reboot". Returns the object as it is then.
pub(super) async fn change<K: Named>(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    verb: &str,
    decide: impl Fn(&K) -> Result<Option<Value>, CliError>,
) -> Result<K, CliError> {
    let api = Api::<K>::namespaced(cluster.client.clone(), namespace);
    for _ in 0..MAX_ATTEMPTS {
        let object: K = objects::find(cluster, namespace, name).await?;
        let Some(patch) = decide(&object)? else {
            return Ok(object);
        };
        let name = object.name_any();
        let doing = format!("{verb} {} {name} in namespace {namespace}", K::WORD);
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        match cluster.call(&doing, api.patch(&name, &params, &patch)).await {
            // Somebody else was faster; and the operator writes the status all the time.
            Err(failure) if failure.is(409) => {}
            changed => return Ok(changed?),
        }
    }
    Err(CliError::Contended(format!("{} {name}", K::WORD)))
}
