//! The rule of fields that name another object.

use kube::core::Rule;

/// A field that becomes part of a path of the API server, as [`is_object_name`](super::ids::is_object_name) tells it.
pub(super) fn of_object() -> Rule {
    Rule::new("self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')")
        .message("must be the name of an object: lower-case letters, digits, '-' and '.', with a letter or digit at both ends")
}
