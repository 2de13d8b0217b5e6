//! `stellage webhook …`: test and enable webhooks, rotate their secrets.

mod rotate;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::Value;

use self::rotate::RotateArgs;
use super::{
    CliError,
    change::change,
    connect::Cluster,
    delivery,
    objects::{self, InNamespace},
    output::Output,
    program::program,
    wait::{self, Progress, Waiting},
};
use api::ChangeWebhook;
use domain::{
    event::EventType,
    webhook::{changed_spec, example, example_type},
};
use resources::{
    Webhook,
    conditions::{READY, find},
    ids, merge_patch,
};
use runtime::kubeconfig::ClusterArgs;

/// Test and enable webhooks, and rotate their secrets.
///
/// Each command uses your kubectl rights. `kubectl get webhooks` and `kubectl describe webhook` show webhooks.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Send a test event, once; also works on a disabled webhook
    #[command(after_help = TEST)]
    Test(TestArgs),
    /// Enable a webhook that was disabled or is not active
    #[command(after_help = ENABLE)]
    Enable(EnableArgs),
    /// Replace the signing secret and print the new one; it is shown only once
    #[command(after_help = rotate::EXAMPLES)]
    RotateSecret(RotateArgs),
}

const TEST: &str = "\
Examples:
  stellage webhook test orders -n ada --wait
  stellage webhook test orders -n ada --type instance.created --wait";
const ENABLE: &str = "\
Example:
  stellage webhook enable orders -n ada --wait";

/// Send a test event.
#[derive(Args, Debug)]
pub struct TestArgs {
    /// Name or id of the webhook
    #[arg(value_parser = objects::name)]
    name: String,

    #[command(flatten)]
    place: InNamespace,

    /// Type of the event, one of the webhook's types [default: its first]
    #[arg(long = "type", value_name = "TYPE", value_enum)]
    event_type: Option<EventType>,

    #[command(flatten)]
    waiting: Waiting,

    /// Output format: text, or json for the delivery
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Enable a webhook.
#[derive(Args, Debug)]
pub struct EnableArgs {
    /// Name or id of the webhook
    #[arg(value_parser = objects::name)]
    name: String,

    #[command(flatten)]
    place: InNamespace,

    #[command(flatten)]
    waiting: Waiting,

    /// Output format: text, or json for the object
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

pub(super) async fn run(command: WebhookCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let cluster = Cluster::of(which).await?;
    match command {
        WebhookCommand::Test(args) => test(&cluster, &args).await,
        WebhookCommand::Enable(args) => enable(&cluster, &args).await,
        WebhookCommand::RotateSecret(args) => rotate::rotate(&cluster, &args).await,
    }
}

async fn test(cluster: &Cluster, args: &TestArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let webhook: Webhook = objects::find(cluster, namespace, &args.name).await?;
    let name = webhook.name_any();
    let event_type =
        example_type(&webhook, args.event_type).map_err(|_| unsuitable_test(&webhook, namespace))?;
    let event_id = format!("evt_test_{}", ids::random_suffix());
    let example = example(&webhook, &event_id, event_type, Timestamp::now());
    let api = Api::namespaced(cluster.client.clone(), namespace);
    let doing = format!("create a delivery for webhook {name} in namespace {namespace}");
    let sent = cluster
        .call(&doing, api.create(&PostParams::default(), &example))
        .await?;
    let begun = format!(
        "a test event of type {event_type} is being sent to {}",
        webhook.spec.url
    );
    delivery::finish(cluster, sent, args.waiting, args.output, &begun).await
}

/// The error if a webhook cannot be tested: the reason and the fix.
fn unsuitable_test(webhook: &Webhook, namespace: &str) -> CliError {
    let name = webhook.name_any();
    if webhook.spec.active {
        let types: Vec<_> = webhook.spec.events.iter().map(|event| event.as_str()).collect();
        return CliError::WrongState {
            what: format!("webhook {name}"),
            why: "does not subscribe to this event type".to_owned(),
            fix: format!("--type must be one of its types: {}.", types.join(", ")),
        };
    }
    CliError::WrongState {
        what: format!("webhook {name}"),
        why: "is not active, so nothing is sent to it".to_owned(),
        fix: format!(
            "Enable it first: {} webhook enable {name} -n {namespace}",
            program()
        ),
    }
}

async fn enable(cluster: &Cluster, args: &EnableArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let decide = |webhook: &Webhook| Ok(enabling(webhook, Timestamp::now()));
    let mut webhook = change(cluster, namespace, &args.name, "enable", decide).await?;
    if args.waiting.wait {
        let api = Api::namespaced(cluster.client.clone(), namespace);
        webhook = wait::until_done(api, webhook, args.waiting.timeout, enabled).await?;
    }
    let text = format!("webhook {} is enabled", webhook.name_any());
    objects::print(webhook, &text, args.output)
}

/// The patch that enables a webhook; `None` if it is enabled already.
fn enabling(webhook: &Webhook, now: Timestamp) -> Option<Value> {
    let on = ChangeWebhook {
        active: Some(true),
        ..ChangeWebhook::default()
    };
    let spec = changed_spec(&on, webhook, now);
    merge_patch(&webhook.metadata, &webhook.spec, &spec, &[])
}

/// A webhook that nothing can be sent to stays so until somebody changes it, or its Secret.
fn enabled(webhook: &Webhook) -> Progress {
    let status = webhook.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, READY);
    let is_final = ready.is_some_and(|ready| ready.status == "False");
    Progress::of(
        webhook,
        status.observed_generation,
        &status.conditions,
        READY,
        is_final,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::testing;

    fn webhook(observed: i64, ready: &str) -> Webhook {
        testing::webhook(json!({
            "metadata": { "namespace": "ada", "generation": 3 },
            "status": { "observedGeneration": observed, "conditions": [{
                "type": "Ready", "status": ready, "reason": "Reason", "message": "m",
                "lastTransitionTime": "2026-11-21T10:00:00Z",
            }]},
        }))
    }

    #[test]
    fn a_webhook_is_enabled_once_the_status_of_the_current_spec_says_so() {
        assert_eq!(enabled(&webhook(3, "True")), Progress::Done);
        assert!(matches!(enabled(&webhook(2, "True")), Progress::Pending(_)));
        assert!(matches!(enabled(&webhook(3, "Unknown")), Progress::Pending(_)));
        assert_eq!(
            enabled(&webhook(3, "False")),
            Progress::Failed("is not ready: Reason: m".to_owned())
        );
    }

    #[test]
    fn a_test_that_cannot_be_sent_names_the_fix() {
        let mut webhook = webhook(3, "True");
        let error = unsuitable_test(&webhook, "ada").to_string();
        assert!(
            error.contains("--type must be one of its types: instance.created"),
            "{error}"
        );
        webhook.spec.active = false;
        let error = unsuitable_test(&webhook, "ada").to_string();
        assert!(error.contains("stellage webhook enable orders -n ada"), "{error}");
    }
}
