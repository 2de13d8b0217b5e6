//! The URL of a proxy through which receivers are called.

use std::fmt;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;
use url::Url;

/// What a URL must be.
const FORM: &str = "must be a URL of the form http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with special characters of \
                    user and password as %XX";

/// A proxy that takes CONNECT requests, such as Smokescreen.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    uri: Uri,
    /// The header `Proxy-Authorization`, if the URL has a user name.
    authorization: Option<HeaderValue>,
}

impl ProxyUrl {
    /// Parses `http://[USER:PASSWORD@]HOST[:PORT]`.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let url = Url::parse(text.trim()).map_err(|_| FORM)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(FORM)?;
        let has_more = !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some();
        if url.scheme() != "http" || has_more {
            return Err(FORM);
        }
        let uri = format!("http://{host}:{}", url.port().unwrap_or(80));
        Ok(Self {
            uri: uri.parse().map_err(|_| FORM)?,
            authorization: authorization(&url)?,
        })
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }
}

/// The header for the URL's user and password (RFC 7617), or none without a user.
fn authorization(url: &Url) -> Result<Option<HeaderValue>, &'static str> {
    if url.username().is_empty() && url.password().is_none() {
        return Ok(None);
    }
    let user: Vec<u8> = percent_decode_str(url.username()).collect();
    let password: Vec<u8> = percent_decode_str(url.password().unwrap_or_default()).collect();
    // The first colon separates the two.
    if user.contains(&b':') {
        return Err(FORM);
    }
    let pair = BASE64_STANDARD.encode([user, password].join(&b':'));
    let mut header = HeaderValue::try_from(format!("Basic {pair}")).map_err(|_| FORM)?;
    header.set_sensitive(true);
    Ok(Some(header))
}

impl fmt::Debug for ProxyUrl {
    /// Without user and password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.uri)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_password_become_a_header_and_are_not_shown() {
        let proxy = ProxyUrl::parse("http://ada:p%40ss%3A@proxy.example:4750").unwrap();
        assert_eq!(format!("{proxy:?}"), "http://proxy.example:4750/");
        let expected = format!("Basic {}", BASE64_STANDARD.encode("ada:p@ss:"));
        assert_eq!(proxy.authorization().unwrap(), expected.as_str());
        for url in [
            "http://proxy.example/",
            "http://10.0.0.1:80",
            "http://[fd00::1]:4750",
        ] {
            assert_eq!(ProxyUrl::parse(url).unwrap().authorization(), None, "{url}");
        }
        assert_eq!(
            ProxyUrl::parse("http://proxy.example").unwrap().uri(),
            "http://proxy.example:80/"
        );
    }

    #[test]
    fn what_is_no_proxy_is_refused_with_the_form_of_one() {
        for wrong in [
            "",
            "proxy.example:4750",
            "https://proxy.example",
            "socks5://proxy.example",
            "http://proxy.example/path",
            "http://proxy.example?x",
            "http://a%3Ab:c@proxy.example",
        ] {
            assert!(
                ProxyUrl::parse(wrong)
                    .unwrap_err()
                    .starts_with("must be a URL of the form"),
                "{wrong}"
            );
        }
    }
}
