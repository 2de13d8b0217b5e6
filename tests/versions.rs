//! What v1 promises: the schemas of all kinds and the OpenAPI document are compared with those of the last release.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

/// Set by `make promised`: write what is promised from now on.
const WRITE: &str = "STELLAGE_WRITE_PROMISED";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What git says in a folder, if it does.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    let output = command.arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then_some(text)
}

/// The tag of the last release, no pre-release, before the commit that is checked out, which may be a release itself.
fn last_release(folder: &Path) -> Option<String> {
    let describe = [
        "describe",
        "--tags",
        "--abbrev=0",
        "--match",
        "v[0-9]*",
        "--exclude",
        "v*-*",
        "HEAD^",
    ];
    git(folder, &describe).map(|tag| tag.trim().to_owned())
}

/// Whether a changelog has a release other than that of this version, which may not have its tag yet.
fn has_older_release(changelog: &str, version: &str) -> bool {
    let headings = changelog.lines().filter_map(|line| line.strip_prefix("## "));
    let releases =
        headings.filter_map(|heading| heading.split([' ', '[', ']']).find(|word| !word.is_empty()));
    releases
        .filter(|release| release.starts_with(|first: char| first.is_ascii_digit()))
        .any(|release| release != version)
}

/// What the last release promised, from its tag; what is committed while there is none.
fn promised(file: &str) -> String {
    let path = format!("tests/promised/{file}");
    if let Some(tag) = last_release(root()) {
        let then = git(root(), &["show", &format!("{tag}:{path}")]);
        return then.unwrap_or_else(|| panic!("{tag} has no {path}"));
    }
    let changelog = fs::read_to_string(root().join("CHANGELOG.md")).unwrap();
    assert!(
        std::env::var_os("CI").is_none() || !has_older_release(&changelog, env!("CARGO_PKG_VERSION")),
        "the tags of the releases are missing in this checkout: fetch them all, with the history"
    );
    fs::read_to_string(root().join(&path)).unwrap_or_default()
}

/// Writes what is promised from now on, if asked to.
fn promise(file: &str, now: &Value) -> bool {
    let is_asked = std::env::var_os(WRITE).is_some();
    if is_asked {
        let path: PathBuf = root().join("tests/promised").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{now:#}\n")).unwrap();
    }
    is_asked
}

/// Takes out what is for people.
fn lean(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, inner| match name.as_str() {
                // A field may have that name, too.
                "description" | "summary" => !inner.is_string(),
                "example" | "examples" => false,
                _ => true,
            });
            fields.values_mut().for_each(lean);
        }
        Value::Array(all) => all.iter_mut().for_each(lean),
        _ => {}
    }
}

/// Who writes what a schema describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Written {
    /// The client: what it may leave out, and how large it may be, stays.
    Clients,
    /// Stellage: what is always there, stays.
    Stellage,
    /// Both, as an object of Kubernetes.
    Both,
}

impl Written {
    fn by_clients(self) -> bool {
        self != Self::Stellage
    }

    fn by_stellage(self) -> bool {
        self != Self::Clients
    }
}

/// What a part of a document says, or refers to.
fn referred<'a>(document: &'a Value, part: &'a Value) -> &'a Value {
    let found = part["$ref"]
        .as_str()
        .and_then(|reference| document.pointer(reference.trim_start_matches('#')));
    found.unwrap_or(part)
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// The texts in a list of a schema.
fn texts(schema: &Value, list: &str) -> BTreeSet<String> {
    let all = schema[list].as_array().into_iter().flatten();
    all.map(text).collect()
}

/// The values that a schema lists, whether others are allowed or not.
fn words(schema: &Value) -> BTreeSet<String> {
    let lists = ["enum", "x-extensible-enum"].map(|list| texts(schema, list));
    let only = schema.get("const").map(text);
    lists.into_iter().flatten().chain(only).collect()
}

/// Compares the schemas of two documents.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    broken: BTreeSet<String>,
    /// References that were followed in both, so that those in circles end.
    followed: BTreeSet<(String, String, Written)>,
}

impl<'a> Comparison<'a> {
    /// Fails if a promise is broken.
    fn holds(&self) {
        assert!(
            self.broken.is_empty(),
            "docs/versions.md promises otherwise: {:#?}",
            self.broken
        );
    }

    fn of(old: &'a Value, new: &'a Value) -> Self {
        Self {
            old,
            new,
            broken: BTreeSet::new(),
            followed: BTreeSet::new(),
        }
    }

