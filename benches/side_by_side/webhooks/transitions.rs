//! The cost of a transition: instances of one account are stopped and started again by patches of their spec from a client's
//! process, a fixed number at a time for a fixed duration, with every event logged, without webhooks and with some.
//!
//! The CPU time of a transition hardly depends on the machine's load, unlike the rate of transitions. It is the CPU time of each
//! server's whole process, from the first patch until every event has arrived and all outboxes are empty. So it includes the log,
//! the counters and the clearing of outboxes, and also what the servers do when idle for that long.
//!
//! For each number of webhooks, a new process first has a turn in which it writes Kubernetes Events for every transition; it ends once
//! they are written. Before the other turns, instances are stopped and started until the process writes hardly any Events, because it
//! writes only a limited number for each instance.
//!
//! The API server tracks which client wrote which field, but not for instances created through REST once they have been changed
//! through REST, which empties their `managedFields`. So both kinds are measured: all instances are made and changed as with
//! kubectl, and the `managedFields` of the untracked ones are emptied. With `--baseline`, another build of `stellage` does the
//! same on the same cluster, in turns, with tracked instances: older builds always track fields. Each build has its own CRDs and
//! policies, since much of what a write costs is their doing. What one of them has left behind, such as thousands of Deliveries,
//! is deleted before the next one's turns.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    Stage,
    receivers::{self, Receivers},
};
use crate::{
    Result,
    churn::{Churn, Pace},
    cluster::STELLAGE,
    latencies::as_f64,
    objects,
    processes::{load_average, processor_time},
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
    writes::{Writes, until_events_are_written},
};

/// Number of instances of each kind: enough that none has used up its Kubernetes Events (25) by the end of a process's first turn.
const INSTANCES: u64 = 144;
/// Number of concurrent transitions.
const AT_A_TIME: usize = 32;
const UNTRACKED: &str = "this build, untracked";
const TRACKED: &str = "this build, tracked (made by kubectl)";
const BASELINE: &str = "baseline";
const ARGUMENTS: &[&str] = &["--delivery-log=all"];
/// The servers whose CPU time is shown, in addition to that of `stellage`.
const SERVERS: [&str; 3] = ["kube-apiserver", "etcd", "kube-controller-manager"];
/// How long the API server may take to build what it serves anew from changed CRDs and policies.
const UNTIL_DEFINED: Duration = Duration::from_secs(10);
/// Timeout for all events to arrive.
const PATIENCE: Duration = Duration::from_mins(3);
/// Events stay in an outbox for ten seconds, so checking earlier is pointless.
const BEFORE_CLEARING: Duration = Duration::from_secs(9);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Transitions per second when hardly anything happens, and how long: for five of them.
const LONELY: f64 = 0.2;
const LONELY_FOR: Duration = Duration::from_secs(26);
/// The target for a delivery, in core-ms.
const DELIVERY: Aim = Aim::AtMost(0.3);
/// The target for the pages of the log that a lone event needs.
const LONE_PAGES: Aim = Aim::AtMost(1.0);

/// The target for a transition with this many webhooks, in core-ms.
fn aim(webhooks: usize) -> Option<Aim> {
    match webhooks {
        0 => Some(Aim::AtMost(10.0)),
        1 => Some(Aim::AtMost(11.0)),
        5 => Some(Aim::AtMost(13.0)),
        _ => None,
    }
}

/// One of the builds compared, with instances of one kind.
struct Side<'a> {
    name: &'static str,
    program: &'a Path,
    churn: &'a Churn,
    /// The turns with Kubernetes Events of all rounds, for each number of webhooks.
    with_events: Vec<Vec<Turn>>,
    /// The turns without, likewise.
    turns: Vec<Vec<Turn>>,
}

struct Turn {
    /// Transitions per second.
    rate: f64,
    /// CPU time of each of [`SERVERS`] per transition, in milliseconds.
    servers: [f64; SERVERS.len()],
    /// CPU time of `stellage` per transition, in milliseconds.
    own: f64,
    /// Writes of Instances per transition.
    writes: f64,
    /// Kubernetes Events per transition, either created or counted up.
    events: f64,
    /// Values that etcd writes per transition.
    stored: f64,
    /// LIST requests for webhooks per transition.
    lists: f64,
}

