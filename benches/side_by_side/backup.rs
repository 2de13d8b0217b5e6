//! A backup of a large installation into an S3-compatible service on loopback, encrypted as the chart has it, and its restore into an empty
//! cluster: how long they take, how much memory they need, and how large the backup is. The objects are as in an installation that has been
//! running for long; no operator runs, so that nothing else is measured.

use std::{
    io::Read as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use age::{secrecy::ExposeSecret as _, x25519};
use control_plane::Identity;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{
    Result,
    account::Account,
    cluster::{Cluster, STELLAGE},
    load::{Extent, Load, NUMBER, numbered},
    objects,
    processes::{peak_mib, processor_time},
    product::Product,
    samples::{self, Unit},
    say,
    sizes::Sizes,
    support::s3::S3,
    table::{Aim, Table},
};

const CONNECTIONS: usize = 16;
/// Instances of each account.
const INSTANCES: u64 = 5;
const TARGET: &str = "s3://backups/stellage";
/// How often the memory of the process is read.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Most memory, in MiB: what the chart's pod may use is twice as much.
const MEMORY: Aim = Aim::AtMost(256.0);
const BYTES: Unit = Unit(" bytes", 0);

pub async fn measure(table: &mut Table, sizes: &Sizes) -> Result<()> {
    let cluster = Cluster::start().await?;
    let template = template(&cluster).await?;
    let accounts = sizes.backed_up;
    fill(&cluster, &template, accounts).await?;
    let s3 = S3::start().await;
    let instances = accounts * INSTANCES;
    say(&format!(
        "backing up {accounts} accounts with {instances} instances"
    ));
    let identity = x25519::Identity::generate();
    let public = key_file(&identity.to_public().to_string())?;
    let backup = program(&cluster, &s3, &["backup"], &public);
    let backup = Run::of(backup).await?;
    cluster.stop().await?;
    let name = s3
        .objects("stellage")
        .into_iter()
        .next()
        .ok_or("there is no backup")?;
    let size = std::fs::metadata(s3.folder("stellage").join(name))?.len();
    table.note(&format!(
        "{accounts} accounts, {instances} instances, {accounts} Secrets"
    ));
    backup.show(table, "    a backup");
    #[expect(clippy::cast_precision_loss, reason = "a size in bytes is far below 2^52")]
    let (size, each) = (size as f64 / 1e6, size as f64 / instances as f64);
    table.value("    size, compressed", &size.into(), samples::MEGABYTES, None);
    table.value("    an instance", &each.into(), BYTES, None);

    let cluster = Cluster::start().await?;
    say("restoring it");
    let private = key_file(identity.to_string().expose_secret())?;
    let restore = program(&cluster, &s3, &["restore", "latest"], &private);
    Run::of(restore)
        .await?
        .show(table, "    its restore into an empty cluster");
    cluster.stop().await
}

fn key_file(key: &str) -> Result<NamedTempFile> {
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), key)?;
    Ok(file)
}

fn program(cluster: &Cluster, s3: &S3, arguments: &[&str], key: &NamedTempFile) -> Command {
    let mut command = Command::new(STELLAGE);
    command
        .arg("installation")
        .args(arguments)
        .args(["--target", TARGET, "--key-file"])
        .arg(key.path())
        .envs(s3.environment())
        .env("KUBECONFIG", cluster.plane.kubeconfig(Identity::Admin))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// What a run of the program took.
struct Run {
    seconds: f64,
    /// Seconds of CPU time.
    processor: f64,
    /// Most memory, in MiB.
    memory: f64,
}

impl Run {
    async fn of(mut command: Command) -> Result<Self> {
        let begun = Instant::now();
        let mut child = command.spawn()?;
        // It says so much that a pipe would be full.
        let mut stderr = child.stderr.take().ok_or("stderr is not piped")?;
        let said = std::thread::spawn(move || {
            let mut said = String::new();
            stderr.read_to_string(&mut said).map(|_| said)
        });
        let (mut memory, mut processor) = (0.0_f64, 0.0_f64);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            // It may end between the two.
            memory = memory.max(peak_mib(child.id()).unwrap_or_default());
            processor = processor.max(processor_time(child.id()).unwrap_or_default());
            tokio::time::sleep(LOOK_EVERY).await;
        };
        let seconds = begun.elapsed().as_secs_f64();
        let said = said.join().map_err(|_| "cannot read stderr")??;
        if !status.success() {
            return Err(said.into());
        }
        Ok(Self {
            seconds,
            processor,
            memory,
        })
    }

    fn show(&self, table: &mut Table, what: &str) {
        table.value(what, &self.seconds.into(), samples::SECONDS, None);
        table.value("    CPU time", &self.processor.into(), samples::SECONDS, None);
        table.value(
            "    most memory",
            &self.memory.into(),
            samples::MEBIBYTES,
            Some(MEMORY),
        );
    }
}

