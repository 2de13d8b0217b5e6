//! Signing in through an OpenID Connect provider.

use std::{fmt::Display, net::IpAddr, sync::Arc};

use askama::Template;
use axum::{
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{StatusCode, header};

use super::{
    App, client,
    oidc::{Failure, Flow, Person, Provider},
    page::{Query, Shell, page, see_other},
    refusal::{Answer, Refusal},
    sign_in::{begin_with, problem, refused, too_many, wait},
};
use crate::service::{
    credentials::{Credential, Tenant},
    error::{Error, ErrorCode},
};

/// Maximum length of the provider's error code that is shown.
const MAX_ERROR: usize = 64;
/// Maximum length of what a browser or the provider says in the log, in characters.
const MAX_LOGGED: usize = 512;

/// The page after a sign-in, which goes on to the next page by itself. It is not a redirect, because a browser that was redirected here
/// from the provider would not send the session's cookie, which is `SameSite=Strict`, after another redirect.
#[derive(Template)]
#[template(path = "console/signed_in.html")]
struct SignedIn {
    shell: Shell,
}

/// Sends the browser to the provider.
pub async fn start(State(app): State<Arc<App>>, request: Request) -> Answer {
    let provider = app.provider.as_ref().ok_or_else(Refusal::no_such_page)?;
    if let Some(refusal) = too_many(&app, client(request.extensions())) {
        return Ok(refusal);
    }
    let flow = Flow::begin(app.service.now());
    let cookie = app.cookies.begin_flow(&flow, app.seal().await?);
    match provider.authorization_url(&flow).await {
        Ok(url) => {
            let mut response = see_other(url.as_str());
            response
                .headers_mut()
                .append(header::SET_COOKIE, cookie.ok_or_else(Refusal::fault)?);
            Ok(response)
        }
        Err(failure) => {
            let reason = logged(&failure);
            tracing::warn!(reason, "nobody can sign in to the console through OpenID Connect");
            Ok(SignInFailure::Failed(failure).page(&app, provider))
        }
    }
}

/// Answers the browser that comes back from the provider.
pub async fn callback(State(app): State<Arc<App>>, request: Request) -> Answer {
    let provider = app.provider.as_ref().ok_or_else(Refusal::no_such_page)?;
    let address = client(request.extensions());
    if let Some(refusal) = too_many(&app, address) {
        return Ok(refusal);
    }
    let seal = app.seal().await?;
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let flow = app.cookies.flow(request.headers(), seal, app.service.now());
    drop(request);
    let mut response = match finish(&app, provider, address, &query, flow.as_ref()).await {
        Ok(credential) => {
            let shell = Shell::bare("Signed in");
            let next = page(StatusCode::OK, &SignedIn { shell });
            begin_with(&app, &credential, address, next).await
        }
        Err(problem) => {
            problem.log();
            Ok(problem.page(&app, provider))
        }
    }
    .unwrap_or_else(Refusal::into_response);
    // The code works only once, and so does this cookie.
    if let Some(cookie) = app.cookies.end_flow() {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

async fn finish(
    app: &App,
    provider: &Provider,
    address: IpAddr,
    query: &Query,
    flow: Option<&Flow>,
) -> Result<Credential, SignInFailure> {
    let flow = flow
        .filter(|flow| query.is("state", &flow.state))
        .ok_or(SignInFailure::Stale)?;
    provider.check_sender(query.get("iss")).await?;
    if query.has_any(&["error"]) {
        return Err(SignInFailure::Denied(query.get("error").to_owned()));
    }
    // From here on it counts, whatever the outcome: the request to the provider carries the client's secret. What comes before, any page
    // can make a browser do.
    let attempt = app
        .attempts
        .begin(address, app.service.now())
        .map_err(SignInFailure::TooMany)?;
    let signed_in = async {
        let person = provider.redeem(query.get("code"), flow).await?;
        let subject = logged(&person.subject);
        let tenant = account_of(app, person)?;
        let mut credential = app.service.begin_sign_in(&tenant).await?;
        credential.subject = Some(subject.into());
        Ok(credential)
    };
    let signed_in: Result<_, SignInFailure> = signed_in.await;
    // An outage is nobody's attempt.
    if matches!(
        signed_in,
        Ok(_) | Err(SignInFailure::Failed(Failure::Unavailable(_)) | SignInFailure::Service(_))
    ) {
        attempt.take_back();
    }
    signed_in
}

/// What somebody else has said, as the log may have it: not long, on one line.
fn logged(text: impl Display) -> String {
    let text = text.to_string();
    let mut cut = String::new();
    for character in text.chars().take(MAX_LOGGED) {
        if character.is_control() {
            cut.extend(character.escape_default());
        } else {
            cut.push(character);
        }
    }
    if text.chars().nth(MAX_LOGGED).is_some() {
        cut.push('…');
    }
    cut
}

/// The one account with this person's e-mail address.
fn account_of(app: &App, person: Person) -> Result<Arc<Tenant>, SignInFailure> {
    let email = person.email.ok_or(SignInFailure::Unverified)?;
    if !person.is_verified {
        return Err(SignInFailure::Unverified);
    }
    let mut accounts = app.service.credentials().accounts_with_email(&email)?;
    match (accounts.pop(), accounts.is_empty()) {
        (Some(account), true) => Ok(account),
        (Some(_), false) => Err(SignInFailure::SeveralAccounts(email)),
        (None, _) => Err(SignInFailure::NoAccount(email)),
    }
}

/// Why a sign-in fails.
enum SignInFailure {
    /// This browser did not start it, or did so too long ago.
    Stale,
    /// The provider refused it, with an error code.
    Denied(String),
    /// The provider cannot be reached, or its answer cannot be trusted.
    Failed(Failure),
    /// Too many attempts have failed; how many seconds to wait.
    TooMany(u64),
    /// The provider knows no e-mail address, or has not verified it.
    Unverified,
    /// No account has the e-mail address.
    NoAccount(String),
    /// More than one account has it.
    SeveralAccounts(String),
    /// The session cannot be started.
    Service(Error),
}

impl From<Failure> for SignInFailure {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for SignInFailure {
    fn from(error: Error) -> Self {
        Self::Service(error)
    }
}

impl SignInFailure {
    fn log(&self) {
        match self {
            Self::Failed(failure) => {
                let reason = logged(failure);
                tracing::warn!(
                    reason,
                    "a sign-in to the console through OpenID Connect has failed"
                );
            }
            Self::Denied(error) if error != "access_denied" => {
                let error = logged(error);
                tracing::warn!(error, "the OpenID Connect provider has refused a sign-in");
            }
            Self::Service(error) => {
                tracing::warn!(%error, "a session cannot be begun after a sign-in through OpenID Connect");
            }
            Self::SeveralAccounts(_) => {
                tracing::warn!("more than one account has the e-mail address of a sign-in");
            }
            _ => {}
        }
    }

    fn page(&self, app: &App, provider: &Provider) -> Response {
        let name = provider.name();
        let (status, message) = match self {
            Self::Stale => (
                StatusCode::BAD_REQUEST,
                "This sign-in was not begun in this browser, or more than ten minutes ago. Begin again."
                    .to_owned(),
            ),
            Self::Denied(error) if error == "access_denied" => (
                StatusCode::FORBIDDEN,
                format!(
                    "{name} has not let you in, or you have cancelled. Begin again, or sign in with an API key."
                ),
            ),
            Self::Denied(error) => {
                let is_code = error.len() <= MAX_ERROR
                    && error
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                let code = if is_code { error } else { "unknown" };
                (
                    StatusCode::BAD_GATEWAY,
                    format!(
                        "{name} has refused the sign-in with the error {code}. Tell whoever runs this cloud."
                    ),
                )
            }
            Self::TooMany(seconds) => return wait(app, *seconds),
            Self::Failed(Failure::Unavailable(_)) => (
                StatusCode::SERVICE_UNAVAILABLE,
                format!("{name} cannot be used at the moment. Try again later, or sign in with an API key."),
            ),
            Self::Failed(Failure::Refused(_)) => (
                StatusCode::UNAUTHORIZED,
                format!("The answer of {name} is not valid. Begin again."),
            ),
            Self::Unverified => (
                StatusCode::FORBIDDEN,
                format!("{name} has not verified your e-mail address. Verify it there, then begin again."),
            ),
            Self::NoAccount(email) => (
                StatusCode::FORBIDDEN,
                format!(
                    "No account has the e-mail address {email}. Ask whoever runs this cloud to set it in yours, or sign in with an API key."
                ),
            ),
            Self::SeveralAccounts(email) => (
                StatusCode::FORBIDDEN,
                format!(
                    "More than one account has the e-mail address {email}, so this sign-in cannot tell which. Sign in with an API key of the account."
                ),
            ),
            Self::Service(error) if error.code == ErrorCode::Unauthorized => {
                // The new key was revoked at once.
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "The session has ended already. Begin again.".to_owned(),
                )
            }
            Self::Service(error) => return refused(app, error),
        };
        problem(app, status, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_browser_says_is_cut_and_escaped_before_it_is_logged() {
        assert_eq!(logged("server_error"), "server_error");
        assert_eq!(logged("a\nb\u{1b}[2J"), "a\\nb\\u{1b}[2J");
        let long = logged("é".repeat(30_000));
        assert_eq!(long, format!("{}…", "é".repeat(MAX_LOGGED)));
    }
}
