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

/// The tag of the last release before the commit that is checked out, which may be a release itself.
fn last_release(folder: &Path) -> Option<String> {
    let describe = ["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"];
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
#[derive(Clone, Copy, PartialEq, Eq)]
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

/// Compares the schemas of two documents.
struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    broken: BTreeSet<String>,
    /// References that were followed, so that those in circles end.
    followed: BTreeSet<(String, bool, bool)>,
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
        if let Some(reference) = old["$ref"].as_str() {
            let key = (reference.to_owned(), written.by_clients(), written.by_stellage());
            if !self.followed.insert(key) {
                return;
            }
        }
        let (old, new) = (referred(self.old, old), referred(self.new, new));
        if new.is_null() {
            self.breaks(path, "is gone");
            return;
        }
        let types = |schema: &Value| -> BTreeSet<String> {
            let one = schema["type"].as_str().map(ToOwned::to_owned);
            let several = schema["type"].as_array().into_iter().flatten();
            let several = several.filter_map(|name| name.as_str().map(ToOwned::to_owned));
            one.into_iter().chain(several).collect()
        };
        let (was, is) = (types(old), types(new));
        let is_wider = written.by_clients() && was.is_subset(&is) && !written.by_stellage();
        if was != is && !is_wider && !was.is_empty() {
            self.breaks(path, &format!("was of the type {was:?} and is of {is:?}"));
        }
        let names = |schema: &Value, list: &str| -> BTreeSet<String> {
            let names = schema[list].as_array().into_iter().flatten();
            names
                .map(|name| name.as_str().map_or_else(|| name.to_string(), ToOwned::to_owned))
                .collect()
        };
        let (was, is) = (names(old, "required"), names(new, "required"));
        for name in is.difference(&was).filter(|_| written.by_clients()) {
            self.breaks(path, &format!("{name} is required now"));
        }
        for name in was.difference(&is).filter(|_| written == Written::Stellage) {
            self.breaks(path, &format!("{name} is no longer always there"));
        }
        let (was, is) = (names(old, "enum"), names(new, "enum"));
        for word in was.difference(&is).filter(|_| !is.is_empty()) {
            self.breaks(path, &format!("the word {word} is gone"));
        }
        if written.by_clients() {
            if was.is_empty() && !is.is_empty() {
                self.breaks(path, "only some words are allowed now");
            }
            self.bounds(path, old, new);
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
        if !new["pattern"].is_null() && new["pattern"] != old["pattern"] {
            self.breaks(
                path,
                &format!(
                    "the pattern is {} now, which may refuse what it took",
                    new["pattern"]
                ),
            );
        }
    }

    /// Compares the operations of two OpenAPI documents.
    fn operations(&mut self) {
        const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];
        for (path, item) in self.old["paths"].as_object().into_iter().flatten() {
            for method in METHODS.into_iter().filter(|method| item[method].is_object()) {
                let name = format!("{method} {path}");
                let (old, new) = (&item[method], &self.new["paths"][path][method]);
                if new.is_null() {
                    self.breaks(&name, "is gone");
                    continue;
                }
                self.parameters(&name, old, new);
                let body = |operation: &Value| {
                    operation["requestBody"]["content"]["application/json"]["schema"].clone()
                };
                if !body(old).is_null() {
                    self.schema(&format!("{name} body"), &body(old), &body(new), Written::Clients);
                }
                if new["requestBody"]["required"] == true && old["requestBody"]["required"] != true {
                    self.breaks(&name, "its body is required now");
                }
                for (status, response) in old["responses"].as_object().into_iter().flatten() {
                    let response = referred(self.old, response);
                    let new = referred(self.new, &new["responses"][status]);
                    if new.is_null() {
                        self.breaks(&name, &format!("it no longer answers {status}"));
                    }
                    for (media, content) in response["content"].as_object().into_iter().flatten() {
                        let path = format!("{name} {status} {media}");
                        self.schema(
                            &path,
                            &content["schema"],
                            &new["content"][media]["schema"],
                            Written::Stellage,
                        );
                    }
                }
            }
        }
    }

    fn parameters(&mut self, name: &str, old: &Value, new: &Value) {
        let of = |document: &Value, operation: &Value| -> BTreeMap<String, Value> {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            parameters
                .map(|one| referred(document, one))
                .map(|one| (format!("{} {}", one["in"], one["name"]), one.clone()))
                .collect()
        };
        let (old, new) = (of(self.old, old), of(self.new, new));
        for (key, parameter) in &old {
            let path = format!("{name} {key}");
            match new.get(key) {
                Some(now) => self.schema(&path, &parameter["schema"], &now["schema"], Written::Clients),
                None => self.breaks(&path, "is gone"),
            }
        }
        for (key, parameter) in &new {
            let was = old.get(key).is_some_and(|old| old["required"] == true);
            if parameter["required"] == true && !was {
                self.breaks(&format!("{name} {key}"), "is required now");
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
    for tag in ["v0.1.0", "v0.2.0"] {
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
        "properties": { "a": { "type": "string", "maxLength": 63 }, "b": { "enum": ["x", "y"] }, "c": { "type": "array", "items": { "type": "integer" } } },
    });
    let differ = |change: &dyn Fn(&mut Value), written| {
        let mut new = old.clone();
        change(&mut new);
        let mut comparison = Comparison::of(&Value::Null, &Value::Null);
        comparison.schema("o", &old, &new, written);
        !comparison.broken.is_empty()
    };
    let changes: [(&str, Change, [bool; 2]); 9] = [
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
