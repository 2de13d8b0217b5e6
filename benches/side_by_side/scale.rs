//! Start-up, memory and the lock of the webhook controller's state with many webhooks and instances in many accounts, compared
//! with a tenth of them.
//!
//! The instances are stored as if they had been running for a long time, and the program is restarted. Before that, one of
//! them is told to stop, so that the first event shows when the new process begins to deliver. Then others are stopped and
//! started at a steady rate. The lock's histogram has buckets of powers of two, so each time shown is the upper bound of its
//! bucket.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    Result,
    account::ACCOUNTS,
    cluster::Cluster,
    latencies::as_f64,
    load::{Extent, Load, Requests, numbered},
    objects,
    product::Product,
    say,
    sizes::{Scale, Sizes},
    table::{Aim, Table},
    webhooks::{
        kit::Authority,
        receivers::{self, Receivers},
    },
};

const RECEIVERS: usize = 8;
const CONNECTIONS: usize = 16;
/// Number of instances stopped or started per second while the lock is measured.
const RATE: u32 = 50;
/// Number of objects created between two lines of progress.
const STEP: u64 = 10_000;
/// Timeout of the program's start, and of every other wait.
const PATIENCE: Duration = Duration::from_mins(10);
/// The histogram of the lock's hold times.
const HOLDS: &str = "stellage_webhook_lock_hold_seconds_bucket";

struct Measured {
    ready: Duration,
    first_event: Duration,
    resident: f64,
    longest_at_start: f64,
    longest: f64,
    p99: f64,
    events: u64,
}

/// Measures both sizes.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let full = sizes.scale;
    let tenth = full.accounts / 10;
    say("scale");
    let stage = Stage {
        cluster: Cluster::start().await?,
        receivers: Receivers::start(RECEIVERS, receivers::BOTH)?,
        scale: full,
    };
    let template = stage.template().await?;
    stage.fill(&template, 0, tenth).await?;
    let small = stage.measure(tenth, sizes).await?;
    stage.fill(&template, tenth, full.accounts).await?;
    let large = stage.measure(full.accounts, sizes).await?;
    stage.cluster.stop().await?;
    report(table, full, &small, &large);
    Ok(())
}

fn report(table: &mut Table, scale: Scale, small: &Measured, large: &Measured) {
    let webhooks = scale.accounts * scale.webhooks;
    let instances = scale.accounts * scale.instances;
    table.note(&format!(
        "scale: {webhooks} webhooks and {instances} instances in {} accounts, compared with a tenth; {} and {} events received",
        scale.accounts, large.events, small.events
    ));
    let mut line = |what: &str, large: f64, small: f64, unit: &str, aim| {
        let shown = |value: f64| format!("{value:.3} {unit}");
        table.ratio(what, &shown(large), &shown(small), &(large / small).into(), aim);
    };
    let seconds = Duration::as_secs_f64;
    line(
        "    start until ready",
        seconds(&large.ready),
        seconds(&small.ready),
        "s",
        None,
    );
    let (first, few) = (seconds(&large.first_event), seconds(&small.first_event));
    line(
        "    start until the first event is received",
        first,
        few,
        "s",
        None,
    );
    line("    resident", large.resident, small.resident, "MiB", None);
    let millis = |seconds: f64| seconds * 1000.0;
    let mut lock =
        |what: &str, large: f64, small: f64, aim| line(what, millis(large), millis(small), "ms", aim);
    lock(
        "    longest hold of the lock, start-up",
        large.longest_at_start,
        small.longest_at_start,
        None,
    );
    lock(
        "    longest hold while events happen",
        large.longest,
        small.longest,
        None,
    );
    lock(
        "    p99 of the holds while events happen",
        large.p99,
        small.p99,
        Some(Aim::AtMost(2.0)),
    );
}

struct Stage {
    cluster: Cluster,
    receivers: Receivers,
    scale: Scale,
}

fn namespace(account: u64) -> String {
    format!("scale-{account:04}")
}

fn instance(number: u64) -> String {
    format!("i-{number:016}")
}

impl Stage {
    async fn run(&self) -> Result<Product> {
        let ca = self.cluster.plane.folder().join("receivers.pem");
        fs::write(&ca, Authority::shared().pem())?;
        let arguments = [
            format!("--receiver-ca={}", ca.display()),
            "--receiver-allow=127.0.0.0/8".to_owned(),
        ];
        Product::run_with(&self.cluster, &arguments).await
    }

