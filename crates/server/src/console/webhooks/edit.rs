//! The form for creating a webhook, and for changing one.

use askama::Template;
use axum::response::Response;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{Kind, SECTION, kinds, view::Webhook};
use crate::console::{
    call::{Call, Id},
    form::{Field, Form},
    page::{Shell, page},
    refusal::{Answer, Refusal},
    session_request::SessionRequest,
    text::Moment as _,
};
use api::{Single, WebhookWithSecret};
use domain::event::EventType;

#[derive(Template)]
#[template(path = "console/webhooks/edit.html")]
struct EditPage {
    shell: Shell,
    form: Form,
    kinds: Vec<Kind>,
    /// The webhook to change; `None` for a new one.
    id: Option<String>,
}

#[derive(Template)]
#[template(path = "console/webhooks/secret.html")]
pub(super) struct SecretPage {
    pub(super) shell: Shell,
    pub(super) webhook: WebhookWithSecret,
    pub(super) heading: &'static str,
    pub(super) message: String,
}

/// The body of a request with the fields of a form. A new webhook may have a secret, and may be switched off.
fn body(form: &Form, is_new: bool) -> Value {
    let mut body = Map::new();
    body.insert("url".to_owned(), json!(form.text("url")));
    let description = form.text("description");
    if !is_new || !description.is_empty() {
        body.insert("description".to_owned(), json!(description));
    }
    let events = if form.has("all", "true") {
        EventType::ALL.map(EventType::as_str).to_vec()
    } else {
        form.all("events").collect()
    };
    body.insert("events".to_owned(), json!(events));
    let secret = form.value("secret");
    if is_new && !secret.is_empty() {
        body.insert("secret".to_owned(), json!(secret));
    }
    if is_new && form.has("off", "true") {
        body.insert("active".to_owned(), json!(false));
    }
    Value::Object(body)
}

fn create_call(form: &Form) -> Call {
    Call::with(Method::POST, "/v1/webhooks", body(form, true)).once(form.key())
}

fn change_call(id: &str, form: &Form) -> Call {
    let call = Call::with(Method::PATCH, format!("/v1/webhooks/{id}"), body(form, false));
    call.if_match(form.version())
}

/// The call as pages show it: without a secret.
pub(super) fn shown(mut call: Call) -> Call {
    if let Some(secret) = call.body.as_mut().and_then(|body| body.get_mut("secret")) {
        *secret = json!("YOUR SECRET");
    }
    call
}

fn filled(request: &SessionRequest, status: StatusCode, id: Option<String>, form: Form) -> Response {
    let (title, call) = match &id {
        Some(id) => ("Change webhook", change_call(id, &form)),
        None => ("New webhook", shown(create_call(&form))),
    };
    let template = EditPage {
        shell: request.shell_with(SECTION, title, &[call]),
        form,
        kinds: kinds(),
        id,
    };
    page(status, &template)
}

/// Shows the form for a new webhook.
pub async fn show_new(request: SessionRequest) -> Answer {
    request.check_may_write()?;
    Ok(filled(&request, StatusCode::OK, None, Form::new()))
}

/// Creates a webhook, and shows its secret.
pub async fn create(request: SessionRequest, mut form: Form) -> Answer {
    let call = create_call(&form);
    match request.get::<Single<WebhookWithSecret>>(&call).await {
        Ok(created) => {
            let message = if created.data.active {
                "It gets the events that happen from now on."
            } else {
                "It is switched off: events are not recorded for it."
            };
            let template = SecretPage {
                shell: request.shell_with(
                    SECTION,
                    "Webhook created",
                    &[
                        shown(call),
                        Call::get(format!("/v1/webhooks/{}", created.data.id)),
                    ],
                ),
                webhook: created.data,
                heading: "Webhook created",
                message: [Some(message.to_owned()), created.message]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(" "),
            };
            Ok(page(StatusCode::CREATED, &template))
        }
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            Ok(filled(&request, status, None, form))
        }
    }
}

/// The fields that can be changed.
const FIELDS: [Field; 4] = [
    Field {
        name: "url",
        label: "URL of the receiver",
        is_choice: false,
    },
    Field {
        name: "description",
        label: "Description",
        is_choice: false,
    },
    Field {
        name: "events",
        label: "Events",
        is_choice: true,
    },
    Field {
        name: "all",
        label: "All events",
        is_choice: true,
    },
];

/// The form with the current values of a webhook, and its version.
async fn current(request: &SessionRequest, id: &str) -> Result<(Form, String), Refusal> {
    let call = Call::get(format!("/v1/webhooks/{id}"));
    let (found, version): (Single<Webhook>, _) = request.get_version(&call).await?;
    let description = found.data.description.as_deref().unwrap_or_default();
    let mut form = Form::default()
        .with("url", &found.data.url)
        .with("description", description);
    for event in &found.data.events {
        form = form.with("events", event.as_str());
    }
    Ok((form, version))
}

/// Shows the form for changes.
pub async fn show_edit(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let (form, version) = current(&request, &id).await?;
    let form = form.remembering(&version);
    Ok(filled(&request, StatusCode::OK, Some(id), form))
}

/// Changes a webhook, unless somebody else has changed it since the form was opened.
pub async fn change(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let call = |form: &Form| change_call(&id, form);
    let sent = request
        .save(&mut form, &FIELDS, call, async || current(&request, &id).await)
        .await;
    match sent {
        Ok(_) => Ok(request
            .done(&format!("/console/webhooks/{id}"), "The changes are saved.")
            .await),
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            Ok(filled(&request, status, Some(id), form))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_sent_but_not_shown() {
        let form = Form::parse(
            "url=+https%3A%2F%2Fa.example&events=instance.created&events=instance.deleted&secret=s3",
        );
        let expected = json!({
            "url": "https://a.example", "events": ["instance.created", "instance.deleted"], "secret": "s3",
        });
        assert_eq!(create_call(&form).body, Some(expected));
        let command = shown(create_call(&form)).curl("https://b.example");
        assert!(command.contains("YOUR SECRET") && !command.contains("s3"));
        let off = Form::parse("url=https%3A%2F%2Fa.example&off=true");
        assert_eq!(create_call(&off).body.unwrap()["active"], json!(false));
        assert!(change_call("wh_1", &form).body.unwrap().get("secret").is_none());
        let all = Form::parse("url=https%3A%2F%2Fa.example&events=instance.created&all=true");
        let body = create_call(&all).body.unwrap();
        assert_eq!(body["events"].as_array().unwrap().len(), EventType::ALL.len());
    }
}
