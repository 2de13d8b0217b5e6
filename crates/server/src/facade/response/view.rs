//! Parts that all responses share: the envelopes (specification, section 2.1), times, and schemas.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, schema::Schema},
};

/// A time in UTC, cut to whole seconds: `2026-11-21T10:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(pub Timestamp);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A single resource (specification, section 2.1).
#[derive(Serialize, ToSchema)]
pub struct Single<T> {
    /// The resource.
    pub data: T,
    /// A sentence for people: what the request has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<String>,
}

/// A page of a list (specification, section 2.1).
#[derive(Serialize, ToSchema)]
pub struct List<T> {
    /// The resources.
    pub data: Vec<T>,
    /// The position of this page in the list.
    pub pagination: Pagination,
}

/// The position of a page in its list (specification, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"page": 1, "limit": 20, "total": 1, "total_pages": 1}))]
pub struct Pagination {
    /// Number of this page, counted from 1.
    #[schema(minimum = 1)]
    pub page: u64,
    /// Maximum number of items per page.
    #[schema(minimum = 1, maximum = 100)]
    pub limit: usize,
    /// Number of items on all pages.
    pub total: usize,
    /// Number of pages; 0 if the list is empty.
    pub total_pages: usize,
}

impl Pagination {
    /// The position of page `page` in a list of `total` items.
    pub fn new(page: u64, limit: usize, total: usize) -> Self {
        Self {
            page,
            limit,
            total,
            total_pages: total.div_ceil(limit.max(1)),
        }
    }
}

/// A schema written as JSON. Invalid JSON schemas become the empty schema; the tests of the document would notice.
pub(in crate::facade) fn schema(json: &Value) -> RefOr<Schema> {
    serde_json::from_value(json.clone()).unwrap_or_else(|_| Value::schema())
}

/// A reason of the conditions as answers show it: `InvalidURL` as `invalid_url`.
pub(in crate::facade) fn snake_case(reason: &str) -> String {
    let mut name = String::with_capacity(reason.len() + 4);
    let mut was_lower = false;
    for letter in reason.chars() {
        if letter.is_ascii_uppercase() && was_lower {
            name.push('_');
        }
        was_lower = !letter.is_ascii_uppercase();
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_in_snake_case() {
        for (reason, shown) in [
            ("Failing", "failing"),
            ("GuestShutdown", "guest_shutdown"),
            ("InvalidURL", "invalid_url"),
        ] {
            assert_eq!(snake_case(reason), shown);
        }
    }

    #[test]
    fn times_are_cut_not_rounded() {
        let time: Timestamp = "2026-11-21T10:04:59.999Z".parse().unwrap();
        assert_eq!(Seconds(time).to_string(), "2026-11-21T10:04:59Z");
    }

    #[test]
    fn an_empty_list_has_no_pages() {
        assert_eq!(Pagination::new(1, 20, 0).total_pages, 0);
        assert_eq!(Pagination::new(9, 20, 41).total_pages, 3);
    }
}
