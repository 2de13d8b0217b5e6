//! The time until instances run, and the memory of the process that brings them to run, compared with KWOK, which simulates
//! resources in stages: the same creates of the same kind, with stages for the same states.
//!
//! Each turn has its own cluster, instances with finalizer and origin and a native quota on both sides, and a first
//! instance that shows that the program is ready. KWOK's stage writes the status that this build has written for its first
//! instance; without a target, it writes only the state. After this build's turn, a bare client creates as many instances on its
//! cluster and writes the same statuses, which shows how little time both can take. KWOK plays the stages of kinds other than its
//! own one after the other, which cannot be configured.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use control_plane::{Daemon, Identity, cache_folder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    Result,
    account::Account,
    bare_client::{BareClient, CREATORS, create_namespace},
    cluster::{Cluster, run},
    convergence::{has_outbox, until_quiet},
    load::{Client, Extent},
    objects,
    processes::{allocated_mib, resident_mib},
    product::Product,
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

const GO_MOD: &str = include_str!("../kwok/go.mod");
const GO_SUM: &str = include_str!("../kwok/go.sum");
const PACKAGE: &str = "sigs.k8s.io/kwok/cmd/kwok";
/// Timeout for all instances.
const PATIENCE: Duration = Duration::from_mins(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The namespace of KWOK's instances, which belongs to no account.
const NAMESPACE: &str = "kwok";

struct Turn {
    took: f64,
    resident: f64,
    allocated: f64,
    /// The status of the first instance.
    status: Value,
}

/// Measures both, if KWOK is in the cache or may be built.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let (count, may_build) = (sizes.kwok, sizes.builds_kwok);
    let program = tokio::task::spawn_blocking(move || find_or_build(may_build)).await??;
    let Some(program) = program else {
        say("  without KWOK: --quick does not build it, which takes minutes");
        return Ok(());
    };
    let (mut own, mut same, mut least) = (Vec::new(), Vec::new(), Vec::new());
    let mut minimum = Vec::new();
    for _ in 0..sizes.rounds {
        let (turn, bare) = ours(count, sizes).await?;
        minimum.push(bare);
        same.push(kwoks(&program, &turn.status, count, sizes).await?);
        if sizes.kwok_of_least {
            least.push(kwoks(&program, &json!({ "state": "running" }), count, sizes).await?);
        }
        own.push(turn);
    }
    let each = |turns: &[Turn], of: fn(&Turn) -> f64| -> Samples { turns.iter().map(of).collect() };
    let mut compare = |what: &str, of: fn(&Turn) -> f64, unit, aim: Option<f64>| {
        let own = each(&own, of);
        let what = format!("{what}, stellage : KWOK");
        table.compare(&what, &own, &each(&same, of), unit, aim.map(Aim::AtMost));
        if !least.is_empty() {
            let what = format!("{what} that writes only the state");
            table.compare(&what, &own, &each(&least, of), unit, None);
        }
    };
    let what = format!("{count} instances applied to running, PROVISIONING=0");
    compare(&what, |turn| turn.took, samples::SECONDS, Some(0.5));
    let what = "    resident memory with them";
    compare(what, |turn| turn.resident, samples::MEBIBYTES, Some(0.5));
    let what = "    of it allocated (RssAnon)";
    compare(what, |turn| turn.allocated, samples::MEBIBYTES, None);
    let what =
        format!("the same {count} creates and statuses, by a bare client that does nothing else : KWOK");
    let minimum = minimum.into_iter().collect();
    table.compare(
        &what,
        &minimum,
        &each(&same, |turn| turn.took),
        samples::SECONDS,
        None,
    );
    Ok(())
}

/// The turn of this build, and the seconds of the bare client's after it.
async fn ours(count: u64, sizes: &Sizes) -> Result<(Turn, f64)> {
    let cluster = Cluster::start().await?;
    let mut product = Product::run(&cluster).await?;
    let account = Account::create(&cluster, &product).await?;
    cluster.until_created(&account.namespace).await?;
    let turn = turn(
        "stellage",
        &cluster,
        product.pid,
        &account.namespace,
        count,
        sizes,
    )
    .await?;
    has_outbox(&turn.status)?;
    product.stop().await?;
    let client = BareClient::of_same_contents(&cluster, turn.status.clone()).await?;
    client.write(&cluster, "first", 1).await?;
    let minimum = client.write(&cluster, "kwok", count).await?;
    cluster.stop().await?;
    Ok((turn, minimum.took.as_secs_f64()))
}

