//! Builds the object for a create, and says how long provisioning takes.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::service::store::annotations;
use resources::{
    Instance, InstanceSpec,
    instance::{FINALIZER, REQUESTED_BY_ANNOTATION},
};

/// The object to create, for whoever has this API key. It already has finalizer and origin, which saves the controller a write.
pub(super) fn instance(
    name: &str,
    spec: InstanceSpec,
    request_hash: Option<String>,
    key: &str,
    now: Timestamp,
) -> Instance {
    let mut instance = Instance::new(name, spec);
    instance.finalizers_mut().push(FINALIZER.to_owned());
    let mut annotations = annotations(request_hash, now);
    annotations.insert(REQUESTED_BY_ANNOTATION.to_owned(), requested_by(1, key));
    instance.metadata.annotations = Some(annotations);
    instance
}

/// The value of [`REQUESTED_BY_ANNOTATION`]: who asked for this generation of a spec.
pub(super) fn requested_by(generation: i64, key: &str) -> String {
    format!("{generation} {key}")
}

/// A duration in words: "2 to 3 minutes" for the 150 s of the specification.
pub fn duration_in_words(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        return "a moment".to_owned();
    }
    let (unit, length) = match seconds {
        s if s < 60.0 => ("second", 1.0),
        s if s < 7200.0 => ("minute", 60.0),
        _ => ("hour", 3600.0),
    };
    let (least, most) = match (seconds / length).floor() {
        // Ignore half seconds.
        _ if unit == "second" => (seconds.ceil(), seconds.ceil()),
        floor => (floor, (seconds / length).ceil()),
    };
    let plural = if most > 1.0 { "s" } else { "" };
    if least < most {
        format!("{least} to {most} {unit}{plural}")
    } else {
        format!("{most} {unit}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::service::idempotency::REQUEST_HASH_ANNOTATION;
    use resources::origin;

    #[test]
    fn the_object_has_its_id_as_name_finalizer_and_origin_and_the_digest_of_the_request() {
        let spec = serde_json::from_value(json!({
            "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13",
        }));
        let now = Timestamp::now();
        let hash = Some("hash".to_owned());
        let mut object = instance("i-abcdefgh01234567", spec.unwrap(), hash, "key-1", now);
        assert_eq!(object.id(), "i-abcdefgh01234567");
        assert_eq!(object.display_name(), "web-1");
        assert!(object.has_finalizer() && !origin::is_missing(&object.metadata));
        assert_eq!(object.annotation(REQUEST_HASH_ANNOTATION), Some("hash"));
        object.metadata.generation = Some(1);
        assert_eq!(object.requested_by(), "key-1");
    }

    #[test]
    fn durations_are_written_in_words() {
        for (seconds, words) in [
            (0.0, "a moment"),
            (0.4, "a moment"),
            (1.0, "1 second"),
            (2.5, "3 seconds"),
            (45.0, "45 seconds"),
            (60.0, "1 minute"),
            (90.0, "1 to 2 minutes"),
            (150.0, "2 to 3 minutes"),
            (180.0, "3 minutes"),
            (7200.0, "2 hours"),
            (9000.0, "2 to 3 hours"),
        ] {
            assert_eq!(duration_in_words(Duration::from_secs_f64(seconds)), words);
        }
    }
}
