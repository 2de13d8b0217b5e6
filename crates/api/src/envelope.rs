//! What is around every answer (specification, section 2.1).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A single resource (specification, section 2.1).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Single<T> {
    /// The resource.
    pub data: T,
    /// A sentence for people: what the request has started.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub message: Option<String>,
}

/// A page of a list (specification, section 2.1).
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct List<T> {
    /// The resources.
    pub data: Vec<T>,
    /// The position of this page in the list.
    pub pagination: Pagination,
}

/// The position of a page in its list (specification, section 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
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

/// A page of a list that changes while it is being read, newest items first.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct CursorList<T> {
    /// The resources.
    pub data: Vec<T>,
    /// Where the list goes on.
    pub pagination: CursorPagination,
}

/// Where a list goes on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(example = json!({"limit": 20, "next": null}))]
pub struct CursorPagination {
    /// Maximum number of items per page. A page may have fewer, although others follow.
    #[schema(minimum = 1, maximum = 100)]
    pub limit: usize,
    /// What to give as `after` for the next page; `null` at the end of the list.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_list_has_no_pages() {
        assert_eq!(Pagination::new(1, 20, 0).total_pages, 0);
        assert_eq!(Pagination::new(9, 20, 41).total_pages, 3);
    }
}