    /// An instance that the program has brought to run.
    async fn template(&self) -> Result<Value> {
        let mut product = self.run().await?;
        self.accounts(&product, 0, 1).await?;
        let create = Load {
            requests: numbered(objects::create(&self.cluster.admin, &namespace(0), "template"), 0),
            ..self.load(1, |_, _| {})
        };
        create.run().await?;
        let path = objects::path(&namespace(0), "template", 0);
        let template = product
            .until(PATIENCE, "an instance running", async || {
                let instance: Value = self.cluster.admin.call("GET", &path, None).await?.json()?;
                let is_settled = instance["status"]["state"] == "running"
                    && instance["status"]["operation"].is_null()
                    && instance["status"]["outbox"].as_array().is_none_or(Vec::is_empty);
                Ok(is_settled.then_some(instance))
            })
            .await?;
        product.stop().await?;
        Ok(template)
    }

    fn load(&self, count: u64, requests: impl Fn(u64, &mut Vec<u8>) + Send + Sync + 'static) -> Load {
        Load {
            target: self.cluster.operator.clone(),
            connections: CONNECTIONS,
            requests: Arc::new(requests) as Arc<Requests>,
            status: 201,
            extent: Extent::Count(count),
            pace: None,
        }
    }

    /// Creates accounts, whose namespaces the program sets up.
    async fn accounts(&self, product: &Product, first: u64, end: u64) -> Result<()> {
        let admin = self.cluster.admin.clone();
        let webhooks = self.scale.webhooks;
        let create = self.load(end - first, move |n, buffer| {
            let account = json!({
                "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": namespace(first + n) },
                "spec": {
                    "email": "bench@example.com", "namespace": namespace(first + n), "webhookQuota": webhooks,
                },
            });
            let body = account.to_string();
            *buffer = admin.request("POST", ACCOUNTS, Some(("application/json", &body))).into_bytes();
        });
        let target = self.cluster.admin.clone();
        Load { target, ..create }.run().await?;
        product
            .until(PATIENCE, "the accounts' namespaces", async || {
                let list: Value = self.cluster.admin.call("GET", ACCOUNTS, None).await?.json()?;
                let is_ready = |account: &&Value| {
                    let conditions = account["status"]["conditions"].as_array();
                    let mut conditions = conditions.into_iter().flatten();
                    conditions.any(|condition| {
                        condition["type"] == "NamespaceReady" && condition["status"] == "True"
                    })
                };
                let ready = list["items"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(is_ready)
                    .count();
                Ok((u64::try_from(ready)? >= end).then_some(()))
            })
            .await
    }

    /// Fills the accounts from `first` up to, but not including, `end`.
    async fn fill(&self, template: &Value, first: u64, end: u64) -> Result<()> {
        let mut product = self.run().await?;
        say(&format!("  accounts {first} to {end}"));
        self.accounts(&product, first.max(1), end).await?;
        product.stop().await?;
        let accounts = end - first;
        let of = move |n: u64| namespace(first + n % accounts);

        let target = self.cluster.admin.clone();
        let secrets = self.load(accounts, move |n, buffer| {
            let path = format!("/api/v1/namespaces/{}/secrets", of(n));
            *buffer = target
                .request("POST", &path, Some(("application/json", &objects::secret())))
                .into_bytes();
        });
        let target = self.cluster.admin.clone();
        Load { target, ..secrets }.run().await?;

        let webhooks = self.scale.webhooks * accounts;
        let (target, urls) = (self.cluster.operator.clone(), self.urls());
        let create: Arc<Requests> = Arc::new(move |n, buffer| {
            let url = &urls[usize::try_from(n).unwrap_or_default() % urls.len()];
            let body = objects::webhook(&format!("hook-{:04}", n / accounts), url);
            *buffer = target
                .request(
                    "POST",
                    &objects::webhooks(&of(n)),
                    Some(("application/json", &body)),
                )
                .into_bytes();
        });
        self.in_steps("webhooks created", webhooks, 201, &create).await?;

        let instances = self.scale.instances * accounts;
        let before = first * self.scale.instances;
        let metadata = template["metadata"].clone();
        let (spec, target) = (template["spec"].clone(), self.cluster.operator.clone());
        let create: Arc<Requests> = Arc::new(move |n, buffer| {
            let name = instance(before + n);
            let object = json!({
                "apiVersion": "stellage.dev/v1", "kind": "Instance",
                "metadata": { "name": name, "finalizers": metadata["finalizers"], "annotations": objects::origin(&name) },
                "spec": spec,
            });
            let body = object.to_string();
            *buffer = target
                .request(
                    "POST",
                    &objects::collection(&of(n)),
                    Some(("application/json", &body)),
                )
                .into_bytes();
        });
        self.in_steps("instances created", instances, 201, &create)
            .await?;
        let (status, target) = (template["status"].clone(), self.cluster.operator.clone());
        let change: Arc<Requests> = Arc::new(move |n, buffer| {
            let mut status = status.clone();
            status["id"] = json!(instance(before + n));
            let body = json!({ "status": status }).to_string();
            let path = format!("{}/{}/status", objects::collection(&of(n)), instance(before + n));
            *buffer = target
                .request("PATCH", &path, Some(("application/merge-patch+json", &body)))
                .into_bytes();
        });
        self.in_steps("instances shown as running", instances, 200, &change)
            .await
    }

