//! What a creation and a reboot ask of the API servers, and how long a creation takes. The bare client applies copies of the objects that
//! Stellage has made for a server: Secret, DataVolume, VirtualMachine, with the same identity and so the same rights, in the same
//! namespace. It decides nothing and reads nothing. Both sides take turns: some servers one after the other, and many at once.

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::Value;

use super::{Original, Stage, Tenant, collection, kinds, machines, millis, seen::Seen};
use crate::{
    Result,
    convergence::PATIENCE,
    latencies::as_f64,
    load::CONNECTIONS,
    product::Product,
    samples::{self, MILLIS, SECONDS, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    wire::Connection,
};

/// The label of the bare client's objects, which Stellage does not look at.
const BARE: &str = "bare";

/// Who makes servers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Product,
    Bare,
}

/// A server that was asked for.
struct Ordered {
    name: String,
    begun: Instant,
    /// Until the (last) request was answered.
    answered: Duration,
}

/// What the servers of a turn took, from sending the first request for each.
#[derive(Default)]
struct Turn {
    /// One after the other, in milliseconds.
    answered: Vec<f64>,
    made: Vec<f64>,
    runs: Vec<f64>,
    /// Until REST shows that it runs.
    told: Vec<f64>,
    /// Many at once, in seconds: until all virtual machines are there, and until all run.
    all_made: f64,
    all_run: f64,
    all_told: f64,
}

struct Bench<'a> {
    stage: &'a Stage,
    product: &'a Product,
    tenant: &'a Tenant,
    seen: &'a Seen,
    original: &'a Original,
}

/// Measures it, and returns the objects of a running server.
pub async fn measure(
    table: &mut Table,
    stage: &mut Stage,
    product: &Product,
    tenant: &Tenant,
    seen: &Seen,
    sizes: &Sizes,
) -> Result<Original> {
    say("(g) counting what a creation and a reboot ask");
    let original = tenant.first(stage, product, sizes).await?;
    forget(stage)?;
    let facade = product.facade(&tenant.account.key)?;
    let mut connection = facade.connect().await?;

    let mut servers = Vec::new();
    for _ in 0..sizes.ordered {
        let id = tenant.order(&facade, &mut connection).await?;
        tenant.shows(product, &mut connection, &id, "running").await?;
        servers.push(id);
    }
    for id in &servers {
        until_sealed(stage, product, tenant, id).await?;
    }
    stage.until_quiet(sizes).await?;
    report(table, stage, "creation", sizes)?;
    for id in &servers {
        let (before, _) = seen.until("a run", |times| times.runs.get(id).cloned()).await?;
        let path = format!("/v1/instances/{id}/reboot");
        facade.call("POST", &path, None).await?;
        seen.until("another run", |times| {
            let (uid, _) = times.runs.get(id)?;
            (*uid != before).then_some(())
        })
        .await?;
        tenant.shows(product, &mut connection, id, "running").await?;
    }
    stage.until_quiet(sizes).await?;
    report(table, stage, "reboot", sizes)?;

    let bench = Bench {
        stage,
        product,
        tenant,
        seen,
        original: &original,
    };
    for id in &servers {
        facade
            .call("DELETE", &format!("/v1/instances/{id}"), None)
            .await?;
    }
    bench.until_gone(1).await?;
    let (mut own, mut bare) = (Vec::new(), Vec::new());
    for round in 0..sizes.rounds {
        bare.push(bench.turn(Side::Bare, round, sizes).await?);
        own.push(bench.turn(Side::Product, round, sizes).await?);
    }
    compare(table, sizes, &own, &bare);
    forget(stage)?;
    Ok(original)
}

/// Does not count what was asked until now.
fn forget(stage: &mut Stage) -> Result<()> {
    stage.own.take(&stage.cluster.plane)?;
    stage.there.take(&stage.region.plane)?;
    Ok(())
}

/// Waits until the disk is sealed, which is the last that Stellage does for a new server.
pub async fn until_sealed(stage: &Stage, product: &Product, tenant: &Tenant, id: &str) -> Result<()> {
    let path = format!("{}/{id}", crate::objects::collection(&tenant.account.namespace));
    product
        .until(PATIENCE, "the disk to be sealed", async || {
            let instance: Value = stage.cluster.admin.call("GET", &path, None).await?.json()?;
            Ok(instance["status"]["providerState"]["sealed"].as_str().map(|_| ()))
        })
        .await
}

