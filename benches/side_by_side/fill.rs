//! Fills an account with instances that look as if they had been running for a long time, which takes two
//! writes each.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    load::{Extent, Load, NUMBER, Requests, numbered},
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

/// Creates this many instances, alternating between these namespaces. `template` is one that the program has
/// brought to run.
pub async fn instances_of(
    cluster: &Cluster,
    namespaces: Vec<String>,
    template: &Value,
    count: u64,
) -> Result<()> {
    say(&format!(
        "  filling {} accounts with {count} instances",
        namespaces.len()
    ));
    let (spec, status) = (template["spec"].clone(), template["status"].clone());
    let finalizers = template["metadata"]["finalizers"].clone();
    let namespaces = Arc::new(namespaces);
    let of = move |n: u64| {
        let index = usize::try_from(n).unwrap_or_default() % namespaces.len();
        (objects::collection(&namespaces[index]), format!("i-{n:016}"))
    };
    let (target, place) = (cluster.operator.clone(), of.clone());
    let create = move |n: u64, buffer: &mut Vec<u8>| {
        let (path, name) = place(n);
        let object = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": { "name": name, "finalizers": finalizers, "annotations": objects::origin(&name) },
            "spec": spec,
        });
        let body = object.to_string();
        *buffer = target
            .request("POST", &path, Some(("application/json", &body)))
            .into_bytes();
    };
    let target = cluster.operator.clone();
    let change = move |n: u64, buffer: &mut Vec<u8>| {
        let (path, name) = of(n);
        let mut status = status.clone();
        status["id"] = json!(name);
        let body = json!({ "status": status }).to_string();
        let path = format!("{path}/{name}/status");
        *buffer = target
            .request("PATCH", &path, Some(("application/merge-patch+json", &body)))
            .into_bytes();
    };
    let requests: [(Arc<Requests>, u16); 2] = [(Arc::new(create), 201), (Arc::new(change), 200)];
    for (requests, status) in requests {
        let load = Load {
            target: cluster.operator.clone(),
            connections: CONNECTIONS,
            requests,
            status,
            extent: Extent::Count(count),
            pace: None,
        };
        load.run().await?;
    }
    Ok(())
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
            pace: None,
        };
        load.run().await?;
    }
    Ok(())
}
