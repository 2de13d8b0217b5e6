//! Forms: what was entered, what is wrong with it, and the Idempotency-Key that makes a second submission harmless.

use std::time::Duration;

use axum::{body::Body, extract::FromRequest};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use url::form_urlencoded;

use super::refusal::{Detail, Refusal};

/// Largest form, as large as the largest body of `/v1`.
const MAX_FORM: usize = 64 * 1024;
/// How long it may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Most fields of a form.
const MAX_FIELDS: usize = 200;
/// The hidden field with the Idempotency-Key.
pub const KEY: &str = "once";

/// A form.
#[derive(Clone, Debug, Default)]
pub struct Form {
    values: Vec<(String, String)>,
    /// What is wrong with each field.
    problems: Vec<Detail>,
    /// What is wrong with the form as a whole.
    pub complaint: Option<String>,
}

impl Form {
    /// An empty form with a new Idempotency-Key.
    pub fn new() -> Self {
        let key: [u8; 16] = rand::random();
        Self::default().with(KEY, &hex::encode(key))
    }

    /// The fields of a query or of a body.
    pub fn parse(text: &str) -> Self {
        let fields = form_urlencoded::parse(text.as_bytes()).into_owned();
        Self {
            values: fields.take(MAX_FIELDS).collect(),
            ..Self::default()
        }
    }

    /// The same form with one more value.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.values.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The value of a field, empty if there is none.
    pub fn value(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// The value of a field without white space around it.
    pub fn text(&self, name: &str) -> &str {
        self.value(name).trim()
    }

    /// Whether a field has a value, among others perhaps: for boxes and choices.
    pub fn has(&self, name: &str, value: &str) -> bool {
        self.values.iter().any(|(key, it)| key == name && it == value)
    }

    /// All values of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.values
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// The words of a field, between commas and white space.
    pub fn words(&self, name: &str) -> Vec<&str> {
        let separates = |c: char| c == ',' || c.is_whitespace();
        let words = self.value(name).split(separates);
        words.filter(|word| !word.is_empty()).collect()
    }

    /// The lines of a field that are not empty.
    pub fn lines(&self, name: &str) -> Vec<&str> {
        let lines = self.value(name).lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).collect()
    }

    /// The Idempotency-Key.
    pub fn key(&self) -> &str {
        let key = self.value(KEY);
        let is_key = key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_key { key } else { "" }
    }

    /// What is wrong with a field.
    pub fn problem(&self, name: &str) -> Option<&str> {
        let is_of = |field: &str| {
            field
                .strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        };
        let found = self.problems.iter().find(|problem| is_of(&problem.field));
        found.map(|problem| problem.message.as_str())
    }

    /// Marks what is wrong with a field.
    pub fn mark(&mut self, field: &str, message: &str) {
        self.problems.push(Detail {
            field: field.to_owned(),
            message: message.to_owned(),
        });
    }

    /// What is wrong with all fields.
    pub fn problems(&self) -> &[Detail] {
        &self.problems
    }

    /// Marks what `/v1` has refused. The values stay, with a new Idempotency-Key: the next submission is another request.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.problems.clone_from(&refusal.details);
        self.complaint = refusal.details.is_empty().then(|| refusal.message.clone());
        self.values.retain(|(name, _)| name != KEY);
        let key: [u8; 16] = rand::random();
        self.values.push((KEY.to_owned(), hex::encode(key)));
    }
}

impl<S: Sync> FromRequest<S> for Form {
    type Rejection = Refusal;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, Refusal> {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let is_form = kind
            .and_then(|kind| kind.to_str().ok())
            .is_none_or(|kind| kind.starts_with("application/x-www-form-urlencoded"));
        if !is_form {
            return Err(Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the Content-Type must be application/x-www-form-urlencoded",
            ));
        }
        let reading = Limited::new(request.into_body(), MAX_FORM).collect();
        let read = tokio::time::timeout(READ_TIMEOUT, reading).await;
        let bytes = read.ok().and_then(Result::ok).ok_or_else(|| {
            Refusal::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "payload_too_large",
                "the form is larger than 64 KiB, or did not arrive in time",
            )
        })?;
        Ok(Self::parse(&String::from_utf8_lossy(&bytes.to_bytes())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_problems_and_the_key_of_a_form() {
        let mut form = Form::parse("name=web+1&tags=a%2C+b%0Ac&events=x&events=y&once=nonsense");
        assert_eq!((form.value("name"), form.value("none")), ("web 1", ""));
        assert_eq!(form.words("tags"), ["a", "b", "c"]);
        assert!(form.has("events", "y") && !form.has("events", "z"));
        assert_eq!(form.all("events").count(), 2);
        assert_eq!(form.key(), "");
        let mut refusal = Refusal::fault();
        form.refused(&refusal);
        assert_eq!(form.complaint.as_deref(), Some("an internal error occurred"));
        let key = form.key().to_owned();
        refusal.details = vec![Detail {
            field: "tags[2]".to_owned(),
            message: "must be short".to_owned(),
        }];
        form.refused(&refusal);
        assert_eq!(form.problem("tags"), Some("must be short"));
        assert_eq!((form.problem("tag"), form.complaint.as_deref()), (None, None));
        assert!(key.len() == 32 && form.key().len() == 32 && form.key() != key);
        assert_eq!(form.value("name"), "web 1");
    }
}
