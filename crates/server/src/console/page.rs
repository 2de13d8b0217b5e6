//! What all pages share: the frame around them, paged lists, and responses.

use std::ops::Deref;

use askama::Template;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Deserialize;
use url::form_urlencoded;

use super::{call::with_query, refusal::Refusal, session::Note};
use api::{CursorPagination, Pagination};

/// The Content-Type of every page.
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");

/// The frame around a page.
#[derive(Clone, Default)]
pub struct Shell {
    pub title: String,
    /// The section in the navigation that it belongs to.
    pub section: &'static str,
    /// Name of the account; empty for pages shown without a session.
    pub account: String,
    /// Whether the session may change anything.
    pub may_write: bool,
    /// Why the account is suspended, if it is.
    pub suspended: Option<String>,
    /// What the last form did.
    pub note: Option<Note>,
    /// The commands that do the same through the API.
    pub commands: Vec<String>,
}

impl Shell {
    /// The frame of a page that shows nothing about an account.
    pub fn bare(title: &str) -> Self {
        Self {
            title: title.to_owned(),
            ..Self::default()
        }
    }

    /// The section of the page at this path.
    pub fn section_of(path: &str) -> &'static str {
        let section = path.split('/').nth(2).unwrap_or_default();
        let sections = [
            "instances",
            "backups",
            "alerts",
            "webhooks",
            "events",
            "invoices",
            "keys",
            "account",
        ];
        sections.into_iter().find(|it| *it == section).unwrap_or_default()
    }

    /// Whether a section is the current one.
    pub fn is_in(&self, section: &str) -> bool {
        self.section == section
    }
}

