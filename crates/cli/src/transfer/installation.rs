//! `stellage installation`: backs up the installation, and restores it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

use super::{
    export,
    file::{self, Header},
    import::{self, IntoArgs, Source},
    packing::{KeyArgs, Packer},
    store::{Backup, Name, Store, StoreArgs},
};
use crate::{
    CliError,
    connect::Cluster,
    duration, objects,
    output::{self, Output, note},
    program,
};
use resources::ids;
use runtime::{installation_backup, kubeconfig::ClusterArgs};

/// Back up the installation, and restore it
///
/// A backup is what `stellage export` writes, compressed and encrypted, in a bucket or a folder. The chart has a CronJob for it.
#[derive(Debug, Subcommand)]
pub enum InstallationCommand {
    /// Back up all accounts and what they have, while the operator runs
    ///
    /// The backup is there once it is complete: one that was interrupted is none. Its time is noted in the ConfigMap
    /// stellage-backup in the operator's namespace, which the chart creates if backups are planned, and from which the operator takes the
    /// metric. Without accounts there is nothing to back up: that is an error if there are backups of this installation already.
    #[command(after_help = BACKUP)]
    Backup(BackupArgs),
    /// List the backups, the newest first
    #[command(after_help = LIST)]
    Backups(BackupsArgs),
    /// Create what is in a backup, in an empty installation, or one account of it in any
    ///
    /// As `stellage import` does: no operator may run, unless it is for one account.
    #[command(after_help = RESTORE)]
    Restore(RestoreArgs),
}

const BACKUP: &str = "\
Examples:
  stellage installation backup --target s3://backups/stellage --key-file stellage.keys --keep 30d
  stellage installation backup --target /backups --key-file stellage.keys
  stellage installation backup --target s3://backups/stellage --s3-endpoint https://s3.example.com --key-file stellage.keys";

const LIST: &str = "\
Examples:
  stellage installation backups --target s3://backups/stellage";

const RESTORE: &str = "\
Examples:
  stellage installation restore latest --target s3://backups/stellage --key-file stellage.keys
  stellage installation restore BACKUP --target s3://backups/stellage --key-file stellage.keys --account ada";

/// Back up the installation.
#[derive(Args, Debug)]
pub struct BackupArgs {
    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    keys: KeyArgs,

    /// Do not encrypt the backup, which has the user data and the signing secrets of all accounts
    #[arg(long, conflicts_with = "key_file", required_unless_present = "key_file")]
    unencrypted: bool,

    /// Afterwards, delete the backups of this installation that are older, such as 30d, but never the newest; without it, none
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep: Option<std::time::Duration>,

    /// Namespace of the operator
    #[arg(long, value_name = "NAMESPACE", default_value = "stellage-system", value_parser = objects::name)]
    operator_namespace: String,
}

/// List the backups.
#[derive(Args, Debug)]
pub struct BackupsArgs {
    #[command(flatten)]
    store: StoreArgs,

    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Restore a backup.
#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Name of the backup, or `latest`
    #[arg(value_name = "BACKUP")]
    backup: String,

    #[command(flatten)]
    store: StoreArgs,

    #[command(flatten)]
    keys: KeyArgs,

    #[command(flatten)]
    into: IntoArgs,
}

pub(crate) async fn run(command: InstallationCommand, which: &ClusterArgs) -> Result<(), CliError> {
    match command {
        InstallationCommand::Backup(args) => backup(args, which).await,
        InstallationCommand::Backups(args) => list(&args).await,
        InstallationCommand::Restore(args) => restore(args, which).await,
    }
}

async fn backup(args: BackupArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let keys = args.keys.read()?;
    let store = Store::of(&args.store)?;
    let cluster = Cluster::of(which).await?;
    let namespace = &args.operator_namespace;
    export::unfinished_import(&cluster, namespace).await?;
    let header = Header::new(ids::random_suffix(), namespace);
    let uid = namespace_uid(&cluster, namespace).await?;
    let name = Name::new(&uid, header.exported_at, &header.id, keys.is_some());
    let mut upload = store.upload(&name).await?;
    let place = PathBuf::from(store.place(&name.to_string()));
    let written = async {
        let packer = Packer::new(upload.buffer(), keys.as_ref()).map_err(|source| CliError::File {
            path: place.clone(),
            source,
        })?;
        let counts = export::into(&cluster, &header, packer, &mut upload, &place).await?;
        if !file::has_accounts(&counts) {
            return Ok(None);
        }
        let bytes = upload.complete().await?;
        Ok(Some((counts, bytes)))
    };
    let written = tokio::select! {
        written = written => written,
        () = told_to_end() => Err(CliError::Plain("interrupted: there is no backup".to_owned())),
    };
    let (counts, bytes) = match written {
        Ok(Some(written)) => written,
        Ok(None) => {
            upload.abort().await;
            return nothing_to_back_up(&cluster, namespace, &store, &name).await;
        }
        Err(error) => {
            upload.abort().await;
            return Err(error);
        }
    };
    note(&format!(
        "backed up {} in {bytes} bytes: {}",
        export::words(&counts),
        place.display()
    ));
    let last = Last {
        at: header.exported_at,
        name: name.to_string(),
        bytes,
    };
    last.write(&cluster, namespace).await?;
    if let Some(keep) = args.keep {
        let all = store.backups().await?;
        for old in expired(&all, &name, Timestamp::now(), keep) {
            store.delete(&old.name).await?;
            note(&format!("deleted the old backup {}", old.name));
        }
    }
    Ok(())
}

