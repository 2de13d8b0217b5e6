//! (a) and (b): a page of 20 out of 10,000 instances, and the detail of one, read through the facade, with authentication and
//! rate limit; compared with the API server's answer to the same request (`LIST` with limit=20, `GET`), and with an axum handler
//! that sends the same bytes; and page and detail out of few and of many instances.
//!
//! With `--baseline`, another build of `stellage`, for example of an earlier commit, is measured as well.
//!
//! The sides take turns under the same load. The API server is called as an administrator, for whom it performs the fewest
//! checks. Requests per second include the load generator's own work on the same machine, which is the same for all sides except
//! for TLS. Therefore the CPU time of each server per request is shown as well.

use std::path::Path;

use serde_json::Value;

use crate::{
    Result,
    account::Account,
    bare_handler::{BareHandler, Canned},
    cluster::Cluster,
    convergence, fill,
    latencies::as_f64,
    load::{CONNECTIONS, Client, Extent, Measured},
    objects,
    processes::processor_time_of,
    product::Product,
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Target,
};

/// Prefix of the instances that the program brings to run.
const CONVERGED: &str = "read";

/// A measured server.
struct Side {
    name: &'static str,
    target: Target,
    path: String,
    pids: Vec<u32>,
    aim: Option<Aim>,
    turns: Vec<Turn>,
}

struct Turn {
    measured: Measured,
    /// The server's CPU time per request, in microseconds.
    cost: f64,
}

impl Side {
    fn new(name: &'static str, target: &Target, path: &str, pids: Vec<u32>, aim: Option<Aim>) -> Self {
        Self {
            name,
            target: target.clone(),
            path: path.to_owned(),
            pids,
            aim,
            turns: Vec::new(),
        }
    }

    async fn turn(&mut self, extent: Extent) -> Result<()> {
        let before = processor_time_of(&self.pids)?;
        let request = self.target.request("GET", &self.path, None);
        let client = Client::repeating(&self.target, CONNECTIONS, request, extent);
        let measured = client.run().await?;
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

    fn samples(&self, of: impl Fn(&Turn) -> f64) -> Samples {
        self.turns.iter().map(of).collect()
    }
}

/// A request to the facade.
struct Question {
    label: &'static str,
    path: String,
    /// Path of the equivalent request to the API server.
    raw: String,
    /// The target for the ratio to the API server.
    aim: Aim,
}

/// Measures everything, with few, with many, and with the maximum number of instances.
pub async fn measure(table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    convergence::converge(&cluster, &product, &account, CONVERGED, sizes.few).await?;
    let template = convergence::settled_instance(&cluster, &product, &account, CONVERGED).await?;
    product.stop().await?;
    let mut rig = Rig {
        cluster,
        account,
        template,
        baseline,
        sizes,
        filled: 0,
    };
    rig.at(table, sizes.few, false).await?;
    rig.at(table, sizes.large, true).await?;
    if let Some(most) = sizes.most {
        rig.at(table, most, false).await?;
    }
    rig.cluster.stop().await
}

/// What is measured, and with what.
struct Rig<'a> {
    cluster: Cluster,
    account: Account,
    template: Value,
    /// Another build of `stellage`.
    baseline: Option<&'a Path>,
    sizes: &'a Sizes,
    /// Number of instances in addition to those that the program has brought to run.
    filled: u64,
}

