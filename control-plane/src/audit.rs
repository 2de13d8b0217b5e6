//! The API server's audit log, for tests that count requests.

use crate::Error;
use serde_json::Value;
use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::Path,
};

/// Logs every request once, when it is answered, without bodies.
pub(crate) const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
";

/// A request that the API server has answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// The user, see [`Identity::user`](crate::Identity::user).
    pub user: String,
    /// The caller's `User-Agent`.
    pub user_agent: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource's plural name; empty for a path such as `/readyz`.
    pub resource: String,
    /// The subresource, such as `status`, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The object's name; empty for collections, and for creates with a generated name.
    pub name: String,
    /// The HTTP status.
    pub code: u16,
    /// Whether the user lacks the right to do this.
    pub is_unauthorized: bool,
}

impl Request {
    /// Whether it is a write, successful or not.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

/// Reads the log from a position, oldest first, and returns the position of its end. A last line that is still being written is left
/// out.
pub(crate) fn read(path: &Path, from: u64) -> Result<(Vec<Request>, u64), Error> {
    let read = || -> std::io::Result<String> {
        let (mut file, mut text) = (File::open(path)?, String::new());
        file.seek(SeekFrom::Start(from))?;
        file.read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(Error::file("read", path))?;
    let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
    let requests = complete
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .map(|event| parse(&event))
        .collect();
    Ok((requests, from + complete.len() as u64))
}

fn parse(event: &Value) -> Request {
    let text = |pointer| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Request {
        verb: text("/verb"),
        user: text("/user/username"),
        user_agent: text("/userAgent"),
        group: text("/objectRef/apiGroup"),
        resource: text("/objectRef/resource"),
        subresource: text("/objectRef/subresource"),
        namespace: text("/objectRef/namespace"),
        name: text("/objectRef/name"),
        code: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .and_then(|code| u16::try_from(code).ok())
            .unwrap_or_default(),
        is_unauthorized: text("/annotations/authorization.k8s.io~1decision") == "forbid",
    }
}
