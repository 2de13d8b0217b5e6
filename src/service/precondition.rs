//! Versions of what an account holder asked for, and requests that are for one version only.

use kube::Resource as _;

use super::{
    error::{Error, ErrorKind},
    index::Object,
};
use crate::resources::Delivery;

/// The version of what a client asked for: UID and generation, so that a change of status leaves it alone.
pub fn version<K: Object>(object: &K) -> String {
    // Without a status subresource every change counts as a generation, but what a Delivery sends never changes.
    let generation = if K::kind(&()) == Delivery::kind(&()) {
        1
    } else {
        object.meta().generation.unwrap_or(0)
    };
    format!("{}-{generation}", object.uid())
}

/// Which versions a request is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Whatever is there.
    #[default]
    None,
    /// Anything, as long as it is not changed meanwhile.
    Exists,
    /// One of these [`version`]s.
    OneOf(Vec<String>),
}

impl Precondition {
    /// Whether the request is conditional.
    pub fn is_some(&self) -> bool {
        *self != Self::None
    }

    /// `precondition_failed` if the object is another version than the request is for.
    pub fn check(&self, object: &impl Object) -> Result<(), Error> {
        match self {
            Self::OneOf(versions) if !versions.contains(&version(object)) => Err(failed()),
            _ => Ok(()),
        }
    }
}

/// The refusal of a request that is for another version.
pub fn failed() -> Error {
    Error::new(
        ErrorKind::PreconditionFailed,
        "If-Match does not name the present ETag: what it is for has changed; read it and try again",
    )
}
