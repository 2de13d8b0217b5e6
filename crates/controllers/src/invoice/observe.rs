//! Gathers what the ledger of an account depends on: who it belongs to, and what is billed.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;

use super::Gone;
use domain::{
    catalogue::InvoiceTerms,
    invoice::{
        PriceHistory,
        ledger::{Facts, Holder, Metered, Subject},
    },
};
use resources::{Account, Backup, BackupPhase, Instance, origin};

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

pub(super) fn facts<'a>(
    account: &'a Account,
    subjects: &'a HashMap<&'a str, Subject<'a>>,
    prices: &'a PriceHistory,
    terms: &'a InvoiceTerms,
    now: Timestamp,
    is_closing: bool,
) -> Facts<'a> {
    Facts {
        holder: Holder {
            uid: origin::uid(&account.metadata),
            name: account.metadata.name.as_deref().unwrap_or_default(),
            email: &account.spec.email,
            address: &account.spec.billing_address,
            closed_until: account.invoices_closed_until(),
            is_closing: is_closing && subjects.is_empty(),
        },
        subjects,
        prices,
        terms,
        now,
    }
}

/// Everything that is billed, with its UID: existing instances, instances deleted by force, and backups.
pub(super) fn billed<'a>(
    instances: &'a [Arc<Instance>],
    gone: &'a HashMap<String, Gone>,
    backups: &'a [Arc<Backup>],
    backup_ids: &'a [String],
) -> impl Iterator<Item = (&'a str, Subject<'a>)> {
    let of_instance = |instance: &'a Instance, ended: Option<Timestamp>| {
        let subject = Subject {
            instance_id: instance.id(),
            name: instance.display_name(),
            metered: Metered::Instance(instance.status.as_ref()?.metering.as_ref()?),
            ended,
        };
        Some((origin::uid(&instance.metadata), subject))
    };
    let existing = instances
        .iter()
        .filter_map(move |instance| of_instance(instance, ended(instance)));
    let forced = gone
        .values()
        .filter_map(move |gone| of_instance(&gone.instance, Some(ended(&gone.instance).unwrap_or(gone.at))));
    let of_backup = backups.iter().zip(backup_ids).filter_map(move |(backup, id)| {
        let (since, megabytes) = metered_backup(backup)?;
        let source = backup.status.as_ref()?.source.as_ref()?;
        let subject = Subject {
            instance_id: source.id.clone(),
            name: backup.display_name(),
            metered: Metered::Backup { id, since, megabytes },
            ended: backup.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        };
        Some((origin::uid(&backup.metadata), subject))
    });
    existing.chain(forced).chain(of_backup)
}
