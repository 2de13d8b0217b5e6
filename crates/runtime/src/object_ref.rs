//! Namespace and name of an object.

use std::{fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

/// Namespace and name of an object, or only the name of a cluster-scoped one. A short text that all
/// clones share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectRef(Arc<str>);

impl ObjectRef {
    /// The reference to an object.
    pub fn of(object: &impl Resource) -> Self {
        Self::in_metadata(object.meta())
    }

    /// The reference to the object with this metadata.
    pub fn in_metadata(metadata: &ObjectMeta) -> Self {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        Self::new(namespace, metadata.name.as_deref().unwrap_or_default())
    }

    /// The reference to the object with this name in this namespace, which is empty for a cluster-scoped kind.
    pub fn new(namespace: &str, name: &str) -> Self {
        match namespace {
            "" => Self(name.into()),
            _ => Self(format!("{namespace}/{name}").into()),
        }
    }

    /// The namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// `namespace/name`, or the name alone.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or(("", &self.0))
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
