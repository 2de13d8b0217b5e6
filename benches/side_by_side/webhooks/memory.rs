//! (c): memory of a new process with many finished deliveries in the cluster, and with pending ones, compared with none.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use stellage::resources::delivery::{
    EVENT_TYPE_LABEL, FINISHED_AT_ANNOTATION, FINISHED_LABEL, PHASE_LABEL, WEBHOOK_LABEL,
};

use super::{
    Stage,
    receivers::{self, Receivers},
};
use crate::{
    Result,
    load::{Extent, Load, Requests},
    objects,
    processes::load_average,
    samples, say,
    sizes::Sizes,
    table::{Aim, Table},
};

/// Number of webhooks that own the deliveries.
const WEBHOOKS: usize = 20;
/// Keeps everything, so that no delivery is pruned.
const KEEP: &[&str] = &["--delivery-retention=100000"];

/// Measures the memory.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    say("webhooks (c) memory");
    let receivers = Receivers::start(WEBHOOKS, receivers::BOTH)?;
    let mut stage = Stage::start(KEEP).await?;
    stage.webhooks(&receivers, 0, WEBHOOKS).await?;
    stage.restart(KEEP).await?;
    let none = stage.product.settled_mib(sizes).await?;

    stage.product.stop().await?;
    create(&stage, sizes.finished, "done", true).await?;
    stage.restart(KEEP).await?;
    let finished = stage.product.settled_mib(sizes).await?;

    stage.product.stop().await?;
    create(&stage, sizes.pending, "due", false).await?;
    stage.restart(KEEP).await?;
    let pending = stage.product.settled_mib(sizes).await?;
    stage.stop().await?;
    if receivers.count() > 0 {
        return Err("deliveries were sent that are not due".into());
    }

    let mut line = |what: &str, resident: f64, aim| {
        let more = format!("{what}: {resident:.1} MiB, more than none");
        table.value(&more, &(resident - none).into(), samples::MEBIBYTES, aim);
    };
    line(
        &format!("webhooks (c) resident, {} finished deliveries", sizes.finished),
        finished,
        Some(Aim::AtMost(5.0)),
    );
    line(&format!("    and {} pending ones", sizes.pending), pending, None);
    Ok(())
}

async fn create(stage: &Stage, count: u64, prefix: &'static str, finished: bool) -> Result<()> {
    // Nobody else may write Deliveries.
    let operator = stage.cluster.operator.clone();
    let path = objects::deliveries(&stage.account.namespace);
    let target = operator.clone();
    let requests: Arc<Requests> = Arc::new(move |n, buffer| {
        let body = delivery(prefix, n, finished).to_string();
        *buffer = target
            .request("POST", &path, Some(("application/json", &body)))
            .into_bytes();
    });
    let load = Load {
        target: operator,
        connections: 16,
        requests,
        status: 201,
        extent: Extent::Count(count),
        pace: None,
    };
    let took = load.run().await?.took;
    say(&format!(
        "  {count} deliveries created in {took:.0?}; load {}",
        load_average()
    ));
    Ok(())
}

/// A Delivery as the program writes it: either one that succeeded immediately, or one that waits an hour for its
/// last retry.
fn delivery(prefix: &str, n: u64, finished: bool) -> Value {
    let webhook = format!("hook-{:03}", n % WEBHOOKS as u64);
    let now = Timestamp::now();
    let at = format!("{now:.6}");
    let phase = if finished { "Delivered" } else { "Pending" };
    let mut labels = json!({
        WEBHOOK_LABEL: webhook, PHASE_LABEL: phase.to_lowercase(), EVENT_TYPE_LABEL: "instance.stopped",
    });
    let mut annotations = json!({});
    let mut status = json!({ "phase": phase, "attemptCount": 1, "retries": 0 });
    if finished {
        labels[FINISHED_LABEL] = json!("true");
        annotations[FINISHED_AT_ANNOTATION] = json!(at);
        status["lastStatusCode"] = json!(200);
        status["attempts"] = json!([{ "at": at, "durationMs": 3, "statusCode": 200 }]);
    } else {
        let due = now + SignedDuration::from_hours(1);
        status["retries"] = json!(5);
        status["nextAttemptAt"] = json!(format!("{due:.6}"));
        status["lastError"] = json!("the receiver answered 503");
        status["attempts"] =
            json!([{ "at": at, "durationMs": 3, "statusCode": 503, "error": "the receiver answered 503" }]);
    }
    let id = format!("evt_{prefix}{n:012}");
    let body = json!({
        "id": id, "type": "instance.stopped", "created_at": format!("{now:.3}"),
        "data": { "instance": {
            "id": "i-4q7hz0c9k2m8x1ta", "name": "web-1", "status": "stopped", "plan": "starter", "region": "fr-par-1",
            "ip_address": "198.18.0.7",
        } },
    });
    json!({
        "apiVersion": "stellage.dev/v1", "kind": "Delivery",
        "metadata": { "name": format!("{prefix}-{n:08}"), "labels": labels, "annotations": annotations },
        "spec": {
            "webhook": webhook, "eventId": id, "eventType": "instance.stopped", "eventCreatedAt": at, "sequence": n,
            "body": body.to_string(),
        },
        "status": status,
    })
}
