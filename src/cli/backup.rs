//! `stellage backup …`: list, show and create backups. To restore a backup, use `stellage instance rebuild --backup`; to delete one,
//! `kubectl delete`.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
};

use super::{
    CliError,
    connect::Cluster,
    duration,
    objects::{self, InNamespace, InNamespaces, Named, Shown},
    output::{self, Output, or_dash, printable},
    wait::{self, Progress, Waiting},
};
use crate::{
    resources::{
        Backup, BackupPhase, BackupSpec, Instance,
        conditions::{self, READY},
        ids, origin, validation,
    },
    service::instances::RestorableBackup,
};

/// List, show and make backups of instances.
///
/// Each command uses your kubectl rights. `stellage instance rebuild --backup` restores one.
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// List backups
    #[command(visible_alias = "ls", after_help = LIST)]
    List(ListArgs),
    /// Show one backup: its phase and the reason, its instance and size
    #[command(after_help = SHOW)]
    Show(ShowArgs),
    /// Back up an instance, as soon as it is running or stopped and no other backup of it is under way
    #[command(after_help = CREATE)]
    Create(CreateArgs),
}

const LIST: &str = "\
Examples:
  stellage backup list -n ada
  stellage backup list -n ada --instance web";
const SHOW: &str = "\
Example:
  stellage backup show bkp_4q7hz0c9k2m8x1ta -n ada";
const CREATE: &str = "\
Examples:
  stellage backup create web -n ada --wait
  stellage backup create web -n ada --name before-upgrade --wait --timeout 30m";

/// List backups.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Only those of this instance: its name or id
    #[arg(long, value_name = "NAME", value_parser = objects::name)]
    instance: Option<String>,

    #[command(flatten)]
    place: InNamespaces,

    /// Output format: text for a table, json for the objects
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Show one backup.
#[derive(Args, Debug)]
pub struct ShowArgs {
    /// Name or id of the backup
    #[arg(value_parser = objects::name)]
    name: String,

    #[command(flatten)]
    place: InNamespace,

    /// Output format: text, or json for the object
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Back up an instance.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Name or id of the instance
    #[arg(value_name = "INSTANCE", value_parser = objects::name)]
    instance: String,

    /// Display name of the backup; by default its object's name
    #[arg(long = "name", value_name = "NAME", value_parser = display_name)]
    display_name: Option<String>,

    #[command(flatten)]
    place: InNamespace,

    #[command(flatten)]
    waiting: Waiting,

    /// Output format: text, or json for the object
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

fn display_name(text: &str) -> Result<String, &'static str> {
    validation::name(text).map(|()| text.to_owned())
}

impl Named for Backup {
    const WORD: &'static str = "backup";
    const WORDS: &'static str = "backups";

    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::backup_name(id)
    }
}

pub(super) async fn run(command: BackupCommand) -> Result<(), CliError> {
    let cluster = Cluster::current().await?;
    match command {
        BackupCommand::List(args) => list(&cluster, &args).await,
        BackupCommand::Show(args) => {
            objects::show::<Backup>(&cluster, args.place.of(&cluster), &args.name, args.output).await
        }
        BackupCommand::Create(args) => create(&cluster, args).await,
    }
}

async fn list(cluster: &Cluster, args: &ListArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let mut backups: Vec<Backup> = objects::list(cluster, namespace, &ListParams::default()).await?;
    if let Some(wanted) = &args.instance {
        backups.retain(|backup| backup.spec.instance == *wanted || instance_id(backup) == Some(wanted));
    }
    objects::show_all(backups, namespace, args.output)
}

async fn create(cluster: &Cluster, args: CreateArgs) -> Result<(), CliError> {
    let namespace = args.place.of(cluster);
    let instance: Instance = objects::find(cluster, namespace, &args.instance).await?;
    let spec = BackupSpec {
        instance: instance.name_any(),
        instance_uid: Some(origin::uid(&instance.metadata).to_owned()),
        name: args.display_name,
        scheduled_for: None,
        retry: false,
    };
    let backup = Backup::new(&format!("bkp-{}", ids::random_suffix()), spec);
    let api = Api::<Backup>::namespaced(cluster.client.clone(), namespace);
    let doing = format!(
        "create a backup of instance {} in namespace {namespace}",
        args.instance
    );
    let mut backup = cluster
        .call(&doing, api.create(&PostParams::default(), &backup))
        .await?;
    if args.waiting.wait {
        backup = wait::until_done(cluster, backup, args.waiting.timeout, progress).await?;
    }
    match args.output {
        Output::Json => objects::print(&backup),
        Output::Text => {
            let (id, name) = (backup.id(), instance.name_any());
            output::line(&match backup.phase() {
                BackupPhase::Completed => format!("backup {id} of instance {name} is completed"),
                _ => format!("backup {id} of instance {name} has been requested"),
            });
            Ok(())
        }
    }
}

fn progress(backup: &Backup) -> Progress {
    if backup.is_deleting() {
        return Progress::Failed("is being deleted".to_owned());
    }
    match (backup.phase(), why(backup)) {
        (BackupPhase::Completed, _) => Progress::Done,
        (BackupPhase::Failed, why) => Progress::Failed(format!("has failed: {}", why.unwrap_or_default())),
        (_, Some(why)) => Progress::Pending(why),
        (_, None) => Progress::Pending("waiting for the operator".to_owned()),
    }
}

