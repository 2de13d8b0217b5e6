//! An in-memory API server, as far as the controllers need one. Objects are stored as JSON, so that whatever is not stored is lost
//! with the process that knew it. Writes are rejected as the real one rejects them; now and then one fails before or after it was
//! stored, and a process can be killed at any of its writes.

use std::{
    collections::{BTreeMap, VecDeque},
    future,
    sync::Arc,
};

use http::Method;
use jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use resources::{
    conditions::whole_seconds,
    instance::FINALIZER,
    origin::{self, ORIGIN_ANNOTATION},
};
use runtime::testing::answered_by;

/// One in this many writes fails, half of them after being stored.
const FAILURES: u32 = 200;
/// One in this many creations of a Backup is refused because of a quota.
const REFUSALS: u32 = 150;

/// Plural, namespace and name.
type Key = (String, String, String);

/// A write: the object before and after.
#[derive(Clone)]
pub struct Stored {
    pub plural: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

#[derive(Clone)]
pub struct ApiServer(Arc<Mutex<State>>);

struct State {
    now: Timestamp,
    objects: BTreeMap<Key, Value>,
    revision: u64,
    made: u64,
    /// Writes that have not been taken yet.
    writes: VecDeque<Stored>,
    /// The plural of each read since the last call.
    reads: Vec<String>,
    rng: StdRng,
    process: u64,
    /// Number of writes before the process dies.
    left: Option<u32>,
    is_dead: bool,
}

type Answer = (u16, Value);

fn refusal(code: u16, reason: &str, message: &str) -> Answer {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": message,
    });
    (code, status)
}

fn has_status(plural: &str) -> bool {
    matches!(plural, "instances" | "backups")
}

impl ApiServer {
    pub fn new(seed: u64, now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(State {
            now,
            objects: BTreeMap::new(),
            revision: 1,
            made: 0,
            writes: VecDeque::new(),
            reads: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
            process: 0,
            left: None,
            is_dead: false,
        })))
    }

    pub fn set_now(&self, now: Timestamp) {
        self.0.lock().now = now;
    }

    /// A client for a new process. The clients of earlier processes get no more answers.
    pub fn connect(&self) -> Client {
        let process = {
            let mut state = self.0.lock();
            (state.left, state.is_dead) = (None, false);
            state.process += 1;
            state.process
        };
        let server = self.clone();
        answered_by(move |method, uri, body| {
            let answer = server.0.lock().answer(process, &method, &uri, body);
            async move {
                match answer {
                    Some(answer) => answer,
                    None => future::pending().await,
                }
            }
        })
    }

    /// Kills the process at a later write: after this many more.
    pub fn kill_after(&self, writes: u32) {
        self.0.lock().left = Some(writes);
    }

    /// Saves an object, removes it as if its cluster were lost, and writes it back. Returns whether it can be: its origin is known.
    pub fn write_back(&self, plural: &str, namespace: &str, name: &str) -> bool {
        let mut state = self.0.lock();
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let saved = state.objects.get(&key).cloned();
        let is_known = |object: &Value| !object["metadata"]["annotations"][ORIGIN_ANNOTATION].is_null();
        let Some(mut object) = saved.filter(is_known) else {
            return false;
        };
        state.objects.remove(&key);
        state.writes.push_back(Stored {
            plural: plural.to_owned(),
            before: Some(object.clone()),
            after: None,
        });
        state.made += 1;
        let (uid, now) = (format!("uid-{:06}", state.made), whole_seconds(state.now));
        let metadata = &mut object["metadata"];
        (metadata["uid"], metadata["creationTimestamp"]) = (json!(uid), json!(now.to_string()));
        state.store(&key, object);
        true
    }

    pub fn is_dead(&self) -> bool {
        self.0.lock().is_dead
    }

    /// The writes since the last call.
    pub fn take_writes(&self) -> VecDeque<Stored> {
        std::mem::take(&mut self.0.lock().writes)
    }

    /// Whether something has been written since the last call to `take_writes`.
    pub fn has_writes(&self) -> bool {
        !self.0.lock().writes.is_empty()
    }

    /// The plural of each read since the last call.
    pub fn take_reads(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().reads)
    }

    pub fn list<K: DeserializeOwned>(&self, plural: &str) -> Vec<K> {
        self.select(plural, |_| true)
    }

    pub fn select<K: DeserializeOwned>(&self, plural: &str, is_one: impl Fn(&Value) -> bool) -> Vec<K> {
        let state = self.0.lock();
        let of_kind = state.objects.iter().filter(|(key, _)| key.0 == plural);
        let selected = of_kind.map(|(_, object)| object).filter(|object| is_one(object));
        selected
            .map(|object| serde_json::from_value(object.clone()).unwrap())
            .collect()
    }

    pub fn get<K: DeserializeOwned>(&self, plural: &str, namespace: &str, name: &str) -> Option<K> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let found = self.0.lock().objects.get(&key).cloned();
        found.map(|found| serde_json::from_value(found).unwrap())
    }

    /// Namespace and name of an object that is not being deleted, one at random if there are several.
    pub fn any(&self, plural: &str, is_one: impl Fn(&Value) -> bool) -> Option<(String, String)> {
        let state = &mut *self.0.lock();
        let all = state.objects.iter().filter(|(key, object)| {
            key.0 == plural && object["metadata"]["deletionTimestamp"].is_null() && is_one(object)
        });
        let all: Vec<_> = all.map(|(key, _)| (key.1.clone(), key.2.clone())).collect();
        all.choose(&mut state.rng).cloned()
    }

    /// Creates an object as a user would. Returns whether the name was free.
    pub fn create(&self, plural: &str, namespace: &str, object: Value) -> bool {
        self.0.lock().create(plural, namespace, object).0 == 201
    }

    /// Creates an account with a namespace of the same name.
    pub fn create_account(&self, name: &str) {
        let is_ready = json!({
            "type": "NamespaceReady", "status": "True", "reason": "Ready", "message": "",
            "lastTransitionTime": self.0.lock().now,
        });
        let account = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name },
            "spec": { "email": format!("{name}@example.com") },
            "status": { "namespace": name, "conditions": [is_ready] },
        });
        self.create("accounts", "", account);
    }

    /// Creates an instance with finalizer and origin, as REST does.
    pub fn create_instance(&self, account: &str, name: &str) {
        let origin = origin::annotation(&format!("{account}-{name}"), whole_seconds(self.0.lock().now));
        let instance = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": {
                "name": name, "finalizers": [FINALIZER], "annotations": { ORIGIN_ANNOTATION: origin },
            },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        });
        self.create("instances", account, instance);
    }

    /// Changes an object as a user would.
    pub fn edit(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let mut state = self.0.lock();
        let Some(mut object) = state.objects.get(&key).cloned() else {
            return;
        };
        let spec = object["spec"].clone();
        change(&mut object);
        if object["spec"] != spec {
            let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        state.store(&key, object);
    }

    /// Deletes an object as a user would.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.0.lock().delete(&key, &Value::Null);
    }
}

