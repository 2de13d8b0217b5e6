//! The URL under which clients see the service: `--public-url`. Behind a proxy it may have a path.
//!
//! The service is written as if it was at the root. What it is asked for below the path, by proxies that do not remove it, is found;
//! and the links in what it answers get the path.

use std::str::FromStr;

use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use url::{Host, Url};

/// Scheme, host and path under which clients see the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(Url);

impl FromStr for PublicUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut url = safe_url(text)?;
        let path = url.path().trim_end_matches('/').to_owned();
        if let Some(own) = ["/v1", "/console"].iter().find(|own| path.ends_with(**own)) {
            return Err(format!("must not end in {own}, which the service adds itself"));
        }
        url.set_path(&path);
        Ok(Self(url))
    }
}

impl PublicUrl {
    /// The URL, without a slash at its end.
    pub fn as_str(&self) -> &str {
        self.0.as_str().trim_end_matches('/')
    }

    /// Its path, without a slash at its end: empty at the root.
    pub fn path(&self) -> &str {
        self.0.path().trim_end_matches('/')
    }

    /// The request as if the service was at the root.
    pub fn at_root<B>(&self, mut request: Request<B>) -> Request<B> {
        let asked = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
        let Some(rest) = asked.strip_prefix(self.path()) else {
            return request;
        };
        let rest = match rest.as_bytes().first() {
            Some(b'/') => rest.to_owned(),
            None | Some(b'?') => format!("/{rest}"),
            // Only the beginning of a name is the same.
            Some(_) => return request,
        };
        if let Ok(uri) = Uri::try_from(rest) {
            *request.uri_mut() = uri;
        }
        request
    }

    /// The response, with its `Location` below the path.
    pub fn below<B>(&self, mut response: Response<B>) -> Response<B> {
        let location = response.headers().get(header::LOCATION);
        let location = location.and_then(|location| location.to_str().ok());
        // Others are those of other services.
        let own = location.filter(|location| location.starts_with('/'));
        let moved = own.and_then(|own| HeaderValue::try_from(format!("{}{own}", self.path())).ok());
        if let Some(moved) = moved {
            response.headers_mut().insert(header::LOCATION, moved);
        }
        response
    }

    /// A page of the console, with its links below the path. Whatever a page quotes has its quotes escaped, so only the templates
    /// have attributes.
    pub fn links_below(&self, html: &str) -> String {
        let mut html = html.to_owned();
        for attribute in ["href", "src", "action", "hx-get"] {
            let link = |path: &str| format!("{attribute}=\"{path}/console");
            html = html.replace(&link(""), &link(self.path()));
        }
        // Where a page goes on by itself.
        html.replace("; url=/console", &format!("; url={}/console", self.path()))
    }
}

/// Whether nobody between can read or change what is sent there: HTTPS, or this machine.
pub fn is_safe(url: &Url) -> bool {
    let is_loopback = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    url.scheme() == "https" || url.scheme() == "http" && is_loopback
}

/// Parses the URL of a server that is reached [safely](is_safe).
pub fn safe_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let has_more = !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some();
    if !is_safe(&url) || has_more {
        return Err(
            "must be a https:// URL without user, query and fragment (http:// on loopback)".to_owned(),
        );
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(url: &str) -> PublicUrl {
        url.parse().unwrap()
    }

    #[test]
    fn a_public_url_has_a_host_and_possibly_a_path_and_others_are_refused() {
        for (url, whole, path) in [
            ("https://cloud.example.com", "https://cloud.example.com", ""),
            ("https://cloud.example.com/", "https://cloud.example.com", ""),
            (
                "https://example.com/cloud/",
                "https://example.com/cloud",
                "/cloud",
            ),
            ("http://127.0.0.1:8080/a/b", "http://127.0.0.1:8080/a/b", "/a/b"),
        ] {
            let url = public(url);
            assert_eq!((url.as_str(), url.path()), (whole, path));
        }
        for wrong in [
            "",
            "example.com",
            "http://example.com",
            "https://user@example.com",
            "https://example.com/?a",
            "https://example.com/#a",
        ] {
            assert!(wrong.parse::<PublicUrl>().is_err(), "{wrong}");
        }
        for (wrong, own) in [
            ("https://example.com/v1", "/v1"),
            ("https://example.com/console/", "/console"),
        ] {
            let refusal = wrong.parse::<PublicUrl>().unwrap_err();
            assert!(refusal.contains(&format!("end in {own}")), "{refusal}");
        }
    }

    #[test]
    fn requests_are_answered_with_and_without_the_path() {
        let asked = |url: &str, target: &str| {
            let request = Request::builder().uri(target).body(()).unwrap();
            public(url).at_root(request).uri().to_string()
        };
        let below = "https://example.com/cloud";
        for (target, found) in [
            ("/cloud/v1/instances?limit=1", "/v1/instances?limit=1"),
            ("/v1/instances", "/v1/instances"),
            ("/cloud", "/"),
            ("/cloud?a=b", "/?a=b"),
            ("/cloud/", "/"),
            ("/cloudy/v1", "/cloudy/v1"),
        ] {
            assert_eq!(asked(below, target), found, "{target}");
        }
        assert_eq!(asked("https://example.com", "/v1/plans?a"), "/v1/plans?a");
    }

    #[test]
    fn the_links_of_an_answer_are_below_the_path() {
        let located = |location: &str| {
            let response = Response::builder().header("location", location).body(()).unwrap();
            let response = public("https://example.com/cloud").below(response);
            response.headers()["location"].to_str().unwrap().to_owned()
        };
        assert_eq!(located("/v1/instances/i-1"), "/cloud/v1/instances/i-1");
        assert_eq!(
            located("https://login.example.com/a"),
            "https://login.example.com/a"
        );
        let page = r#"<a href="/console/x"><form action="/console/y"><p hx-get="/console/z"><script src="/console/assets/a.js">href=&#34;/console <input value="/console">"#;
        assert_eq!(
            public("https://example.com/cloud").links_below(page),
            r#"<a href="/cloud/console/x"><form action="/cloud/console/y"><p hx-get="/cloud/console/z"><script src="/cloud/console/assets/a.js">href=&#34;/console <input value="/console">"#
        );
        assert_eq!(public("https://example.com").links_below(page), page);
    }
}
