//! `--test-storage`: backs a disk up in the region, deletes it, restores it, and deletes all of it.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    time::{Duration, Instant},
};

use providers::kubevirt::trial::storage::{Stage, StorageTrial};
use tokio::time::timeout;

use super::{
    super::{Check, Outcome},
    trial::{REMOVAL, Report, TrialArgs, uuid},
};
use crate::{CliError, region::Region};

const NAME: &str = "backups test";

pub(in super::super) async fn run(code: &str, region: &Region, args: &TrialArgs) -> Result<Check, CliError> {
    let Some(class) = &region.settings.snapshot_class else {
        return Ok(Check {
            name: NAME,
            outcome: Outcome::Failed,
            message: "the region offers no backups, so there is nothing to test".to_owned(),
            fix: Some("Set snapshotClass of the region.".to_owned()),
        });
    };
    let trial = StorageTrial::begin(code, &region.settings, &uuid()).await;
    let mut trial = trial.map_err(|error| CliError::Value {
        flag: "--region-kubeconfig",
        why: error.to_string(),
    })?;
    let mut report = Report::begin();
    let began = Instant::now();
    let outcome = tokio::select! {
        outcome = timeout(args.timeout, trial.run(class, |stage| report.say(doing(stage)))) => Some(outcome),
        _ = tokio::signal::ctrl_c() => None,
    };
    let (stage, words, took) = (trial.stage, trial.words.take(), began.elapsed());
    report.say("deleting all of it; another Ctrl-C leaves it there");
    let is_removed = tokio::select! {
        removed = timeout(REMOVAL, trial.remove()) => removed.is_ok(),
        _ = tokio::signal::ctrl_c() => false,
    };
    let retained = joined(&trial.retained);
    let left = if is_removed {
        report.say(&match &retained {
            None => "nothing of it is left".to_owned(),
            Some(volumes) => format!("nothing of it is left but its volumes: {volumes}"),
        });
        None
    } else {
        let namespace = trial.namespace();
        let mut left = format!(
            "not all of it is deleted yet: `kubectl get volumesnapshots,datavolumes,pvc -n {namespace}` in the region's cluster"
        );
        let volumes: BTreeSet<String> = trial.volumes.union(&trial.retained).cloned().collect();
        if let Some(volumes) = joined(&volumes) {
            let _ = write!(left, ", and `kubectl get pv {volumes}`");
        }
        Some(left)
    };
    let problem = match outcome {
        None => {
            return Err(CliError::TestInterrupted {
                left: left.unwrap_or_else(|| match retained {
                    None => "nothing of its disks is left".to_owned(),
                    Some(volumes) => format!("nothing of its disks is left but their volumes: {volumes}"),
                }),
            });
        }
        Some(Ok(Ok(()))) => None,
        Some(Ok(Err(refusal))) => Some((stage, Some(refusal))),
        Some(Err(_)) => Some((stage, words)),
    };
    Ok(judge(problem, took, left, retained))
}

/// Names, as arguments of kubectl; `None` if there are none.
fn joined(names: &BTreeSet<String>) -> Option<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| names.join(" "))
}

const fn doing(stage: Stage) -> &'static str {
    match stage {
        Stage::Disk => "making a disk of 1 GiB",
        Stage::Snapshot => "making a snapshot of it",
        Stage::Deletion => "deleting the disk",
        Stage::Restore => "restoring the snapshot to a disk of 2 GiB",
    }
}

/// What the test has shown: what was not done, and what the cluster says of that; what is left although it was deleted, and the volumes that
/// the storage is told to keep.
fn judge(
    problem: Option<(Stage, Option<String>)>,
    took: Duration,
    left: Option<String>,
    retained: Option<String>,
) -> Check {
    let seconds = took.as_secs();
    let (mut outcome, mut message, mut fix) = match problem {
        None => (
            Outcome::Ok,
            format!("a disk was backed up, deleted, and restored to a larger one in {seconds} s"),
            None,
        ),
        Some((stage, words)) => {
            let (what, fix) = match stage {
                Stage::Disk => (
                    "a disk was not made",
                    "Look at the StorageClass and its driver: does it make a claim, and does CDI fill it?",
                ),
                Stage::Snapshot => (
                    "a snapshot was not ready",
                    "Look at external-snapshotter's controller, the csi-snapshotter beside the driver, and the VolumeSnapshotClass.",
                ),
                Stage::Deletion => (
                    "a volume was not deleted, probably because of its snapshot",
                    "Use a class whose snapshots do not depend on their volume, as docs/kubevirt.md says (Backups): else servers with backups cannot be deleted.",
                ),
                Stage::Restore => (
                    "the snapshot of a deleted volume was not restored to a larger disk",
                    "Use a class whose snapshots outlive their volume, and a StorageClass of the same driver with allowVolumeExpansion, as docs/kubevirt.md says (Backups).",
                ),
            };
            let mut message = format!("{what} within {seconds} s");
            if let Some(words) = words {
                let _ = write!(message, "\nThe cluster: {words}");
            }
            (Outcome::Failed, message, Some(fix.to_owned()))
        }
    };
    if let Some(volumes) = retained {
        outcome = outcome.max(Outcome::Warning);
        let _ = write!(
            message,
            "\nThe volumes are left, since their reclaimPolicy is Retain: {volumes}"
        );
        let first = fix.map(|first| format!("{first} ")).unwrap_or_default();
        fix = Some(format!(
            "{first}Use reclaimPolicy: Delete. Once you do not need the volumes: `kubectl delete pv {volumes}`, and delete their data in the storage."
        ));
    }
    if let Some(left) = left {
        outcome = Outcome::Failed;
        let _ = write!(message, "\n{left}");
        fix.get_or_insert_with(|| "Find out what keeps it: finalizers, or the storage.".to_owned());
    }
    Check {
        name: NAME,
        outcome,
        message,
        fix,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_says_what_was_not_done_and_what_may_be_the_cause() {
        let took = Duration::from_secs(61);
        let fine = judge(None, took, None, None);
        assert_eq!((fine.outcome, fine.fix), (Outcome::Ok, None));
        for (stage, says, advises) in [
            (Stage::Disk, "a disk was not made", "StorageClass"),
            (Stage::Snapshot, "was not ready", "csi-snapshotter"),
            (Stage::Deletion, "was not deleted", "do not depend"),
            (Stage::Restore, "was not restored", "outlive"),
        ] {
            let check = judge(Some((stage, Some("no such pool".to_owned()))), took, None, None);
            assert_eq!(check.outcome, Outcome::Failed);
            assert!(
                check.message.contains(says) && check.message.ends_with("no such pool"),
                "{check:?}"
            );
            assert!(check.fix.unwrap().contains(advises), "{says}");
        }
        let left = judge(None, took, Some("not all".to_owned()), None);
        assert_eq!(left.outcome, Outcome::Failed);
        assert!(left.message.ends_with("not all") && left.fix.unwrap().contains("finalizers"));
        let retained = judge(None, took, None, Some("pv-1 pv-2".to_owned()));
        assert_eq!(retained.outcome, Outcome::Warning);
        assert!(retained.message.ends_with("Retain: pv-1 pv-2"), "{retained:?}");
        assert!(retained.fix.unwrap().contains("kubectl delete pv pv-1 pv-2"));
    }
}