    fn breaks(&mut self, path: &str, what: &str) {
        self.broken.insert(format!("{path}: {what}"));
    }

    /// Compares two schemas, in which references refer to their documents.
    fn schema(&mut self, path: &str, old: &Value, new: &Value, written: Written) {
        if new.is_null() {
            self.breaks(path, "is gone");
            return;
        }
        if let (Some(was), Some(is)) = (old["$ref"].as_str(), new["$ref"].as_str())
            && !self.followed.insert((was.to_owned(), is.to_owned(), written))
        {
            return;
        }
        let (old, new) = (referred(self.old, old), referred(self.new, new));
        let types = |schema: &Value| -> BTreeSet<String> {
            let one = schema["type"].as_str().map(ToOwned::to_owned);
            one.into_iter().chain(texts(schema, "type")).collect()
        };
        let (was, is) = (types(old), types(new));
        let is_wider = written.by_clients() && was.is_subset(&is) && !written.by_stellage();
        if was != is && !is_wider && !was.is_empty() {
            self.breaks(path, &format!("was of the type {was:?} and is of {is:?}"));
        }
        let (was, is) = (&old["format"], &new["format"]);
        if was != is {
            self.breaks(path, &format!("had the format {was} and has {is}"));
        }
        let (was, is) = (texts(old, "required"), texts(new, "required"));
        for name in is.difference(&was).filter(|_| written.by_clients()) {
            self.breaks(path, &format!("{name} is required now"));
        }
        for name in was.difference(&is).filter(|_| written == Written::Stellage) {
            self.breaks(path, &format!("{name} is no longer always there"));
        }
        let (was, is) = (words(old), words(new));
        let is_listed = !is.is_empty() || written == Written::Stellage;
        for word in was.difference(&is).filter(|_| is_listed) {
            self.breaks(path, &format!("the word {word} is gone"));
        }
        if written.by_clients() {
            self.acceptance(path, old, new);
        }
        for (name, property) in old["properties"].as_object().into_iter().flatten() {
            self.schema(
                &format!("{path}.{name}"),
                property,
                &new["properties"][name],
                written,
            );
        }
        for inner in ["items", "additionalProperties"] {
            if old[inner].is_object() {
                self.schema(&format!("{path}[]"), &old[inner], &new[inner], written);
            }
        }
        for list in ["allOf", "anyOf", "oneOf"] {
            for (index, part) in old[list].as_array().into_iter().flatten().enumerate() {
                self.schema(
                    &format!("{path}({list} {index})"),
                    part,
                    &new[list][index],
                    written,
                );
            }
        }
    }

    /// What was accepted still is.
    fn acceptance(&mut self, path: &str, old: &Value, new: &Value) {
        let is_closed = |schema: &Value| schema["enum"].is_array() || schema.get("const").is_some();
        if is_closed(new) && !is_closed(old) {
            self.breaks(path, "only some words are allowed now");
        }
        if old["nullable"] == true && new["nullable"] != true {
            self.breaks(path, "must not be null now");
        }
        if new["additionalProperties"] == false && old["additionalProperties"] != false {
            self.breaks(path, "other fields are refused now");
        }
        for list in ["allOf", "anyOf", "oneOf"] {
            let [was, is] = [old, new].map(|schema| schema[list].as_array().map_or(0, Vec::len));
            if is > was && (list == "allOf" || was == 0) {
                self.breaks(
                    path,
                    &format!("{list} has more parts, which may refuse what was taken"),
                );
            }
        }
        for condition in [
            "pattern",
            "not",
            "if",
            "then",
            "else",
            "multipleOf",
            "uniqueItems",
            "exclusiveMinimum",
            "exclusiveMaximum",
        ] {
            let is = &new[condition];
            if !is.is_null() && *is != old[condition] {
                let refused = format!("{condition} is {is} now, which may refuse what was taken");
                self.breaks(path, &refused);
            }
        }
        self.bounds(path, old, new);
        self.rules(path, old, new);
    }

    /// There are no other rules in CEL than there were.
    fn rules(&mut self, path: &str, old: &Value, new: &Value) {
        let rules = |schema: &Value| -> BTreeSet<String> {
            let rules = schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten();
            rules.map(|rule| text(&rule["rule"])).collect()
        };
        let was = rules(old);
        for rule in rules(new).difference(&was) {
            self.breaks(path, &format!("there is the rule {rule} now"));
        }
    }

