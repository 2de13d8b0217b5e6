//! The time until instances run, and the memory of the process that brings them to run, compared with KWOK, which simulates
//! resources in stages: the same creates of the same kind, with stages for the same states.
//!
//! Each turn has its own cluster, with the policy that adds the instances' finalizer on both sides, and a first instance that
//! shows that the program is ready. KWOK has the easier part: it writes only the state, and its namespace has no quota. It plays
//! the stages of kinds other than its own one after the other, which cannot be configured.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use control_plane::{Daemon, Identity, cache_folder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stellage::resources::ACCOUNT_LABEL;

use crate::{
    Result,
    account::Account,
    bare_client::CREATORS,
    cluster::{Cluster, run},
    load::{Client, Extent},
    objects,
    processes::resident_mib,
    product::Product,
    samples::{self, Samples},
    say,
    sizes::Sizes,
    table::{Aim, Table},
};

const GO_MOD: &str = include_str!("../kwok/go.mod");
const GO_SUM: &str = include_str!("../kwok/go.sum");
const STAGES: &str = include_str!("../kwok/stages.yaml");
const PACKAGE: &str = "sigs.k8s.io/kwok/cmd/kwok";
/// Timeout for all instances.
const PATIENCE: Duration = Duration::from_mins(10);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The namespace of KWOK's instances, which belongs to no account.
const NAMESPACE: &str = "kwok";

struct Turn {
    took: f64,
    resident: f64,
}

/// Measures both, if KWOK is in the cache or may be built.
pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let (count, may_build) = (sizes.kwok, sizes.builds_kwok);
    let program = tokio::task::spawn_blocking(move || find_or_build(may_build)).await??;
    let Some(program) = program else {
        say("  without KWOK: --quick does not build it, which takes minutes");
        return Ok(());
    };
    let (mut own, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..sizes.rounds {
        own.push(ours(count, sizes).await?);
        theirs.push(kwoks(&program, count, sizes).await?);
    }
    let each = |turns: &[Turn], of: fn(&Turn) -> f64| -> Samples { turns.iter().map(of).collect() };
    table.compare(
        &format!("{count} instances applied to running, PROVISIONING=0, stellage : KWOK"),
        &each(&own, |turn| turn.took),
        &each(&theirs, |turn| turn.took),
        samples::SECONDS,
        Some(Aim::AtMost(0.5)),
    );
    table.compare(
        "    resident memory with them",
        &each(&own, |turn| turn.resident),
        &each(&theirs, |turn| turn.resident),
        samples::MEBIBYTES,
        Some(Aim::AtMost(0.5)),
    );
    Ok(())
}

async fn ours(count: u64, sizes: &Sizes) -> Result<Turn> {
    let cluster = Cluster::start_with_finalizer_policy().await?;
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
    product.stop().await?;
    cluster.stop().await?;
    Ok(turn)
}

async fn kwoks(program: &Path, count: u64, sizes: &Sizes) -> Result<Turn> {
    let cluster = Cluster::start_with_finalizer_policy().await?;
    // The policy adds the finalizer only where this label is.
    let labels = json!({ ACCOUNT_LABEL: NAMESPACE });
    let namespace = json!({ "metadata": { "name": NAMESPACE, "labels": labels } }).to_string();
    let body = Some(("application/json", namespace.as_str()));
    cluster.admin.call("POST", "/api/v1/namespaces", body).await?;
    cluster.until_created(NAMESPACE).await?;
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
    let stages = folder.join("stages.yaml");
    fs::write(&stages, STAGES)?;
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(cluster.plane.kubeconfig(Identity::Operator))
        .arg("--config")
        .arg(&stages)
        .args(["--manage-all-nodes=false", "--manage-single-node=none"])
        // KWOK reads its own settings from the home folder.
        .env("HOME", folder);
    let log = folder.join("kwok.log");
    let mut daemon = Daemon::spawn("kwok", command, cluster.plane.group(), &log)?;
    let measured = turn("KWOK", &cluster, daemon.pid(), NAMESPACE, count, sizes).await;
    let measured = measured.map_err(|error| daemon.error(error.to_string()));
    daemon.kill();
    cluster.stop().await?;
    Ok(measured?)
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
    let begun = Instant::now();
    converge(cluster, namespace, "kwok", count).await?;
    let took = begun.elapsed();
    tokio::time::sleep(sizes.settling).await;
    let resident = resident_mib(pid)?;
    say(&format!(
        "  {name}: {count} instances in {took:.1?}, {resident:.1} MiB resident"
    ));
    Ok(Turn {
        took: took.as_secs_f64(),
        resident,
    })
}

async fn converge(cluster: &Cluster, namespace: &str, prefix: &str, count: u64) -> Result<()> {
    let create = objects::create(&cluster.operator, namespace, prefix);
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
