//! A request of a signed-in user, and the requests to `/v1` that answer it.

use std::{net::IpAddr, sync::Arc, time::Duration};

use axum::{body::Body, extract::FromRequestParts, response::Response};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header, request::Parts};
use http_body_util::{BodyExt as _, Full, Limited};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    App,
    call::{Call, with_query},
    client,
    form::{Field, Form},
    page::{Pager, Query, Shell, see_other},
    refresh::{self, Refresh},
    refusal::{Answer, Refusal},
    session::Note,
};
use crate::service::credentials::Credential;
use api::{ErrorCode, List, Single};
use runtime::http::Peer;

/// Largest answer of `/v1` that is read; a page of 100 deliveries is smaller.
const MAX_ANSWER: usize = 16 * 1024 * 1024;
/// How long the first page of a session waits for its ApiKey to appear.
const FIRST_WAIT: Duration = Duration::from_secs(2);

/// A request of a signed-in user.
pub struct SessionRequest {
    app: Arc<App>,
    credential: Credential,
    /// The address that it came from.
    client: IpAddr,
    note: Option<Note>,
    /// The query of the page.
    pub query: Query,
    /// Path and query of the page.
    pub path: String,
    /// Whether a page is refreshing a part of itself.
    pub is_refresh: bool,
    /// When an operation was last in progress on the page that is refreshing itself.
    busy_at: Option<i64>,
    /// Scheme, host and port of the console, which are those of the API.
    pub origin: String,
}

impl FromRequestParts<Arc<App>> for SessionRequest {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let headers = &parts.headers;
        let is_refresh = headers.contains_key("hx-request");
        let is_first = parts.uri.path() == "/console/welcome";
        let Some((credential, note)) = signed_in(app, headers, is_first).await? else {
            return Err(to_sign_in(parts, app));
        };
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        Ok(Self {
            app: app.clone(),
            credential,
            client: client(&parts.extensions),
            // The page on the screen has already shown it.
            note: note.filter(|_| !is_refresh),
            query,
            path: parts
                .uri
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
            is_refresh,
            busy_at: refresh::busy_at(headers),
            origin: app.origin(headers),
        })
    }
}

/// The credential of a request's session, and the note for its page.
async fn signed_in(
    app: &App,
    headers: &HeaderMap,
    is_first: bool,
) -> Result<Option<(Credential, Option<Note>)>, Response> {
    use axum::response::IntoResponse as _;
    if !app.cookies.has_session(headers) {
        return Ok(None);
    }
    let seal = app.seal().await.map_err(Refusal::into_response)?;
    let now = app.service.now();
    let Some(session) = app.cookies.session(headers, seal, now) else {
        return Ok(None);
    };
    let find = || session.credential(app.service.credentials(), now).ok();
    let mut found = find();
    if is_first {
        // Another replica may have started the session, with an ApiKey that this replica has not seen yet.
        let deadline = Instant::now() + FIRST_WAIT;
        while found.is_none() && Instant::now() < deadline {
            tokio::time::sleep(FIRST_WAIT / 20).await;
            found = find();
        }
    }
    Ok(found.map(|credential| (credential, app.cookies.note(headers, seal))))
}

/// Whether a session may change anything.
fn may_write(credential: &Credential) -> bool {
    credential.may_write() && credential.tenant.suspended.is_none()
}

/// Why the account of a session is suspended, if it is.
fn suspended(credential: &Credential) -> Option<String> {
    let suspension = credential.tenant.suspended.as_ref()?;
    Some(suspension.reason.clone())
}

/// The frame of a page about a refusal; with the navigation for signed-in users.
pub async fn shell_of(app: &App, headers: &HeaderMap, section: &'static str) -> Shell {
    match signed_in(app, headers, false).await {
        Ok(Some((credential, _))) => Shell {
            section,
            account: credential.tenant.account.to_string(),
            may_write: may_write(&credential),
            suspended: suspended(&credential),
            ..Shell::default()
        },
        _ => Shell::default(),
    }
}

