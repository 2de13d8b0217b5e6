//! (c): creates through REST (`stellage api`, without a controller), compared with posting the same objects directly to the
//! API server with the same identity.
//!
//! The two take turns. During the API server's turns, no `stellage` runs, so nothing watches the objects. Each of the
//! facade's turns uses a new process, which is warmed up first.

use serde_json::{Value, json};

use crate::{
    Result,
    account::Account,
    cluster::Cluster,
    latencies::as_f64,
    load::{CONNECTIONS, Client, Extent, Measured, NUMBER},
    objects,
    processes::processor_time_of,
    product::Product,
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

const PATH: &str = "/v1/instances";

/// Measures both sides.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    product.stop().await?;
    turns(table, &cluster, &account, sizes).await?;
    cluster.stop().await
}

struct Turn {
    measured: Measured,
    /// CPU time of the API server and etcd per create, in milliseconds.
    servers: f64,
    /// The same of `stellage`.
    stellage: f64,
}

async fn turns(table: &mut Table, cluster: &Cluster, account: &Account, sizes: &Sizes) -> Result<()> {
    let mut raw_request = None;
    let (mut rest, mut raw) = (Vec::new(), Vec::new());
    for round in 0..sizes.rounds {
        let mut product = Product::api(cluster).await?;
        let facade = product.facade(&account.key)?;
        let request = match raw_request.take() {
            Some(request) => request,
            None => same_object(cluster, account, &facade).await?,
        };
        let body = objects::rest_body();
        let create = facade.request("POST", PATH, Some(("application/json", &body)));
        rest.push(turn("facade", cluster, &[product.pid], &facade, create, 0, sizes).await?);
        product.stop().await?;
        let first = u64::try_from(round)? * 1_000_000_000;
        let posts = turn(
            "API server",
            cluster,
            &[],
            &cluster.operator,
            request.clone(),
            first,
            sizes,
        );
        raw.push(posts.await?);
        raw_request = Some(request);
    }
    let each = |turns: &[Turn], of: fn(&Turn) -> f64| -> Samples { turns.iter().map(of).collect() };
    table.compare(
        "(c) creates/s, REST : API server",
        &each(&rest, |turn| turn.measured.rate()),
        &each(&raw, |turn| turn.measured.rate()),
        samples::PER_SECOND,
        Some(Aim::AtLeast(0.9)),
    );
    table.compare(
        "    p99, REST : API server",
        &each(&rest, |turn| turn.measured.millis(0.99)),
        &each(&raw, |turn| turn.measured.millis(0.99)),
        samples::MILLIS,
        None,
    );
    table.compare(
        "    CPU time of API server and etcd, each, REST : API server",
        &each(&rest, |turn| turn.servers),
        &each(&raw, |turn| turn.servers),
        samples::CORE_MILLIS,
        None,
    );
    table.value(
        "    CPU time of `stellage api`, each",
        &each(&rest, |turn| turn.stellage),
        samples::CORE_MILLIS,
        None,
    );
    Ok(())
}

async fn turn(
    name: &str,
    cluster: &Cluster,
    stellage: &[u32],
    target: &Target,
    request: String,
    first: u64,
    sizes: &Sizes,
) -> Result<Turn> {
    let extent = Extent::For {
        warm_up: sizes.warm_up,
        measured: sizes.measured,
    };
    let load = Client {
        first,
        status: 201,
        ..Client::repeating(target, CONNECTIONS, request, extent)
    };
    let servers = cluster.api_server_pids();
    let before = [processor_time_of(&servers)?, processor_time_of(stellage)?];
    let measured = load.run().await?;
    let each = |now: f64, before: f64| (now - before) / as_f64(measured.asked) * 1000.0;
    let turn = Turn {
        servers: each(processor_time_of(&servers)?, before[0]),
        stellage: each(processor_time_of(stellage)?, before[1]),
        measured,
    };
    say(&format!(
        "  {name}: {:.0} creates/s, p50 {:.1} ms, p99 {:.1} ms; {:.2} ms of API server and etcd, {:.2} ms of stellage each",
        turn.measured.rate(),
        turn.measured.millis(0.5),
        turn.measured.millis(0.99),
        turn.servers,
        turn.stellage,
    ));
    Ok(turn)
}

/// A request to the API server that creates the same object as a create through REST: a stored object is read and posted
/// under names of the same form.
async fn same_object(cluster: &Cluster, account: &Account, facade: &Target) -> Result<String> {
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
    let name = format!("i-{NUMBER}");
    metadata["annotations"]["stellage.dev/origin"] = objects::origin(&name)["stellage.dev/origin"].take();
    metadata.insert("name".to_owned(), json!(name));
    let object = json!({
        "apiVersion": stored["apiVersion"], "kind": stored["kind"], "metadata": metadata, "spec": stored["spec"],
    });
    let body = object.to_string();
    Ok(cluster
        .operator
        .request("POST", &path, Some(("application/json", &body))))
}
