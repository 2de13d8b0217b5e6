//! (a) and (b): a page of 20 out of 10,000 instances, and the detail of one, read through the facade, with authentication
//! and rate limit; compared with the API server's answer to the same question (`LIST` with limit=20, `GET`), and with an axum
//! handler that sends the same bytes.
//!
//! With `--baseline`, another build of `stellage`, such as that of an earlier commit, is measured, too.
//!
//! They take turns under the same load. The API server is asked as an administrator, for whom it checks the least. Requests
//! per second include the load generator's own work on the same machine, which is the same for all except for TLS. So the CPU
//! time per request of each server is shown, too.

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    bare_handler::{BareHandler, Canned},
    cluster::Cluster,
    load::{self, CONNECTIONS, Extent, Load, Measured, as_f64},
    objects,
    processes::processor_time_of,
    product::Product,
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

/// A measured server.
struct Side {
    name: &'static str,
    target: Target,
    path: String,
    pids: Vec<u32>,
    turns: Vec<Turn>,
}

struct Turn {
    measured: Measured,
    /// The server's CPU time per request, in microseconds.
    cost: f64,
}

impl Side {
    fn new(name: &'static str, target: &Target, path: &str, pids: Vec<u32>) -> Self {
        Self {
            name,
            target: target.clone(),
            path: path.to_owned(),
            pids,
            turns: Vec::new(),
        }
    }

    async fn turn(&mut self, sizes: &Sizes) -> Result<()> {
        let before = processor_time_of(&self.pids)?;
        let load = Load {
            target: self.target.clone(),
            connections: CONNECTIONS,
            requests: load::same(self.target.request("GET", &self.path, None)),
            status: 200,
            extent: Extent::For {
                warm_up: sizes.warm_up,
                measured: sizes.measured,
            },
        };
        let measured = load.run().await?;
        let used = processor_time_of(&self.pids)? - before;
        let cost = used * 1e6 / as_f64(measured.asked);
        say(&format!(
            "  {}: {:.0} requests/s, p50 {:.2} ms, p99 {:.2} ms, {cost:.0} µs of CPU time each",
            self.name,
            measured.rate(),
            measured.millis(0.5),
            measured.millis(0.99)
        ));
        self.turns.push(Turn { measured, cost });
        Ok(())
    }

    fn median(&self, of: impl Fn(&Turn) -> f64) -> f64 {
        median(self.turns.iter().map(of).collect())
    }

    fn rate(&self) -> f64 {
        self.median(|turn| turn.measured.rate())
    }

    fn p99(&self) -> f64 {
        self.median(|turn| turn.measured.millis(0.99))
    }

    fn cost(&self) -> f64 {
        self.median(|turn| turn.cost)
    }
}

/// The median.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// Measures (a) and (b). With a `baseline`: another build, and a key that it knows.
pub async fn measure(
    table: &mut Table,
    cluster: &Cluster,
    product: &Product,
    baseline: Option<&(Product, String)>,
    account: &Account,
    sizes: &Sizes,
) -> Result<()> {
    let facade = product.facade(&account.key)?;
    let raw_page = format!("{}?limit=20", objects::collection(&account.namespace));
    let first: Value = cluster.admin.call("GET", &raw_page, None).await?.json()?;
    let field = |pointer: &str| {
        let value = first.pointer(pointer).and_then(Value::as_str);
        value.ok_or_else(|| format!("the API server's list has no {pointer}"))
    };
    let raw_detail = format!(
        "{}/{}",
        objects::collection(&account.namespace),
        field("/items/0/metadata/name")?
    );
    let page = "/v1/instances?limit=20".to_owned();
    let detail = format!("/v1/instances/{}", field("/items/0/status/id")?);

    let mut canned = Vec::new();
    for path in [&page, &detail] {
        canned.push(Canned::from(path, &facade.call("GET", path, None).await?));
    }
    let listed: Value = serde_json::from_str(&canned[0].body)?;
    if listed["data"].as_array().map(Vec::len) != Some(20) || listed["pagination"]["total"] != sizes.large {
        return Err(format!("not the page that was to be measured: {listed}").into());
    }
    let mut bare = BareHandler::start(cluster, &canned).await?;
    let handler = bare.target(&account.key)?;
    for (canned, path) in canned.iter().zip([&page, &detail]) {
        if handler.call("GET", path, None).await?.body != canned.body.as_bytes() {
            return Err("the bare handler does not answer with the facade's bytes".into());
        }
    }

    for (label, path, raw) in [
        ("(a) list page of 20", &page, &raw_page),
        ("(b) detail", &detail, &raw_detail),
    ] {
        say(&format!("{label} out of {}", sizes.large));
        let mut rivals = vec![
            Side::new("facade", &facade, path, vec![product.pid]),
            Side::new("API server", &cluster.admin, raw, cluster.api_server_pids()),
            Side::new("bare handler", &handler, path, vec![bare.pid()]),
        ];
        if let Some((baseline, key)) = baseline {
            let before = baseline.facade(key)?;
            rivals.push(Side::new("baseline", &before, path, vec![baseline.pid]));
        }
        for _ in 0..sizes.rounds {
            for side in &mut rivals {
                side.turn(sizes).await?;
            }
        }
        report(table, label, &rivals);
    }
    bare.stop();
    Ok(())
}

fn report(table: &mut Table, label: &str, sides: &[Side]) {
    let [facade, others @ ..] = sides else { return };
    let rate = |side: &Side| format!("{:.0}/s", side.rate());
    let p99 = |side: &Side| format!("{:.2} ms", side.p99());
    let cost = |side: &Side| format!("{:.0} µs", side.cost());
    let aims = [Some(Aim::AtLeast(20.0)), Some(Aim::AtLeast(0.7)), None];
    for (n, (other, aim)) in others.iter().zip(aims).enumerate() {
        let name = other.name;
        let label = if n == 0 { label } else { "   " };
        table.ratio(
            &format!("{label} requests/s, facade : {name}"),
            &rate(facade),
            &rate(other),
            facade.rate() / other.rate(),
            aim,
        );
        table.ratio(
            &format!("    p99, facade : {name}"),
            &p99(facade),
            &p99(other),
            facade.p99() / other.p99(),
            None,
        );
        table.ratio(
            &format!("    server's processor time a request, facade : {name}"),
            &cost(facade),
            &cost(other),
            facade.cost() / other.cost(),
            None,
        );
    }
}