    /// Limits only get wider.
    fn bounds(&mut self, path: &str, old: &Value, new: &Value) {
        type IsNarrower = fn(f64, f64) -> bool;
        let bounds: [(&str, IsNarrower); 8] = [
            ("maxLength", |was, is| is < was),
            ("maxItems", |was, is| is < was),
            ("maxProperties", |was, is| is < was),
            ("maximum", |was, is| is < was),
            ("minLength", |was, is| is > was),
            ("minItems", |was, is| is > was),
            ("minProperties", |was, is| is > was),
            ("minimum", |was, is| is > was),
        ];
        for (bound, is_narrower) in bounds {
            match (old[bound].as_f64(), new[bound].as_f64()) {
                (Some(was), Some(is)) if is_narrower(was, is) => {
                    self.breaks(path, &format!("{bound} was {was} and is {is}"));
                }
                (None, Some(is)) => self.breaks(path, &format!("there is {bound} {is} now")),
                _ => {}
            }
        }
    }

    /// Compares the operations of two OpenAPI documents: the endpoints, and the requests that Stellage sends.
    fn operations(&mut self) {
        self.calls("paths", Written::Clients, Written::Stellage);
        self.calls("webhooks", Written::Stellage, Written::Clients);
    }

    fn calls(&mut self, part: &str, request: Written, answer: Written) {
        const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
        for (path, item) in self.old[part].as_object().into_iter().flatten() {
            for method in METHODS.into_iter().filter(|method| item[method].is_object()) {
                let name = format!("{method} {path}");
                let (old, new) = (&item[method], &self.new[part][path][method]);
                if new.is_null() {
                    self.breaks(&name, "is gone");
                    continue;
                }
                self.parameters(&name, old, new, request);
                self.body(&name, old, new, request);
                self.answers(&name, old, new, answer);
            }
        }
    }

    fn parameters(&mut self, name: &str, old: &Value, new: &Value, written: Written) {
        let of = |document: &Value, operation: &Value| -> BTreeMap<String, Value> {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            parameters
                .map(|one| referred(document, one))
                .map(|one| (format!("{} {}", one["in"], one["name"]), one.clone()))
                .collect()
        };
        let (old, new) = (of(self.old, old), of(self.new, new));
        for (key, was) in &old {
            self.value(
                &format!("{name} {key}"),
                was,
                new.get(key).unwrap_or(&Value::Null),
                written,
            );
        }
        for (key, parameter) in &new {
            let was = old.get(key).is_some_and(|old| old["required"] == true);
            if written.by_clients() && parameter["required"] == true && !was {
                self.breaks(&format!("{name} {key}"), "is required now");
            }
        }
    }

    /// Compares two parameters, or two headers of an answer.
    fn value(&mut self, path: &str, old: &Value, new: &Value, written: Written) {
        let is_left_out = old["required"] == true && new["required"] != true;
        if written.by_stellage() && is_left_out {
            self.breaks(path, "is no longer always there");
        }
        self.schema(path, &old["schema"], &new["schema"], written);
    }

    fn body(&mut self, name: &str, old: &Value, new: &Value, written: Written) {
        let (old, new) = (&old["requestBody"], &new["requestBody"]);
        let schema = |body: &Value| body["content"]["application/json"]["schema"].clone();
        if !schema(old).is_null() {
            self.schema(&format!("{name} body"), &schema(old), &schema(new), written);
        }
        if written.by_clients() && new["required"] == true && old["required"] != true {
            self.breaks(name, "its body is required now");
        }
    }

    fn answers(&mut self, name: &str, old: &Value, new: &Value, written: Written) {
        for (status, was) in old["responses"].as_object().into_iter().flatten() {
            let name = format!("{name} {status}");
            let was = referred(self.old, was);
            let is = referred(self.new, &new["responses"][status]);
            if is.is_null() {
                self.breaks(&name, "is no longer an answer");
            }
            for (header, was) in was["headers"].as_object().into_iter().flatten() {
                let was = referred(self.old, was);
                let is = referred(self.new, &is["headers"][header]);
                self.value(&format!("{name} {header}"), was, is, written);
            }
            for (media, content) in was["content"].as_object().into_iter().flatten() {
                self.schema(
                    &format!("{name} {media}"),
                    &content["schema"],
                    &is["content"][media]["schema"],
                    written,
                );
            }
        }
    }
}

