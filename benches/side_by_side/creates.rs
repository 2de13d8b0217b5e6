//! (c): creates through REST (`stellage api`, without a controller), compared with posting the same objects directly to the
//! API server with the same identity.
//!
//! The two take turns. During the API server's turns, no `stellage` runs, so that nothing watches the objects. Each of the
//! facade's turns uses a new process, warmed up.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    load::{self, CONNECTIONS, Extent, Load, Measured, Requests},
    objects,
    product::Product,
    reads::median,
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

const PATH: &str = "/v1/instances";

/// Measures both sides.
pub async fn measure(table: &mut Table, cluster: &Cluster, account: &Account, sizes: &Sizes) -> Result<()> {
    say("(c) creations");
    let mut raw_requests: Option<Arc<Requests>> = None;
    let (mut rest, mut raw) = (Vec::new(), Vec::new());
    for round in 0..sizes.rounds {
        let mut product = Product::api(cluster).await?;
        let facade = product.facade(&account.key)?;
        let requests = match &raw_requests {
            Some(requests) => Arc::clone(requests),
            None => same_object(cluster, account, &facade).await?,
        };
        let body = objects::rest_body();
        let create = facade.request("POST", PATH, Some(("application/json", &body)));
        rest.push(turn("facade", &facade, load::same(create), sizes).await?);
        product.stop().await?;
        let first = u64::try_from(round)? * 1_000_000_000;
        let numbered = Arc::clone(&requests);
        let offset: Arc<Requests> = Arc::new(move |n, buffer| numbered(first + n, buffer));
        raw.push(turn("API server", &cluster.operator, offset, sizes).await?);
        raw_requests = Some(requests);
    }
    let rate = |turns: &[Measured]| median(turns.iter().map(Measured::rate).collect());
    let p99 = |turns: &[Measured]| median(turns.iter().map(|turn| turn.millis(0.99)).collect());
    table.ratio(
        "(c) creates/s, REST : API server",
        &format!("{:.0}/s", rate(&rest)),
        &format!("{:.0}/s", rate(&raw)),
        rate(&rest) / rate(&raw),
        Some(Aim::AtLeast(0.9)),
    );
    table.ratio(
        "    p99, REST : API server",
        &format!("{:.1} ms", p99(&rest)),
        &format!("{:.1} ms", p99(&raw)),
        p99(&rest) / p99(&raw),
        None,
    );
    Ok(())
}

async fn turn(name: &str, target: &Target, requests: Arc<Requests>, sizes: &Sizes) -> Result<Measured> {
    let load = Load {
        target: target.clone(),
        connections: CONNECTIONS,
        requests,
        status: 201,
        extent: Extent::For {
            warm_up: sizes.warm_up,
            measured: sizes.measured,
        },
    };
    let measured = load.run().await?;
    say(&format!(
        "  {name}: {:.0} creates/s, p50 {:.1} ms, p99 {:.1} ms",
        measured.rate(),
        measured.millis(0.5),
        measured.millis(0.99)
    ));
    Ok(measured)
}

/// Requests to the API server that create the same objects as a create through REST: a stored one is read, and posted under
/// names of the same form.
async fn same_object(cluster: &Cluster, account: &Account, facade: &Target) -> Result<Arc<Requests>> {
    let body = objects::rest_body();
    let created: Value = facade
        .call("POST", PATH, Some(("application/json", &body)))
        .await?
        .json()?;
    let id = created["data"]["id"].as_str().ok_or("the answer has no id")?;
    let collection = objects::collection(&account.namespace);
    let stored: Value = cluster
        .admin
        .call("GET", &format!("{collection}/{id}"), None)
        .await?
        .json()?;
    let mut metadata = serde_json::Map::new();
    for field in ["annotations", "finalizers", "labels"] {
        if let Some(value) = stored["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    let manager = stored["metadata"]["managedFields"][0]["manager"].as_str();
    let path = format!("{collection}?fieldManager={}", manager.unwrap_or("bench"));
    let target = cluster.operator.clone();
    Ok(Arc::new(move |n, buffer| {
        let mut metadata = metadata.clone();
        metadata.insert("name".to_owned(), json!(format!("i-{n:016}")));
        let object = json!({
            "apiVersion": stored["apiVersion"], "kind": stored["kind"], "metadata": metadata, "spec": stored["spec"],
        });
        *buffer = target.request("POST", &path, Some(("application/json", &object.to_string())));
    }))
}
