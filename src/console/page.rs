//! What all pages share: the frame around them, lists in pages, and answers.

use askama::Template;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use url::form_urlencoded;

use super::{
    assets::{ASSETS, Assets},
    refusal::Refusal,
    session::Note,
};

/// The Content-Type of every page.
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The files that every page loads.
#[derive(Clone, Copy)]
pub struct Files(pub &'static Assets);

impl Default for Files {
    fn default() -> Self {
        Self(&ASSETS)
    }
}

/// The frame around a page.
#[derive(Clone, Default)]
pub struct Shell {
    /// Its files.
    pub files: Files,
    /// Its title.
    pub title: String,
    /// The section of the navigation that it belongs to.
    pub section: &'static str,
    /// Name of the account; empty for pages that nobody has signed in for.
    pub account: String,
    /// Whether the session may change anything.
    pub may_write: bool,
    /// What was done with the last form.
    pub note: Option<Note>,
    /// The commands that do the same through the API.
    pub commands: Vec<String>,
}

impl Shell {
    /// The frame of a page that shows nothing of an account.
    pub fn bare(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            ..Self::default()
        }
    }

    /// Whether a section is the current one.
    pub fn is_in(&self, section: &str) -> bool {
        self.section == section
    }
}

/// A page.
pub fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(html) => (status, [(header::CONTENT_TYPE, HTML)], html).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page of the console");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Sends the browser to another page of the console with a GET.
pub fn see_other(path: &str) -> Response {
    let location = HeaderValue::try_from(path).unwrap_or(HeaderValue::from_static("/console"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

#[derive(Template)]
#[template(path = "console/problem.html")]
struct Problem<'a> {
    shell: Shell,
    refusal: &'a Refusal,
    heading: &'a str,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if self.status == StatusCode::UNAUTHORIZED {
            // The key was revoked between two steps of one page.
            return see_other("/console/sign-in?ended=1");
        }
        let heading = match self.status {
            StatusCode::NOT_FOUND => "There is nothing here",
            StatusCode::FORBIDDEN => "This is not allowed",
            StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "This cannot be done now",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            StatusCode::SERVICE_UNAVAILABLE => "Not available at the moment",
            status if status.is_server_error() => "Something went wrong",
            _ => "This cannot be done",
        };
        let mut response = page(
            self.status,
            &Problem {
                shell: Shell::bare(heading),
                refusal: &self,
                heading,
            },
        );
        let wait = self.retry_after.and_then(|wait| HeaderValue::try_from(wait).ok());
        if let Some(wait) = wait {
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

/// A list of `/v1`.
#[derive(Debug, Deserialize)]
pub struct List<T> {
    /// The items.
    pub data: Vec<T>,
    /// Which page it is.
    pub pagination: Pagination,
}

/// Which page of a list it is.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Pagination {
    /// Number of the page, counted from 1.
    pub page: u64,
    /// Number of items.
    pub total: u64,
    /// Number of pages.
    pub total_pages: u64,
}

/// A single object of `/v1`.
#[derive(Debug, Deserialize)]
pub struct Single<T> {
    /// The object.
    pub data: T,
    /// What is being done with it.
    #[serde(default)]
    pub message: Option<String>,
}

/// Links to the other pages of a list.
#[derive(Clone, Debug)]
pub struct Pager {
    /// Number of the page.
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of items.
    pub total: u64,
    /// The page before it.
    pub previous: Option<String>,
    /// The page after it.
    pub next: Option<String>,
}

impl Pager {
    /// The pager of a list that is shown at `path` with this query.
    pub fn new(pagination: Pagination, path: &str, query: &Query) -> Self {
        let Pagination {
            page,
            total,
            total_pages,
        } = pagination;
        let link = |page: u64| query.with(path, "page", &page.to_string());
        Self {
            page,
            pages: total_pages,
            total,
            previous: (page > 1).then(|| link(page.saturating_sub(1).min(total_pages.max(1)))),
            next: (page < total_pages).then(|| link(page + 1)),
        }
    }
}

/// The query of a page.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query.
    pub fn parse(query: &str) -> Self {
        let pairs = form_urlencoded::parse(query.as_bytes()).into_owned();
        Self(pairs.take(50).collect())
    }

    /// The value of a parameter, empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value.trim())
    }

    /// Whether a parameter has this value.
    pub fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }

    /// Whether any of these parameters has a value.
    pub fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| !self.get(name).is_empty())
    }

    /// The path with this query, but for one parameter, which has another value.
    pub fn with(&self, path: &str, name: &str, value: &str) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let others = self.0.iter().filter(|(key, it)| key != name && !it.is_empty());
        query.extend_pairs(others);
        query.append_pair(name, value);
        format!("{path}?{}", query.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_keeps_the_filters() {
        let query = Query::parse("status=running&tag=a%26b&name=&page=2");
        let pagination = Pagination {
            page: 2,
            total: 45,
            total_pages: 3,
        };
        let pager = Pager::new(pagination, "/console/instances", &query);
        assert_eq!(
            pager.previous.as_deref(),
            Some("/console/instances?status=running&tag=a%26b&page=1")
        );
        assert_eq!(
            pager.next.as_deref(),
            Some("/console/instances?status=running&tag=a%26b&page=3")
        );
        let far = Pagination {
            page: 99,
            ..pagination
        };
        let pager = Pager::new(far, "/x", &Query::default());
        assert_eq!((pager.previous.as_deref(), pager.next), (Some("/x?page=3"), None));
    }
}