#[test]
fn a_release_is_compared_with_the_one_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let settings = [
            "user.name=a",
            "user.email=a@example.com",
            "commit.gpgsign=false",
            "tag.gpgsign=false",
        ];
        let mut all: Vec<&str> = settings.iter().flat_map(|setting| ["-c", *setting]).collect();
        all.extend(arguments);
        let output = Command::new("git")
            .arg("-C")
            .arg(folder.path())
            .args(all)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    };
    run(&["init", "--quiet"]);
    for tag in ["v0.1.0", "v0.2.0-rc.1", "v0.2.0"] {
        run(&["commit", "--quiet", "--allow-empty", "--message", tag]);
        run(&["tag", tag]);
    }
    assert_eq!(last_release(folder.path()).as_deref(), Some("v0.1.0"));
    run(&["commit", "--quiet", "--allow-empty", "--message", "next"]);
    assert_eq!(last_release(folder.path()).as_deref(), Some("v0.2.0"));
}

#[test]
fn a_changelog_tells_whether_there_must_be_a_tag() {
    let first = "# Changelog\n\n## Unreleased\n\n## 0.1.0 (2026-12-01)\n\n### Added\n";
    assert!(!has_older_release("# Changelog\n\n## Unreleased\n", "0.1.0"));
    assert!(!has_older_release(first, "0.1.0"));
    assert!(has_older_release(first, "0.2.0"));
    assert!(has_older_release(
        "## [0.2.0] - 2027-01-01\n## [0.1.0]\n",
        "0.2.0"
    ));
}

#[test]
fn no_kind_loses_what_the_last_release_had() {
    let mut kinds = BTreeMap::new();
    for crd in resources::crds() {
        let crd = serde_json::to_value(crd).unwrap();
        let version = &crd["spec"]["versions"][0];
        let kind = json!({
            "names": crd["spec"]["names"], "scope": crd["spec"]["scope"], "version": version["name"],
            "selectableFields": version["selectableFields"], "schema": version["schema"]["openAPIV3Schema"],
        });
        kinds.insert(crd["spec"]["names"]["kind"].as_str().unwrap().to_owned(), kind);
    }
    let mut now = json!(kinds);
    lean(&mut now);
    if promise("kinds.json", &now) {
        return;
    }
    let then: Value = serde_json::from_str(&promised("kinds.json")).unwrap();
    let mut comparison = Comparison::of(&then, &now);
    for (kind, old) in then.as_object().unwrap() {
        let new = &now[kind];
        for field in ["plural", "shortNames", "singular", "kind", "categories"] {
            if old["names"][field] != new["names"][field] {
                comparison.breaks(
                    kind,
                    &format!(
                        "{field} was {} and is {}",
                        old["names"][field], new["names"][field]
                    ),
                );
            }
        }
        for field in ["scope", "version"] {
            if old[field] != new[field] {
                comparison.breaks(kind, &format!("{field} was {} and is {}", old[field], new[field]));
            }
        }
        for field in old["selectableFields"].as_array().into_iter().flatten() {
            if !new["selectableFields"]
                .as_array()
                .is_some_and(|fields| fields.contains(field))
            {
                comparison.breaks(kind, &format!("{} cannot be selected by", field["jsonPath"]));
            }
        }
        comparison.rules(kind, &old["schema"], &new["schema"]);
        for part in ["spec", "status"] {
            let of = |kind: &Value| kind["schema"]["properties"][part].clone();
            let written = if part == "spec" {
                Written::Both
            } else {
                Written::Stellage
            };
            if !of(old).is_null() {
                comparison.schema(&format!("{kind}.{part}"), &of(old), &of(new), written);
            }
        }
    }
    comparison.holds();
}

#[test]
fn no_endpoint_loses_what_the_last_release_had() {
    let mut now = server::facade::openapi::value();
    // They differ from one installation to the next.
    for part in ["info", "servers"] {
        now.as_object_mut().unwrap().remove(part);
    }
    lean(&mut now);
    if promise("openapi.json", &now) {
        return;
    }
    let then: Value = serde_json::from_str(&promised("openapi.json")).unwrap();
    let mut comparison = Comparison::of(&then, &now);
    comparison.operations();
    comparison.holds();
}

