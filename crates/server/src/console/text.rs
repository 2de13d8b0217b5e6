//! Values as pages show them.

use jiff::{Timestamp, tz::TimeZone};

use api::{Milliseconds, Seconds};

/// A time, as pages show it.
pub trait Moment {
    fn at(&self) -> Timestamp;

    /// RFC 3339, for programs.
    fn iso(&self) -> String {
        self.at().to_string()
    }

    /// The time in UTC, for people.
    fn utc(&self) -> String {
        let civil = self.at().to_zoned(TimeZone::UTC);
        civil.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
    }

    /// The day in UTC, with the time unless that is midnight: the start or the end of what is billed.
    fn day(&self) -> String {
        let civil = self.at().to_zoned(TimeZone::UTC);
        let format = if civil.time() == jiff::civil::Time::midnight() {
            "%Y-%m-%d"
        } else {
            "%Y-%m-%d %H:%M"
        };
        civil.strftime(format).to_string()
    }
}

impl Moment for Timestamp {
    fn at(&self) -> Timestamp {
        *self
    }
}

impl Moment for Seconds {
    fn at(&self) -> Timestamp {
        self.0
    }
}

impl Moment for Milliseconds {
    fn at(&self) -> Timestamp {
        self.0
    }
}

/// A message of the service as a sentence.
pub fn sentence(message: &str) -> String {
    let mut characters = message.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), characters.as_str())
}

/// A number of bytes, such as `1.5 GiB`, or a dash if it is not known.
pub fn bytes(count: Option<i64>) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let Some(count) = count else {
        return "–".to_owned();
    };
    if count < 1024 {
        return format!("{count} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "it is rounded to one digit anyway")]
    let mut value = count as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A percentage, or a dash if it is not known.
pub fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.1} %"))
}

/// JSON with line breaks, its fields in their original order. A text that is not JSON stays as it is.
pub fn indented(json: &str) -> String {
    if serde_json::from_str::<serde::de::IgnoredAny>(json).is_err() {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut is_escaped) = (0, false, false);
    let mut characters = json.chars().filter(|c| !c.is_ascii_control()).peekable();
    while let Some(character) = characters.next() {
        if in_string {
            text.push(character);
            in_string = is_escaped || character != '"';
            is_escaped = !is_escaped && character == '\\';
            continue;
        }
        match character {
            ' ' => {}
            '{' | '[' if matches!(characters.peek(), Some('}' | ']')) => {
                text.push(character);
                text.extend(characters.next());
            }
            '{' | '[' => {
                depth += 1;
                text.push(character);
                break_line(&mut text, depth);
            }
            '}' | ']' => {
                depth -= 1;
                break_line(&mut text, depth);
                text.push(character);
            }
            ',' => {
                text.push(character);
                break_line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            other => {
                in_string = other == '"';
                text.push(other);
            }
        }
    }
    text
}

fn break_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_for_people() {
        let at: Timestamp = "2026-11-22T10:00:05.25Z".parse().unwrap();
        assert_eq!(at.utc(), "2026-11-22 10:00:05 UTC");
        assert_eq!(at.day(), "2026-11-22 10:00");
        assert_eq!(
            Seconds("2026-12-01T00:00:00Z".parse().unwrap()).day(),
            "2026-12-01"
        );
        for (count, text) in [
            (0, "0 B"),
            (1536, "1.5 KiB"),
            (3 << 30, "3.0 GiB"),
            (5 << 50, "5120.0 TiB"),
        ] {
            assert_eq!(bytes(Some(count)), text);
        }
        assert_eq!(
            (percent(Some(12.34)), percent(None)),
            ("12.3 %".to_owned(), "–".to_owned())
        );
        assert_eq!(indented("{\"a\":1}"), "{\n  \"a\": 1\n}");
        // The order of fields, and strings, stay as they are.
        assert_eq!(
            indented(r#"{"b":[],"a": [1,"x: {\"}, \\"]}"#),
            "{\n  \"b\": [],\n  \"a\": [\n    1,\n    \"x: {\\\"}, \\\\\"\n  ]\n}"
        );
        assert_eq!(indented("no"), "no");
    }
}