/// The UID of the operator's namespace, which identifies the installation.
async fn namespace_uid(cluster: &Cluster, namespace: &str) -> Result<String, CliError> {
    let api: Api<Namespace> = Api::all(cluster.client.clone());
    let found = cluster
        .call(&format!("read namespace {namespace}"), api.get(namespace))
        .await;
    let found = found.map_err(|failure| failure.or(404, || CliError::NoNamespace(namespace.to_owned())))?;
    Ok(found.uid().unwrap_or_default())
}

/// Waits for SIGTERM, with which Kubernetes ends a pod, or Ctrl-C.
async fn told_to_end() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// The last good backup.
struct Last {
    at: Timestamp,
    name: String,
    bytes: u64,
}

impl Last {
    async fn write(&self, cluster: &Cluster, namespace: &str) -> Result<(), CliError> {
        let data = json!({
            installation_backup::LAST_AT: self.at.to_string(), "last-backup": self.name, "last-bytes": self.bytes.to_string(),
        });
        note_for_operator(cluster, namespace, &data).await
    }
}

/// Notes something where the operator looks for it. The chart creates the ConfigMap where backups are planned. If it is not there, it
/// stays so: Helm does not take over what others have created.
async fn note_for_operator(cluster: &Cluster, namespace: &str, data: &Value) -> Result<(), CliError> {
    let api: Api<ConfigMap> = Api::namespaced(cluster.client.clone(), namespace);
    let name = installation_backup::CONFIG_MAP;
    let doing = format!("note the backup in the ConfigMap {name}");
    let (params, patch) = (PatchParams::default(), Patch::Merge(json!({ "data": data })));
    match cluster.call(&doing, api.patch(name, &params, &patch)).await {
        Err(failure) if failure.is(404) => {
            note(&format!(
                "there is no ConfigMap {name} in {namespace}, as no backups are planned there, so the operator's metrics do not show this"
            ));
            Ok(())
        }
        noted => noted.map(drop).map_err(Into::into),
    }
}

/// What becomes of a backup without accounts. If there is one of this installation already, the accounts may be lost, and one without
/// them would become the latest.
async fn nothing_to_back_up(
    cluster: &Cluster,
    namespace: &str,
    store: &Store,
    name: &Name,
) -> Result<(), CliError> {
    let all = store.backups().await?;
    if let Some(last) = all.iter().find(|backup| backup.installation == name.installation) {
        return Err(CliError::Plain(format!(
            "this installation has no accounts, and had some when {} was made: nothing is backed up, and no old backup is deleted\nIf they are lost, restore that backup. If they were deleted on purpose, plan no more backups, and keep what is left, such as invoices, with `{} export`.",
            last.name,
            program()
        )));
    }
    note("this installation has no accounts yet: there is nothing to back up");
    let data = json!({ installation_backup::EMPTY_AT: name.at.to_string() });
    note_for_operator(cluster, namespace, &data).await
}

/// The backups of the installation that are older than `keep`, but neither the one that was just made nor the newest. `all` has the newest
/// first.
fn expired<'a>(
    all: &'a [Backup],
    made: &Name,
    now: Timestamp,
    keep: std::time::Duration,
) -> impl Iterator<Item = &'a Backup> {
    let (made_name, installation) = (made.to_string(), made.installation.clone());
    let ours = all
        .iter()
        .filter(move |backup| backup.installation == installation);
    let oldest = now.checked_sub(keep).unwrap_or(Timestamp::MIN);
    ours.skip(1)
        .filter(move |backup| backup.name != made_name && backup.at < oldest)
}

