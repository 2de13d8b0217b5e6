//! Completes the generated schemas, whatever they describe: their names, references and descriptions, and those that have no Rust type.

use serde_json::{Map, Value};

use super::{receivers, schema_reference};

/// The enumerations that requests have, too: other values are refused. They grow only with what a request can ask for.
const CLOSED: [&str; 4] = ["EventType", "KeyScope", "Plan", "WantedPower"];

pub(super) fn complete(document: &mut Value) {
    name_generics(document);
    refer_to_data(document);
    clean_descriptions(document);
    if let Value::Object(rules) = api::schema::rules() {
        for (name, rule) in rules {
            let schema = document["components"]["schemas"][name].as_object_mut();
            if let Some(schema) = schema {
                schema.extend(rule.as_object().cloned().unwrap_or_default());
            }
        }
    }
    for shared in [api::schema::shared(), receivers::schemas()] {
        if let (Some(schemas), Value::Object(shared)) =
            (document["components"]["schemas"].as_object_mut(), shared)
        {
            schemas.extend(shared);
        }
    }
    open_enums(document);
}

/// Makes the enumerations of answers and events strings, whose values `x-extensible-enum` lists: values may be added, and a generated
/// client must not fail at one. `anyOf` of the enumeration and a string would say the same, but ogen and openapi-generator for C#
/// do not read it, and oapi-codegen makes a type without values of it.
fn open_enums(document: &mut Value) {
    let schemas = document["components"]["schemas"].as_object_mut();
    for (name, schema) in schemas.into_iter().flatten() {
        if !CLOSED.contains(&name.as_str()) {
            walk(schema, &mut |node| {
                if let Some(values) = node.remove("enum") {
                    node.insert("x-extensible-enum".to_owned(), values);
                }
            });
        }
    }
}

/// Renames `Single_Instance` to `InstanceAnswer`, and `List_Plan` and `CursorList_Event` to `PlanList` and `EventList`.
fn name_generics(document: &mut Value) {
    let rename = |name: &str| match name.split_once('_') {
        Some(("Single", of)) => format!("{of}Answer"),
        Some(("List" | "CursorList", of)) => format!("{of}List"),
        _ => name.to_owned(),
    };
    if let Some(schemas) = document["components"]["schemas"].as_object_mut() {
        *schemas = std::mem::take(schemas)
            .into_iter()
            .map(|(name, schema)| (rename(&name), schema))
            .collect();
    }
    walk(document, &mut |node| {
        if let Some(Value::String(reference)) = node.get_mut("$ref")
            && let Some(name) = reference.strip_prefix("#/components/schemas/")
        {
            *reference = format!("#/components/schemas/{}", rename(name));
        }
    });
}

/// Makes answers and lists refer to the schema of their data. utoipa copies it into each, and generators would create a type
/// for each copy.
fn refer_to_data(document: &mut Value) {
    let Some(schemas) = document["components"]["schemas"].as_object_mut() else {
        return;
    };
    let names: Vec<String> = schemas.keys().cloned().collect();
    let is_schema = |of: &str| names.iter().any(|name| name == of);
    for (name, schema) in schemas {
        if let Some(of) = name.strip_suffix("Answer").filter(|of| is_schema(of)) {
            schema["properties"]["data"] = schema_reference(of);
        } else if let Some(of) = name.strip_suffix("List").filter(|of| is_schema(of)) {
            schema["properties"]["data"]["items"] = schema_reference(of);
        }
    }
}

/// Removes line breaks and references to the specification from descriptions, which come from doc comments.
fn clean_descriptions(document: &mut Value) {
    walk(document, &mut |node| {
        if let Some(Value::String(text)) = node.get_mut("description") {
            let mut cleaned = text.replace('\n', " ");
            for source in [" (specification, section ", " (decisions, section "] {
                if let Some(start) = cleaned.find(source)
                    && let Some(length) = cleaned[start..].find(')')
                {
                    cleaned.replace_range(start..=start + length, "");
                }
            }
            *text = cleaned;
        }
    });
}

fn walk(node: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match node {
        Value::Object(map) => {
            visit(map);
            map.values_mut().for_each(|child| walk(child, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|child| walk(child, visit)),
        _ => {}
    }
}
