//! An object of a watch as text, so that it can be parsed later, when there is time, and so that one object that does
//! not match its schema does not hide the others.
//!
//! kube's `DeserializeGuard` does the same, but parses each object at once into a tree and copies the tree before it
//! creates the object. This one parses the text directly, and a second time only if that fails.

use std::{borrow::Cow, marker::PhantomData, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Resource,
    core::{PartialObjectMeta, error_boundary::InvalidObject},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::{Value, value::RawValue};

/// An object of which only the resourceVersion has been parsed. Only for JSON.
#[derive(Clone, Debug)]
pub struct Unparsed<K> {
    text: Box<RawValue>,
    /// Has nothing but the resourceVersion.
    metadata: ObjectMeta,
    kind: PhantomData<K>,
}

impl<K: DeserializeOwned> Unparsed<K> {
    /// The object, or the error that its schema would have prevented, with its metadata.
    pub fn parse(self) -> Result<K, Arc<InvalidObject>> {
        let text = self.text.get();
        serde_json::from_str(text).map_err(|error| {
            let partial = serde_json::from_str::<PartialObjectMeta<K>>(text);
            Arc::new(InvalidObject {
                error: complaint::<K>(text).unwrap_or_else(|| error.to_string()),
                metadata: partial.map_or(self.metadata, |partial| partial.metadata),
            })
        })
    }
}

/// What is wrong with an object, and in which field, such as `spec.plan: unknown variant`.
fn complaint<K: DeserializeOwned>(text: &str) -> Option<String> {
    let object: Value = serde_json::from_str(text).ok()?;
    let error = serde_path_to_error::deserialize::<_, K>(object).err()?;
    Some(error.to_string())
}

impl<'de, K> Deserialize<'de> for Unparsed<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            resource_version: Option<String>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let object: Object = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self {
            text,
            metadata: ObjectMeta {
                resource_version: object.metadata.resource_version,
                ..ObjectMeta::default()
            },
            kind: PhantomData,
        })
    }
}

impl<K: Resource> Resource for Unparsed<K> {
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
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;
    use resources::Instance;

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
        let list: ObjectList<Unparsed<Instance>> = serde_json::from_str(&list.to_string()).unwrap();
        let [good, bad] = <[_; 2]>::try_from(list.items).unwrap();
        assert_eq!(good.parse().unwrap().spec.plan.as_str(), "starter");
        let invalid = bad.parse().unwrap_err();
        assert_eq!(invalid.metadata.name.as_deref(), Some("bad"));
        assert!(invalid.error.starts_with("spec.plan: "), "{}", invalid.error);
    }

    #[test]
    fn the_events_of_a_watch_are_read_as_the_api_server_writes_them() {
        let line = format!(
            r#"{{"type":"MODIFIED","object":{}}}"#,
            instance("web", &json!("starter"))
        );
        let event: WatchEvent<Unparsed<Instance>> = serde_json::from_str(&line).unwrap();
        let WatchEvent::Modified(object) = event else {
            panic!("{event:?}");
        };
        assert_eq!(object.meta().resource_version.as_deref(), Some("7"));
        assert_eq!(object.parse().unwrap().metadata.name.as_deref(), Some("web"));
        let nameless = r#"{"type":"ADDED","object":{"metadata":"none"}}"#;
        assert!(serde_json::from_str::<WatchEvent<Unparsed<Instance>>>(nameless).is_err());
    }
}