impl State {
    /// `None` if the process is dead.
    fn answer(&mut self, process: u64, method: &Method, uri: &str, body: Value) -> Option<Answer> {
        if self.is_dead || process != self.process {
            return None;
        }
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
        // Without a namespace: /apis/GROUP/VERSION/PLURAL, a list of all.
        let place = segments.iter().position(|segment| *segment == "namespaces");
        let (namespace, rest) = match place {
            Some(place) => (segments[place + 1], &segments[place + 2..]),
            None => ("", &segments[3..]),
        };
        if rest[0] == "events" {
            return Some((201, body));
        }
        if *method == Method::GET {
            self.reads.push(rest[0].to_owned());
            return Some(match rest {
                [plural, name] => self.get(plural, namespace, name),
                _ => self.list(rest[0], namespace, query),
            });
        }
        if let Some(left) = &mut self.left {
            if *left == 0 {
                self.is_dead = true;
                if self.rng.random_bool(0.5) {
                    self.write(method, namespace, rest, body);
                }
                return None;
            }
            *left -= 1;
        }
        let failure = || refusal(500, "InternalError", "etcdserver: request timed out");
        match self.rng.random_range(0..FAILURES * 2) {
            0 => Some(failure()),
            1 => {
                self.write(method, namespace, rest, body);
                Some(failure())
            }
            _ => Some(self.write(method, namespace, rest, body)),
        }
    }

