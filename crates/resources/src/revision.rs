//! The version of an object.

use kube::Resource;

/// The resourceVersion as a number (comparable since Kubernetes 1.35, KEP-5504, and in practice always with etcd); 0 if
/// there is none.
pub fn revision(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}