fn report(table: &mut Table, stage: &mut Stage, what: &str, sizes: &Sizes) -> Result<()> {
    let there = stage.there.take(&stage.region.plane)?;
    let own = stage.own.take(&stage.cluster.plane)?;
    let mut row = |line: String, count: f64, aim| {
        table.value(&line, &(count / as_f64(sizes.ordered)).into(), samples::EACH, aim);
    };
    let aim = if what == "creation" { 4.0 } else { 2.0 };
    row(
        format!("(g) writes of a {what} in the region"),
        there.writes(),
        Some(Aim::AtMost(aim)),
    );
    row(
        format!("    reads of a {what} in the region"),
        there.reads(),
        None,
    );
    row(
        format!(
            "    writes of a {what} in Stellage's own API server, its log, Events and the ledger included"
        ),
        own.writes(),
        None,
    );
    row(format!("    reads of a {what} there"), own.reads(), None);
    say(&format!(
        "  {} {what}s: in the region {there}; own API server {own}",
        sizes.ordered
    ));
    Ok(())
}

impl Bench<'_> {
    async fn turn(&self, side: Side, round: usize, sizes: &Sizes) -> Result<Turn> {
        say(match side {
            Side::Product => "  Stellage's turn",
            Side::Bare => "  a bare client's turn",
        });
        let mut turn = Turn::default();
        let mut connection = self.connect(side).await?;
        let mut reading = self.product.facade(&self.tenant.account.key)?.connect().await?;
        for n in 0..sizes.ordered {
            let ordered = self
                .order(side, &mut connection, &format!("bare-{round}-{n}"))
                .await?;
            let (made, runs) = self.until_it_runs(&ordered).await?;
            turn.answered.push(millis(ordered.answered));
            turn.made.push(millis(made - ordered.begun));
            turn.runs.push(millis(runs - ordered.begun));
            if side == Side::Product {
                self.tenant
                    .shows(self.product, &mut reading, &ordered.name, "running")
                    .await?;
                turn.told.push(millis(ordered.begun.elapsed()));
            }
        }
        self.clear(side).await?;

        let begun = Instant::now();
        let workers = u64::try_from(CONNECTIONS)?;
        let order = (0..workers).map(async |worker| {
            let mut connection = self.connect(side).await?;
            let mut all = Vec::new();
            for n in (worker..sizes.ordered_at_once).step_by(CONNECTIONS) {
                all.push(
                    self.order(side, &mut connection, &format!("bare-{round}-m{n}"))
                        .await?,
                );
            }
            Result::Ok(all)
        });
        let ordered: Vec<Ordered> = try_join_all(order).await?.into_iter().flatten().collect();
        let (mut made, mut runs) = (begun, begun);
        for one in &ordered {
            let (one_made, one_runs) = self.until_it_runs(one).await?;
            (made, runs) = (made.max(one_made), runs.max(one_runs));
        }
        if side == Side::Product {
            for one in &ordered {
                self.tenant
                    .shows(self.product, &mut reading, &one.name, "running")
                    .await?;
            }
        }
        turn.all_told = begun.elapsed().as_secs_f64();
        turn.all_made = (made - begun).as_secs_f64();
        turn.all_run = (runs - begun).as_secs_f64();
        self.clear(side).await?;
        Ok(turn)
    }

    async fn connect(&self, side: Side) -> Result<Connection> {
        match side {
            Side::Product => self.product.facade(&self.tenant.account.key)?.connect().await,
            Side::Bare => self.stage.theirs.connect().await,
        }
    }

    /// Asks for a server. The bare client gives it this name.
    async fn order(&self, side: Side, connection: &mut Connection, name: &str) -> Result<Ordered> {
        let begun = Instant::now();
        let name = match side {
            Side::Product => {
                let facade = self.product.facade(&self.tenant.account.key)?;
                self.tenant.order(&facade, connection).await?
            }
            Side::Bare => {
                for (path, object) in self.original.applied(name, BARE)? {
                    let path = format!("{path}?fieldManager=bench&fieldValidation=Strict");
                    let body = object.to_string();
                    let post = self
                        .stage
                        .theirs
                        .request("POST", &path, Some(("application/json", &body)));
                    let status = connection.exchange(post.as_bytes()).await?;
                    if status != 201 {
                        let answer = String::from_utf8_lossy(&connection.body()).into_owned();
                        return Err(format!("POST {path} was answered with {status}: {answer}").into());
                    }
                }
                name.to_owned()
            }
        };
        Ok(Ordered {
            name,
            begun,
            answered: begun.elapsed(),
        })
    }

    /// When its virtual machine was there, and when that ran.
    async fn until_it_runs(&self, ordered: &Ordered) -> Result<(Instant, Instant)> {
        self.seen
            .until("a server to run", |times| {
                let made = times.made.get(&ordered.name)?;
                let (_, runs) = times.runs.get(&ordered.name)?;
                Some((*made, *runs))
            })
            .await
    }

    /// Deletes the servers of a turn.
    async fn clear(&self, side: Side) -> Result<()> {
        let (admin, namespace) = (&self.stage.admin, &self.tenant.namespace);
        if side == Side::Bare {
            for path in [
                machines(namespace),
                collection(&kinds::DISK, namespace),
                format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims"),
                format!("/api/v1/namespaces/{namespace}/secrets"),
            ] {
                let path = format!("{path}?labelSelector=stellage.dev/installation%3D{BARE}");
                admin.call("DELETE", &path, None).await?;
            }
        } else {
            let facade = self.product.facade(&self.tenant.account.key)?;
            let list: Value = self
                .stage
                .cluster
                .admin
                .call(
                    "GET",
                    &crate::objects::collection(&self.tenant.account.namespace),
                    None,
                )
                .await?
                .json()?;
            for instance in list["items"].as_array().into_iter().flatten() {
                let metadata = &instance["metadata"];
                let id = metadata["name"].as_str().unwrap_or_default();
                // Of those before, some objects may still be there.
                if id != self.original.id && metadata["deletionTimestamp"].is_null() {
                    facade
                        .call("DELETE", &format!("/v1/instances/{id}"), None)
                        .await?;
                }
            }
        }
        self.until_gone(1).await
    }

    /// Waits until only so many servers are left.
    async fn until_gone(&self, left: u64) -> Result<()> {
        let wanted = usize::try_from(left)?;
        let path = machines(&self.tenant.namespace);
        self.product
            .until(PATIENCE, "the servers to go", async || {
                let list: Value = self.stage.admin.call("GET", &path, None).await?.json()?;
                let machines = list["items"].as_array().map_or(0, Vec::len);
                let is_gone = machines == wanted && self.tenant.count(self.product, None).await? == left;
                tokio::time::sleep(Duration::from_millis(200)).await;
                Ok(is_gone.then_some(()))
            })
            .await
    }
}