impl Rig<'_> {
    /// Measures with this many instances.
    async fn at(&mut self, table: &mut Table, count: u64, beside_handler: bool) -> Result<()> {
        let wanted = count - self.sizes.few;
        if wanted > self.filled {
            fill::instances(&self.cluster, &self.account, &self.template, self.filled, wanted).await?;
        }
        let mut product = Product::api(&self.cluster).await?;
        let mut before = match self.baseline {
            Some(program) => {
                let key = Account::key_of(&self.cluster, program)?;
                let product = Product::api_of(&self.cluster, program).await?;
                Some((product, key))
            }
            None => None,
        };
        for question in self.questions(beside_handler).await? {
            self.ask(table, &product, before.as_ref(), &question, count, beside_handler)
                .await?;
        }
        if let Some((before, _)) = &mut before {
            before.stop().await?;
        }
        product.stop().await?;
        self.filled = self.filled.max(wanted);
        Ok(())
    }

    async fn questions(&self, beside_handler: bool) -> Result<[Question; 2]> {
        let collection = objects::collection(&self.account.namespace);
        let first: Value = self
            .cluster
            .admin
            .call("GET", &format!("{collection}?limit=1"), None)
            .await?
            .json()?;
        let field = |pointer: &str| {
            let value = first.pointer(pointer).and_then(Value::as_str);
            value.ok_or_else(|| format!("the API server's list has no {pointer}"))
        };
        let (name, id) = (field("/items/0/metadata/name")?, field("/items/0/status/id")?);
        Ok([
            Question {
                label: "(a) list page of 20",
                path: "/v1/instances?limit=20".to_owned(),
                raw: format!("{collection}?limit=20"),
                aim: Aim::AtLeast(if beside_handler { 50.0 } else { 20.0 }),
            },
            Question {
                label: "(b) detail",
                path: format!("/v1/instances/{id}"),
                raw: format!("{collection}/{name}"),
                aim: Aim::AtLeast(20.0),
            },
        ])
    }

    async fn ask(
        &self,
        table: &mut Table,
        product: &Product,
        baseline: Option<&(Product, String)>,
        question: &Question,
        count: u64,
        beside_handler: bool,
    ) -> Result<()> {
        let Question {
            label,
            path,
            raw,
            aim,
        } = question;
        say(&format!("{label} out of {count}"));
        let facade = product.facade(&self.account.key)?;
        let answer = facade.call("GET", path, None).await?;
        check(&answer.json()?, count)?;
        let servers = self.cluster.api_server_pids();
        let mut rivals = vec![
            Side::new("facade", &facade, path, vec![product.pid], None),
            Side::new("API server", &self.cluster.admin, raw, servers, Some(*aim)),
        ];
        let mut bare = None;
        if beside_handler {
            let canned = Canned::from(path, &answer);
            let handler = BareHandler::start(&self.cluster, std::slice::from_ref(&canned)).await?;
            let target = handler.target(&self.account.key)?;
            if target.call("GET", path, None).await?.body != canned.body.as_bytes() {
                return Err("the bare handler does not answer with the facade's bytes".into());
            }
            let aim = Some(Aim::AtLeast(0.5));
            rivals.push(Side::new("bare handler", &target, path, vec![handler.pid()], aim));
            bare = Some(handler);
        }
        if let Some((baseline, key)) = baseline {
            let before = baseline.facade(key)?;
            rivals.push(Side::new("baseline", &before, path, vec![baseline.pid], None));
        }
        let extent = Extent::For {
            warm_up: self.sizes.warm_up,
            measured: self.sizes.measured,
        };
        for _ in 0..self.sizes.rounds {
            for side in &mut rivals {
                side.turn(extent).await?;
            }
        }
        if let Some(mut bare) = bare {
            bare.stop();
        }
        report(table, &format!("{label} out of {count}"), &rivals);
        Ok(())
    }
}

/// Fails unless it is an answer about this many instances.
fn check(answer: &Value, count: u64) -> Result<()> {
    let (total, items) = (&answer["pagination"]["total"], answer["data"].as_array());
    let is_page = items.is_some_and(|items| !items.is_empty()) && *total == count;
    if is_page || answer["data"]["id"].is_string() {
        return Ok(());
    }
    Err(format!("not the answer that was to be measured: {answer}").into())
}

/// Reports the first side compared with each of the others.
fn report(table: &mut Table, label: &str, sides: &[Side]) {
    let [facade, others @ ..] = sides else { return };
    for (n, other) in others.iter().enumerate() {
        let names = format!("{} : {}", facade.name, other.name);
        let label = if n == 0 { label } else { "   " };
        let mut line = |what: &str, unit, aim, of: &dyn Fn(&Turn) -> f64| {
            let what = format!("{what}, {names}");
            table.compare(&what, &facade.samples(of), &other.samples(of), unit, aim);
        };
        line(
            &format!("{label} requests/s"),
            samples::PER_SECOND,
            other.aim,
            &|turn| turn.measured.rate(),
        );
        line("    p99", samples::MILLIS, None, &|turn| {
            turn.measured.millis(0.99)
        });
        line(
            "    server's CPU time a request",
            samples::MICROS,
            None,
            &|turn| turn.cost,
        );
    }
}
