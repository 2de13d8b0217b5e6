//! Query parameters: pages, filters, `include`.

use http::Uri;
use url::form_urlencoded;
use utoipa::IntoParams;

use crate::facade::response::error::{Detail, Error};

/// Maximum page size (decisions, section 6).
pub const MAX_LIMIT: u64 = 100;
const DEFAULT_LIMIT: u64 = 20;
/// Largest integer that every JSON parser represents exactly (RFC 8259, section 6).
const MAX_PAGE: u64 = (1 << 53) - 1;

/// The page to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Paging {
    /// Number of the page, counted from 1. A page past the end is empty. Only the newest 10,000 matching deliveries or events can be
    /// paged through; a page beyond them is answered with 422.
    #[param(
        required = false,
        minimum = 1,
        maximum = 9_007_199_254_740_991_u64,
        default = 1
    )]
    pub page: u64,
    /// Maximum number of items per page.
    #[param(required = false, minimum = 1, maximum = 100, default = 20)]
    pub limit: usize,
}

/// The query parameters. If one is repeated, the last value counts; unknown ones are ignored.
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The parameters of a request.
    pub fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// `page` and `limit`; 422 if one is out of range.
    pub fn paging(&self) -> Result<Paging, Error> {
        let mut problems = Vec::new();
        let mut number = |name: &'static str, default: u64, most: u64, must: &'static str| {
            let Some(text) = self.get(name) else {
                return default;
            };
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            match text.parse() {
                Ok(value) if digits && (1..=most).contains(&value) => value,
                _ => {
                    problems.push(Detail::new(name, "invalid_value", must));
                    default
                }
            }
        };
        let page = number(
            "page",
            1,
            MAX_PAGE,
            "must be an integer from 1 to 9007199254740991",
        );
        let limit = number(
            "limit",
            DEFAULT_LIMIT,
            MAX_LIMIT,
            "must be an integer from 1 to 100",
        );
        if problems.is_empty() {
            Ok(Paging {
                page,
                limit: usize::try_from(limit).unwrap_or(1),
            })
        } else {
            Err(Error::invalid(problems))
        }
    }

    /// Whether `include` asks for the metrics; 422 for anything else in it.
    pub fn include_metrics(&self) -> Result<bool, Error> {
        let Some(include) = self.get("include") else {
            return Ok(false);
        };
        if include.split(',').all(|word| word.trim_ascii() == "metrics") {
            Ok(true)
        } else {
            Err(Error::invalid(vec![Detail::new(
                "include",
                "invalid_value",
                "must be metrics",
            )]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(query: &str) -> Parameters {
        Parameters::of(&format!("/v1/instances{query}").parse().unwrap())
    }

    #[test]
    fn pages_have_defaults_and_bounds() {
        for (query, page, limit) in [
            ("", 1, 20),
            ("?", 1, 20),
            ("?page=3&limit=100", 3, 100),
            ("?limit=1&unknown=x", 1, 1),
            ("?page=9007199254740991", MAX_PAGE, 20),
            ("?page=1&page=2", 2, 20),
        ] {
            assert_eq!(
                parameters(query).paging().unwrap(),
                Paging { page, limit },
                "{query}"
            );
        }
        for bad in [
            "0",
            "-1",
            "1.5",
            "x",
            "",
            "%20",
            "+5",
            "%2B5",
            "99999999999999999999999",
            "9007199254740992",
        ] {
            let error = parameters(&format!("?page={bad}&limit={bad}"))
                .paging()
                .unwrap_err();
            let fields: Vec<_> = error.details.iter().map(|d| d.field.as_ref()).collect();
            assert_eq!(fields, ["page", "limit"], "{bad}");
        }
        assert_eq!(parameters("?limit=101").paging().unwrap_err().details.len(), 1);
    }

    #[test]
    fn include_accepts_metrics_only() {
        assert_eq!(parameters("").include_metrics(), Ok(false));
        for good in [
            "?include=metrics",
            "?include=metrics,metrics",
            "?include=metrics,%20metrics",
        ] {
            assert_eq!(parameters(good).include_metrics(), Ok(true), "{good}");
        }
        for bad in [
            "?include=",
            "?include=all",
            "?include=metrics,backups",
            "?include=Metrics",
        ] {
            assert_eq!(
                parameters(bad).include_metrics().unwrap_err().details[0].field,
                "include",
                "{bad}"
            );
        }
    }
}
