//! Records in the status of a webhook what its account holder was told.

use jiff::Timestamp;
use kube::{Api, Client};

use super::FIELD_MANAGER;
use resources::{Webhook, WebhookStatus};
use runtime::client::{CallError, bounded, replace_status};

/// When a mail was sent, or why it could not be sent yet.
pub(super) type Sent = Result<Timestamp, String>;

/// Records the outcome of a mail about this version of a webhook, whatever has become of the webhook since. Returns whether there
/// was anything to write.
pub(super) async fn record(client: &Client, told: &Webhook, sent: &Sent) -> Result<bool, CallError> {
    let namespace = told.metadata.namespace.as_deref().unwrap_or_default();
    let api: Api<Webhook> = Api::namespaced(client.clone(), namespace);
    let mut read = None;
    loop {
        let current = read.as_ref().unwrap_or(told);
        let status = with(current.status.as_ref(), told, sent);
        if current.metadata.uid != told.metadata.uid || current.status.as_ref() == Some(&status) {
            return Ok(false);
        }
        match bounded(replace_status(client, current, &status, FIELD_MANAGER)).await {
            Ok(_) => return Ok(true),
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) if error.is_conflict() => {
                let name = told.metadata.name.as_deref().unwrap_or_default();
                match bounded(api.get_opt(name)).await? {
                    Some(found) => read = Some(found),
                    None => return Ok(false),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// The status with the outcome of a mail about what was `told`.
fn with(status: Option<&WebhookStatus>, told: &Webhook, sent: &Sent) -> WebhookStatus {
    let mut status = status.cloned().unwrap_or_default();
    let note = |notified_at: &mut Option<Timestamp>, error: &mut Option<String>| {
        if notified_at.is_none() {
            *notified_at = sent.as_ref().ok().copied();
            *error = sent.as_ref().err().cloned();
        }
    };
    let disabled_at = told.untold().map(|disabled| disabled.at);
    // It may have been enabled in the meantime.
    for disabled in [&mut status.disabled, &mut status.unnotified]
        .into_iter()
        .flatten()
    {
        if Some(disabled.at) == disabled_at {
            note(&mut disabled.notified_at, &mut disabled.notification_error);
        }
    }
    status.unnotified.take_if(|ended| ended.notified_at.is_some());
    let since = told.untold_backlog().map(|backlog| backlog.since);
    if let Some(backlog) = status
        .backlog
        .as_mut()
        .filter(|backlog| Some(backlog.since) == since)
    {
        note(&mut backlog.notified_at, &mut backlog.notification_error);
    }
    status.notified_at = status.notified_at.max(sent.as_ref().ok().copied());
    status
}