#[test]
fn the_comparison_notices_what_v1_may_not_do_and_lets_it_grow() {
    type Change = fn(&mut Value);
    let old = json!({
        "type": "object", "required": ["a"],
        "properties": {
            "a": { "type": "string", "maxLength": 63 },
            "b": { "enum": ["x", "y"] },
            "c": { "type": "array", "items": { "type": "integer" } },
            "open": { "x-extensible-enum": ["x", "y"] },
            "only": { "const": "x" },
            "time": { "type": "string", "format": "date-time", "nullable": true },
            "ruled": { "x-kubernetes-validations": [{ "rule": "self != 'x'", "message": "must not be x" }] },
        },
    });
    let differ = |change: &dyn Fn(&mut Value), written| {
        let mut new = old.clone();
        change(&mut new);
        let mut comparison = Comparison::of(&Value::Null, &Value::Null);
        comparison.schema("o", &old, &new, written);
        !comparison.broken.is_empty()
    };
    let changes: [(&str, Change, [bool; 2]); 25] = [
        ("nothing", |_| {}, [false, false]),
        (
            "a new optional field",
            |new| new["properties"]["d"] = json!({ "type": "string" }),
            [false, false],
        ),
        (
            "a field that is gone",
            |new| {
                new["properties"].as_object_mut().unwrap().remove("b");
            },
            [true, true],
        ),
        (
            "another type",
            |new| new["properties"]["c"]["items"]["type"] = json!("string"),
            [true, true],
        ),
        (
            "a field that is required now",
            |new| new["required"] = json!(["a", "b"]),
            [true, false],
        ),
        (
            "a field that may be missing now",
            |new| new["required"] = json!([]),
            [false, true],
        ),
        (
            "a narrower limit",
            |new| new["properties"]["a"]["maxLength"] = json!(10),
            [true, false],
        ),
        (
            "a wider limit",
            |new| new["properties"]["a"]["maxLength"] = json!(64),
            [false, false],
        ),
        (
            "a word that is gone",
            |new| new["properties"]["b"]["enum"] = json!(["x"]),
            [true, true],
        ),
        (
            "a word that is gone from an open list",
            |new| new["properties"]["open"]["x-extensible-enum"] = json!(["x"]),
            [true, true],
        ),
        (
            "a new word in an open list",
            |new| new["properties"]["open"]["x-extensible-enum"] = json!(["x", "y", "z"]),
            [false, false],
        ),
        (
            "an open list that is gone",
            |new| new["properties"]["open"] = json!({}),
            [false, true],
        ),
        (
            "an open list that is closed",
            |new| new["properties"]["open"] = json!({ "enum": ["x", "y"] }),
            [true, false],
        ),
        (
            "another only value",
            |new| new["properties"]["only"]["const"] = json!("y"),
            [true, true],
        ),
        (
            "another format",
            |new| new["properties"]["time"]["format"] = json!("date"),
            [true, true],
        ),
        (
            "a field that must not be null now",
            |new| new["properties"]["time"]["nullable"] = json!(false),
            [true, false],
        ),
        (
            "a changed rule with the same message",
            |new| new["properties"]["ruled"]["x-kubernetes-validations"][0]["rule"] = json!("self < 'x'"),
            [true, false],
        ),
        (
            "a new rule",
            |new| new["x-kubernetes-validations"] = json!([{ "rule": "has(self.b)" }]),
            [true, false],
        ),
        (
            "another message of a rule",
            |new| new["properties"]["ruled"]["x-kubernetes-validations"][0]["message"] = json!("not x"),
            [false, false],
        ),
        (
            "a rule that is gone",
            |new| new["properties"]["ruled"] = json!({}),
            [false, false],
        ),
        (
            "a new condition",
            |new| new["not"] = json!({ "required": ["b"] }),
            [true, false],
        ),
        (
            "other fields refused",
            |new| new["additionalProperties"] = json!(false),
            [true, false],
        ),
        (
            "one more part of all",
            |new| new["allOf"] = json!([{ "required": ["b"] }]),
            [true, false],
        ),
        (
            "alternatives",
            |new| new["oneOf"] = json!([{ "required": ["b"] }]),
            [true, false],
        ),
        (
            "another limit",
            |new| new["properties"]["time"]["exclusiveMinimum"] = json!(1),
            [true, false],
        ),
    ];
    for (what, change, [breaks_clients, breaks_readers]) in changes {
        assert_eq!(
            differ(&change, Written::Clients),
            breaks_clients,
            "{what}, in a request"
        );
        assert_eq!(
            differ(&change, Written::Stellage),
            breaks_readers,
            "{what}, in an answer"
        );
    }
}

