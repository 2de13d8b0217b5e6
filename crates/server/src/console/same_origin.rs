//! Requests that change something must come from the console's own pages.

use http::{HeaderMap, Method, header};

/// Whether a request may be answered: it is safe, or one of the console's own pages sent it. Browsers say so in `Sec-Fetch-Site`; older
/// browsers, and all browsers over plain HTTP, only in `Origin`.
pub fn is_allowed(method: &Method, headers: &HeaderMap) -> bool {
    if matches!(*method, Method::GET | Method::HEAD) {
        return true;
    }
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("://"));
    match (origin, text(header::HOST)) {
        (Some((_, origin)), Some(host)) => origin.eq_ignore_ascii_case(host),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(method: Method, lines: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(*name, value.parse().unwrap());
        }
        is_allowed(&method, &headers)
    }

    #[test]
    fn only_the_same_origin_may_change_something() {
        assert!(allowed(Method::GET, &[("sec-fetch-site", "cross-site")]));
        assert!(allowed(Method::POST, &[("sec-fetch-site", "same-origin")]));
        for site in ["cross-site", "same-site", "none", ""] {
            assert!(!allowed(Method::POST, &[("sec-fetch-site", site)]), "{site}");
        }
        // If both are present, the first counts.
        assert!(!allowed(
            Method::POST,
            &[
                ("sec-fetch-site", "cross-site"),
                ("origin", "https://a.example"),
                ("host", "a.example")
            ]
        ));
        for (origin, expected) in [
            ("https://a.example:8080", true),
            ("http://A.example:8080", true),
            ("https://a.example", false),
            ("https://b.example:8080", false),
            ("null", false),
        ] {
            let lines = [("origin", origin), ("host", "a.example:8080")];
            assert_eq!(allowed(Method::POST, &lines), expected, "{origin}");
        }
        assert!(!allowed(Method::POST, &[("host", "a.example")]));
        assert!(!allowed(Method::DELETE, &[]));
    }
}