impl Turn {
    fn total(&self) -> f64 {
        self.own + self.servers.iter().sum::<f64>()
    }
}

fn samples(turns: &[Turn], of: impl Fn(&Turn) -> f64) -> Samples {
    turns.iter().map(of).collect()
}

/// Measures this build, and the baseline if there is one.
pub async fn measure(table: &mut Table, baseline: Option<&Path>, sizes: &Sizes) -> Result<()> {
    say("transitions");
    let numbers = sizes.transition_webhooks;
    let most = numbers.iter().copied().max().unwrap_or(0);
    let receivers = Receivers::start(most.max(1), receivers::BOTH)?;
    let mut stage = Stage::start(ARGUMENTS).await?;
    let (tracked, untracked) = (
        stage.churn("tracked", INSTANCES).await?,
        stage.churn("untracked", INSTANCES).await?,
    );
    stage.webhooks(&receivers, 0, most).await?;
    let side = |name, program, churn| Side {
        name,
        program,
        churn,
        with_events: numbers.iter().map(|_| Vec::new()).collect(),
        turns: numbers.iter().map(|_| Vec::new()).collect(),
    };
    let mut builds = vec![
        side(UNTRACKED, Path::new(STELLAGE), &untracked),
        side(TRACKED, Path::new(STELLAGE), &tracked),
    ];
    builds.extend(baseline.map(|program| side(BASELINE, program, &tracked)));
    let (mut lone_pages, mut defined) = (Vec::new(), Path::new(STELLAGE));
    for _ in 0..sizes.rounds {
        for side in &mut builds {
            if side.program != defined {
                stage.cluster.define(side.program)?;
                defined = side.program;
                tokio::time::sleep(UNTIL_DEFINED).await;
            }
            round(side, &mut stage, &receivers, sizes).await?;
            if side.name == UNTRACKED && sizes.drained {
                lone_pages.push(pages_of_lone_events(&stage, side.churn, sizes).await?);
            }
            clean_up(&stage).await?;
        }
    }
    stage.stop().await?;
    for (n, webhooks) in numbers.iter().enumerate() {
        let turns: Vec<_> = builds.iter().map(|side| (side.name, &*side.turns[n])).collect();
        report(table, &turns, &format!("{webhooks} webhooks"), aim(*webhooks));
    }
    for (n, webhooks) in numbers.iter().enumerate() {
        let turns: Vec<_> = builds
            .iter()
            .map(|side| (side.name, &*side.with_events[n]))
            .collect();
        let what = format!("{webhooks} webhooks, with Kubernetes Events");
        report(table, &turns, &what, aim(*webhooks));
    }
    report_deliveries(table, &builds, numbers);
    if !lone_pages.is_empty() {
        table.value(
            &format!(
                "pages of the log an event, one event in {:.0} s, {UNTRACKED}",
                1.0 / LONELY
            ),
            &lone_pages.into_iter().collect(),
            samples::EACH,
            Some(LONE_PAGES),
        );
    }
    table.note(&format!(
        "transitions: log all, {INSTANCES} instances, {AT_A_TIME} at a time, {} s",
        sizes.transitions.as_secs()
    ));
    Ok(())
}

/// Runs the turns of a build with Kubernetes Events, each in a new process, then those without.
async fn round(side: &mut Side<'_>, stage: &mut Stage, receivers: &Receivers, sizes: &Sizes) -> Result<()> {
    let numbers = sizes.transition_webhooks;
    let most = numbers.iter().copied().max().unwrap_or(0);
    for (turns, &webhooks) in side.with_events.iter_mut().zip(numbers) {
        stage.restart_as(side.program, ARGUMENTS).await?;
        if side.name == UNTRACKED {
            // Older builds write to all instances when they start, and so have them tracked again.
            side.churn.untrack().await?;
        }
        stage.activate(webhooks, most, false).await?;
        stage.activate(0, webhooks, true).await?;
        let measured = turn(stage, receivers, side.churn, webhooks, true, sizes).await?;
        tell(side.name, &format!("{webhooks} webhooks, with Events"), &measured);
        turns.push(measured);
    }
    stage.activate(0, most, false).await?;
    side.churn.drain(&stage.cluster, AT_A_TIME, sizes).await?;
    until_cleared(stage, sizes).await?;
    let mut active = 0;
    for (turns, &webhooks) in side.turns.iter_mut().zip(numbers) {
        stage.activate(active, webhooks, true).await?;
        active = webhooks;
        let measured = turn(stage, receivers, side.churn, webhooks, false, sizes).await?;
        tell(side.name, &format!("{webhooks} webhooks"), &measured);
        turns.push(measured);
    }
    Ok(())
}

