//! Fills an account with instances that look as if they had been running for a long time, which takes two
//! writes each.

use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    load::{Extent, Load, NUMBER, numbered},
    objects, say,
};

const CONNECTIONS: usize = 16;

/// Path of the instances that [`instances`] creates, with [`NUMBER`] for their number.
pub fn path(account: &Account) -> String {
    format!("{}/{}", objects::collection(&account.namespace), name())
}

fn name() -> String {
    format!("i-{NUMBER}")
}

/// Creates the instances with the numbers from `first` up to, but not including, `end`. `template` is one that the program has
/// brought to run.
pub async fn instances(
    cluster: &Cluster,
    account: &Account,
    template: &Value,
    first: u64,
    end: u64,
) -> Result<()> {
    say(&format!("  filling up to {end} instances"));
    let target = &cluster.operator;
    let object = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Instance",
        "metadata": {
            "name": name(), "finalizers": template["metadata"]["finalizers"], "annotations": objects::origin(&name()),
        },
        "spec": template["spec"],
    });
    let mut status = template["status"].clone();
    status["id"] = json!(name());
    let status = json!({ "status": status });
    let create = target.request(
        "POST",
        &objects::collection(&account.namespace),
        Some(("application/json", &object.to_string())),
    );
    let change = target.request(
        "PATCH",
        &format!("{}/status", path(account)),
        Some(("application/merge-patch+json", &status.to_string())),
    );
    for (request, status) in [(create, 201), (change, 200)] {
        let load = Load {
            target: target.clone(),
            connections: CONNECTIONS,
            requests: numbered(request, first),
            status,
            extent: Extent::Count(end - first),
        };
        load.run().await?;
    }
    Ok(())
}