async fn kwoks(program: &Path, status: &Value, count: u64, sizes: &Sizes) -> Result<Turn> {
    let cluster = Cluster::start().await?;
    create_namespace(&cluster, NAMESPACE, true).await?;
    // KWOK also watches nodes and pods. Only the operator may write statuses, so KWOK gets the operator's identity and
    // additional rights.
    let body = json!({
        "metadata": { "name": "kwok" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts:stellage-system" },
        ],
    });
    let (bindings, body) = (
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        body.to_string(),
    );
    cluster
        .admin
        .call("POST", bindings, Some(("application/json", &body)))
        .await?;
    let folder = cluster.plane.folder();
    let stage = folder.join("stage.json");
    fs::write(&stage, stage_of(status).to_string())?;
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(cluster.plane.kubeconfig(Identity::Operator))
        .arg("--config")
        .arg(&stage)
        .args(["--manage-all-nodes=false", "--manage-single-node=none"])
        // KWOK reads its own settings from the home folder.
        .env("HOME", folder);
    let log = folder.join("kwok.log");
    let mut daemon = Daemon::spawn("kwok", command, cluster.plane.group(), &log)?;
    let measured = turn("KWOK", &cluster, daemon.pid(), NAMESPACE, count, sizes).await;
    let measured = measured.map_err(|error| daemon.error(error.to_string()));
    daemon.kill();
    cluster.stop().await?;
    let measured = measured?;
    if measured.status != *status {
        return Err(format!("not what KWOK was to store: {}", measured.status).into());
    }
    Ok(measured)
}

/// The stage that brings an instance to run: one write of this status, as by an operator whose provider is done at once.
fn stage_of(status: &Value) -> Value {
    json!({
        "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": { "name": "instance-running" },
        "spec": {
            "resourceRef": { "apiGroup": "stellage.dev/v1", "kind": "Instance" },
            "selector": { "matchExpressions": [{ "key": ".status.state", "operator": "DoesNotExist" }] },
            "next": { "statusTemplate": status.to_string() },
        },
    })
}

/// Brings instances to run, and reads the memory of the process that did.
async fn turn(
    name: &str,
    cluster: &Cluster,
    pid: u32,
    namespace: &str,
    count: u64,
    sizes: &Sizes,
) -> Result<Turn> {
    converge(cluster, namespace, "first", 1).await?;
    let first = objects::path(namespace, "first", 0);
    let mut first: Value = cluster.admin.call("GET", &first, None).await?.json()?;
    let begun = Instant::now();
    converge(cluster, namespace, "kwok", count).await?;
    let took = begun.elapsed();
    until_quiet(cluster, sizes).await?;
    tokio::time::sleep(sizes.settling).await;
    let (resident, allocated) = (resident_mib(pid)?, allocated_mib(pid)?);
    say(&format!(
        "  {name}: {count} instances in {took:.1?}, {resident:.1} MiB resident"
    ));
    Ok(Turn {
        took: took.as_secs_f64(),
        resident,
        allocated,
        status: first["status"].take(),
    })
}

async fn converge(cluster: &Cluster, namespace: &str, prefix: &str, count: u64) -> Result<()> {
    let create = objects::create_marked(&cluster.operator, namespace, prefix);
    let apply = Client {
        status: 201,
        ..Client::repeating(&cluster.operator, CREATORS, create, Extent::Count(count))
    };
    apply.run().await?;
    // One is enough to know that not all run: a list of all of them would slow down the slower side.
    let waiting = format!(
        "{}?fieldSelector=status.state%21%3Drunning&limit=1",
        objects::collection(namespace)
    );
    let begun = Instant::now();
    loop {
        let list: Value = cluster.admin.call("GET", &waiting, None).await?.json()?;
        if list["items"].as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            return Err("not all instances run".into());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Finds KWOK in the cache, or builds it once from its pinned Go module if it may.
fn find_or_build(may_build: bool) -> Result<Option<PathBuf>> {
    let digest = Sha256::digest([GO_MOD, GO_SUM, env::consts::ARCH].join("\n"));
    let folder = cache_folder()?.join(format!("kwok-{}", hex::encode(&digest[..6])));
    let program = folder.join("kwok");
    if program.is_file() {
        return Ok(Some(program));
    }
    if !may_build {
        return Ok(None);
    }
    say("building KWOK from its Go module, once");
    fs::create_dir_all(&folder)?;
    let modules = tempfile::tempdir()?;
    fs::write(modules.path().join("go.mod"), GO_MOD)?;
    fs::write(modules.path().join("go.sum"), GO_SUM)?;
    // The final name is given only to the complete program.
    let partial = folder.join(format!(".kwok-{}", std::process::id()));
    let mut build = Command::new("go");
    build
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"])
        .arg(&partial)
        .arg(PACKAGE)
        .current_dir(modules.path())
        .envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off")]);
    run(&mut build, "")?;
    fs::rename(&partial, &program)?;
    Ok(Some(program))
}