/// Deletes what a build has left behind, besides the instances.
async fn clean_up(stage: &Stage) -> Result<()> {
    let namespace = &stage.account.namespace;
    for (version, kind) in [
        ("stellage.dev/v1", "deliveries"),
        ("stellage.dev/v1", "eventlogs"),
        ("events.k8s.io/v1", "events"),
    ] {
        let path = format!("/apis/{version}/namespaces/{namespace}/{kind}");
        stage.cluster.admin.call("DELETE", &path, None).await?;
    }
    Ok(())
}

fn tell(name: &str, what: &str, turn: &Turn) {
    let servers = SERVERS.iter().zip(turn.servers);
    let servers: Vec<_> = servers.map(|(name, cost)| format!("{name} {cost:.2}")).collect();
    say(&format!(
        "  {name}, {what}: {:.0} transitions/s, {:.2} core-ms each: stellage {:.2}, {}; {:.2} writes of instances, {:.2} of \
         Events, {:.2} of etcd, {:.2} lists of webhooks; load {}",
        turn.rate,
        turn.total(),
        turn.own,
        servers.join(", "),
        turn.writes,
        turn.events,
        turn.stored,
        turn.lists,
        load_average()
    ));
}

/// Waits until all outboxes are empty: all events have been logged and delivered.
async fn until_cleared(stage: &Stage, sizes: &Sizes) -> Result<()> {
    if !sizes.drained {
        return Ok(());
    }
    tokio::time::sleep(BEFORE_CLEARING).await;
    let path = objects::collection(&stage.account.namespace);
    stage
        .product
        .until(PATIENCE, "the outboxes to be cleared", async || {
            tokio::time::sleep(LOOK_EVERY).await;
            let list: Value = stage.cluster.admin.call("GET", &path, None).await?.json()?;
            let mut instances = list["items"].as_array().into_iter().flatten();
            let is_empty =
                |instance: &Value| instance["status"]["outbox"].as_array().is_none_or(Vec::is_empty);
            Ok(instances.all(is_empty).then_some(()))
        })
        .await
}

async fn turn(
    stage: &Stage,
    receivers: &Receivers,
    churn: &Churn,
    webhooks: usize,
    with_events: bool,
    sizes: &Sizes,
) -> Result<Turn> {
    let cluster = &stage.cluster;
    let mut pids = [0; SERVERS.len()];
    for (pid, name) in pids.iter_mut().zip(SERVERS) {
        *pid = cluster.pid(name)?;
    }
    let used = || -> Result<_> {
        let mut servers = [0.0; SERVERS.len()];
        for (time, pid) in servers.iter_mut().zip(pids) {
            *time = processor_time(pid)?;
        }
        Ok((processor_time(stage.product.pid)?, servers))
    };
    let received = receivers.count();
    let (writes, stored) = (Writes::count(&cluster.admin).await?, cluster.etcd_writes().await?);
    let (own, servers) = used()?;
    let churned = churn.run(Pace::AtATime(AT_A_TIME), sizes.transitions).await?;
    let owed = churned.events * webhooks as u64;
    let changed = Instant::now();
    stage
        .product
        .until(PATIENCE, "all events to arrive", async || {
            Ok((receivers.count() - received >= owed).then_some(()))
        })
        .await?;
    let later = changed.elapsed();
    until_cleared(stage, sizes).await?;
    if with_events && sizes.drained {
        until_events_are_written(&cluster.admin).await?;
    }
    // Delivery is promised at least once, so duplicates are only reported.
    let surplus = receivers.count() - received - owed;
    say(&format!(
        "    {} transitions, all events arrived {later:.1?} later, {surplus} of them again",
        churned.events
    ));
    let (own_after, servers_after) = used()?;
    let each = |total: f64| total / as_f64(churned.events);
    let writes = Writes::count(&cluster.admin).await? - writes;
    Ok(Turn {
        rate: as_f64(churned.events) / churned.took.as_secs_f64(),
        servers: std::array::from_fn(|n| each(servers_after[n] - servers[n]) * 1000.0),
        own: each(own_after - own) * 1000.0,
        writes: each(as_f64(writes.instances)),
        events: each(as_f64(writes.events)),
        stored: each(cluster.etcd_writes().await? - stored),
        lists: each(as_f64(writes.webhook_lists)),
    })
}

