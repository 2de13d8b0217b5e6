//! What answers have in common: the envelopes (specification, section 2.1), times, and schemas.

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
    /// What happens now, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<String>,
}

/// A page of a list (specification, section 2.1).
#[derive(Serialize, ToSchema)]
pub struct List<T> {
    /// The resources.
    pub data: Vec<T>,
    /// Which page of how many.
    pub pagination: Pagination,
}

/// Where a page is in its list (specification, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(example = json!({"page": 1, "limit": 20, "total": 1, "total_pages": 1}))]
pub struct Pagination {
    /// This page, counted from 1.
    #[schema(minimum = 1)]
    pub page: u64,
    /// Most items on a page.
    #[schema(minimum = 1, maximum = 100)]
    pub limit: usize,
    /// Items on all pages together.
    pub total: usize,
    /// Pages; 0 where there is nothing.
    pub total_pages: usize,
}

impl Pagination {
    /// The page `page` of `total` items.
    pub fn new(page: u64, limit: usize, total: usize) -> Self {
        Self {
            page,
            limit,
            total,
            total_pages: total.div_ceil(limit.max(1)),
        }
    }
}

/// A schema that is clearer as JSON; anything if it were none, which a test of the document would show.
pub(in crate::facade) fn schema(json: &Value) -> RefOr<Schema> {
    serde_json::from_value(json.clone()).unwrap_or_else(|_| Value::schema())
}

#[cfg(test)]
mod tests {
    use super::*;

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
