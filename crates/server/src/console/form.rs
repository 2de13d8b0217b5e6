//! Forms: what was entered, what is wrong with it, and the Idempotency-Key that makes a second submission harmless. The form for an
//! existing object also remembers which version it was opened with, and what that version contained.

use std::time::Duration;

use axum::{body::Body, extract::FromRequest};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use url::form_urlencoded;

use super::refusal::Refusal;
use api::{Detail, ErrorCode};

/// Largest form, as large as the largest body of `/v1`.
const MAX_FORM: usize = 64 * 1024;
/// How long a form may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of fields in a form.
const MAX_FIELDS: usize = 200;
/// The hidden field with the Idempotency-Key.
pub const KEY: &str = "once";
/// The field for what to install, as `image:…` or `backup:…`.
pub const INSTALL: &str = "install";
/// The hidden field with the `ETag` that the form was opened with.
const VERSION: &str = "version";
/// The hidden field with the values that the form was opened with.
const WAS: &str = "was";

/// A field that changes an object.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub label: &'static str,
    /// Whether it consists of check boxes rather than a text.
    pub is_choice: bool,
}

/// A field that somebody else has changed since a form was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meanwhile {
    /// Label of the field.
    pub label: &'static str,
    /// Its value when the form was opened.
    pub was: String,
    /// Its value now.
    pub is: String,
    /// Its value in the form now, if that is different.
    pub entered: Option<String>,
}

/// A problem, as the summary at the top of a form lists it.
#[derive(Debug, PartialEq, Eq)]
pub struct FieldProblem<'a> {
    /// Label of the field.
    pub label: String,
    /// Id of the field.
    pub id: &'a str,
    /// What is wrong, to be read after the label.
    pub message: &'a str,
}

#[derive(Clone, Debug, Default)]
pub struct Form {
    values: Vec<(String, String)>,
    /// What is wrong with each field.
    problems: Vec<Detail>,
    /// What is wrong with the form as a whole.
    pub complaint: Option<String>,
    /// What somebody else has changed since the form was opened.
    pub meanwhile: Vec<Meanwhile>,
}

impl Form {
    /// An empty form with a new Idempotency-Key.
    pub fn new() -> Self {
        let key: [u8; 16] = rand::random();
        Self::default().with(KEY, &hex::encode(key))
    }

    /// Parses the fields of a query or of a body.
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

    /// The value of a field, without surrounding white space.
    pub fn text(&self, name: &str) -> &str {
        self.value(name).trim()
    }