/// Reports the times.
fn compare(table: &mut Table, sizes: &Sizes, own: &[Turn], bare: &[Turn]) {
    let medians = |turns: &[Turn], of: fn(&Turn) -> &Vec<f64>| -> Samples {
        let median = |turn: &Turn| of(turn).iter().copied().collect::<Samples>().median();
        turns.iter().map(median).collect()
    };
    let times = |turns: &[Turn], of: fn(&Turn) -> f64| -> Samples { turns.iter().map(of).collect() };
    let client = "a bare client that applies Secret, disk and VM";
    let ordered = sizes.ordered;
    table.compare(
        &format!("from `POST /v1/instances` to the VM in the region, median of {ordered} : {client}"),
        &medians(own, |turn| &turn.made),
        &medians(bare, |turn| &turn.made),
        MILLIS,
        None,
    );
    table.compare(
        "    until the VM's run is Running in the region : the bare client",
        &medians(own, |turn| &turn.runs),
        &medians(bare, |turn| &turn.runs),
        MILLIS,
        Some(Aim::AtMost(1.3)),
    );
    table.compare(
        "    until REST shows it as `running` : until the bare client's run is Running",
        &medians(own, |turn| &turn.told),
        &medians(bare, |turn| &turn.runs),
        MILLIS,
        None,
    );
    table.value(
        "    until the POST is answered, which does not wait for the region",
        &medians(own, |turn| &turn.answered),
        MILLIS,
        None,
    );
    let many = sizes.ordered_at_once;
    table.compare(
        &format!("{many} servers ordered at once, until all VMs are in the region : {client}"),
        &times(own, |turn| turn.all_made),
        &times(bare, |turn| turn.all_made),
        SECONDS,
        None,
    );
    table.compare(
        "    until all their runs are Running : the bare client",
        &times(own, |turn| turn.all_run),
        &times(bare, |turn| turn.all_run),
        SECONDS,
        Some(Aim::AtMost(1.3)),
    );
    table.compare(
        "    until REST shows all as `running` : until all of the bare client's are Running",
        &times(own, |turn| turn.all_told),
        &times(bare, |turn| turn.all_run),
        SECONDS,
        None,
    );
}
