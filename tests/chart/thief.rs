//! What a token allows in the wrong hands.

use std::{path::PathBuf, process::Command};

use control_plane::ControlPlane;
use serde_json::Value;

use crate::support;

/// An attacker who has a token, in a kubeconfig.
pub(super) struct Thief<'a> {
    pub plane: &'a ControlPlane,
    pub kubeconfig: PathBuf,
}

impl Thief<'_> {
    /// Runs kubectl with these arguments, which have no blanks in them.
    pub fn kubectl(&self, line: &str, object: Option<&Value>) -> Result<String, String> {
        let mut command = Command::new(self.plane.assets().kubectl());
        command.args(line.split(' ')).env("KUBECONFIG", &self.kubeconfig);
        support::run(&mut command, object.map(Value::to_string).as_deref())
    }

    pub fn create(&self, object: &Value) -> Result<String, String> {
        self.kubectl("create --validate=false -f -", Some(object))
    }

    pub fn apply(&self, object: &Value) -> Result<String, String> {
        let line = "apply --server-side --force-conflicts --validate=false -f -";
        self.kubectl(line, Some(object))
    }

    pub fn may(&self, line: &str) {
        allowed(line, self.kubectl(line, None));
    }

    pub fn may_not(&self, line: &str, why: &str) {
        refused(line, self.kubectl(line, None), why);
    }

    pub fn may_create(&self, object: &Value) {
        allowed(&object.to_string(), self.create(object));
    }

    pub fn may_not_create(&self, object: &Value, why: &str) {
        refused(&object.to_string(), self.create(object), why);
    }

    pub fn may_apply(&self, object: &Value) {
        allowed(&object.to_string(), self.apply(object));
    }

    pub fn may_not_apply(&self, object: &Value, why: &str) {
        refused(&object.to_string(), self.apply(object), why);
    }
}

fn allowed(what: &str, outcome: Result<String, String>) {
    outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn refused(what: &str, outcome: Result<String, String>, why: &str) {
    match outcome {
        Ok(done) => panic!("{what}: {done}"),
        Err(said) => assert!(said.contains(why), "{what}: {said}"),
    }
}
