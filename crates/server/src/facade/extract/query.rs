//! Query parameters: pages, filters, `include`.

use http::Uri;
use jiff::Timestamp;
use url::form_urlencoded;
use utoipa::{
    IntoParams,
    openapi::{
        Ref, Required,
        path::{Parameter, ParameterBuilder, ParameterIn},
    },
};

pub use crate::service::index::Paging;

use crate::{
    facade::response::error::{Detail, Error},
    service::{
        events::{Cursor, Period},
        id::PublicId,
    },
};

/// Maximum page size (decisions, section 6).
pub const MAX_LIMIT: u64 = 100;
const DEFAULT_LIMIT: u64 = 20;
/// Largest integer that every JSON parser represents exactly (RFC 8259, section 6).
const MAX_PAGE: u64 = (1 << 53) - 1;

/// The page to show of a list with cursors, beside its [`Cursor`], and the period of its items.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes parameters that `Parameters::cursor` reads")]
pub struct CursorPaging {
    /// Maximum number of items per page.
    #[param(required = false, minimum = 1, maximum = 100, default = 20)]
    limit: usize,
    /// Only events that happened at this RFC 3339 time or later.
    #[param(required = false, format = DateTime, example = "2026-11-21T10:00:00Z")]
    since: String,
    /// Only events that happened before this RFC 3339 time.
    #[param(required = false, format = DateTime, example = "2026-11-21T11:00:00Z")]
    until: String,
}

/// The `after` of such a list.
impl<I: PublicId> IntoParams for Cursor<I> {
    fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
        let description = "The `next` of the page before: only items that follow the one with this id. 422 if it is not kept any more: then go on with `until`.";
        let after = ParameterBuilder::new()
            .name("after")
            .parameter_in(ParameterIn::Query)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(Ref::from_schema_name(I::TYPE)));
        vec![after.build()]
    }
}

/// A query parameter of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub name: String,
    /// Whether it may be given more than once.
    pub repeats: bool,
}

/// 422 for a parameter that an operation does not have, which would otherwise select everything, and for one given twice.
pub fn check(uri: &Uri, known: &[Known]) -> Result<(), Error> {
    let given = Parameters::of(uri).0;
    let mut problems = Vec::new();
    for (index, (name, _)) in given.iter().enumerate() {
        let Some(known) = known.iter().find(|known| known.name == *name) else {
            let names: Vec<_> = known.iter().map(|known| known.name.as_str()).collect();
            let message = match names.join(", ") {
                none if none.is_empty() => "is not known; this request has no query parameters".to_owned(),
                names => format!("is not known; the query parameters of this request are {names}"),
            };
            problems.push(Detail::new(name.clone(), "unknown_field", message));
            continue;
        };
        if !known.repeats && given[..index].iter().any(|(before, _)| before == name) {
            problems.push(Detail::new(
                name.clone(),
                "duplicate_field",
                "must not be given more than once",
            ));
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::invalid(problems))
    }
}

/// The query parameters, which [`check`] has found to be known.
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The parameters of a request.
    pub fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default();
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    /// The value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The values of a parameter that may be given more than once.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let found = self.0.iter().filter(move |(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The time that a parameter names. A blank in it was a `+` that the client has not escaped.
    pub fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Error> {
        let time = self.get(name).map(|text| match text.rsplit_once(' ') {
            Some((time, offset)) if time.contains(['T', 't', ' ']) => format!("{time}+{offset}").parse(),
            _ => text.parse(),
        });
        time.transpose().map_err(|_| not_a_time(name))
    }

    /// `page` and `limit`; 422 if one is out of range.
    pub fn paging(&self) -> Result<Paging, Error> {
        let (page, limit) = both(self.page(), self.limit())?;
        Ok(Paging { page, limit })
    }

    /// `after` and `limit`, `since` and `until`; 422 if one is out of range.
    pub fn cursor<I: PublicId>(&self) -> Result<(Cursor<I>, Period), Error> {
        let (cursor, period) = both(
            both(self.after(), self.limit()),
            both(self.time("since"), self.time("until")),
        )?;
        let (after, limit) = cursor;
        let (since, until) = period;
        Ok((Cursor { after, limit }, Period { since, until }))
    }

    fn after<I: PublicId>(&self) -> Result<Option<I>, Error> {
        let id = self.get("after").map(|text| I::parse(text).ok_or(I::PREFIX));
        id.transpose().map_err(|prefix| {
            let must = format!("must be the next of the page before, which begins with {prefix}");
            Error::invalid_value("after", must)
        })
    }

    fn page(&self) -> Result<u64, Error> {
        let must = "must be an integer from 1 to 9007199254740991";
        self.number("page", 1, MAX_PAGE, must)
    }

    fn limit(&self) -> Result<usize, Error> {
        let must = "must be an integer from 1 to 100";
        let limit = self.number("limit", DEFAULT_LIMIT, MAX_LIMIT, must)?;
        Ok(usize::try_from(limit).unwrap_or(1))
    }

    fn number(&self, name: &'static str, default: u64, max: u64, must: &'static str) -> Result<u64, Error> {
        let Some(text) = self.get(name) else {
            return Ok(default);
        };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        match text.parse() {
            Ok(value) if digits && (1..=max).contains(&value) => Ok(value),
            _ => Err(Error::invalid_value(name, must)),
        }
    }

    /// The year; 422 for anything but four digits.
    pub fn year(&self) -> Result<Option<i16>, Error> {
        let Some(text) = self.get("year") else {
            return Ok(None);
        };
        let year = text.parse().ok().filter(|year| (1000..=9999).contains(year));
        year.map(Some).ok_or_else(|| {
            let must = "must be a year of four digits, such as 2026";
            Error::invalid_value("year", must)
        })
    }

    /// Whether `include` asks for the metrics; 422 for anything else in it.
    pub fn include_metrics(&self) -> Result<bool, Error> {
        let Some(include) = self.get("include") else {
            return Ok(false);
        };
        if include.split(',').all(|word| word.trim_ascii() == "metrics") {
            Ok(true)
        } else {
            Err(Error::invalid_value("include", "must be metrics"))
        }
    }
}