    /// Whether this is one of the values of a field: for check boxes and choices.
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
        found.map(|problem| problem.message.as_ref())
    }

    /// What to install: `image` or `backup`, and its id.
    pub fn install(&self) -> (&'static str, &str) {
        match self.value(INSTALL).split_once(':') {
            Some(("backup", id)) => ("backup", id),
            Some((_, id)) => ("image", id),
            None => ("image", self.value(INSTALL)),
        }
    }

    /// Whether this is what to install.
    pub fn installs(&self, source: &str, id: &str) -> bool {
        self.install() == (source, id)
    }

    /// What is wrong with what to install.
    pub fn install_problem(&self) -> Option<&str> {
        self.problem("image").or_else(|| self.problem("backup"))
    }

    /// Marks a field with what is wrong with it.
    pub fn mark(&mut self, field: &str, message: &str) {
        let detail = Detail::new(field.to_owned(), "invalid_value", message.to_owned());
        self.problems.push(detail);
    }

    /// The problems of all fields.
    pub fn problems(&self) -> Vec<FieldProblem<'_>> {
        self.problems.iter().map(FieldProblem::of).collect()
    }

    /// The same form, which remembers what it contains and which version of the object that is.
    #[must_use]
    pub fn remembering(self, version: &str) -> Self {
        let fields = self.values.iter().filter(|(name, _)| name != KEY);
        let was = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        self.with(WAS, &was).with(VERSION, version)
    }

    /// What the form contained when it was opened.
    pub fn was(&self) -> &str {
        self.value(WAS)
    }

    /// The `ETag` that the form was opened with.
    pub fn version(&self) -> &str {
        self.value(VERSION)
    }

    /// Catches up with the object, which now has another version with the values in `current`. Fields that were not touched get their
    /// current values; what was entered stays.
    pub fn catch_up(&mut self, current: Self, version: &str, fields: &[Field]) {
        let was = Self::parse(self.was());
        let mut merged = Self::default();
        merged
            .values
            .extend(self.values.iter().filter(|(name, _)| name == KEY).cloned());
        self.meanwhile.clear();
        for field in fields {
            let of = |form: &Self| form.all(field.name).map(str::to_owned).collect::<Vec<_>>();
            let (before, now, mine) = (of(&was), of(&current), of(self));
            let as_set = |values: &[String]| {
                let mut values = values.to_vec();
                values.sort_unstable();
                values
            };
            // If the current value is what was entered, the same form was sent twice.
            let is_news = as_set(&before) != as_set(&now) && as_set(&mine) != as_set(&now);
            let kept = if field.is_choice {
                let unticked = |value: &&String| before.contains(value) && !mine.contains(value);
                let ticked = mine
                    .iter()
                    .filter(|value| !before.contains(value) && !now.contains(value));
                now.iter()
                    .filter(|value| !unticked(value))
                    .chain(ticked)
                    .cloned()
                    .collect()
            } else if mine == before {
                now.clone()
            } else {
                mine
            };
            if is_news {
                self.meanwhile.push(Meanwhile {
                    label: field.label,
                    was: field.shown(&before),
                    is: field.shown(&now),
                    entered: (as_set(&kept) != as_set(&now)).then(|| field.shown(&kept)),
                });
            }
            let kept = kept.into_iter().map(|value| (field.name.to_owned(), value));
            merged.values.extend(kept);
        }
        let opened = current.remembering(version);
        merged = merged.with(WAS, opened.was()).with(VERSION, version);
        self.values = merged.values;
    }

    /// Marks what `/v1` refused. The values stay, with a new Idempotency-Key, since the next submission is another request.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.problems.clone_from(&refusal.error.details);
        // Only 422 is about the fields alone.
        let is_of_fields =
            refusal.status == StatusCode::UNPROCESSABLE_ENTITY && !refusal.error.details.is_empty();
        self.complaint = (!is_of_fields).then(|| refusal.error.message.clone());
        self.values.retain(|(name, _)| name != KEY);
        let key: [u8; 16] = rand::random();
        self.values.push((KEY.to_owned(), hex::encode(key)));
    }
}

impl Field {
    /// Formats its values for display.
    fn shown(&self, values: &[String]) -> String {
        match values {
            [] if self.name == "events" => "nothing".to_owned(),
            [] => "off".to_owned(),
            [value] if value.is_empty() => "nothing".to_owned(),
            [value] if self.is_choice && value == "true" => "on".to_owned(),
            values => values.join(", "),
        }
    }
}