/// The completed backup with this name or id, to be restored.
pub(super) async fn restorable(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
) -> Result<RestorableBackup, CliError> {
    let backup: Backup = objects::find(cluster, namespace, name).await?;
    RestorableBackup::of(&backup).ok_or_else(|| CliError::WrongState {
        what: format!("backup {name}"),
        why: format!(
            "is {}; only a completed backup can be restored",
            backup.phase().as_str().to_lowercase()
        ),
        fix: why(&backup).unwrap_or_else(|| "Wait until it is completed.".to_owned()),
    })
}

fn instance_id(backup: &Backup) -> Option<&String> {
    Some(&backup.status.as_ref()?.source.as_ref()?.id)
}

/// Why the backup failed; else reason and message of its Ready condition.
fn why(backup: &Backup) -> Option<String> {
    let status = backup.status.as_ref()?;
    if let Some(error) = &status.error {
        return Some(format!("{}: {}", error.code, error.message));
    }
    let ready = conditions::find(&status.conditions, READY)?;
    Some(format!("{}: {}", ready.reason, ready.message))
}

fn size(backup: &Backup) -> Option<String> {
    let size = backup.status.as_ref()?.size_gb?;
    Some(format!("{size} GB"))
}

impl Shown for Backup {
    /// The columns of `kubectl get`, and the ids.
    const COLUMNS: &'static [&'static str] = &[
        "NAME",
        "ID",
        "INSTANCE",
        "PHASE",
        "SIZE",
        "SCHEDULED",
        "AGE",
        "ERROR",
    ];

    fn row(&self, now: Timestamp) -> Vec<String> {
        row(self, now)
    }

    fn description(&self, now: Timestamp) -> String {
        description(self, now)
    }
}

fn row(backup: &Backup, now: Timestamp) -> Vec<String> {
    let error = backup.status.as_ref().and_then(|status| status.error.as_ref());
    vec![
        backup.display_name().to_owned(),
        backup.id(),
        backup.spec.instance.clone(),
        backup.phase().as_str().to_owned(),
        or_dash(size(backup)),
        backup.is_scheduled().to_string(),
        duration::age(backup.created_at(), now),
        or_dash(error.map(|error| error.code.as_str())),
    ]
}

/// One backup in full.
fn description(backup: &Backup, now: Timestamp) -> String {
    let ago = |time: Timestamp| format!("{time:.0} ({} ago)", duration::age(time, now));
    let status = backup.status.as_ref();
    let source = status.and_then(|status| status.source.as_ref());
    let is_gone = status.is_some_and(|status| status.instance_deleted);
    let instance = match (instance_id(backup), is_gone) {
        (Some(id), true) => format!("{} ({id}), deleted since", backup.spec.instance),
        (Some(id), false) => format!("{} ({id})", backup.spec.instance),
        (None, _) => backup.spec.instance.clone(),
    };
    let mut fields = vec![
        ("Name", backup.display_name().to_owned()),
        ("Namespace", backup.namespace().unwrap_or_default()),
        ("ID", backup.id()),
        ("Phase", backup.phase().as_str().to_owned()),
        (
            "Why",
            why(backup).map_or_else(
                || "the operator has not processed it yet".to_owned(),
                |why| printable(&why),
            ),
        ),
        ("Instance", instance),
        ("Image", or_dash(source.map(|source| source.image.as_str()))),
        (
            "Disk",
            or_dash(source.map(|source| format!("{} GB", source.disk_size_gb))),
        ),
        ("Size", or_dash(size(backup))),
        ("Scheduled for", or_dash(backup.spec.scheduled_for.map(ago))),
        ("Created", ago(backup.created_at())),
    ];
    let ended = status.and_then(|status| status.completed_at);
    fields.push(("Ended", or_dash(ended.map(ago))));
    output::description(&fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(status: Value) -> Backup {
        serde_json::from_value(json!({
            "metadata": {
                "name": "bkp-abcdefgh01234567", "namespace": "ada", "uid": "b",
                "creationTimestamp": "2026-11-21T10:00:00Z",
            },
            "spec": { "instance": "web", "instanceUID": "u" }, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn waiting_ends_with_the_backup_and_says_why_it_failed() {
        assert_eq!(
            progress(&backup(json!({}))),
            Progress::Pending("waiting for the operator".to_owned())
        );
        assert_eq!(progress(&backup(json!({ "phase": "Completed" }))), Progress::Done);
        let failed = json!({
            "phase": "Failed", "error": { "code": "backup_failed", "message": "the disk cannot be read" },
        });
        assert_eq!(
            progress(&backup(failed)),
            Progress::Failed("has failed: backup_failed: the disk cannot be read".to_owned())
        );
    }

    #[test]
    fn a_table_has_the_id_and_a_description_says_that_the_instance_is_gone() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let source = json!({
            "id": "i-abcdefgh01234567", "uid": "u", "name": "web", "region": "fr-par-1", "plan": "starter",
            "image": "debian-13", "diskSizeGB": 40,
        });
        let one =
            backup(json!({ "phase": "Completed", "source": source, "sizeGB": 3.2, "instanceDeleted": true }));
        let shown = objects::table(std::slice::from_ref(&one), true, now);
        let cells: Vec<_> = shown.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(
            cells,
            [
                "ada",
                "bkp-abcdefgh01234567",
                "bkp_abcdefgh01234567",
                "web",
                "Completed",
                "3.2",
                "GB",
                "false",
                "2h",
                "-",
            ]
        );
        let shown = description(&one, now);
        assert!(
            shown.contains("web (i-abcdefgh01234567), deleted since"),
            "{shown}"
        );
        assert!(shown.contains("debian-13") && shown.contains("40 GB"), "{shown}");
    }
}