/// Both values, or the refusals of both.
pub fn both<A, B>(a: Result<A, Error>, b: Result<B, Error>) -> Result<(A, B), Error> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
        (Err(a), Err(b)) => Err(Error::invalid([a.details, b.details].concat())),
    }
}

/// The refusal of a value that is not a time.
pub fn not_a_time(field: &'static str) -> Error {
    Error::invalid_value(field, TIME_MUST)
}

/// What a time must be.
pub const TIME_MUST: &str = "must be an RFC 3339 time such as 2026-11-21T10:00:00Z";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::id::EventId;

    #[test]
    fn a_cursor_has_an_id_a_limit_and_a_period_and_all_that_is_wrong_is_named_at_once() {
        let read = |query: &str| parameters(query).cursor::<EventId>();
        let first = Cursor {
            after: None,
            limit: 20,
        };
        assert_eq!(read(""), Ok((first, Period::default())));
        let all =
            "?after=evt_abcdefgh01234567&limit=7&since=2026-11-21T10:00:00Z&until=2026-11-21T12:00:00+02:00";
        let at = "2026-11-21T10:00:00Z".parse().ok();
        assert_eq!(
            read(all),
            Ok((
                Cursor {
                    after: EventId::parse("evt_abcdefgh01234567"),
                    limit: 7
                },
                Period { since: at, until: at }
            ))
        );
        let wrong = read("?after=dlv_abcdefgh01234567&limit=0&since=yesterday&until=2026-11-21");
        let named: Vec<_> = wrong
            .unwrap_err()
            .details
            .into_iter()
            .map(|detail| detail.field)
            .collect();
        assert_eq!(named, ["after", "limit", "since", "until"]);
    }

    #[test]
    fn unknown_parameters_and_those_given_twice_are_refused() {
        let known = |name: &str, repeats| Known {
            name: name.to_owned(),
            repeats,
        };
        let all = [known("limit", false), known("tag", true)];
        let refused =
            |query: &str, known: &[Known]| match check(&format!("/x{query}").parse().unwrap(), known) {
                Ok(()) => Vec::new(),
                Err(error) => error.details,
            };
        for good in ["", "?", "?limit=1", "?tag=a&limit=1&tag=b"] {
            assert_eq!(refused(good, &all), [], "{good}");
        }
        let unknown = refused("?tags=a&limit=1&limit=2", &all);
        let named: Vec<_> = unknown.iter().map(|d| (&*d.field, &*d.code)).collect();
        assert_eq!(named, [("tags", "unknown_field"), ("limit", "duplicate_field")]);
        assert!(unknown[0].message.ends_with("are limit, tag"), "{unknown:?}");
        assert!(refused("?x", &[])[0].message.ends_with("has no query parameters"));
    }

    #[test]
    fn a_time_may_have_its_plus_as_a_blank() {
        let time = |text: &str| parameters(&format!("?since={text}")).time("since");
        let expected = Some("2026-11-21T10:00:00Z".parse().unwrap());
        for good in [
            "2026-11-21T10:00:00Z",
            "2026-11-21T12:00:00+02:00",
            "2026-11-21T12:00:00%2B02:00",
            "2026-11-21+10:00:00Z",
            "2026-11-21%2012:00:00+02:00",
        ] {
            assert_eq!(time(good), Ok(expected), "{good}");
        }
        for wrong in ["", "yesterday", "2026-11-21", "2026-11-21T10:00:00"] {
            assert_eq!(time(wrong).unwrap_err().details[0].field, "since", "{wrong}");
        }
        assert_eq!(parameters("").time("since"), Ok(None));
    }

    fn parameters(query: &str) -> Parameters {
        Parameters::of(&format!("/v1/instances{query}").parse().unwrap())
    }

    #[test]
    fn pages_have_defaults_and_bounds() {
        for (query, page, limit) in [
            ("", 1, 20),
            ("?", 1, 20),
            ("?page=3&limit=100", 3, 100),
            ("?page=9007199254740991", MAX_PAGE, 20),
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
