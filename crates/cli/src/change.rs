//! Changes with optimistic concurrency: a patch applies only to the version that the decision was based on; after a conflict, the
//! change is decided again.

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

/// Maximum number of attempts at a change while others keep changing the same object.
const MAX_ATTEMPTS: u32 = 10;

/// Changes the object with this name or id, and returns the result. `decide` returns a merge patch that includes the
/// resourceVersion, or `None` if there is nothing to change. `verb` names the operation in messages, as in "reboot".
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
        let doing = format!("{verb} {} {name} in namespace {namespace}", objects::word::<K>());
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        match cluster.call(&doing, api.patch(&name, &params, &patch)).await {
            // A conflict: the operator, for example, often writes the status.
            Err(failure) if failure.is(409) => {}
            changed => return Ok(changed?),
        }
    }
    Err(CliError::Plain(format!(
        "{} {name} keeps being changed by others; try again",
        objects::word::<K>()
    )))
}