    fn write(&mut self, method: &Method, namespace: &str, rest: &[&str], body: Value) -> Answer {
        let plural = rest[0];
        if *method == Method::POST {
            if plural == "backups" && self.rng.random_range(0..REFUSALS) == 0 {
                let message = "backups.stellage.dev is forbidden: exceeded quota: stellage";
                return refusal(403, "Forbidden", message);
            }
            return self.create(plural, namespace, body);
        }
        let key = (plural.to_owned(), namespace.to_owned(), rest[1].to_owned());
        if *method == Method::DELETE {
            return self.delete(&key, &body["preconditions"]);
        }
        let Some(stored) = self.objects.get(&key).cloned() else {
            return refusal(404, "NotFound", "not found");
        };
        for field in ["uid", "resourceVersion"] {
            let expected = &body["metadata"][field];
            if !expected.is_null() && *expected != stored["metadata"][field] {
                return refusal(409, "Conflict", "the object has been modified");
            }
        }
        let mut object = stored.clone();
        match (method, rest.get(2)) {
            (&Method::PUT, Some(&"status")) => object["status"] = body["status"].clone(),
            (&Method::PUT, None) => {
                object = body;
                for field in [
                    "uid",
                    "creationTimestamp",
                    "deletionTimestamp",
                    "generation",
                    "namespace",
                ] {
                    if let Some(kept) = stored["metadata"].get(field) {
                        object["metadata"][field] = kept.clone();
                    }
                }
                if has_status(plural) {
                    object["status"] = stored["status"].clone();
                }
            }
            (&Method::PATCH, None) => {
                assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
                object["metadata"]["finalizers"] = body["metadata"]["finalizers"].clone();
                for (name, value) in body["metadata"]["annotations"].as_object().into_iter().flatten() {
                    object["metadata"]["annotations"][name] = value.clone();
                }
            }
            other => panic!("{other:?} is not known"),
        }
        (200, self.store(&key, object))
    }

    fn get(&self, plural: &str, namespace: &str, name: &str) -> Answer {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        let found = self.objects.get(&key).cloned();
        found.map_or_else(|| refusal(404, "NotFound", "not found"), |found| (200, found))
    }

    fn list(&self, plural: &str, namespace: &str, query: &str) -> Answer {
        let selector = url::form_urlencoded::parse(query.as_bytes())
            .find(|(name, _)| name == "labelSelector")
            .map(|(_, selector)| selector.into_owned());
        let is_selected = |object: &Value| {
            let label = |name: &str| object["metadata"]["labels"][name].as_str();
            let terms = selector
                .as_deref()
                .unwrap_or_default()
                .split(',')
                .filter(|term| !term.is_empty());
            terms
                .into_iter()
                .all(|term| match (term.strip_prefix('!'), term.split_once('=')) {
                    (Some(name), _) => label(name).is_none(),
                    (None, Some((name, value))) => label(name) == Some(value),
                    (None, None) => label(term).is_some(),
                })
        };
        let all = self.objects.iter();
        let all = all.filter(|(key, object)| {
            key.0 == plural && (namespace.is_empty() || key.1 == namespace) && is_selected(object)
        });
        let items: Vec<&Value> = all.map(|(_, object)| object).collect();
        let revision = self.revision.to_string();
        let list = json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": revision }, "items": items });
        (200, list)
    }

    fn create(&mut self, plural: &str, namespace: &str, mut object: Value) -> Answer {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let key = (plural.to_owned(), namespace.to_owned(), name);
        if self.objects.contains_key(&key) {
            return refusal(409, "AlreadyExists", "already exists");
        }
        self.made += 1;
        let metadata = &mut object["metadata"];
        if !namespace.is_empty() {
            metadata["namespace"] = json!(namespace);
        }
        metadata["uid"] = json!(format!("uid-{:06}", self.made));
        metadata["generation"] = json!(1);
        metadata["creationTimestamp"] = json!(whole_seconds(self.now).to_string());
        if has_status(plural) {
            object.as_object_mut().unwrap().remove("status");
        }
        (201, self.store(&key, object))
    }

    fn delete(&mut self, key: &Key, preconditions: &Value) -> Answer {
        let Some(mut object) = self.objects.get(key).cloned() else {
            return refusal(404, "NotFound", "not found");
        };
        for field in ["uid", "resourceVersion"] {
            if !preconditions[field].is_null() && preconditions[field] != object["metadata"][field] {
                return refusal(409, "Conflict", "the object has been modified");
            }
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = json!(whole_seconds(self.now).to_string());
        }
        (200, self.store(key, object))
    }

    /// Stores a version, unless it equals the stored one. An object that is being deleted and has no
    /// finalizers left is removed.
    fn store(&mut self, key: &Key, mut object: Value) -> Value {
        let before = self.objects.get(key).cloned();
        if let Some(before) = &before {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
        }
        if before.as_ref() == Some(&object) {
            return object;
        }
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let waits = object["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| !list.is_empty());
        let is_gone = !object["metadata"]["deletionTimestamp"].is_null() && !waits;
        let (before, after) = if is_gone {
            self.objects.remove(key);
            (Some(object.clone()), None)
        } else {
            self.objects.insert(key.clone(), object.clone());
            (before, Some(object.clone()))
        };
        self.writes.push_back(Stored {
            plural: key.0.clone(),
            before,
            after,
        });
        object
    }
}
