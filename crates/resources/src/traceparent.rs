//! Where a change carries the trace of the request that caused it: the W3C `traceparent`, in an annotation of the changed object, and
//! with each event that follows from the change.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{Schema, SchemaGenerator, json_schema};

/// Annotation of an Instance or a Backup with the `traceparent` of the request that wrote its spec. Anybody who may write the object may
/// write anything here, so it is checked where it is used.
pub const TRACEPARENT_ANNOTATION: &str = "stellage.dev/traceparent";

/// The annotation, whatever it says.
pub fn annotated(metadata: &ObjectMeta) -> Option<&str> {
    let annotations = metadata.annotations.as_ref()?;
    annotations.get(TRACEPARENT_ANNOTATION).map(String::as_str)
}

/// The schema of an optional `traceparent`, of version 00.
pub(super) fn optional(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "nullable": true,
        "maxLength": 55,
        "pattern": "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$",
    })
}
