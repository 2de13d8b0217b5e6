//! API keys: list, create, revoke.

use std::sync::Arc;

use askama::Template;
use axum::{Router, routing::get};
use http::{Method, StatusCode};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    App,
    call::{Call, Id},
    form::Form,
    page::{Pager, Shell, Shown, page},
    refusal::Answer,
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{KeyScope, NewKey, Seconds, Single};

const SECTION: &str = "keys";
/// Maximum life of a key that can be entered, in days.
const MAX_DAYS: i64 = 3650;
/// Seconds in a day.
const DAY: i64 = 86_400;

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/console/keys", get(list).post(create))
        .route("/console/keys/{id}/revoke", get(show_revoke).post(revoke))
}

/// An API key, without the key itself.
type Key = Shown<api::Key>;

impl Key {
    /// How the key came about, if nobody asked for one. Nobody knows such a key itself.
    fn origin(&self) -> Option<&'static str> {
        match self.id.split_once('-')?.0 {
            "console" => Some("made for a sign-in link; revoking it ends the session"),
            "signin" => Some("made by a sign-in; revoking it ends the session"),
            _ => None,
        }
    }

    fn has_expired(&self, now: &Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end.0 <= *now)
    }
}

#[derive(Template)]
#[template(path = "console/keys/list.html")]
struct ListPage {
    shell: Shell,
    items: Vec<Key>,
    pager: Pager,
    form: Form,
    /// The key of this session.
    own: String,
    now: Timestamp,
}

fn create_call(request: &SessionRequest, form: &Form) -> Call {
    let mut body = json!({ "scope": form.value("scope") });
    let name = form.text("name");
    if !name.is_empty() {
        body["name"] = json!(name);
    }
    if let Ok(days) = form.text("days").parse::<i64>()
        && let Some(life) = SignedDuration::try_from_hours(days.clamp(0, MAX_DAYS) * 24)
        && let Ok(end) = request.now().checked_add(life)
        // The end of that day, so that a second submission of the form asks for the same.
        && let Ok(end) = jiff::Timestamp::from_second((end.as_second() / DAY + 1) * DAY)
    {
        body["expires_at"] = json!(end.to_string());
    }
    Call::with(Method::POST, "/v1/keys", body).once(form.key())
}

async fn shown(request: SessionRequest, status: StatusCode, form: Form) -> Answer {
    let (call, items, pager) = request.list("keys", &[], None).await?;
    let mut calls = vec![call];
    if request.may_write() {
        calls.push(create_call(&request, &form));
    }
    let template = ListPage {
        shell: request.shell_with(SECTION, "API keys", &calls),
        own: request.key_name().to_owned(),
        now: request.now(),
        items,
        pager,
        form,
    };
    Ok(page(status, &template))
}

async fn list(request: SessionRequest) -> Answer {
    let form = Form::new().with("scope", "read").with("days", "90");
    shown(request, StatusCode::OK, form).await
}

#[derive(Template)]
#[template(path = "console/keys/created.html")]
struct CreatedPage {
    shell: Shell,
    id: String,
    scope: KeyScope,
    /// The key itself; `None` if it has been shown before.
    key: Option<String>,
    expires_at: Option<Seconds>,
}

async fn create(request: SessionRequest, mut form: Form) -> Answer {
    let days = form.text("days");
    let is_number = days
        .parse::<i64>()
        .is_ok_and(|days| (1..=MAX_DAYS).contains(&days));
    if !days.is_empty() && !is_number {
        form.mark("days", "must be a number of days from 1 to 3650, or empty");
        return shown(request, StatusCode::UNPROCESSABLE_ENTITY, form).await;
    }
    let call = create_call(&request, &form);
    match request.get::<Single<NewKey>>(&call).await {
        Ok(created) => {
            let NewKey {
                id,
                key,
                scope,
                expires_at,
                ..
            } = created.data;
            let template = CreatedPage {
                shell: request.shell_with(
                    SECTION,
                    "API key created",
                    &[call, Call::get(format!("/v1/keys/{id}"))],
                ),
                id,
                scope,
                key,
                expires_at,
            };
            Ok(page(StatusCode::CREATED, &template))
        }
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            shown(request, status, form).await
        }
    }
}

#[derive(Template)]
#[template(path = "console/keys/revoke.html")]
struct RevokePage {
    shell: Shell,
    key: Key,
    is_own: bool,
}

async fn show_revoke(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let found: Single<Key> = request.get(&Call::get(format!("/v1/keys/{id}"))).await?;
    let template = RevokePage {
        shell: request.shell_with(
            SECTION,
            "Revoke API key",
            &[Call::delete(format!("/v1/keys/{id}"))],
        ),
        is_own: found.data.id == request.key_name(),
        key: found.data,
    };
    Ok(page(StatusCode::OK, &template))
}

async fn revoke(request: SessionRequest, Id(id): Id) -> Answer {
    request.send(&Call::delete(format!("/v1/keys/{id}"))).await?;
    let note = format!("The API key {id} is revoked; it stops working within a second.");
    Ok(request.done("/console/keys", &note).await)
}
