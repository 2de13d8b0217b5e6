//! How large texts become when they are stored.

/// The bytes that a character takes in JSON as Go writes it: the API server escapes what means something in HTML.
pub const fn of_char(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\t' => 2,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        c => c.len_utf8(),
    }
}

/// The bytes that a text takes.
pub fn of_text(text: &str) -> usize {
    text.chars().map(of_char).sum()
}