/// An instance that the program has brought to run.
async fn template(cluster: &Cluster) -> Result<Value> {
    let mut product = Product::run_of(cluster, STELLAGE.as_ref(), &[]).await?;
    let account = Account::namespace(cluster, &product, "template").await?;
    let path = objects::collection(&account);
    let manifest = objects::manifest("template");
    cluster
        .admin
        .call("POST", &path, Some(("application/json", &manifest)))
        .await?;
    let path = format!("{path}/template");
    let running = product
        .until(Duration::from_secs(60), "an instance to run", async || {
            let instance: Value = cluster.admin.call("GET", &path, None).await?.json()?;
            Ok((instance["status"]["state"] == "running").then_some(instance))
        })
        .await?;
    product.stop().await?;
    Ok(running)
}

async fn fill(cluster: &Cluster, template: &Value, accounts: u64) -> Result<()> {
    say(&format!("filling {accounts} accounts"));
    let name = format!("m-{NUMBER}");
    let namespace = json!({ "metadata": { "name": name, "labels": { "stellage.dev/account": name } } });
    let account = json!({
        "apiVersion": "stellage.dev/v1", "kind": "Account", "metadata": { "name": name }, "spec": { "email": "bench@example.com" },
    });
    let secret: Value = serde_json::from_str(&objects::secret())?;
    for (path, body) in [
        ("/api/v1/namespaces".to_owned(), namespace),
        ("/apis/stellage.dev/v1/accounts".to_owned(), account),
        (format!("/api/v1/namespaces/{name}/secrets"), secret),
    ] {
        each(
            cluster,
            accounts,
            201,
            ("POST", &path),
            ("application/json", &body),
        )
        .await?;
    }
    let collection = objects::collection(&name);
    for number in 0..INSTANCES {
        let of_it = format!("web-{number}");
        let instance = json!({
            "apiVersion": "stellage.dev/v1", "kind": "Instance",
            "metadata": {
                "name": of_it, "finalizers": template["metadata"]["finalizers"], "annotations": objects::origin(&format!("{name}-{of_it}")),
            },
            "spec": template["spec"],
        });
        each(
            cluster,
            accounts,
            201,
            ("POST", &collection),
            ("application/json", &instance),
        )
        .await?;
        let status = json!({ "status": template["status"] });
        let path = format!("{collection}/{of_it}/status");
        each(
            cluster,
            accounts,
            200,
            ("PATCH", &path),
            ("application/merge-patch+json", &status),
        )
        .await?;
    }
    Ok(())
}

/// Sends a request for each account as the operator, whose number replaces [`NUMBER`].
async fn each(
    cluster: &Cluster,
    accounts: u64,
    status: u16,
    (method, path): (&str, &str),
    (media_type, body): (&str, &Value),
) -> Result<()> {
    let target = if path.starts_with("/apis/stellage.dev/") && method == "PATCH" {
        &cluster.operator
    } else {
        &cluster.admin
    };
    let load = Load {
        target: target.clone(),
        connections: CONNECTIONS,
        requests: numbered(
            target.request(method, path, Some((media_type, &body.to_string()))),
            0,
        ),
        status,
        extent: Extent::Count(accounts),
    };
    load.run().await.map(drop)
}
