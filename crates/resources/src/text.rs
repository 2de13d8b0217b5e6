//! Text from outside.

/// Whether a character changes how the text around it is shown: a control character, a line separator, or one that changes the
/// direction of the text.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
