//! The line of an entry, and what the next invoice carries over from it.

use jiff::Timestamp;

use super::{Metered, Subject};
use crate::invoice::{
    Billed, Period, PriceHistory, backup,
    line::line,
    metering::{self, first_hour_from},
};
use resources::{InvoiceLine, InvoicedHours, LedgerEntry, metering::Metering, money::Cents};

/// How long after its beginning a subject may be seen for the first time and still be billed for the hours before the
/// open period. An older subject that is on no page has been invoiced before.
const LATE: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

/// The new entry of a subject; `None` if no hour is left to be billed. `from` is the start of the open period.
pub(super) fn new(uid: &str, subject: &Subject<'_>, from: Timestamp) -> Option<LedgerEntry> {
    let since = subject.since();
    let is_old = since.checked_add(LATE).is_ok_and(|latest| latest < from);
    let (backup_id, megabytes) = match subject.metered {
        Metered::Instance(_) => (None, None),
        Metered::Backup { id, megabytes, .. } => (Some(id.to_owned()), Some(megabytes)),
    };
    let mut entry = LedgerEntry {
        uid: uid.to_owned(),
        instance_id: subject.instance_id.clone(),
        name: subject.name.to_owned(),
        since,
        changes: Vec::new(),
        backup_id,
        megabytes,
        ended: None,
        billed_until: is_old.then_some(from),
        billed_cents: 0,
        cap_cents: 0,
    };
    update(&mut entry, Some(subject), from, true);
    has_hours_from(&entry, entry.billed_until.unwrap_or(Timestamp::MIN)).then_some(entry)
}

/// Whether [`update`] would change nothing, as is almost always so. May say no although it would not.
pub(super) fn is_current(entry: &LedgerEntry, subject: &Subject<'_>, renames: bool) -> bool {
    let has_changes = match subject.metered {
        Metered::Instance(metering) => entry.changes == metering.changes,
        Metered::Backup { .. } => true,
    };
    // A single change is never forgotten.
    let forgets = entry.billed_until.is_some() && entry.changes.len() > 1;
    has_changes && !forgets && entry.ended == subject.ended && !(renames && entry.name != subject.name)
}

/// Brings an entry up to date with its subject. A subject that is gone without having been seen to end ends `now`. The
/// name is updated together with other changes, or if `renames`.
pub(super) fn update(entry: &mut LedgerEntry, subject: Option<&Subject<'_>>, now: Timestamp, renames: bool) {
    let Some(subject) = subject else {
        entry.ended = entry.ended.or(Some(now));
        return;
    };
    let before = (entry.changes.len(), entry.changes.last().copied(), entry.ended);
    entry.ended = subject.ended;
    if let Metered::Instance(metering) = subject.metered {
        let metering = metering::counted_from(entry.since, metering);
        let mut merged = Metering {
            since: entry.since,
            changes: metering::merged(&entry.changes, &metering),
        };
        if let Some(until) = entry.billed_until {
            metering::forget(&mut merged, until);
        }
        entry.changes = merged.changes;
    }
    let is_changed = before != (entry.changes.len(), entry.changes.last().copied(), entry.ended);
    if (renames || is_changed) && entry.name != subject.name {
        subject.name.clone_into(&mut entry.name);
    }
}

/// The hours of an entry that begin before a time, as a line, and what has been billed for the calendar month after it. `None`
/// if there are none.
pub(super) fn line_of(
    entry: &LedgerEntry,
    until: Timestamp,
    prices: &PriceHistory,
) -> Option<(InvoiceLine, Billed)> {
    let period = Period {
        from: entry.billed_until.unwrap_or(Timestamp::MIN),
        to: until,
    };
    let earlier = Billed {
        amount: Cents(entry.billed_cents),
        cap: Cents(entry.cap_cents),
    };
    let (hours, reduction, amount, billed) = if let Some(megabytes) = entry.megabytes {
        let line = backup::line(entry.since, entry.ended, megabytes, period, prices, earlier)?;
        let hours = line.hours.iter().map(|(hours, unit_price)| InvoicedHours {
            plan: "backup".to_owned(),
            hours: *hours,
            unit_price: unit_price.0,
        });
        (hours.collect(), line.reduction, line.amount, line.billed(earlier))
    } else {
        let metering = Metering {
            since: entry.since,
            changes: entry.changes.clone(),
        };
        let line = line(&metering, entry.ended, period, prices, earlier)?;
        let hours = line.hours.iter().map(|hours| InvoicedHours {
            plan: hours.plan.as_str().to_owned(),
            hours: hours.hours,
            unit_price: hours.unit_price.0,
        });
        (hours.collect(), line.reduction, line.amount, line.billed(earlier))
    };
    let line = InvoiceLine {
        instance_id: entry.instance_id.clone(),
        backup_id: entry.backup_id.clone(),
        name: entry.name.clone(),
        hours,
        reduction,
        amount_cents: amount.0,
    };
    Some((line, billed))
}

/// What an invoice that starts at `at` takes over from an entry; `None` if the entry is over. `is_same_month` says
/// whether the invoice before it ends within a month.
pub(super) fn carried(
    entry: &LedgerEntry,
    at: Timestamp,
    prices: &PriceHistory,
    exists: bool,
    is_same_month: bool,
) -> Option<LedgerEntry> {
    // A subject that still exists after its deletion was accepted would be taken for new if it were forgotten.
    if !exists && !has_hours_from(entry, at) {
        return None;
    }
    let mut carried = entry.clone();
    if is_same_month {
        if let Some((_, billed)) = line_of(entry, at, prices) {
            (carried.billed_cents, carried.cap_cents) = (billed.amount.0, billed.cap.0);
        }
    } else {
        (carried.billed_cents, carried.cap_cents) = (0, 0);
    }
    carried.billed_until = entry.billed_until.max(Some(at));
    let mut metering = Metering {
        since: entry.since,
        changes: carried.changes,
    };
    metering::forget(&mut metering, at);
    carried.changes = metering.changes;
    Some(carried)
}

/// Whether an hour that begins at this time or later is to be billed.
fn has_hours_from(entry: &LedgerEntry, at: Timestamp) -> bool {
    let least = i64::from(entry.megabytes.is_none());
    let hours = |ended| first_hour_from(entry.since, ended).max(least);
    entry
        .ended
        .is_none_or(|ended| first_hour_from(entry.since, at) < hours(ended))
}

/// The lines of entries, with their hours that begin before this time.
pub fn lines_of(entries: &[LedgerEntry], until: Timestamp, prices: &PriceHistory) -> Vec<InvoiceLine> {
    let lines = entries.iter().filter_map(|entry| line_of(entry, until, prices));
    lines.map(|(line, _)| line).collect()
}