/// Sends the browser to the page for signing in, and back afterwards.
fn to_sign_in(parts: &Parts, app: &App) -> Response {
    let had_session = app.cookies.has_session(&parts.headers);
    let mut path = String::from("/console/sign-in");
    if had_session {
        path.push_str("?ended=1");
    } else if parts.uri.path() == "/console/welcome" {
        path.push_str("?kept=no");
    }
    if parts.headers.contains_key("hx-request") {
        // A part of a page cannot be replaced by another page, so redirect the whole page.
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        let location = header::HeaderValue::try_from(path);
        response.headers_mut().insert(
            "hx-redirect",
            location.unwrap_or(header::HeaderValue::from_static("/console/sign-in")),
        );
        return response;
    }
    let mut response = see_other(&path);
    if had_session && let Some(cookie) = app.cookies.end() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

impl SessionRequest {
    /// The frame of a page.
    pub fn shell(&self, section: &'static str, title: impl Into<String>) -> Shell {
        Shell {
            title: title.into(),
            section,
            account: self.credential.tenant.account.to_string(),
            may_write: self.may_write(),
            suspended: suspended(&self.credential),
            note: self.note.clone(),
            ..Shell::default()
        }
    }

    /// The frame of a page that shows how to do the same through the API.
    pub fn shell_with(&self, section: &'static str, title: impl Into<String>, calls: &[Call]) -> Shell {
        Shell {
            commands: calls.iter().map(|call| call.curl(&self.origin)).collect(),
            ..self.shell(section, title)
        }
    }

    /// The current time.
    pub fn now(&self) -> jiff::Timestamp {
        self.app.service.now()
    }

    /// Scheme, host and port of the console gateway, if there is one.
    pub fn gateway_origin(&self) -> Option<String> {
        Some(self.app.service.console_gateway()?.origin())
    }

    /// Whether the session may change anything.
    pub fn may_write(&self) -> bool {
        may_write(&self.credential)
    }

    /// Name of the key with which the session was started.
    pub fn key_name(&self) -> &str {
        self.credential.key_name()
    }

    /// Marks in the form why `/v1` refused it, and returns the status; returns refusals that are not about the form.
    pub fn refused(&self, refusal: Refusal, form: &mut Form) -> Result<StatusCode, Refusal> {
        let is_of_form = self.may_write()
            && refusal.status.is_client_error()
            && ![StatusCode::NOT_FOUND, StatusCode::UNAUTHORIZED].contains(&refusal.status);
        if !is_of_form {
            return Err(refusal);
        }
        form.refused(&refusal);
        Ok(refusal.status)
    }

    /// Refuses users who may only read; for pages that are nothing but a form. `/v1` refuses what they send in any case.
    pub fn check_may_write(&self) -> Result<(), Refusal> {
        if self.may_write() {
            return Ok(());
        }
        if let Err(refusal) = self.credential.tenant.check_not_suspended() {
            return Err(Refusal::new(refusal.code, refusal.message));
        }
        Err(Refusal::new(
            ErrorCode::TokenReadonly,
            "this needs a key with the scope write; you have signed in with one that has the scope read",
        ))
    }

    /// Sends a request to `/v1`, and reads its answer.
    pub async fn get<T: DeserializeOwned>(&self, call: &Call) -> Result<T, Refusal> {
        parse(call, &self.send(call).await?)
    }

    /// Reads something, with its `ETag`.
    pub async fn get_version<T: DeserializeOwned>(&self, call: &Call) -> Result<(T, String), Refusal> {
        let answer = self.open(call).await?;
        let version = answer.headers().get(header::ETAG);
        let version = version.and_then(|version| version.to_str().ok());
        let version = version.unwrap_or_default().to_owned();
        Ok((parse(call, &read(answer).await?)?, version))
    }

    /// Reads a page of a list: the request, the items, and the links to the other pages. The list has the same name in the paths of the
    /// console and of `/v1`, and so have the filters in their queries.
    pub async fn list<T: DeserializeOwned>(
        &self,
        name: &str,
        filters: &[&str],
        limit: Option<&str>,
    ) -> Result<(Call, Vec<T>, Pager), Refusal> {
        let parameters = filters.iter().chain(&["page"]);
        let mut parameters: Vec<_> = parameters.map(|name| (*name, self.query.get(name))).collect();
        parameters.extend(limit.map(|limit| ("limit", limit)));
        let call = Call::get(with_query(&format!("/v1/{name}"), &parameters));
        let List { data, pagination } = self.get(&call).await?;
        let pager = Pager::new(pagination, &format!("/console/{name}"), &self.query);
        Ok((call, data, pager))
    }

    /// Reads something that may not exist.
    pub async fn find<T: DeserializeOwned>(&self, call: &Call) -> Result<Option<T>, Refusal> {
        match self.get(call).await {
            Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(None),
            found => found.map(Some),
        }
    }

    /// Sends a request to `/v1` and returns the body of its answer.
    pub async fn send(&self, call: &Call) -> Result<Bytes, Refusal> {
        read(self.open(call).await?).await
    }

    /// Sends what was entered in a form, if the object still has the version with which the form was opened. Otherwise the form catches
    /// up with `current`. If nothing that the form shows has changed, the request is then sent again; else `Form::meanwhile` has the
    /// changes.
    pub async fn save(
        &self,
        form: &mut Form,
        fields: &[Field],
        call: impl Fn(&Form) -> Call,
        current: impl AsyncFnOnce() -> Result<(Form, String), Refusal>,
    ) -> Result<Bytes, Refusal> {
        let is_for_a_version = !form.version().is_empty();
        let sent = if is_for_a_version {
            self.send(&call(form)).await
        } else {
            // Nothing says what it was opened with.
            Err(Refusal::new(
                ErrorCode::PreconditionFailed,
                "the form does not say which version it is for; check it, and save it again",
            ))
        };
        match sent {
            Err(refusal) if refusal.status == StatusCode::PRECONDITION_FAILED => {
                let (now, version) = current().await?;
                form.catch_up(now, &version, fields);
                if is_for_a_version && form.meanwhile.is_empty() {
                    self.send(&call(form)).await
                } else {
                    Err(refusal)
                }
            }
            sent => sent,
        }
    }

    /// Sends a request to `/v1` and returns its answer, whose body has not been read yet.
    pub async fn open(&self, call: &Call) -> Result<Response, Refusal> {
        let body = call.body.as_ref().map(ToString::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = call.key.as_deref().filter(|_| call.method == Method::POST) {
            request = request.header("idempotency-key", key);
        }
        if let Some(version) = &call.version {
            request = request.header(header::IF_MATCH, version);
        }
        let request = request
            .extension(Peer(self.client))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| {
                tracing::error!(%error, path = call.path, "the console cannot make a request to /v1");
                Refusal::fault()
            })?;
        let answer = self.app.facade.answer_as(self.credential.clone(), request).await;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let wait = answer.headers().get(header::RETRY_AFTER);
        let wait = wait.and_then(|wait| wait.to_str().ok()).map(str::to_owned);
        Err(Refusal::read(status, &read(answer).await?, wait))
    }

    /// How the page stays up to date. If it has a note to show, an operation has just started.
    pub fn refresh(&self, is_under_way: bool) -> Refresh {
        Refresh::new(
            &self.path,
            is_under_way || self.note.is_some(),
            self.busy_at,
            self.is_refresh && !is_under_way,
            self.now(),
        )
    }

    /// Sends a request to `/v1`, and the browser to a page of the console that says what has started, until that has ended.
    pub async fn begin(&self, path: &str, call: &Call) -> Answer {
        let begun: Single<Value> = self.get(call).await?;
        Ok(self.begun(path, &begun.message.unwrap_or_default()).await)
    }

    /// Sends the browser to a page of the console that says what was done.
    pub async fn done(&self, path: &str, text: &str) -> Response {
        self.tell(path, text, false).await
    }

    /// Sends the browser to a page of the console that says what has started, until that has ended.
    pub async fn begun(&self, path: &str, text: &str) -> Response {
        self.tell(path, text, true).await
    }

    async fn tell(&self, path: &str, text: &str, passes: bool) -> Response {
        let mut response = see_other(path);
        let note = Note {
            text: text.to_owned(),
            passes,
        };
        if let Ok(seal) = self.app.seal().await
            && let Some(cookie) = self.app.cookies.tell(note, seal)
        {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }
}

fn parse<T: DeserializeOwned>(call: &Call, bytes: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(bytes).map_err(|error| {
        tracing::error!(%error, path = call.path, "the console cannot read an answer of /v1");
        Refusal::fault()
    })
}

/// The body of an answer.
async fn read(answer: Response) -> Result<Bytes, Refusal> {
    let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
    Ok(body.map_err(|_| Refusal::fault())?.to_bytes())
}
