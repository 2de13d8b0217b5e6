//! Output: tables for people, JSON for scripts.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use super::CliError;
use resources::text::is_control;

/// The output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    #[default]
    #[value(alias = "table")]
    Text,
    /// For scripts.
    Json,
}

/// Prints a line, made [`printable`]. A closed pipe, as with `| head`, is not an error.
pub(super) fn line(text: &str) {
    let _ = writeln!(io::stdout(), "{}", printable(text));
}

/// Prints a document as it is, unless it is printed to a terminal.
pub(super) fn document(text: &str) {
    if io::stdout().is_terminal() {
        line(text);
    } else {
        let _ = io::stdout().write_all(text.as_bytes());
    }
}

/// Prints a line to stderr, made [`printable`].
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Prints JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Render(error.to_string()))?;
    line(&text);
    Ok(())
}

/// A table with aligned columns, as kubectl prints it.
pub(super) fn table<R: AsRef<[String]>>(head: &[&str], rows: &[R]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row.as_ref()) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let render = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths);
        let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("   ").trim_end().to_owned()
    };
    let mut lines = vec![render(&mut head.iter().copied())];
    lines.extend(
        rows.iter()
            .map(|row| render(&mut row.as_ref().iter().map(String::as_str))),
    );
    lines.join("\n")
}

/// `Name: value` lines with aligned values, as `kubectl describe` prints them. A value of several lines stays aligned.
pub(super) fn description(fields: &[(&str, String)]) -> String {
    let width = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 3;
    let lines = fields.iter().map(|(name, value)| {
        let value = value
            .lines()
            .collect::<Vec<_>>()
            .join(&format!("\n{:width$}", ""));
        format!("{:<width$}{value}", format!("{name}:"))
            .trim_end()
            .to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A value that may be missing.
pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Makes untrusted text, such as a receiver's answer, safe for a terminal: escapes control characters, which could move the
/// cursor or change colours or the title. Line breaks and tabs stay.
pub fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) && !matches!(character, '\n' | '\t') {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["a".to_owned(), "true".to_owned()],
            ["longer".to_owned(), "-".to_owned()],
        ];
        assert_eq!(
            table(&["NAME", "READY"], &rows),
            "NAME     READY\na        true\nlonger   -"
        );
    }

    #[test]
    fn descriptions_are_aligned_over_lines() {
        let fields = [("Name", "web".to_owned()), ("Body", "a\nb".to_owned())];
        assert_eq!(description(&fields), "Name:  web\nBody:  a\n       b");
    }

    #[test]
    fn untrusted_text_cannot_control_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\r\n\tc"), "a\\u{1b}[2Jb\\r\n\tc");
        assert_eq!(printable("\u{202e}txt \u{9b}1m é"), "\\u{202e}txt \\u{9b}1m é");
    }
}
