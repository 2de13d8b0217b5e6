//! A request to `/v1` that a page makes itself and also shows as a curl command.

use axum::extract::{FromRequestParts, Path, rejection::PathRejection};
use http::{Method, request::Parts};
use serde_json::Value;
use url::form_urlencoded;

/// A request to `/v1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The body, if there is one.
    pub body: Option<Value>,
    /// `Idempotency-Key`.
    pub key: Option<String>,
    /// `If-Match`: the version that the request is for.
    pub version: Option<String>,
}

impl Call {
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, None)
    }

    /// A POST without a body.
    pub fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path, None)
    }

    /// A request with a body.
    pub fn with(method: Method, path: impl Into<String>, body: Value) -> Self {
        Self::new(method, path, Some(body))
    }

    pub fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path, None)
    }

    fn new(method: Method, path: impl Into<String>, body: Option<Value>) -> Self {
        Self {
            method,
            path: path.into(),
            body,
            key: None,
            version: None,
        }
    }

    /// The same request with an `Idempotency-Key`.
    #[must_use]
    pub fn once(self, key: &str) -> Self {
        Self {
            key: (!key.is_empty()).then(|| key.to_owned()),
            ..self
        }
    }

    /// The same request, for this version only.
    #[must_use]
    pub fn if_match(self, version: &str) -> Self {
        Self {
            version: (!version.is_empty()).then(|| version.to_owned()),
            ..self
        }
    }

    /// The command that makes the request.
    pub fn curl(&self, origin: &str) -> String {
        let method = match (&self.method, &self.body) {
            (&Method::GET, None) | (&Method::POST, Some(_)) => String::new(),
            (method, _) => format!("-X {method} "),
        };
        let mut text = format!(
            "curl {method}{} \\\n  -H \"Authorization: Bearer $STELLAGE_API_KEY\"",
            quoted(&format!("{origin}{}", self.path))
        );
        if let Some(version) = &self.version {
            text.push_str(" \\\n  -H ");
            text.push_str(&quoted(&format!("If-Match: {version}")));
        }
        if let Some(body) = &self.body {
            text.push_str(" \\\n  --json ");
            text.push_str(&quoted(&body.to_string()));
        }
        text
    }
}

/// Quotes a text as one word for a POSIX shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:".contains(c);
    if text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A path with those of the parameters that have a value.
pub fn with_query(path: &str, parameters: &[(&str, &str)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    }
}

/// The id in the path of a page, for a path of `/v1`.
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = PathRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PathRejection> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(Self(segment(&id)))
    }
}

/// An id from a path of the console, for a path of `/v1`. Characters that no id has become `_`, which no id has either.
pub fn segment(id: &str) -> String {
    let is_kept = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    id.chars()
        .take(253)
        .map(|c| if is_kept(c) { c } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn curl_shows_method_path_and_body_as_the_shell_takes_them() {
        let origin = "https://cloud.example";
        assert_eq!(
            Call::get("/v1/instances?tag=a&page=2").curl(origin),
            "curl 'https://cloud.example/v1/instances?tag=a&page=2' \\\n  -H \"Authorization: Bearer $STELLAGE_API_KEY\""
        );
        let create = Call::with(Method::POST, "/v1/instances", json!({ "name": "it's" })).once("k");
        assert_eq!(
            create.curl(origin),
            "curl https://cloud.example/v1/instances \\\n  -H \"Authorization: Bearer $STELLAGE_API_KEY\" \\\n  --json '{\"name\":\"it'\\''s\"}'"
        );
        assert!(
            Call::post("/v1/instances/i-1/stop")
                .curl(origin)
                .starts_with("curl -X POST https")
        );
        let change = Call::with(Method::PATCH, "/v1/x", json!({})).if_match("\"u-1\"");
        let change = change.curl(origin);
        assert!(
            change.contains("-X PATCH") && change.contains("-H 'If-Match: \"u-1\"'"),
            "{change}"
        );
    }

    #[test]
    fn ids_cannot_leave_their_segment() {
        assert_eq!(segment("i-abc/../../v1"), "i-abc_.._.._v1");
        assert_eq!(segment("a?b#c%2f é"), "a_b_c_2f__");
        assert_eq!(with_query("/x", &[("a", ""), ("b", "c d&")]), "/x?b=c+d%26");
        assert_eq!(with_query("/x", &[("a", "")]), "/x");
    }
}
