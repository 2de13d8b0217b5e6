//! An object of a watch, or why it does not match its schema, so that one bad object hides no others.
//!
//! As kube's `DeserializeGuard`, which parses each object into a tree and copies that, before it makes the object of it. This one
//! parses the text, and a second time only if that fails.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{PartialObjectMeta, error_boundary::InvalidObject},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::value::RawValue;

/// An object, or the error that its schema would have prevented, with its metadata. Only for JSON.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, InvalidObject>);

impl<'de, K: DeserializeOwned + Resource> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object = match serde_json::from_str(text.get()) {
            Ok(object) => Ok(object),
            Err(error) => {
                let partial = serde_json::from_str::<PartialObjectMeta<K>>(text.get());
                Err(InvalidObject {
                    error: error.to_string(),
                    metadata: partial.map_err(D::Error::custom)?.metadata,
                })
            }
        };
        Ok(Self(object))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|invalid| &invalid.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0
            .as_mut()
            .map_or_else(|invalid| &mut invalid.metadata, K::meta_mut)
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;
    use crate::resources::Instance;

    fn instance(name: &str, plan: &serde_json::Value) -> serde_json::Value {
        json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": { "name": name, "namespace": "demo", "resourceVersion": "7" },
            "spec": { "plan": plan, "region": "fr-par-1", "image": "debian-13" },
        })
    }

    #[test]
    fn an_object_that_does_not_match_its_schema_is_known_by_its_metadata_and_hides_no_others() {
        let list = json!({
            "apiVersion": "stellage.dev/v1", "kind": "InstanceList", "metadata": { "resourceVersion": "9" },
            "items": [instance("good", &json!("starter")), instance("bad", &json!({ "not": "a name" }))],
        });
        let list: ObjectList<Guarded<Instance>> = serde_json::from_str(&list.to_string()).unwrap();
        let [Guarded(Ok(good)), bad @ Guarded(Err(invalid))] = &list.items[..] else {
            panic!("{list:?}");
        };
        assert_eq!(good.spec.plan.as_str(), "starter");
        assert_eq!(bad.meta().name.as_deref(), Some("bad"));
        assert!(invalid.error.contains("expected"), "{}", invalid.error);
    }

    #[test]
    fn the_events_of_a_watch_are_read_as_the_api_server_writes_them() {
        let line = format!(
            r#"{{"type":"MODIFIED","object":{}}}"#,
            instance("web", &json!("starter"))
        );
        let event: WatchEvent<Guarded<Instance>> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Modified(Guarded(Ok(object))) = event else {
            panic!("{event:?}");
        };
        assert_eq!(object.metadata.resource_version.as_deref(), Some("7"));
        let nameless = r#"{"type":"ADDED","object":{"metadata":"none"}}"#;
        assert!(serde_json::from_str::<WatchEvent<Guarded<Instance>>>(nameless).is_err());
    }
}
