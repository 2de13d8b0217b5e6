//! Versions of an object's desired state, and requests that apply to one version only.

use kube::Resource as _;

use super::{
    error::{Error, ErrorCode},
    index::Object,
};
use resources::{Delivery, webhook::SECRET_CHANGED_ANNOTATION};

/// The version of an object's desired state: its UID and generation, which status changes leave alone, and of a webhook also the
/// version of its secret that was announced last.
pub fn version<K: Object>(object: &K) -> String {
    if K::kind(&()) == Delivery::kind(&()) {
        // The content of a Delivery never changes, although every change of its status increments the generation. Its name
        // identifies webhook and event, even if there is no object because the delivery is in the event log.
        return format!("{}-1", object.name());
    }
    let generation = object.meta().generation.unwrap_or(0);
    // Account holders can write the annotation, too: only a number belongs into a header.
    let secret = object.annotation_of(SECRET_CHANGED_ANNOTATION);
    match secret.and_then(|version| version.parse::<u64>().ok()) {
        Some(secret) => format!("{}-{generation}-{secret}", object.uid()),
        None => format!("{}-{generation}", object.uid()),
    }
}

/// The [`version`] in quotes, as in an entity tag.
pub fn quoted_version(object: &impl Object) -> String {
    format!("\"{}\"", version(object))
}

/// The versions that a request applies to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    /// Any version: the request is not conditional.
    #[default]
    None,
    /// Any version, as long as the object exists.
    Exists,
    /// One of these [`version`]s.
    OneOf(Vec<String>),
}

impl Precondition {
    /// Whether the request is conditional.
    pub fn is_some(&self) -> bool {
        *self != Self::None
    }

    /// `precondition_failed` if the request does not apply to this version.
    pub fn check(&self, object: &impl Object) -> Result<(), Error> {
        match self {
            Self::OneOf(versions) if !versions.contains(&version(object)) => Err(failed()),
            _ => Ok(()),
        }
    }
}

/// The error for a request that applies to another version.
pub fn failed() -> Error {
    Error::new(
        ErrorCode::PreconditionFailed,
        "the request is for another version of the resource, which has changed since; read it and try again",
    )
}