#[test]
fn the_comparison_notices_what_endpoints_and_events_may_not_lose_and_lets_them_grow() {
    type Change = fn(&mut Value);
    fn set(document: &mut Value, pointer: &str, value: Value) {
        *document.pointer_mut(pointer).unwrap() = value;
    }
    fn remove(document: &mut Value, pointer: &str, name: &str) {
        let fields = document.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        fields.remove(name).unwrap();
    }
    let content = |name: &str| {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        json!({ "application/json": { "schema": schema } })
    };
    let old = json!({
        "paths": { "/things": { "post": {
            "parameters": [{ "in": "query", "name": "dry", "schema": { "type": "boolean" } }],
            "requestBody": { "content": content("Thing") },
            "responses": { "200": {
                "headers": { "ETag": { "$ref": "#/components/headers/ETag" } },
                "content": content("Thing"),
            } },
        } } },
        "webhooks": { "thing.made": { "post": {
            "parameters": [{ "in": "header", "name": "id", "required": true, "schema": { "type": "string" } }],
            "requestBody": { "content": content("Made"), "required": true },
            "responses": { "2XX": {}, "410": {} },
        } } },
        "components": {
            "headers": { "ETag": { "required": true, "schema": { "type": "string" } } },
            "schemas": {
                "Made": { "required": ["at"], "properties": { "at": { "$ref": "#/components/schemas/Text" } } },
                "Number": { "type": "integer" },
                "Text": { "type": "string" },
                "Thing": { "properties": {
                    "a": { "$ref": "#/components/schemas/Text" },
                    "b": { "$ref": "#/components/schemas/Text" },
                } },
            },
        },
    });
    let changes: [(&str, Change, bool); 18] = [
        ("nothing", |_| {}, false),
        ("an endpoint", |new| remove(new, "/paths", "/things"), true),
        (
            "a parameter",
            |new| set(new, "/paths/~1things/post/parameters", json!([])),
            true,
        ),
        (
            "a body that is required now",
            |new| new["paths"]["/things"]["post"]["requestBody"]["required"] = json!(true),
            true,
        ),
        (
            "a status",
            |new| remove(new, "/paths/~1things/post/responses", "200"),
            true,
        ),
        (
            "a header of an answer",
            |new| remove(new, "/paths/~1things/post/responses/200/headers", "ETag"),
            true,
        ),
        (
            "a header of an answer that may be missing now",
            |new| set(new, "/components/headers/ETag/required", json!(false)),
            true,
        ),
        (
            "a field with the schema of another",
            |new| remove(new, "/components/schemas/Thing/properties", "b"),
            true,
        ),
        (
            "a field that refers to another schema now",
            |new| {
                let number = json!("#/components/schemas/Number");
                set(new, "/components/schemas/Thing/properties/b/$ref", number);
            },
            true,
        ),
        ("an event", |new| remove(new, "/webhooks", "thing.made"), true),
        (
            "a header of an event",
            |new| set(new, "/webhooks/thing.made/post/parameters", json!([])),
            true,
        ),
        (
            "a header of an event that may be missing now",
            |new| remove(new, "/webhooks/thing.made/post/parameters/0", "required"),
            true,
        ),
        (
            "a field of an event",
            |new| remove(new, "/components/schemas/Made/properties", "at"),
            true,
        ),
        (
            "a field of an event that may be missing now",
            |new| set(new, "/components/schemas/Made/required", json!([])),
            true,
        ),
        (
            "an answer to an event",
            |new| remove(new, "/webhooks/thing.made/post/responses", "410"),
            true,
        ),
        (
            "a new endpoint and a new event",
            |new| {
                new["paths"]["/more"] = json!({ "get": {} });
                new["webhooks"]["thing.gone"] = json!({ "post": {} });
            },
            false,
        ),
        (
            "a new header of an answer",
            |new| {
                new["paths"]["/things"]["post"]["responses"]["200"]["headers"]["Age"] = json!({});
            },
            false,
        ),
        (
            "a new header of an event",
            |new| {
                let parameters = &mut new["webhooks"]["thing.made"]["post"]["parameters"];
                let more = json!({ "in": "header", "name": "more", "required": true, "schema": {} });
                parameters.as_array_mut().unwrap().push(more);
            },
            false,
        ),
    ];
    for (what, change, breaks) in changes {
        let mut new = old.clone();
        change(&mut new);
        let mut comparison = Comparison::of(&old, &new);
        comparison.operations();
        assert_eq!(
            !comparison.broken.is_empty(),
            breaks,
            "{what}: {:?}",
            comparison.broken
        );
    }
}