    fn urls(&self) -> Vec<String> {
        (0..RECEIVERS).map(|n| self.receivers.url(n)).collect()
    }

    /// Sends many requests, with lines of progress.
    async fn in_steps(&self, what: &str, count: u64, status: u16, requests: &Arc<Requests>) -> Result<()> {
        let begun = Instant::now();
        let mut done = 0;
        while done < count {
            let (first, next) = (done, STEP.min(count - done));
            let requests = Arc::clone(requests);
            let load = self.load(next, move |n, buffer| requests(first + n, buffer));
            Load { status, ..load }.run().await?;
            done += next;
            say(&format!("  {done} of {count} {what}, {:.0?}", begun.elapsed()));
        }
        Ok(())
    }

    /// Changes the power state of the n-th instance of an account.
    async fn power(&self, account: u64, accounts: u64, n: u64, running: bool) -> Result<()> {
        // The instances created by one fill are spread over its accounts.
        let tenth = self.scale.accounts / 10;
        let (first, of_fill) = if account < tenth {
            (0, tenth)
        } else {
            (tenth, accounts - tenth)
        };
        let number = first * self.scale.instances + (account - first) + n * of_fill;
        let path = format!(
            "{}/{}",
            objects::collection(&namespace(account)),
            instance(number)
        );
        let body = objects::power(running);
        let answer = self
            .cluster
            .admin
            .call("PATCH", &path, Some(("application/merge-patch+json", &body)));
        answer.await.map(|_| ())
    }

    async fn measure(&self, accounts: u64, sizes: &Sizes) -> Result<Measured> {
        say(&format!("  stellage run with {accounts} accounts"));
        // An instance that no other measurement has stopped.
        self.power(accounts - 1, accounts, 0, false).await?;
        let (before, begun) = (self.receivers.count(), Instant::now());
        let start = async {
            let product = self.run().await?;
            Ok::<_, crate::Error>((product, begun.elapsed()))
        };
        let first = async {
            while self.receivers.count() == before {
                if begun.elapsed() > PATIENCE {
                    return Err("no event was received".into());
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok(begun.elapsed())
        };
        let ((mut product, ready), first_event) = tokio::try_join!(start, first)?;
        say(&format!(
            "  ready after {ready:.1?}, first event after {first_event:.1?}"
        ));
        // Wait until the program has finished everything that its start caused.
        let resident = product.settled_mib(sizes).await?;
        let at_start = holds(&product).await?;
        let (received, until) = (self.receivers.count(), Instant::now() + sizes.webhooks_measured);
        let mut interval = tokio::time::interval(Duration::from_secs(1) / RATE);
        let mut n = 0;
        while Instant::now() < until {
            interval.tick().await;
            n += 1;
            let (account, round) = (n % accounts, n / accounts);
            let number = 1 + round % (self.scale.instances - 1);
            let is_start = (round / (self.scale.instances - 1)) % 2 == 1;
            self.power(account, accounts, number, is_start).await?;
        }
        let after = holds(&product).await?;
        let measured = Measured {
            ready,
            first_event,
            resident,
            longest_at_start: quantile(&at_start, 1.0),
            longest: quantile(&difference(&after, &at_start), 1.0),
            p99: quantile(&difference(&after, &at_start), 0.99),
            events: self.receivers.count() - received,
        };
        product.stop().await?;
        Ok(measured)
    }
}

/// The cumulative counts of the lock's histogram, by the upper bound of each bucket in nanoseconds.
type Holds = BTreeMap<u64, u64>;

async fn holds(product: &Product) -> Result<Holds> {
    let page = product.metrics().await?;
    let mut holds = Holds::new();
    for line in page.lines().filter(|line| line.starts_with(HOLDS)) {
        let (_, rest) = line.split_once("le=\"").ok_or("a bucket without le")?;
        let (end, count) = rest.split_once("\"} ").ok_or("a bucket without a count")?;
        let end = match end {
            "+Inf" => u64::MAX,
            end => Duration::try_from_secs_f64(end.parse()?)?.as_nanos().try_into()?,
        };
        holds.insert(end, count.parse()?);
    }
    Ok(holds)
}

fn difference(after: &Holds, before: &Holds) -> Holds {
    let since = |(end, count): (&u64, &u64)| (*end, count - before.get(end).unwrap_or(&0));
    after.iter().map(since).collect()
}

/// The upper bound, in seconds, of the bucket that contains a quantile.
fn quantile(holds: &Holds, quantile: f64) -> f64 {
    let total = holds.values().next_back().copied().unwrap_or(0);
    let wanted = as_f64(total) * quantile;
    let bucket = holds.iter().find(|(_, count)| as_f64(**count) >= wanted);
    bucket.map_or(f64::NAN, |(end, _)| as_f64(*end) / 1e9)
}
