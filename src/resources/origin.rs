//! What an object was before `stellage import` recreated it: the API server gives each new object a UID and a creation time,
//! and nobody else can set these. Ids, digests of keys, names of deliveries and servers are derived from the former UID, so it still
//! identifies the object to everything but the API server.

use std::fmt::Display;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Annotation of an imported object: `<UID> <creation time>` of the object that was exported first. An admission policy lets
/// only cluster administrators and the operator write it.
pub const ORIGIN_ANNOTATION: &str = "stellage.dev/origin";

/// The UID that an object was first created with. Preconditions and owner references need `metadata.uid` instead.
pub fn uid(metadata: &ObjectMeta) -> &str {
    match parts(metadata) {
        Some((uid, _)) => uid,
        None => metadata.uid.as_deref().unwrap_or_default(),
    }
}

/// When an object was first created.
pub fn created_at(metadata: &ObjectMeta) -> Option<Timestamp> {
    match parts(metadata) {
        Some((_, created)) => Some(created),
        None => metadata.creation_timestamp.as_ref().map(|time| time.0),
    }
}

/// The value of the annotation.
pub fn annotation(uid: &str, created: impl Display) -> String {
    format!("{uid} {created}")
}

fn parts(metadata: &ObjectMeta) -> Option<(&str, Timestamp)> {
    let (uid, created) = metadata
        .annotations
        .as_ref()?
        .get(ORIGIN_ANNOTATION)?
        .split_once(' ')?;
    Some((uid, created.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_imported_object_keeps_uid_and_creation_time_of_the_first_one() {
        let created = json!({ "uid": "new", "creationTimestamp": "2026-11-23T10:00:00Z" });
        let mut metadata: ObjectMeta = serde_json::from_value(created).unwrap();
        let at = |text: &str| text.parse().ok();
        assert_eq!(
            (uid(&metadata), created_at(&metadata)),
            ("new", at("2026-11-23T10:00:00Z"))
        );
        let origin = annotation("old", "2026-11-21T10:00:00Z");
        metadata.annotations = Some([(ORIGIN_ANNOTATION.to_owned(), origin)].into());
        assert_eq!(
            (uid(&metadata), created_at(&metadata)),
            ("old", at("2026-11-21T10:00:00Z"))
        );
        metadata.annotations = Some([(ORIGIN_ANNOTATION.to_owned(), "nonsense".to_owned())].into());
        assert_eq!(
            (uid(&metadata), created_at(&metadata)),
            ("new", at("2026-11-23T10:00:00Z"))
        );
    }
}
