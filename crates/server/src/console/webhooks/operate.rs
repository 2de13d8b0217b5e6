//! The actions on a webhook.

use askama::Template;
use http::{Method, StatusCode};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::{
    SECTION,
    edit::{SecretPage, shown},
    view::{Delivery, Webhook},
    webhook,
};
use crate::console::{
    call::{Call, Id},
    form::Form,
    page::{Shell, page},
    refusal::Answer,
    session_request::SessionRequest,
};
use api::{Single, WebhookWithSecret};

/// Sends a test event, and shows its delivery.
pub async fn test(request: SessionRequest, Id(id): Id, form: Form) -> Answer {
    let kind = form.text("type");
    let body = if kind.is_empty() {
        json!({})
    } else {
        json!({ "type": kind })
    };
    let call = Call::with(Method::POST, format!("/v1/webhooks/{id}/test"), body).once(form.key());
    let sent: Single<Delivery> = request.get(&call).await?;
    let path = format!("/console/webhooks/{id}/deliveries/{}", sent.data.id);
    Ok(request.done(&path, &sent.message.unwrap_or_default()).await)
}

/// The request that switches a webhook on or off.
pub fn switch_call(id: &str, on: bool) -> Call {
    let body = json!({ "active": on });
    Call::with(Method::PATCH, format!("/v1/webhooks/{id}"), body)
}

/// Switches a webhook on or off; on also enables one that was disabled.
pub async fn switch(request: SessionRequest, Id(id): Id, form: Form) -> Answer {
    let on = form.has("active", "true");
    let before = webhook(&request, &id).await?;
    request.send(&switch_call(&id, on)).await?;
    let path = format!("/console/webhooks/{id}");
    // Nothing is held for a webhook that was switched off.
    if on && before.disabled.is_some() {
        let note = "The webhook is enabled. What was held meanwhile is sent now, in the order of the events.";
        return Ok(request.done(&path, note).await);
    }
    let note = if on {
        "The webhook is on. It gets the events that happen from now on."
    } else {
        "The webhook is off. Events that happen from now on are not recorded for it."
    };
    Ok(request.done(&path, note).await)
}

#[derive(Template)]
#[template(path = "console/webhooks/switch.html")]
struct SwitchPage {
    shell: Shell,
    webhook: Webhook,
}

/// Asks whether to switch a webhook off.
pub async fn show_switch(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let webhook = webhook(&request, &id).await?;
    let template = SwitchPage {
        shell: request.shell_with(SECTION, "Switch off", &[switch_call(&id, false)]),
        webhook,
    };
    Ok(page(StatusCode::OK, &template))
}

#[derive(Template)]
#[template(path = "console/webhooks/rotate.html")]
struct RotatePage {
    shell: Shell,
    webhook: Webhook,
    form: Form,
}

fn rotate_call(id: &str, form: &Form) -> Call {
    let mut body = json!({});
    if let Ok(hours) = form.text("overlap").parse::<u32>() {
        body["overlap_seconds"] = json!(u64::from(hours) * 3600);
    }
    let secret = form.value("secret");
    if !secret.is_empty() {
        body["secret"] = json!(secret);
    }
    Call::with(Method::POST, format!("/v1/webhooks/{id}/rotate-secret"), body).once(form.key())
}

async fn rotate_page(request: &SessionRequest, status: StatusCode, id: &str, form: Form) -> Answer {
    let webhook = webhook(request, id).await?;
    let call = shown(rotate_call(id, &form));
    let template = RotatePage {
        shell: request.shell_with(SECTION, "Rotate the secret", &[call]),
        webhook,
        form,
    };
    Ok(page(status, &template))
}

/// Shows the form for a new secret.
pub async fn show_rotate(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let form = Form::new().with("overlap", "24");
    rotate_page(&request, StatusCode::OK, &id, form).await
}

/// Rotates the secret, and shows the new one.
pub async fn rotate(request: SessionRequest, Id(id): Id, mut form: Form) -> Answer {
    let call = rotate_call(&id, &form);
    match request.get::<Single<WebhookWithSecret>>(&call).await {
        Ok(rotated) => {
            let template = SecretPage {
                shell: request.shell_with(SECTION, "New secret", &[shown(call)]),
                webhook: rotated.data,
                heading: "New secret",
                message: rotated.message.unwrap_or_default(),
            };
            Ok(page(StatusCode::OK, &template))
        }
        Err(refusal) => {
            let status = request.refused(refusal, &mut form)?;
            rotate_page(&request, status, &id, form).await
        }
    }
}

#[derive(Template)]
#[template(path = "console/webhooks/resend.html")]
struct ResendPage {
    shell: Shell,
    webhook: Webhook,
    form: Form,
}

fn resend_call(request: &SessionRequest, id: &str, form: &Form) -> Call {
    let hours: Option<i64> = form.text("hours").parse().ok();
    let since = hours.and_then(|hours| {
        let hours = SignedDuration::try_from_hours(hours.clamp(0, 24 * 365))?;
        request.now().checked_sub(hours).ok()
    });
    // Whole minutes, so that a second submission of the form asks for the same.
    let since = since.and_then(|at| jiff::Timestamp::from_second(at.as_second() / 60 * 60).ok());
    let body = since.map_or_else(|| json!({}), |since| json!({ "since": since.to_string() }));
    Call::with(Method::POST, format!("/v1/webhooks/{id}/recover"), body).once(form.key())
}

/// Shows the form that sends exhausted deliveries again.
pub async fn show_resend(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let webhook = webhook(&request, &id).await?;
    let form = Form::new().with("hours", "24");
    let call = resend_call(&request, &id, &form);
    let template = ResendPage {
        shell: request.shell_with(SECTION, "Send exhausted deliveries again", &[call]),
        webhook,
        form,
    };
    Ok(page(StatusCode::OK, &template))
}

/// Sends exhausted deliveries again.
pub async fn resend(request: SessionRequest, Id(id): Id, form: Form) -> Answer {
    let call = resend_call(&request, &id, &form);
    told(&request, &id, &call).await
}

/// Sends all pending deliveries now.
pub async fn retry(request: SessionRequest, Id(id): Id, form: Form) -> Answer {
    let call = Call::post(format!("/v1/webhooks/{id}/deliveries/retry")).once(form.key());
    told(&request, &id, &call).await
}

async fn told(request: &SessionRequest, id: &str, call: &Call) -> Answer {
    let answered: Single<Value> = request.get(call).await?;
    let note = answered.message.unwrap_or_default();
    Ok(request.done(&format!("/console/webhooks/{id}"), &note).await)
}

#[derive(Template)]
#[template(path = "console/webhooks/delete.html")]
struct DeletePage {
    shell: Shell,
    webhook: Webhook,
}

/// Asks whether to delete a webhook.
pub async fn show_delete(request: SessionRequest, Id(id): Id) -> Answer {
    request.check_may_write()?;
    let webhook = webhook(&request, &id).await?;
    let call = Call::delete(format!("/v1/webhooks/{id}"));
    let template = DeletePage {
        shell: request.shell_with(SECTION, "Delete webhook", &[call]),
        webhook,
    };
    Ok(page(StatusCode::OK, &template))
}

/// Deletes a webhook.
pub async fn delete(request: SessionRequest, Id(id): Id) -> Answer {
    request.send(&Call::delete(format!("/v1/webhooks/{id}"))).await?;
    Ok(request.done("/console/webhooks", "The webhook is deleted.").await)
}
