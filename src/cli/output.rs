//! What a command prints: tables for people, JSON for scripts.

use std::io::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use super::CliError;

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
}

/// Prints a line. A reader that has gone away, as in `| head`, is no error.
pub(super) fn line(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints a line to stderr.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints JSON.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| CliError::Render(error.to_string()))?;
    line(&text);
    Ok(())
}

/// A table with aligned columns, as kubectl prints it.
pub(super) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let render = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths);
        let padded: Vec<String> = cells.map(|(cell, width)| format!("{cell:<width$}")).collect();
        padded.join("   ").trim_end().to_owned()
    };
    let mut lines = vec![render(head)];
    lines.extend(rows.iter().map(|row| render(row.each_ref().map(String::as_str))));
    lines.join("\n")
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
            table(["NAME", "READY"], &rows),
            "NAME     READY\na        true\nlonger   -"
        );
    }
}
