//! Signing secrets on the command line.

use resources::webhook::MAX_SECRET_CHARACTERS;

/// A signing secret, for clap.
pub(super) fn parse(text: &str) -> Result<String, String> {
    if (1..=MAX_SECRET_CHARACTERS).contains(&text.chars().count()) {
        Ok(text.to_owned())
    } else {
        Err(format!("must have 1 to {MAX_SECRET_CHARACTERS} characters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_1_to_255_characters() {
        assert!(parse("").is_err());
        assert!(parse(&"ü".repeat(255)).is_ok());
        assert!(parse(&"x".repeat(256)).is_err());
    }
}
