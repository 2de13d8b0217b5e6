//! Text from outside.

use kube::core::Rule;

/// Whether a character changes how the text around it is shown: a control character, a line separator, or one that changes the
/// direction of the text.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of the account holder's choice, as [`label`](super::validation::label) tells it; its length apart.
pub(super) fn of_label() -> Rule {
    Rule::new(r"self.matches(r'^[^\p{Cc}\x{061c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]*$')")
        .message("must not have control or bidirectional characters such as line breaks")
}
