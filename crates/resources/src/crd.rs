//! Improvements to the derived schemas.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    JSONSchemaPropsOrBool,
};

/// Adapts a derived CRD, so that the API server accepts it without warnings and `kubectl explain` prints it well.
pub(super) fn polish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        let subresources = version.subresources.as_ref();
        let has_status = subresources.is_some_and(|sub| sub.status.is_some());
        if let Some(schema) = schema_of(version) {
            polish_schema(schema);
            if has_status {
                own_status_whole(schema);
            }
        }
    }
    crd
}

/// Has the API server track who wrote the status as one field. The operator alone writes it, and always whole; of each field on its own,
/// that would be a third of an Instance as stored, and of the work of a write.
fn own_status_whole(schema: &mut JSONSchemaProps) {
    if let Some(status) = status_of(schema) {
        status.x_kubernetes_map_type = Some("atomic".to_owned());
    }
}

/// Removes the status subresource, so that one write sets spec and status.
pub(super) fn without_subresources(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

fn schema_of(version: &mut CustomResourceDefinitionVersion) -> Option<&mut JSONSchemaProps> {
    version.schema.as_mut()?.open_api_v3_schema.as_mut()
}

fn status_of(schema: &mut JSONSchemaProps) -> Option<&mut JSONSchemaProps> {
    schema.properties.as_mut()?.get_mut("status")
}

fn polish_schema(schema: &mut JSONSchemaProps) {
    // The title only repeats the kind.
    schema.title = None;
    // Doc comments are wrapped for the editor; unwrap their lines.
    if let Some(description) = &mut schema.description {
        let paragraphs = description.split("\n\n").map(|p| p.replace('\n', " "));
        *description = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    // OpenAPI does not know the formats of Rust's unsigned integers, and the API server warns about them.
    if let Some(format) = schema.format.as_deref().and_then(|format| match format {
        "uint8" | "uint16" | "uint32" => Some("int32"),
        "uint" | "uint64" => Some("int64"),
        _ => None,
    }) {
        schema.format = Some(format.to_owned());
    }
    schema
        .properties
        .iter_mut()
        .flatten()
        .for_each(|(_, property)| polish_schema(property));
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => polish_schema(items),
        Some(JSONSchemaPropsOrArray::Schemas(all)) => all.iter_mut().for_each(polish_schema),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        polish_schema(values);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, generate::SchemaSettings};
    use serde_json::Value;

    use super::*;
    use crate::{
        AccountSpec, AccountStatus, ApiKeySpec, BackupSpec, BackupStatus, DeliverySpec, DeliveryStatus,
        EventLogSpec, InstanceSpec, InstanceStatus, InvoiceNumberSpec, InvoicePageSpec, InvoiceSpec,
        InvoiceStatus, PrivateNetworkSpec, PrivateNetworkStatus, WebhookSpec, WebhookStatus,
        api_key::ApiKeyStatus, crds,
    };

    /// Calls `see` with every schema below `path`.
    fn walk(path: &str, schema: &JSONSchemaProps, see: &mut impl FnMut(&str, &JSONSchemaProps)) {
        see(path, schema);
        for (name, property) in schema.properties.iter().flatten() {
            walk(&format!("{path}.{name}"), property, see);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            walk(&format!("{path}[]"), items, see);
        }
    }

    fn walk_all(mut see: impl FnMut(&str, &JSONSchemaProps)) {
        for crd in crds() {
            let schema = crd.spec.versions[0].schema.as_ref().unwrap();
            walk(
                &crd.spec.names.kind,
                schema.open_api_v3_schema.as_ref().unwrap(),
                &mut see,
            );
        }
    }

    #[test]
    fn every_field_has_a_description_for_kubectl_explain() {
        walk_all(|path, schema| {
            let description = schema.description.as_deref().unwrap_or_default();
            assert!(description.len() > 3, "{path} has no description");
            assert!(!description.contains("Auto-generated"), "{path}: {description}");
        });
    }

    fn in_one_line(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Adds the fields of a type, as its derived schema has them: the paths and their descriptions.
    fn add_fields(path: &str, schema: &Value, fields: &mut Vec<(String, String)>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            add_fields(&path, property, fields);
            fields.push((path, in_one_line(property["description"].as_str().unwrap())));
        }
        if schema["items"].is_object() {
            add_fields(&format!("{path}[]"), &schema["items"], fields);
        }
        for alternatives in ["allOf", "anyOf", "oneOf"] {
            for schema in schema[alternatives].as_array().into_iter().flatten() {
                add_fields(path, schema, fields);
            }
        }
    }

    #[test]
    fn the_crd_of_each_kind_has_every_field_of_its_type_with_the_description_of_that_field() {
        fn of<T: JsonSchema>(part: &str) -> Vec<(String, String)> {
            let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
            let schema = settings.into_generator().into_root_schema_for::<T>();
            let mut fields = Vec::new();
            add_fields(part, schema.as_value(), &mut fields);
            assert!(!fields.is_empty());
            fields
        }
        let types = [
            (
                "Account",
                of::<AccountSpec>("spec"),
                of::<AccountStatus>("status"),
            ),
            ("ApiKey", of::<ApiKeySpec>("spec"), of::<ApiKeyStatus>("status")),
            (
                "Instance",
                of::<InstanceSpec>("spec"),
                of::<InstanceStatus>("status"),
            ),
            (
                "PrivateNetwork",
                of::<PrivateNetworkSpec>("spec"),
                of::<PrivateNetworkStatus>("status"),
            ),
            ("Backup", of::<BackupSpec>("spec"), of::<BackupStatus>("status")),
            (
                "Webhook",
                of::<WebhookSpec>("spec"),
                of::<WebhookStatus>("status"),
            ),
            (
                "Delivery",
                of::<DeliverySpec>("spec"),
                of::<DeliveryStatus>("status"),
            ),
            ("EventLog", of::<EventLogSpec>("spec"), Vec::new()),
            (
                "Invoice",
                of::<InvoiceSpec>("spec"),
                of::<InvoiceStatus>("status"),
            ),
            ("InvoicePage", of::<InvoicePageSpec>("spec"), Vec::new()),
            ("InvoiceNumber", of::<InvoiceNumberSpec>("spec"), Vec::new()),
        ];
        let mut described = BTreeMap::new();
        walk_all(|path, schema| {
            let is_opaque = schema.x_kubernetes_preserve_unknown_fields.is_some();
            assert!(
                !is_opaque || path == "EventLog.spec.events[].deliveries[]",
                "{path}"
            );
            let description = schema.description.as_deref().map(in_one_line);
            described.insert(path.to_owned(), description);
        });
        assert_eq!(crds().len(), types.len());
        for (kind, spec, status) in types {
            for (field, description) in spec.into_iter().chain(status) {
                let field = format!("{kind}.{field}");
                assert_eq!(described[&field], Some(description), "{field}");
            }
        }
    }

    #[test]
    fn every_format_is_one_that_the_api_server_knows() {
        walk_all(|path, schema| {
            if let Some(format) = &schema.format {
                assert!(
                    ["int32", "int64", "double", "date", "date-time"].contains(&format.as_str()),
                    "{path}: {format}"
                );
            }
        });
    }

    #[test]
    fn kubectl_prints_what_was_decided() {
        let columns: Vec<(String, Vec<String>)> = crds()
            .iter()
            .map(|crd| {
                let columns = crd.spec.versions[0].additional_printer_columns.iter().flatten();
                let shown = columns.filter(|column| column.priority.unwrap_or(0) == 0);
                (
                    crd.spec.names.kind.clone(),
                    shown.map(|column| column.name.clone()).collect(),
                )
            })
            .collect();
        let expected: [(&str, &[&str]); 11] = [
            ("Account", &["ID", "Email", "Namespace", "Ready", "Age"]),
            ("ApiKey", &["Scope", "Ends-In", "Expires", "Last-Used", "Age"]),
            ("Instance", &["State", "Plan", "Region", "IP", "Ready", "Age"]),
            ("PrivateNetwork", &["Region", "Prefix", "Ready", "Age"]),
            ("Backup", &["Instance", "Phase", "Size-GB", "Age"]),
            (
                "Webhook",
                &[
                    "URL",
                    "Active",
                    "Healthy",
                    "Pending",
                    "Last-Success",
                    "Disabled-Since",
                    "Why",
                    "Age",
                ],
            ),
            (
                "Delivery",
                &[
                    "Event",
                    "Webhook",
                    "Phase",
                    "Attempts",
                    "Next-Attempt",
                    "Last-Status",
                    "Age",
                ],
            ),
            ("EventLog", &["From", "To", "Events", "Delivered", "Age"]),
            (
                "Invoice",
                &[
                    "Account", "Type", "Number", "From", "To", "Amount", "Status", "Age",
                ],
            ),
            ("InvoicePage", &["Invoice", "Page", "Age"]),
            ("InvoiceNumber", &["Number", "Invoice", "Account", "Age"]),
        ];
        assert_eq!(columns.len(), expected.len());
        for ((kind, shown), (expected_kind, expected)) in columns.iter().zip(expected) {
            assert_eq!(kind, expected_kind);
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn all_kinds_are_in_the_category_stellage_and_none_in_all() {
        for crd in crds() {
            assert_eq!(
                crd.spec.names.categories.as_deref(),
                Some(&["stellage".to_owned()][..])
            );
        }
    }
}
