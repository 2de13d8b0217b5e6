//! `stellage delivery …`: send deliveries again.

mod logged;

use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{
    CliError,
    change::change,
    connect::Cluster,
    objects::{self, InNamespace, Named as _},
    output::{Output, printable},
    wait::{self, Progress, Waiting},
};
use domain::delivery::{When, next_attempt, send_now, shown_phase};
use resources::{Delivery, DeliveryPhase, Webhook};
use runtime::kubeconfig::ClusterArgs;

/// Send deliveries to webhooks again.
///
/// The command uses your kubectl rights. `kubectl get deliveries` and `kubectl describe delivery` show deliveries.
#[derive(Debug, Subcommand)]
pub enum DeliveryCommand {
    /// Send a delivery now, whatever its status
    #[command(after_help = REDELIVER)]
    Redeliver(RedeliverArgs),
}

const REDELIVER: &str = "\
Example:
  stellage delivery redeliver dlv_4q7hz0c9k2m8x1ta -n ada --wait";

/// Send a delivery now.
#[derive(Args, Debug)]
pub struct RedeliverArgs {
    /// Name or id of the delivery
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

pub(super) async fn run(command: DeliveryCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let DeliveryCommand::Redeliver(args) = command;
    redeliver(&Cluster::of(which).await?, &args).await
}

/// The delivery with this name or id, if it is in the event log, and its webhook.
async fn in_log(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<Option<(Delivery, Webhook)>, CliError> {
    let named = Delivery::name_of(name);
    logged::find(cluster, namespace, named.as_deref().unwrap_or(name)).await
}

async fn redeliver(cluster: &Cluster, args: &RedeliverArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let was_unfinished = AtomicBool::new(false);
    let decide = |delivery: &Delivery| {
        let phase = shown_phase(delivery);
        if was_unfinished.fetch_or(!phase.is_finished(), Ordering::Relaxed)
            && phase == DeliveryPhase::Delivered
        {
            // An attempt in flight has succeeded.
            return Ok(None);
        }
        let mut patch = send_now(delivery, Timestamp::now());
        patch["metadata"]["resourceVersion"] = json!(delivery.metadata.resource_version);
        Ok(Some(patch))
    };
    let delivery = match change(cluster, namespace, &args.name, "send", decide).await {
        Err(unknown @ CliError::NoObject { .. }) => match in_log(cluster, namespace, &args.name).await? {
            Some((delivery, webhook)) => match logged::send_again(cluster, delivery, &webhook).await {
                // Another request got there first.
                Err(failure) if failure.is(409) => {
                    change(cluster, namespace, &args.name, "send", decide).await?
                }
                sent => sent?,
            },
            None => return Err(unknown),
        },
        changed => changed?,
    };
    let webhook: Webhook = objects::find(cluster, namespace, &delivery.spec.webhook).await?;
    let when = When::of(&webhook);
    if args.waiting.wait && !when.is_now() {
        return Err(CliError::Failed {
            what: format!("delivery {}", delivery.id()),
            why: when.describe().to_owned(),
            look: objects::describe(&webhook),
        });
    }
    let begun = format!("delivery {} {}", delivery.id(), when.describe());
    finish(cluster, delivery, args.waiting, args.output, &begun).await
}

/// With `--wait`, waits until a delivery is delivered; then prints it. Without, prints `begun`.
pub(super) async fn finish(
    cluster: &Cluster,
    delivery: Delivery,
    waiting: Waiting,
    output: Output,
    begun: &str,
) -> Result<(), CliError> {
    let (delivery, text) = if waiting.wait {
        let api = Api::namespaced(cluster.client.clone(), &delivery.namespace().unwrap_or_default());
        let delivery = wait::until_done(api, delivery, waiting.timeout, progress).await?;
        let text = format!(
            "delivery {} is delivered: {}",
            delivery.id(),
            last_attempt(&delivery)
        );
        (delivery, text)
    } else {
        let look = objects::describe(&delivery);
        (delivery, format!("{begun}; `{look}` shows the result"))
    };
    objects::print(delivery, &text, output)
}

/// The progress of a delivery.
fn progress(delivery: &Delivery) -> Progress {
    let attempts = delivery.status.as_ref().map_or(0, |status| status.attempt_count);
    match shown_phase(delivery) {
        DeliveryPhase::Delivered => Progress::Done,
        DeliveryPhase::Exhausted => Progress::Failed(format!(
            "has failed after {attempts} {}: {}",
            if attempts == 1 { "attempt" } else { "attempts" },
            last_attempt(delivery)
        )),
        DeliveryPhase::Held if delivery.is_attempt_requested() => Progress::Pending("being sent".to_owned()),
        DeliveryPhase::Held => Progress::Failed(format!(
            "is held until webhook {} can be sent to and there is room",
            delivery.spec.webhook
        )),
        DeliveryPhase::Pending => Progress::Pending(match next_attempt(delivery) {
            Some(next) if attempts > 0 => {
                format!("{}; next attempt at {next:.0}", last_attempt(delivery))
            }
            _ => "being sent".to_owned(),
        }),
    }
}

/// The outcome of the last attempt, in one line.
fn last_attempt(delivery: &Delivery) -> String {
    let attempt = delivery.status.as_ref().and_then(|status| status.attempts.last());
    let Some(attempt) = attempt else {
        return "not attempted yet".to_owned();
    };
    match (&attempt.error, attempt.status_code) {
        (Some(error), _) => printable(error),
        (None, Some(code)) => format!("answered {code} in {} ms", attempt.duration_ms),
        (None, None) => "no answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use resources::delivery::ATTEMPT_REQUESTED_AT_ANNOTATION;

    fn delivery(phase: &str, is_finished: bool, attempt: Option<Value>) -> Delivery {
        let labels = if is_finished {
            json!({ "stellage.dev/finished": "true" })
        } else {
            json!({})
        };
        let attempts: Vec<_> = attempt.into_iter().collect();
        serde_json::from_value(json!({
            "metadata": { "name": "dlv-abcdefgh01234567", "namespace": "ada", "labels": labels },
            "spec": {
                "webhook": "orders", "eventId": "evt_1", "eventType": "instance.created",
                "eventCreatedAt": "2026-11-21T10:00:00Z", "body": "{}",
            },
            "status": {
                "phase": phase, "attemptCount": attempts.len(), "attempts": attempts,
                "nextAttemptAt": "2026-11-21T10:01:00Z",
            },
        }))
        .unwrap()
    }

    fn failed() -> Value {
        json!({
            "at": "2026-11-21T10:00:00Z", "durationMs": 7, "statusCode": 500, "error": "the receiver answered 500",
        })
    }

    #[test]
    fn waiting_ends_once_a_delivery_is_delivered_exhausted_or_held() {
        let ok = json!({ "at": "2026-11-21T10:00:00Z", "durationMs": 7, "statusCode": 204 });
        let delivered = delivery("Delivered", true, Some(ok));
        assert_eq!(progress(&delivered), Progress::Done);
        assert_eq!(last_attempt(&delivered), "answered 204 in 7 ms");
        assert_eq!(
            progress(&delivery("Exhausted", true, Some(failed()))),
            Progress::Failed("has failed after 1 attempt: the receiver answered 500".to_owned())
        );
        // Its label has just been removed: it is being sent again.
        assert!(matches!(
            progress(&delivery("Exhausted", false, Some(failed()))),
            Progress::Pending(_)
        ));
        assert_eq!(
            progress(&delivery("Pending", false, Some(failed()))),
            Progress::Pending("the receiver answered 500; next attempt at 2026-11-21T10:01:00Z".to_owned())
        );
        assert!(matches!(
            progress(&delivery("Held", false, None)),
            Progress::Failed(_)
        ));
    }

    #[test]
    fn a_held_delivery_is_waited_for_while_an_attempt_is_requested() {
        let mut held = delivery("Held", false, Some(failed()));
        let annotations = held.metadata.annotations.get_or_insert_default();
        annotations.insert(ATTEMPT_REQUESTED_AT_ANNOTATION.to_owned(), "now".to_owned());
        assert!(matches!(progress(&held), Progress::Pending(_)));
        held.status.as_mut().unwrap().attempt_requested_at = Some("now".to_owned());
        assert!(matches!(progress(&held), Progress::Failed(_)));
    }
}
