//! `Authorization: Bearer <API_KEY>` (specification, section 5).

use http::{HeaderMap, header::AUTHORIZATION};

use crate::facade::response::error::{Error, ErrorCode};

/// Maximum length of a key; those of `stellage key create` are much shorter.
const MAX_KEY: usize = 512;

/// The API key of a request; 401 if there is none, more than one, or a malformed one.
pub(super) fn bearer(headers: &HeaderMap) -> Result<&str, Error> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (header, another) = (values.next(), values.next());
    let Some(header) = header else {
        return Err(Error::new(
            ErrorCode::Unauthorized,
            "the API key is missing; send the header Authorization: Bearer <API_KEY>",
        ));
    };
    // A proxy might have checked a different header than we would.
    if another.is_some() {
        return Err(Error::new(
            ErrorCode::Unauthorized,
            "there is more than one Authorization header; send one",
        ));
    }
    header
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, key)| key.trim_ascii())
        .filter(|key| !key.is_empty() && key.len() <= MAX_KEY && !key.contains(' '))
        .ok_or_else(|| {
            Error::new(
                ErrorCode::Unauthorized,
                "the Authorization header is malformed; it must be Authorization: Bearer <API_KEY>",
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(values: &[&str]) -> Result<String, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        bearer(&headers).map(str::to_owned).map_err(|error| {
            assert_eq!(error.code, ErrorCode::Unauthorized);
            error.message.into_owned()
        })
    }

    #[test]
    fn the_key_follows_the_word_bearer() {
        for form in ["Bearer secret", "bearer secret", "BEARER  secret "] {
            assert_eq!(key(&[form]).as_deref(), Ok("secret"), "{form}");
        }
        for form in ["secret", "Basic secret", "Bearer", "Bearer ", "Bearer a b"] {
            assert!(key(&[form]).unwrap_err().contains("malformed"), "{form}");
        }
        let long = format!("Bearer {}", "x".repeat(600));
        assert!(key(&[&long]).unwrap_err().contains("malformed"));
        assert!(key(&[]).unwrap_err().contains("missing"));
    }

    #[test]
    fn two_authorization_headers_are_refused() {
        let refusal = key(&["Bearer secret", "Bearer secret"]).unwrap_err();
        assert_eq!(refusal, "there is more than one Authorization header; send one");
    }
}