pub fn page(status: StatusCode, template: &impl Template) -> Response {
    // Goes into the title, which browsers and screen readers say first.
    let is_refused: &dyn std::any::Any = &status.is_client_error();
    let values = ("is_refused", is_refused);
    match template.render_with_values(&values) {
        Ok(html) => (status, [(header::CONTENT_TYPE, HTML)], html).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page of the console");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Redirects the browser to another page of the console with a GET.
pub fn see_other(path: &str) -> Response {
    let location = HeaderValue::try_from(path).unwrap_or(HeaderValue::from_static("/console"));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response()
}

#[derive(Template)]
#[template(path = "console/problem.html")]
struct RefusalPage<'a> {
    shell: Shell,
    refusal: &'a Refusal,
    heading: &'a str,
    back: Back,
}

/// The page to go back to from one that was refused.
struct Back {
    path: String,
    label: &'static str,
}

impl Back {
    /// For the page at this path: the object that it is about, or the list if there is no such object.
    fn of(path: &str, status: StatusCode) -> Self {
        let mut parts = path.trim_start_matches("/console").split('/').skip(1);
        let section = parts.next().unwrap_or_default();
        let object = parts.next().filter(|_| status != StatusCode::NOT_FOUND);
        let has_page = !["new", "current", "verify"].contains(&object.unwrap_or("new"));
        let (list, of_object) = match section {
            "instances" => ("To the instances", Some("Back to the instance")),
            "backups" => ("To the backups", Some("Back to the backup")),
            "webhooks" => ("To the webhooks", Some("Back to the webhook")),
            "alerts" => ("To the alerts", None),
            "events" => ("To the events", None),
            "invoices" => ("To the invoices", None),
            "keys" => ("To the API keys", None),
            _ => {
                return Self {
                    path: "/console".to_owned(),
                    label: "Back to the console",
                };
            }
        };
        match (object, of_object) {
            (Some(id), Some(label)) if has_page => Self {
                path: format!("/console/{section}/{id}"),
                label,
            },
            _ => Self {
                path: format!("/console/{section}"),
                label: list,
            },
        }
    }
}

/// The page about a refusal of the page at `path`. The middleware builds it, because a refusal knows neither the path nor the caller.
pub fn problem(refusal: &Refusal, path: &str, shell: Shell) -> Response {
    let heading = match refusal.status {
        StatusCode::NOT_FOUND => "There is nothing here",
        StatusCode::FORBIDDEN => "This is not allowed",
        StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED => "This cannot be done now",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        StatusCode::SERVICE_UNAVAILABLE => "Not available at the moment",
        status if status.is_server_error() => "Something went wrong",
        _ => "This cannot be done",
    };
    let template = RefusalPage {
        shell: Shell {
            title: heading.to_owned(),
            ..shell
        },
        refusal,
        heading,
        back: Back::of(path, refusal.status),
    };
    let mut response = page(refusal.status, &template);
    let wait = refusal.retry_after.as_deref();
    if let Some(wait) = wait.and_then(|wait| HeaderValue::try_from(wait).ok()) {
        response.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    response
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        if self.status == StatusCode::UNAUTHORIZED {
            // The key was revoked between two steps of one page.
            return see_other("/console/sign-in?ended=1");
        }
        // The middleware builds the page.
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// What `/v1` shows, with what pages say about it: the modules of the kinds add methods.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Shown<T>(pub T);

impl<T> Deref for Shown<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// Links to the other pages of a list.
#[derive(Clone, Debug)]
pub struct Pager {
    /// Number of the page.
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of items.
    pub total: usize,
    /// Link to the previous page.
    pub previous: Option<String>,
    /// Link to the next page.
    pub next: Option<String>,
}

impl Pager {
    /// The pager of the list shown at `path` with this query.
    pub fn new(pagination: Pagination, path: &str, query: &Query) -> Self {
        let Pagination { page, total, .. } = pagination;
        let total_pages = u64::try_from(pagination.total_pages).unwrap_or(u64::MAX);
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

/// Links to the other pages of a list with cursors.
#[derive(Clone, Debug)]
pub struct CursorPager {
    /// Link to the first page, from the others.
    pub newest: Option<String>,
    /// Link to the next page.
    pub older: Option<String>,
}

impl CursorPager {
    /// The pager of the list shown at `path` with this query.
    pub fn new(pagination: &CursorPagination, path: &str, query: &Query) -> Self {
        let is_first = query.get("after").is_empty();
        let next = pagination.next.as_deref();
        Self {
            newest: (!is_first).then(|| query.with(path, "after", "")),
            older: next.map(|next| query.with(path, "after", next)),
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

    /// The path with this query, except that one parameter has another value, or, if that is empty, is left out.
    pub fn with(&self, path: &str, name: &str, value: &str) -> String {
        let others = self.0.iter().filter(|(key, _)| key != name);
        let others = others.map(|(key, value)| (key.as_str(), value.as_str()));
        with_query(path, &others.chain([(name, value)]).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_leads_back_to_what_it_is_about() {
        let back = |path, status| Back::of(path, status).path;
        let conflict = StatusCode::CONFLICT;
        assert_eq!(
            back("/console/instances/i-1/power/stop", conflict),
            "/console/instances/i-1"
        );
        assert_eq!(back("/console/instances/new", conflict), "/console/instances");
        assert_eq!(
            back("/console/webhooks/wh_1/secret", StatusCode::NOT_FOUND),
            "/console/webhooks"
        );
        assert_eq!(back("/console/keys/key-1/revoke", conflict), "/console/keys");
        assert_eq!(back("/console/x/y", conflict), "/console");
    }

    #[test]
    fn a_pager_keeps_the_filters() {
        let query = Query::parse("status=running&tag=a%26b&name=&page=2");
        let pagination = Pagination::new(2, 20, 45);
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

    #[test]
    fn a_pager_with_cursors_leads_on_and_back_to_the_newest() {
        let next = |next: Option<&str>| CursorPagination {
            limit: 20,
            next: next.map(str::to_owned),
        };
        let links = |query: &str, pagination: &CursorPagination| {
            let pager = CursorPager::new(pagination, "/x", &Query::parse(query));
            (pager.newest, pager.older)
        };
        let some = |link: &str| Some(link.to_owned());
        assert_eq!(links("", &next(None)), (None, None));
        assert_eq!(
            links("type=a", &next(Some("evt_1"))),
            (None, some("/x?type=a&after=evt_1"))
        );
        assert_eq!(
            links("after=evt_1", &next(Some("evt_2"))),
            (some("/x"), some("/x?after=evt_2"))
        );
        assert_eq!(
            links("type=a&after=evt_2", &next(None)),
            (some("/x?type=a"), None)
        );
    }
}