async fn list(args: &BackupsArgs) -> Result<(), CliError> {
    let all = Store::of(&args.store)?.backups().await?;
    match args.output {
        Output::Json => output::json(&all),
        Output::Text if all.is_empty() => {
            note("there are no backups");
            Ok(())
        }
        Output::Text => {
            let rows: Vec<[String; 5]> = all.iter().map(row).collect();
            let head = ["NAME", "TIME", "BYTES", "ENCRYPTED", "INSTALLATION"];
            output::line(&output::table(&head, &rows));
            Ok(())
        }
    }
}

fn row(backup: &Backup) -> [String; 5] {
    [
        backup.name.clone(),
        backup.at.to_string(),
        backup.bytes.to_string(),
        backup.encrypted.to_string(),
        backup.installation.clone(),
    ]
}

async fn restore(args: RestoreArgs, which: &ClusterArgs) -> Result<(), CliError> {
    let keys = args.keys.read()?;
    let store = Store::of(&args.store)?;
    let all = store.backups().await?;
    let wanted = chosen(&all, &args.backup)?;
    let copied = |error: std::io::Error| CliError::Plain(format!("cannot write a temporary file: {error}"));
    // Readable for its owner alone, and encrypted if the backup is.
    let mut copy = NamedTempFile::new().map_err(copied)?;
    store.download(&wanted.name, copy.as_file_mut()).await?;
    let source = Source {
        path: copy.path().to_owned(),
        shown: wanted.name.clone(),
        keys,
    };
    import::from(&source, &args.into, which).await
}

/// The backup with this name, or the latest. Where several installations have theirs, the latest may be of another than the lost one.
fn chosen<'a>(all: &'a [Backup], name: &str) -> Result<&'a Backup, CliError> {
    if name != "latest" {
        let found = all.iter().find(|backup| backup.name == name);
        return found.ok_or_else(|| {
            CliError::Plain(format!(
                "there is no backup {name}\n`stellage installation backups` with the same --target lists those that exist."
            ))
        });
    }
    let first = all.first();
    let first = first.ok_or_else(|| CliError::Plain("there are no backups".to_owned()))?;
    if all.iter().any(|backup| backup.installation != first.installation) {
        return Err(CliError::Plain(
            "there are backups of several installations, so the latest may be that of another one\n`stellage installation backups` with the same --target lists them; pass the name of one."
                .to_owned(),
        ));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 60 * 60);

    fn made(installation: &str, days_ago: u32, now: Timestamp) -> Name {
        Name::new(installation, now - DAY * days_ago, &format!("id{days_ago}"), true)
    }

    fn backups(names: &[Name]) -> Vec<Backup> {
        let backup = |name: &Name| Backup {
            name: name.to_string(),
            at: name.at,
            installation: name.installation.clone(),
            encrypted: true,
            bytes: 1,
        };
        names.iter().map(backup).collect()
    }

    #[test]
    fn old_backups_of_the_installation_are_deleted_but_never_the_newest_and_never_those_of_another() {
        let now: Timestamp = "2026-11-28T00:00:00Z".parse().unwrap();
        let days = |names: &[Name], last: &Name, keep: u32| -> Vec<String> {
            let all = backups(names);
            expired(&all, last, now, DAY * keep)
                .map(|old| old.name.clone())
                .collect()
        };
        let ours: Vec<Name> = [0, 5, 31, 40].map(|age| made("ours", age, now)).into();
        let mut all = ours.clone();
        all.extend([100, 200].map(|age| made("other", age, now)));
        assert_eq!(
            days(&all, &ours[0], 30),
            [ours[2].to_string(), ours[3].to_string()]
        );
        assert_eq!(days(&all, &ours[0], 3).len(), 3);
        assert_eq!(days(&all, &ours[0], 300), Vec::<String>::new());
        // With a clock that is wrong, the new one is the oldest.
        assert_eq!(
            days(&ours, &ours[3], 1),
            [ours[1].to_string(), ours[2].to_string()]
        );
    }

    #[test]
    fn the_latest_backup_is_ambiguous_where_there_are_those_of_several_installations() {
        let now: Timestamp = "2026-11-28T00:00:00Z".parse().unwrap();
        let ours = backups(&[made("ours", 0, now), made("ours", 1, now)]);
        assert_eq!(chosen(&ours, "latest").unwrap().name, ours[0].name);
        assert_eq!(chosen(&ours, &ours[1].name).unwrap().at, ours[1].at);
        assert!(chosen(&ours, "other").is_err() && chosen(&[], "latest").is_err());
        let both = backups(&[made("new", 0, now), made("lost", 1, now)]);
        assert!(
            chosen(&both, "latest")
                .unwrap_err()
                .to_string()
                .contains("several")
        );
        assert_eq!(chosen(&both, &both[1].name).unwrap().installation, "lost");
    }
}
