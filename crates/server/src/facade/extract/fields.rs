//! Reads typed fields from a JSON object and collects all errors, so that one response names every invalid field.

use std::borrow::Cow;

use serde_json::Value;

use crate::facade::response::error::{Detail, Error};

/// The fields of a request that have not been read yet, and the problems found so far.
pub struct Fields {
    entries: Vec<(String, Value)>,
    problems: Vec<Detail>,
}

impl Fields {
    pub(super) fn new(entries: Vec<(String, Value)>, problems: Vec<Detail>) -> Self {
        Self { entries, problems }
    }

    /// Whether the request has no fields.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.problems.is_empty()
    }

    /// A canonical form: bodies that differ only in white space and the order of fields give the same bytes. The values
    /// of `hidden` fields are left out; only their presence counts.
    pub(super) fn canonical(&self, hidden: &[&str]) -> Vec<u8> {
        let mut sorted: Vec<(&str, &Value)> = self
            .entries
            .iter()
            .map(|(name, value)| {
                let is_hidden = hidden.contains(&name.as_str());
                (name.as_str(), if is_hidden { &Value::Null } else { value })
            })
            .collect();
        sorted.sort_by_key(|(name, _)| *name);
        serde_json::to_vec(&sorted).unwrap_or_default()
    }

    /// Ends the reading. 422 if there were problems, or if fields are left over, which makes them unknown.
    pub fn finish(mut self) -> Result<(), Error> {
        for (name, _) in self.entries {
            self.problems
                .push(Detail::new(name, "unknown_field", "is not a known field"));
        }
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Error::invalid(self.problems))
        }
    }

    /// A string that has not been taken yet.
    pub fn peek(&self, field: &str) -> Option<&str> {
        let (_, value) = self.entries.iter().find(|(name, _)| name == field)?;
        value.as_str()
    }

    /// Adds a problem.
    pub fn problem(&mut self, detail: Detail) {
        self.problems.push(detail);
    }

    /// Whether a field, or one of its elements, has a problem.
    pub fn has_problem(&self, field: &str) -> bool {
        self.problems.iter().any(|problem| {
            let rest = problem.field.strip_prefix(field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
        })
    }

    /// Adds the problem `missing` if a required field has no value and no other problem.
    pub fn missing<T>(&mut self, field: &'static str, value: Option<T>) -> Option<T> {
        let has_problem = self.problems.iter().any(|problem| problem.field == field);
        if value.is_none() && !has_problem {
            self.problem(Detail::new(field, "missing", "is required"));
        }
        value
    }

    /// Takes a string that passes the check.
    pub fn string<E: Into<Cow<'static, str>>>(
        &mut self,
        field: &'static str,
        check: &dyn Fn(&str) -> Result<(), E>,
    ) -> Option<String> {
        match self.take(field)? {
            Value::String(text) => match check(&text) {
                Ok(()) => Some(text),
                Err(must) => {
                    self.problem(Detail::new(field, "invalid_value", must));
                    None
                }
            },
            other => {
                self.wrong_type(field, &other, "a string");
                None
            }
        }
    }

    /// Takes a boolean.
    pub fn boolean(&mut self, field: &'static str) -> Option<bool> {
        match self.take(field)? {
            Value::Bool(value) => Some(value),
            other => {
                self.wrong_type(field, &other, "true or false");
                None
            }
        }
    }

    /// Takes a whole number from 0 to `most`; `1.0` is one.
    pub fn integer(&mut self, field: &'static str, most: u64) -> Option<u64> {
        match self.take(field)? {
            Value::Number(number) => {
                let whole = || number.as_f64()?.to_string().parse().ok();
                let value = number.as_u64().or_else(whole).filter(|value| *value <= most);
                if value.is_none() {
                    let words = format!("must be a whole number from 0 to {most}");
                    self.problem(Detail::new(field, "invalid_value", words));
                }
                value
            }
            other => {
                self.wrong_type(field, &other, "a number");
                None
            }
        }
    }

    /// Takes an array of at most `limit` strings that pass the check.
    pub fn strings<E: Into<Cow<'static, str>>>(
        &mut self,
        field: &'static str,
        limit: usize,
        check: &dyn Fn(&str) -> Result<(), E>,
    ) -> Option<Vec<String>> {
        let items = match self.take(field)? {
            Value::Array(items) => items,
            other => {
                self.wrong_type(field, &other, "an array of strings");
                return None;
            }
        };
        if items.len() > limit {
            self.problem(Detail::new(
                field,
                "invalid_value",
                format!("must have at most {limit} elements"),
            ));
            return None;
        }
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            let element = || format!("{field}[{index}]");
            match item {
                Value::String(text) => match check(&text) {
                    Ok(()) => values.push(text),
                    Err(must) => self.problem(Detail::new(element(), "invalid_value", must)),
                },
                Value::Null => self.problem(Detail::new(element(), "null", "must be a string, not null")),
                _ => self.problem(Detail::new(element(), "invalid_type", "must be a string")),
            }
        }
        Some(values)
    }

    /// Refuses a field that clients cannot set.
    pub fn immutable(&mut self, field: &'static str, fix: &'static str) {
        if self.skip(field) {
            self.problem(Detail::new(field, "immutable", fix));
        }
    }

    /// Drops a field. Returns whether the request had it.
    pub fn skip(&mut self, field: &str) -> bool {
        let before = self.entries.len();
        self.entries.retain(|(name, _)| name != field);
        self.entries.len() < before
    }

    fn take(&mut self, field: &str) -> Option<Value> {
        let at = self.entries.iter().position(|(name, _)| name == field)?;
        Some(self.entries.swap_remove(at).1)
    }

    fn wrong_type(&mut self, field: &'static str, found: &Value, must_be: &str) {
        let detail = match found {
            Value::Null => Detail::new(
                field,
                "null",
                format!("must be {must_be}, not null; leave it out instead"),
            ),
            _ => Detail::new(field, "invalid_type", format!("must be {must_be}")),
        };
        self.problem(detail);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::body, Fields};

    fn input(text: &str) -> Fields {
        body::fields(text).ok().unwrap()
    }

    fn short(text: &str) -> Result<(), &'static str> {
        if text.len() < 4 {
            Ok(())
        } else {
            Err("must be short")
        }
    }

    #[test]
    fn one_answer_names_every_invalid_field() {
        let body = r#"{"name":"far too long","on":"yes","off":null,"tags":["ok",1,null,"too long"],"many":["a","b"],"zzz":1,"id":"x"}"#;
        let mut fields = input(body);
        fields.string("name", &short);
        fields.boolean("on");
        fields.boolean("off");
        fields.strings("tags", 10, &short);
        fields.strings("many", 1, &short);
        fields.immutable("id", "cannot be chosen");
        let plan = fields.string("plan", &short);
        fields.missing("plan", plan);
        let name = None::<String>;
        fields.missing("name", name);
        let error = fields.finish().unwrap_err();
        let named: Vec<_> = error
            .details
            .iter()
            .map(|d| (d.field.as_ref(), d.code.as_ref()))
            .collect();
        assert_eq!(
            named,
            [
                ("name", "invalid_value"),
                ("on", "invalid_type"),
                ("off", "null"),
                ("tags[1]", "invalid_type"),
                ("tags[2]", "null"),
                ("tags[3]", "invalid_value"),
                ("many", "invalid_value"),
                ("id", "immutable"),
                ("plan", "missing"),
                ("zzz", "unknown_field"),
            ]
        );
        assert!(error.message.contains("10 fields"), "{}", error.message);
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_point_or_an_exponent() {
        let read = |number: &str| {
            let mut fields = input(&format!(r#"{{"n":{number}}}"#));
            let value = fields.integer("n", 86_400);
            fields.finish().map(|()| value)
        };
        for (number, value) in [
            ("0", 0),
            ("86400", 86_400),
            ("86400.0", 86_400),
            ("864e2", 86_400),
        ] {
            assert_eq!(read(number), Ok(Some(value)), "{number}");
        }
        for wrong in ["1.5", "-1", "-1.0", "86401.0", "1e300", "\"1\"", "null"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_problem_of_a_field_does_not_count_for_one_whose_name_begins_alike() {
        let fields = input(r#"{"backup_enabled":true,"backup_enabled":true}"#);
        assert!(fields.has_problem("backup_enabled") && !fields.has_problem("backup"));
        let mut fields = input(r#"{"tags":[1]}"#);
        fields.strings("tags", 1, &short);
        assert!(fields.has_problem("tags"));
    }

    #[test]
    fn valid_fields_are_read() {
        let mut fields = input(r#"{"name":"a","on":true,"tags":["x","y"]}"#);
        assert_eq!(fields.string("name", &short).as_deref(), Some("a"));
        assert_eq!(fields.boolean("on"), Some(true));
        assert_eq!(fields.strings("tags", 2, &short).unwrap(), ["x", "y"]);
        assert_eq!(fields.boolean("absent"), None);
        assert!(fields.finish().is_ok());
    }
}
