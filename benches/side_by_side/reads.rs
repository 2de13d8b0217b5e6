//! (a) and (b): a page of 20 out of 10,000 instances, and the detail of one, read through the facade, with authentication and
//! rate limit; compared with the API server's answer to the same request (`LIST` with limit=20, `GET`), and with an axum handler
//! that sends the same bytes. Then a later page, filters and metrics; where the API server has no equivalent request, it is left
//! out. Then the pages and details of a tenth of the instances while these change, compared with none changing; and page and
//! detail out of few and of many instances.
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

/// Number of instances on a page.
const PAGE: u64 = 20;
/// Number of connections that change instances while they are read.
const CHANGERS: usize = 8;
/// Prefix of the instances that the program brings to run.
const CONVERGED: &str = "read";

/// A measured server.
struct Side {
    name: &'static str,
    target: Target,
    path: String,
    /// The first number in the place of [`NUMBER`] in the path, and how many numbers take turns.
    numbers: (u64, u64),
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
            numbers: (0, 1),
            pids,
            aim,
            turns: Vec::new(),
        }
    }

    async fn turn(&mut self, extent: Extent) -> Result<()> {
        let before = processor_time_of(&self.pids)?;
        let request = self.target.request("GET", &self.path, None);
        let (first, cycle) = self.numbers;
        let client = Client {
            first,
            cycle: Some(cycle),
            ..Client::repeating(&self.target, CONNECTIONS, request, extent)
        };
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
    /// Path of the equivalent request to the API server, if there is one.
    raw: Option<String>,
    /// The targets for the ratios to the API server and to the bare handler, if any.
    aims: [Option<Aim>; 2],
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
    /// Measures with this many instances: everything, or only page and detail.
    async fn at(&mut self, table: &mut Table, count: u64, everything: bool) -> Result<()> {
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
        let questions = self.questions(count, everything).await?;
        let questions = if everything {
            &questions[..]
        } else {
            &questions[..2]
        };
        for question in questions {
            self.ask(table, &product, before.as_ref(), question, count, everything)
                .await?;
        }
        if everything {
            self.while_changing(table, &product, count, wanted).await?;
        }
        if let Some((before, _)) = &mut before {
            before.stop().await?;
        }
        product.stop().await?;
        self.filled = self.filled.max(wanted);
        Ok(())
    }

    async fn questions(&self, count: u64, everything: bool) -> Result<Vec<Question>> {
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
        let instance = format!("{collection}/{name}");
        let list = "/v1/instances?limit=20";
        let later = format!("{list}&page={}", count / (2 * PAGE));
        let question = |label, path: String, raw: Option<String>, aims| Question {
            label,
            path,
            raw,
            aims,
        };
        let none = [None, None];
        let aims = |of_server| [Some(Aim::AtLeast(of_server)), Some(Aim::AtLeast(0.7))];
        // 250 was reached with 10,000 instances and is to be kept. A GET costs the API server far less than a LIST.
        let of_list = aims(if everything { 250.0 } else { 20.0 });
        let raw_list = format!("{collection}?limit=20");
        let raw_running = format!("{raw_list}&fieldSelector=status.state%3Drunning");
        Ok(vec![
            question("(a) list page of 20", list.to_owned(), Some(raw_list), of_list),
            question(
                "(b) detail",
                format!("/v1/instances/{id}"),
                Some(instance),
                aims(20.0),
            ),
            question("the page in the middle of the list", later, None, none),
            question(
                "page of 20, status=running",
                format!("{list}&status=running"),
                Some(raw_running),
                none,
            ),
            question(
                "page of 20, tag=env:bench",
                format!("{list}&tag=env:bench"),
                None,
                none,
            ),
            question(
                "detail, include=metrics",
                format!("/v1/instances/{id}?include=metrics"),
                None,
                none,
            ),
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
            aims,
            ..
        } = question;
        say(&format!("{label} out of {count}"));
        let facade = product.facade(&self.account.key)?;
        let answer = facade.call("GET", path, None).await?;
        check(&answer.json()?, count)?;
        let [of_server, of_handler] = *aims;
        let mut rivals = vec![Side::new("facade", &facade, path, vec![product.pid], None)];
        if let Some(raw) = raw {
            let pids = self.cluster.api_server_pids();
            rivals.push(Side::new("API server", &self.cluster.admin, raw, pids, of_server));
        }
        let mut bare = None;
        if beside_handler {
            let canned = Canned::from(path, &answer);
            let handler = BareHandler::start(&self.cluster, std::slice::from_ref(&canned)).await?;
            let target = handler.target(&self.account.key)?;
            if target.call("GET", path, None).await?.body != canned.body.as_bytes() {
                return Err("the bare handler does not answer with the facade's bytes".into());
            }
            let pids = vec![handler.pid()];
            rivals.push(Side::new("bare handler", &target, path, pids, of_handler));
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

    /// Measures the facade, in turns, while the newest tenth of the instances change and while none do. The reads go through the
    /// pages and the details of the same instances, so that what changes is also read.
    async fn while_changing(
        &self,
        table: &mut Table,
        product: &Product,
        count: u64,
        filled: u64,
    ) -> Result<()> {
        let sizes = self.sizes;
        let extent = Extent::For {
            warm_up: sizes.warm_up,
            measured: sizes.changing,
        };
        let tenth = (count / 10).min(filled);
        let newest = (filled - tenth, tenth);
        // Each of them changes once in a turn.
        let pace = as_f64(tenth) / (sizes.warm_up + sizes.changing).as_secs_f64();
        let facade = product.facade(&self.account.key)?;
        for (label, path, numbers) in [
            // Of the instances that were created in the same second, those with the lowest names come first. So these pages show
            // some instances that do not change.
            (
                "pages",
                format!("/v1/instances?limit={PAGE}&page={NUMBER}"),
                (1, tenth / PAGE),
            ),
            ("details", format!("/v1/instances/i-{NUMBER}"), newest),
        ] {
            say(&format!(
                "{label} of the newest tenth of {count} while {pace:.0} of them change each second"
            ));
            let side = |name| Side {
                numbers,
                ..Side::new(name, &facade, &path, vec![product.pid], None)
            };
            let (mut changing, mut quiet) = (side("while they change"), side("while none changes"));
            let mut rates = Vec::new();
            for round in 0..sizes.rounds {
                quiet.turn(extent).await?;
                let tag = format!("{label}:{round}");
                let changes = self.changes(&tag, newest, pace, extent);
                let ((), changes) = tokio::try_join!(changing.turn(extent), changes)?;
                let rate = changes.rate();
                say(&format!("    {rate:.0} changes/s"));
                if rate < pace * sizes.changed {
                    return Err(format!("{rate:.0} instances changed each second, not {pace:.0}").into());
                }
                rates.push(rate);
            }
            report(
                table,
                &format!("{label} of the newest tenth of {count} instances,"),
                &[changing, quiet],
            );
            table.value(
                "    changes meanwhile",
                &rates.into_iter().collect(),
                samples::PER_SECOND,
                None,
            );
        }
        Ok(())
    }

    /// Changes the instances of these numbers, one after the other at this pace.
    async fn changes(
        &self,
        tag: &str,
        (first, count): (u64, u64),
        pace: f64,
        extent: Extent,
    ) -> Result<Measured> {
        let admin = &self.cluster.admin;
        let body = format!(r#"{{"spec":{{"tags":["env:bench","{tag}"]}}}}"#);
        let patch = admin.request(
            "PATCH",
            &fill::path(&self.account),
            Some(("application/merge-patch+json", &body)),
        );
        let client = Client {
            first,
            cycle: Some(count),
            pace: Some(pace),
            ..Client::repeating(admin, CHANGERS, patch, extent)
        };
        client.run().await
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
