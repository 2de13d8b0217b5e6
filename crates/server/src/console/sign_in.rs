//! Signing in, with an API key or a one-time link, and out.

use std::{net::IpAddr, sync::Arc};

use askama::Template;
use axum::{
    extract::{FromRequest as _, Request, State},
    response::Response,
};
use http::{HeaderMap, StatusCode, Uri, header};

use super::{
    App, client,
    form::Form,
    page::{Query, Shell, page, see_other},
    refusal::{Answer, Refusal},
    session::Session,
    text::sentence,
};
use crate::service::{
    credentials::Credential,
    error::{Error, ErrorCode},
};
use resources::ids;
use runtime::audit;

/// Maximum length of a key or token.
const MAX_KEY: usize = 512;

#[derive(Template)]
#[template(path = "console/sign_in.html")]
struct SignIn {
    shell: Shell,
    /// Why signing in is necessary.
    reason: Option<&'static str>,
    problem: Option<String>,
    /// Name of the OpenID Connect provider, if there is one.
    provider: Option<String>,
}

impl SignIn {
    fn new(app: &App, reason: Option<&'static str>, problem: Option<String>) -> Self {
        Self {
            provider: app.provider.as_ref().map(|provider| provider.name().to_owned()),
            shell: Shell::bare("Sign in"),
            reason,
            problem,
        }
    }
}

/// The page with the form for a key.
pub async fn show(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let query = Query::parse(uri.query().unwrap_or_default());
    let reason = if query.is("ended", "1") {
        Some("Your session has ended: it lasts twelve hours at most, and as long as its API key.")
    } else if query.is("out", "1") {
        Some("You have signed out.")
    } else if query.is("kept", "no") {
        Some(
            "Your browser has kept no cookie. The console needs HTTPS; over plain HTTP, the operator must be set to --console-insecure-cookie.",
        )
    } else {
        None
    };
    page(StatusCode::OK, &SignIn::new(&app, reason, None))
}

/// Signs in with a key.
pub async fn with_key(State(app): State<Arc<App>>, request: Request) -> Answer {
    let address = client(request.extensions());
    if let Some(refusal) = too_many(&app, address) {
        return Ok(refusal);
    }
    let form = Form::from_request(request, &()).await?;
    let key = form.text("key");
    if key.is_empty() || key.len() > MAX_KEY {
        return Ok(refused(
            &app,
            &Error::new(ErrorCode::Unauthorized, "paste an API key"),
        ));
    }
    let keys = app.service.credentials();
    attempt(&app, address, async {
        keys.authenticate(key, || app.service.now())
    })
    .await
}

/// An attempt to sign in, by a test of a secret. It counts as failed if the secret is refused.
async fn attempt(
    app: &App,
    address: IpAddr,
    test: impl Future<Output = Result<Credential, Error>>,
) -> Answer {
    let attempt = match app.attempts.begin(address, app.service.now()) {
        Ok(attempt) => attempt,
        Err(seconds) => return Ok(wait(app, seconds)),
    };
    let credential = test.await;
    if !matches!(&credential, Err(error) if error.code == ErrorCode::Unauthorized) {
        attempt.take_back();
    }
    match credential {
        Ok(credential) => begin(app, &credential, address).await,
        Err(error) => Ok(refused(app, &error)),
    }
}

#[derive(Template)]
#[template(path = "console/link.html")]
struct Link {
    shell: Shell,
    account: String,
    key: String,
    token: String,
}

/// The page of a one-time link, with one button: merely opening the link, as a preview in a chat does, must not use it up.
pub async fn show_link(uri: Uri) -> Response {
    let query = Query::parse(uri.query().unwrap_or_default());
    page(
        StatusCode::OK,
        &Link {
            shell: Shell::bare("Sign in"),
            account: query.get("account").to_owned(),
            key: query.get("key").to_owned(),
            token: query.get("token").to_owned(),
        },
    )
}

/// Signs in with a one-time link.
pub async fn with_link(State(app): State<Arc<App>>, request: Request) -> Answer {
    let address = client(request.extensions());
    if let Some(refusal) = too_many(&app, address) {
        return Ok(refusal);
    }
    let form = Form::from_request(request, &()).await?;
    let [account, key, token] = ["account", "key", "token"].map(|name| form.text(name));
    if !ids::is_object_name(account) || !ids::is_object_name(key) || token.len() > MAX_KEY {
        let incomplete = Error::new(ErrorCode::Unauthorized, "this link is not complete");
        return Ok(refused(&app, &incomplete));
    }
    attempt(&app, address, app.service.use_console_link(account, key, token)).await
}

/// Signs out.
pub async fn out(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if let Ok(seal) = app.seal().await
        && let Some(session) = app.cookies.session(&headers, seal, app.service.now())
        && let Ok(credential) = session.credential(app.service.credentials(), app.service.now())
        && let Err(error) = app.service.end_sign_in(&credential).await
    {
        tracing::warn!(%error, key = credential.key_name(), "cannot revoke the key of a session that has ended");
    }
    let mut response = see_other("/console/sign-in?out=1");
    if let Some(cookie) = app.cookies.end() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// Starts a session. The next page finds out whether the browser has kept the cookie.
async fn begin(app: &App, credential: &Credential, address: IpAddr) -> Answer {
    begin_with(app, credential, address, see_other("/console/welcome")).await
}

/// Starts a session with this answer, which leads to the next page.
pub async fn begin_with(
    app: &App,
    credential: &Credential,
    address: IpAddr,
    mut response: Response,
) -> Answer {
    let now = app.service.now();
    let session = Session::begin(credential, now);
    let cookie = app.cookies.keep(&session, app.seal().await?, now);
    response
        .headers_mut()
        .append(header::SET_COOKIE, cookie.ok_or_else(Refusal::fault)?);
    let mut entry = audit::Entry {
        client: Some(address),
        operation: "sign-in".to_owned(),
        status: response.status().as_u16(),
        ..audit::Entry::default()
    };
    credential.sign(&mut entry);
    entry.record();
    Ok(response)
}

/// The page for signing in, saying why an attempt has failed.
pub fn refused(app: &App, error: &Error) -> Response {
    let status = match error.code {
        ErrorCode::Unauthorized => StatusCode::UNAUTHORIZED,
        ErrorCode::Forbidden => StatusCode::FORBIDDEN,
        ErrorCode::Conflict => StatusCode::CONFLICT,
        ErrorCode::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    problem(app, status, sentence(&error.message))
}

/// The page for signing in, with a problem.
pub fn problem(app: &App, status: StatusCode, message: String) -> Response {
    page(status, &SignIn::new(app, None, Some(message)))
}

/// Refuses an address that has failed too often.
pub fn too_many(app: &App, address: IpAddr) -> Option<Response> {
    let seconds = app.attempts.wait(address, app.service.now())?;
    Some(wait(app, seconds))
}

/// The page that says how long to wait.
pub fn wait(app: &App, seconds: u64) -> Response {
    let message = format!("Too many attempts have failed. Try again in {seconds} s.");
    let mut response = problem(app, StatusCode::TOO_MANY_REQUESTS, message);
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(header::RETRY_AFTER, seconds.into());
    response
}
