//! Gathers what the ledger of an account depends on: who it belongs to, and what is billed.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};

use super::Gone;
use domain::invoice::ledger::{Holder, Metered, SeenBackup, Subject, Subjects, backups_key};
use resources::{Account, Backup, BackupPhase, Instance, origin};

/// How many objects are looked at before others get a turn.
const AT_ONCE: usize = 1000;
/// How long a deletion takes that nothing keeps back.
const KEPT_BACK: SignedDuration = SignedDuration::from_mins(1);

fn ended(instance: &Instance) -> Option<Timestamp> {
    instance.metadata.deletion_timestamp.as_ref().map(|time| time.0)
}

/// When a backup started to be billed and its size, or `None` if it is not billed. Assumes that backups have
/// a price.
fn metered_backup(backup: &Backup) -> Option<(Timestamp, u64)> {
    let status = backup.status.as_ref()?;
    let is_completed = status.phase == Some(BackupPhase::Completed);
    let size = status
        .size_gb
        .filter(|size| is_completed && size.is_finite() && *size >= 0.0)?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size is not negative, and far below what fits"
    )]
    let megabytes = (size * 1000.0).round() as u64;
    Some((status.completed_at?, megabytes))
}

/// Who an account belongs to, as its invoices say it.
pub(super) fn holder(account: &Account, is_gone: bool, is_closing: bool) -> Holder<'_> {
    let billing = account.spec.billing.as_ref();
    let created = account.metadata.creation_timestamp.as_ref().map(|time| time.0);
    Holder {
        uid: origin::uid(&account.metadata),
        name: account.metadata.name.as_deref().unwrap_or_default(),
        namespace: account
            .owned_namespace()
            .unwrap_or_else(|| account.wanted_namespace()),
        buyer: account.buyer(),
        tax_rate: billing.and_then(|billing| billing.tax_rate),
        tax_note: billing.and_then(|billing| billing.tax_note.as_deref()),
        created: created
            .filter(|_| origin::is_restored(&account.metadata))
            .unwrap_or(Timestamp::MIN),
        closed_until: account.invoices_closed_until(),
        is_gone,
        is_closing,
    }
}

/// What exists and is billed, with what it is kept under: instances, those that were deleted by force, and the backups of each
/// instance. Gives others a turn now and then, because there may be very many.
pub(super) async fn billed<'a>(
    instances: &'a [Arc<Instance>],
    gone: &'a HashMap<String, Gone>,
    backups: &'a [Arc<Backup>],
    now: Timestamp,
) -> Subjects<'a> {
    let mut subjects = Subjects::new();
    let existing = instances.iter().map(|instance| (instance, ended(instance)));
    let forced = gone.values().map(|gone| {
        let ended = ended(&gone.instance).unwrap_or(gone.at);
        (&gone.instance, Some(ended))
    });
    for (index, (instance, ended)) in existing.chain(forced).enumerate() {
        if index % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let Some(metering) = instance
            .status
            .as_ref()
            .and_then(|status| status.metering.as_ref())
        else {
            continue;
        };
        let subject = Subject {
            instance_id: instance.id().into(),
            name: instance.display_name(),
            metered: Metered::Instance(metering),
            ended,
        };
        subjects.insert(Cow::Borrowed(origin::uid(&instance.metadata)), subject);
    }
    // One that stays after its deletion is kept back by a restore, and is billed until it is gone.
    let goes_now = |deleted_at: &Timestamp| now.duration_since(*deleted_at) < KEPT_BACK;
    for (index, backup) in backups.iter().enumerate() {
        if index % AT_ONCE == AT_ONCE - 1 {
            tokio::task::yield_now().await;
        }
        let source = backup.status.as_ref().and_then(|status| status.source.as_ref());
        let (Some(source), Some((since, megabytes))) = (source, metered_backup(backup)) else {
            continue;
        };
        let seen = SeenBackup {
            uid: origin::uid(&backup.metadata),
            since,
            megabytes,
            ended: backup
                .metadata
                .deletion_timestamp
                .as_ref()
                .map(|time| time.0)
                .filter(goes_now),
        };
        let subject = subjects
            .entry(backups_key(&source.id).into())
            .or_insert_with(|| Subject {
                instance_id: Cow::Borrowed(&source.id),
                name: &source.name,
                metered: Metered::Backups(Vec::new()),
                ended: None,
            });
        if let Metered::Backups(seen_before) = &mut subject.metered {
            seen_before.push(seen);
        }
    }
    for subject in subjects.values_mut() {
        if let Metered::Backups(seen) = &mut subject.metered {
            seen.sort_by_key(|backup| (backup.since, backup.uid));
        }
    }
    subjects
}
