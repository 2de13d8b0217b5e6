//! Plain text, wrapped.

use textwrap::{Options, WordSplitter};

use super::message::one_line;

/// Longest line in characters, except for URLs and commands, which must not be wrapped (RFC 5322, section 2.1.1).
const WIDTH: usize = 78;
/// Longest name of an object in Kubernetes, in characters.
const NAME_CHARACTERS: usize = 253;

/// A name or an id, on one line.
pub(super) fn name(text: &str) -> String {
    one_line(text, NAME_CHARACTERS)
}

/// The characters of a text that may be part of a Message-ID.
pub(super) fn alphanumeric(text: &str) -> String {
    let allowed = text.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-');
    allowed.collect()
}

/// Adds a paragraph and an empty line.
pub(super) fn paragraph(text: &mut String, words: &str) {
    text.push_str(&wrapped(words, "", ""));
    text.push_str("\n\n");
}

/// Adds a numbered step.
pub(super) fn step(text: &mut String, words: &str) {
    text.push_str(&wrapped(words, "", "   "));
    text.push('\n');
}

/// Adds a line of a table.
pub(super) fn fact(text: &mut String, label: &str, value: &str) {
    let first = format!("  {label:<12}");
    text.push_str(&wrapped(value, &first, &" ".repeat(first.len())));
    text.push('\n');
}

fn wrapped(words: &str, first: &str, others: &str) -> String {
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(others)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(words, options)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Lines that should have been wrapped.
    pub(in super::super) fn overlong(body: &str) -> Vec<&str> {
        let lines = body.lines();
        lines
            .filter(|line| line.len() > WIDTH && line.trim().trim_end_matches(" \\").contains(' '))
            .collect()
    }
}
