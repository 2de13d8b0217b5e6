//! How a CRD in the cluster differs from that of this program.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// The differences between two schemas.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Fields of this program that the cluster does not know and would drop.
    pub(super) lacks: Vec<String>,
    /// Fields that this program does not know.
    pub(super) unknown: Vec<String>,
    /// Whether anything else is different, such as a limit or a rule.
    pub(super) other: bool,
}

/// Compares the schema of a CRD of this program with that of the cluster.
pub(super) fn of(ours: &CustomResourceDefinition, theirs: &CustomResourceDefinition) -> Differences {
    let schema = |crd: &CustomResourceDefinition| {
        let version = crd.spec.versions.iter().find(|version| version.storage)?;
        let schema = version.schema.as_ref()?.open_api_v3_schema.as_ref()?;
        serde_json::to_value(schema).ok()
    };
    between(
        &schema(ours).unwrap_or_default(),
        &schema(theirs).unwrap_or_default(),
    )
}

fn between(ours: &Value, theirs: &Value) -> Differences {
    let mut differences = Differences::default();
    compare(ours, theirs, "", &mut differences);
    if differences.lacks.is_empty() && differences.unknown.is_empty() {
        differences.other = !is_same(ours, theirs);
    }
    differences
}

fn compare(ours: &Value, theirs: &Value, path: &str, differences: &mut Differences) {
    let properties = |schema: &Value| schema["properties"].as_object().cloned().unwrap_or_default();
    let (of_ours, of_theirs) = (properties(ours), properties(theirs));
    for (name, schema) in &of_ours {
        let path = format!("{path}.{name}");
        match of_theirs.get(name) {
            Some(theirs) => compare(schema, theirs, &path, differences),
            None => differences.lacks.push(path.trim_start_matches('.').to_owned()),
        }
    }
    for name in of_theirs.keys().filter(|name| !of_ours.contains_key(*name)) {
        differences
            .unknown
            .push(format!("{path}.{name}").trim_start_matches('.').to_owned());
    }
    if ours["items"].is_object() && theirs["items"].is_object() {
        compare(
            &ours["items"],
            &theirs["items"],
            &format!("{path}[]"),
            differences,
        );
    }
}

/// Whether two values are equal, ignoring how numbers are written.
fn is_same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => ours.as_f64() == theirs.as_f64(),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(ours, theirs)| is_same(ours, theirs))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .all(|(name, ours)| theirs.get(name).is_some_and(|theirs| is_same(ours, theirs)))
        }
        (ours, theirs) => ours == theirs,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_one_side_are_named_and_other_differences_are_noticed() {
        let schema = |extra: Value, longest: f64| {
            let mut spec = json!({ "properties": {
                "keys": { "items": { "properties": { "name": { "maxLength": longest } } } },
            } });
            for (name, schema) in extra.as_object().unwrap() {
                spec["properties"][name] = schema.clone();
            }
            json!({ "properties": { "spec": spec } })
        };
        let plain = schema(json!({}), 5.0);
        let written_otherwise = json!({ "properties": { "spec": { "properties": {
            "keys": { "items": { "properties": { "name": { "maxLength": 5 } } } },
        } } } });
        assert_eq!(between(&plain, &written_otherwise), Differences::default());
        assert!(between(&plain, &schema(json!({}), 6.0)).other);
        let more = schema(json!({ "image": {} }), 5.0);
        assert_eq!(between(&more, &plain).lacks, ["spec.image"]);
        assert_eq!(between(&plain, &more).unknown, ["spec.image"]);
    }
}