impl<'a> FieldProblem<'a> {
    /// A problem that `/v1` has with a field, in the words of the forms.
    fn of(detail: &'a Detail) -> Self {
        let (name, rest) = detail
            .field
            .split_once('[')
            .unwrap_or((detail.field.as_ref(), ""));
        let position = rest.trim_end_matches(']').parse::<usize>().ok();
        let (id, label) = match name {
            "name" => ("name", "Name"),
            "plan" => ("plan", "Plan"),
            "region" => ("region", "Region"),
            "image" | "backup" => ("install", "What to install"),
            "ssh_keys" => ("ssh_keys", "SSH public keys"),
            "user_data" => ("user_data", "User data"),
            "tags" => ("tags", "Tags"),
            "private_network" => ("private_network", "Private network"),
            "prefix" => ("prefix", "Prefix"),
            "confirm" => ("confirm", "The name to type"),
            "url" => ("url", "URL of the receiver"),
            "events" => ("events", "Events"),
            "secret" => ("secret", "Secret"),
            "overlap_seconds" => ("overlap", "Overlap"),
            "scope" => ("scope", "Scope"),
            "days" => ("days", "Days"),
            other => (other, other),
        };
        let label = match position {
            Some(position) if name == "ssh_keys" => format!("{label}, line {}", position + 1),
            Some(position) => format!("{label}, entry {}", position + 1),
            None => label.to_owned(),
        };
        Self {
            label,
            id,
            message: &detail.message,
        }
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
                ErrorCode::UnsupportedMediaType,
                "the Content-Type must be application/x-www-form-urlencoded",
            ));
        }
        let reading = Limited::new(request.into_body(), MAX_FORM).collect();
        let read = tokio::time::timeout(READ_TIMEOUT, reading).await;
        let bytes = read.ok().and_then(Result::ok).ok_or_else(|| {
            Refusal::new(
                ErrorCode::PayloadTooLarge,
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
        refusal.status = StatusCode::UNPROCESSABLE_ENTITY;
        refusal.error.details = vec![Detail::new("tags[2]", "invalid_value", "must be short")];
        form.refused(&refusal);
        assert_eq!(form.problem("tags"), Some("must be short"));
        assert_eq!((form.problem("tag"), form.complaint.as_deref()), (None, None));
        let listed = form.problems();
        assert_eq!((&*listed[0].label, listed[0].id), ("Tags, entry 3", "tags"));
        assert!(key.len() == 32 && form.key().len() == 32 && form.key() != key);
        assert_eq!(form.value("name"), "web 1");
    }

    #[test]
    fn a_form_that_catches_up_keeps_what_was_entered_and_takes_over_the_rest() {
        let field = |name, is_choice| Field {
            name,
            label: name,
            is_choice,
        };
        let fields = [
            field("name", false),
            field("tags", false),
            field("on", true),
            field("events", true),
        ];
        let opened = Form::parse("name=web&tags=a&events=x&events=y").remembering("\"1\"");
        // The name was changed, and z ticked in place of y.
        let mut form = Form::parse("name=db&tags=a&events=x&events=z")
            .with(WAS, opened.was())
            .with(VERSION, opened.version());
        let current = Form::parse("name=www&tags=b&on=true&events=x&events=y&events=w");
        form.catch_up(current, "\"2\"", &fields);
        assert_eq!((form.value("name"), form.value("tags")), ("db", "b"));
        assert!(form.has("on", "true"));
        assert_eq!(form.all("events").collect::<Vec<_>>(), ["x", "w", "z"]);
        assert_eq!(form.version(), "\"2\"");
        assert_eq!(form.was(), "name=www&tags=b&on=true&events=x&events=y&events=w");
        let told: Vec<_> = form
            .meanwhile
            .iter()
            .map(|it| (it.label, it.was.as_str(), it.is.as_str(), it.entered.as_deref()))
            .collect();
        assert_eq!(
            told,
            [
                ("name", "web", "www", Some("db")),
                ("tags", "a", "b", None),
                ("on", "off", "on", None),
                ("events", "x, y", "x, y, w", Some("x, w, z")),
            ]
        );
        // A change of nothing that the form shows.
        let current = Form::parse(form.was());
        form.catch_up(current, "\"3\"", &fields);
        assert_eq!((form.meanwhile.len(), form.version()), (0, "\"3\""));
        assert_eq!((form.value("name"), form.value("tags")), ("db", "b"));
    }

    #[test]
    fn a_form_that_is_sent_twice_finds_its_own_changes_and_complains_about_nothing() {
        let field = |name, is_choice| Field {
            name,
            label: name,
            is_choice,
        };
        let opened = Form::parse("name=web&events=x&events=y").remembering("\"1\"");
        let mut again = Form::parse("name=db&events=z&events=x")
            .with(WAS, opened.was())
            .with(VERSION, opened.version());
        let current = Form::parse("name=db&events=x&events=z");
        again.catch_up(current, "\"2\"", &[field("name", false), field("events", true)]);
        assert!(again.meanwhile.is_empty());
        assert_eq!((again.value("name"), again.version()), ("db", "\"2\""));
    }
}