/// Pages of the log that an event needs if it is the only one for seconds.
async fn pages_of_lone_events(stage: &Stage, churn: &Churn, sizes: &Sizes) -> Result<f64> {
    let admin = &stage.cluster.admin;
    let before = Writes::count(admin).await?;
    let events = churn.run(Pace::Rate(LONELY), LONELY_FOR).await?.events;
    until_cleared(stage, sizes).await?;
    let pages = (Writes::count(admin).await? - before).event_logs;
    say(&format!("  {events} lone events: {pages} pages of the log"));
    Ok(as_f64(pages) / as_f64(events))
}

/// Reports what a delivery costs, from transitions with the fewest and with the most webhooks.
fn report_deliveries(table: &mut Table, sides: &[Side<'_>], numbers: &[usize]) {
    for Side { name, turns, .. } in sides {
        let mut with_webhooks = numbers.iter().zip(turns).filter(|(webhooks, _)| **webhooks > 0);
        let Some((fewest, with_fewest)) = with_webhooks.next() else {
            return;
        };
        let Some((most, with_most)) = with_webhooks.next_back() else {
            return;
        };
        let more = as_f64((most - fewest) as u64);
        let rounds = with_most.iter().zip(with_fewest);
        table.value(
            &format!(
                "CPU time a delivery, {name}: what {most} webhooks cost more than {fewest}, divided by {more}"
            ),
            &rounds
                .map(|(with_most, with_fewest)| (with_most.total() - with_fewest.total()) / more)
                .collect(),
            samples::CORE_MILLIS,
            (*name == UNTRACKED).then_some(DELIVERY),
        );
    }
}

/// Reports the turns of the first side, compared with those of each other side.
fn report(table: &mut Table, sides: &[(&str, &[Turn])], what: &str, aim: Option<Aim>) {
    let [(name, own), others @ ..] = sides else {
        return;
    };
    table.value(
        &format!("CPU time a transition, {what}, {name}"),
        &samples(own, Turn::total),
        samples::CORE_MILLIS,
        aim,
    );
    for (other, turns) in others {
        let mut line = |what: &str, unit, of: &dyn Fn(&Turn) -> f64| {
            let what = format!("    {what}, {name} : {other}");
            table.compare(&what, &samples(own, of), &samples(turns, of), unit, None);
        };
        line("the same", samples::CORE_MILLIS, &Turn::total);
        line("of it, stellage", samples::CORE_MILLIS, &|turn| turn.own);
        for (position, server) in SERVERS.iter().enumerate() {
            line(&format!("of it, {server}"), samples::CORE_MILLIS, &|turn| {
                turn.servers[position]
            });
        }
        line("transitions/s", samples::PER_SECOND, &|turn| turn.rate);
        line("writes of instances a transition", samples::EACH, &|turn| {
            turn.writes
        });
        // Without Events there is no ratio.
        if own.iter().all(|turn| turn.events > 0.1) {
            line(
                "writes of Kubernetes Events a transition",
                samples::EACH,
                &|turn| turn.events,
            );
        }
        line("writes of etcd a transition", samples::EACH, &|turn| turn.stored);
        line("lists of webhooks a transition", samples::EACH, &|turn| {
            turn.lists
        });
    }
}
