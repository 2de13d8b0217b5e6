//! `stellage backup create`. To restore a backup, use `stellage instance rebuild --backup`; to list, show and delete them, kubectl.

use clap::{Args, Subcommand};
use kube::{Api, ResourceExt as _, api::PostParams};

use super::{
    CliError,
    connect::Cluster,
    objects::{self, InNamespace, Named},
    output::Output,
    wait::{self, Progress, Waiting},
};
use domain::instance::RestorableBackup;
use resources::{
    Backup, BackupPhase, BackupSpec, Instance,
    conditions::{self, READY},
    ids, origin, validation,
};
use runtime::kubeconfig::ClusterArgs;

/// Make backups of instances.
///
/// The command uses your kubectl rights. `stellage instance rebuild --backup` restores a backup; `kubectl get backups` lists them.
#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Back up an instance, as soon as it is running or stopped and no other backup of it is under way
    #[command(after_help = CREATE)]
    Create(CreateArgs),
}

const CREATE: &str = "\
Examples:
  stellage backup create web -n ada --wait
  stellage backup create web -n ada --name before-upgrade --wait --timeout 30m";

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
    fn id(&self) -> String {
        self.id()
    }

    fn name_of(id: &str) -> Option<String> {
        ids::backup_name(id)
    }
}

pub(super) async fn run(command: BackupCommand, which: &ClusterArgs) -> Result<(), CliError> {
    let BackupCommand::Create(args) = command;
    create(&Cluster::of(which).await?, args).await
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
        backup = wait::until_done(api, backup, args.waiting.timeout, progress).await?;
    }
    let what = match backup.phase() {
        BackupPhase::Completed => "is completed",
        _ => "has been requested",
    };
    let text = format!(
        "backup {} of instance {} {what}",
        backup.id(),
        instance.name_any()
    );
    objects::print(backup, &text, args.output)
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

/// Why the backup failed; else reason and message of its Ready condition.
fn why(backup: &Backup) -> Option<String> {
    let status = backup.status.as_ref()?;
    if let Some(error) = &status.error {
        return Some(format!("{}: {}", error.code, error.message));
    }
    let ready = conditions::find(&status.conditions, READY)?;
    Some(format!("{}: {}", ready.reason, ready.message))
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
}
