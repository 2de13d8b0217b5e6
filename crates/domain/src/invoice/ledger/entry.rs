//! The line of an entry, and what the next invoice carries over from it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{Metered, SeenBackup, Subject};
use crate::invoice::{
    Billed, Line, Period, PriceHistory, backup,
    line::{line, open_hour},
    metering::{self, first_hour_from},
};
use resources::{
    InvoiceLine, LedgerEntry,
    invoice_page::{MAX_BACKUPS, MeteredBackup},
    metering::Metering,
    money::{Cents, Exact},
};

/// How long after its beginning a subject may be seen for the first time and still be billed for the hours before the
/// open period. An older subject that is on no page has been invoiced before.
const LATE: SignedDuration = SignedDuration::from_mins(10);

/// The new entry of a subject; `None` if no hour is left to be billed. `from` is the start of the open period.
pub(super) fn new(uid: &str, subject: &Subject<'_>, from: Timestamp) -> Option<LedgerEntry> {
    let since = subject.since();
    let mut entry = LedgerEntry {
        uid: uid.to_owned(),
        instance_id: subject.instance_id.to_string(),
        name: subject.name.to_owned(),
        since,
        changes: Vec::new(),
        backups: Vec::new(),
        ended: None,
        billed_until: from_when(since, from),
        billed_cents: 0,
        cap_cents: 0,
        open_hour: None,
    };
    update(&mut entry, Some(subject), from, from);
    let has_hours = match &subject.metered {
        Metered::Instance(_) => has_hours_from(&entry, entry.billed_until.unwrap_or(Timestamp::MIN)),
        Metered::Backups(_) => !entry.backups.is_empty(),
    };
    has_hours.then_some(entry)
}

/// From when on a subject that is seen for the first time is billed: its beginning (`None`), unless that is too long before the open
/// period.
pub(super) fn from_when(since: Timestamp, from: Timestamp) -> Option<Timestamp> {
    let is_old = since.checked_add(LATE).is_ok_and(|latest| latest < from);
    is_old.then_some(from)
}

/// Whether [`update`] would change nothing, as is almost always so. May say no although it would not.
pub(super) fn is_current(entry: &LedgerEntry, subject: &Subject<'_>) -> bool {
    let has_changes = match &subject.metered {
        Metered::Instance(metering) => entry.changes == metering.changes,
        Metered::Backups(backups) => {
            let known = entry
                .backups
                .iter()
                .map(|known| (known.uid.as_str(), known.ended));
            known.eq(backups.iter().map(|backup| (backup.uid, backup.ended)))
        }
    };
    // A single change is never forgotten.
    let forgets = entry.billed_until.is_some() && entry.changes.len() > 1;
    has_changes && !forgets && entry.ended == subject.ended
}

/// Brings an entry up to date with its subject. What is gone without having been seen to end ends `now`. The name is updated together
/// with other changes. `from` is the start of the open period.
pub(super) fn update(
    entry: &mut LedgerEntry,
    subject: Option<&Subject<'_>>,
    from: Timestamp,
    now: Timestamp,
) {
    let Some(subject) = subject else {
        if entry.backups.is_empty() {
            entry.ended = entry.ended.or(Some(now));
        }
        for backup in &mut entry.backups {
            backup.ended = backup.ended.or(Some(now));
        }
        return;
    };
    let before = (entry.changes.len(), entry.changes.last().copied(), entry.ended);
    let mut is_changed = false;
    // What was written back keeps the end that it had.
    entry.ended = earlier(entry.ended, subject.ended);
    match &subject.metered {
        Metered::Instance(metering) => {
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
        Metered::Backups(seen) => is_changed = update_backups(&mut entry.backups, seen, from, now),
    }
    is_changed |= before != (entry.changes.len(), entry.changes.last().copied(), entry.ended);
    if is_changed && entry.name != subject.name {
        subject.name.clone_into(&mut entry.name);
    }
}

/// The end of what is known to have ended, if it still has.
fn earlier(known: Option<Timestamp>, seen: Option<Timestamp>) -> Option<Timestamp> {
    let seen = seen?;
    Some(known.map_or(seen, |known| known.min(seen)))
}

/// Brings the backups of an instance up to date. Returns whether something has changed.
fn update_backups(
    known: &mut Vec<MeteredBackup>,
    seen: &[SeenBackup<'_>],
    from: Timestamp,
    now: Timestamp,
) -> bool {
    let mut left: BTreeMap<&str, &SeenBackup<'_>> = seen.iter().map(|backup| (backup.uid, backup)).collect();
    let mut is_changed = false;
    for backup in known.iter_mut() {
        let ended = match left.remove(backup.uid.as_str()) {
            Some(seen) => earlier(backup.ended, seen.ended),
            None => backup.ended.or(Some(now)),
        };
        is_changed |= ended != backup.ended;
        backup.ended = ended;
    }
    let mut new: Vec<&SeenBackup<'_>> = left.into_values().collect();
    new.sort_by_key(|backup| (backup.since, backup.uid));
    for seen in new {
        let backup = MeteredBackup {
            uid: seen.uid.to_owned(),
            since: seen.since,
            megabytes: seen.megabytes,
            ended: seen.ended,
            billed_until: from_when(seen.since, from),
            billed: 0,
            cap_cents: 0,
        };
        // Those of an entry that is full wait for the next invoice, which begins at once.
        if known.len() < MAX_BACKUPS
            && backup::has_hours_from(&backup, backup.billed_until.unwrap_or(Timestamp::MIN))
        {
            known.push(backup);
            is_changed = true;
        }
    }
    is_changed
}

/// The hours of an entry that begin before a time, as a line. `None` if there are none.
pub(super) fn line_of(entry: &LedgerEntry, until: Timestamp, prices: &PriceHistory) -> Option<InvoiceLine> {
    let (hours, reduction, amount, limit) = if entry.backups.is_empty() {
        let line = instance_line(entry, until, prices)?;
        let limit = (Exact::from(line.cap), Exact::from(Cents(entry.billed_cents)));
        (line.hours, line.reduction, line.amount, limit)
    } else {
        let line = backup::line(&entry.backups, until, prices)?;
        (line.hours, line.reduction, line.amount, line.limit)
    };
    let (month_price, billed_before) = if reduction.0 > 0 {
        limit
    } else {
        Default::default()
    };
    Some(InvoiceLine {
        instance_id: entry.instance_id.clone(),
        name: entry.name.clone(),
        hours,
        reduction: reduction.0,
        month_price: month_price.0,
        billed_before: billed_before.0,
        amount_cents: amount.0,
    })
}

fn instance_line(entry: &LedgerEntry, until: Timestamp, prices: &PriceHistory) -> Option<Line> {
    let period = Period {
        from: entry.billed_until.unwrap_or(Timestamp::MIN),
        to: until,
    };
    let metering = Metering {
        since: entry.since,
        changes: entry.changes.clone(),
    };
    line(
        &metering,
        entry.ended,
        period,
        prices,
        billed(entry),
        entry.open_hour,
    )
}

/// What earlier invoices have billed for an instance in the calendar month.
const fn billed(entry: &LedgerEntry) -> Billed {
    Billed {
        amount: Cents(entry.billed_cents),
        cap: Cents(entry.cap_cents),
    }
}

/// What an invoice that starts at `at` takes over from an entry; `None` if the entry is over. `is_same_month` says
/// whether the invoice before it ends within a month.
pub(super) fn carried(
    entry: &LedgerEntry,
    at: Timestamp,
    prices: &PriceHistory,
    subject: Option<&Subject<'_>>,
    is_same_month: bool,
) -> Option<LedgerEntry> {
    // What still exists after its deletion was accepted would be taken for new if it were forgotten.
    let mut carried = renamed(entry, subject);
    carried.billed_until = entry.billed_until.max(Some(at));
    if !entry.backups.is_empty() {
        carried.backups.retain(|backup| {
            backup::has_hours_from(backup, at) || subject.is_some_and(|seen| seen.has_backup(&backup.uid))
        });
        for backup in &mut carried.backups {
            *backup = backup::carried(backup, at, prices, is_same_month);
        }
        return (!carried.backups.is_empty()).then_some(carried);
    }
    if !has_hours_from(entry, at) && subject.is_none() {
        return None;
    }
    if is_same_month {
        if let Some(line) = instance_line(entry, at, prices) {
            let billed = line.billed(billed(entry));
            (carried.billed_cents, carried.cap_cents) = (billed.amount.0, billed.cap.0);
        }
    } else {
        (carried.billed_cents, carried.cap_cents) = (0, 0);
    }
    let mut metering = Metering {
        since: entry.since,
        changes: carried.changes,
    };
    carried.open_hour = if is_same_month {
        open_hour(&metering, at, prices, entry.open_hour)
    } else {
        None
    };
    metering::forget(&mut metering, at);
    carried.changes = metering.changes;
    Some(carried)
}

/// The entry with the name that its subject has now.
pub(super) fn renamed(entry: &LedgerEntry, subject: Option<&Subject<'_>>) -> LedgerEntry {
    let name = subject.map_or(entry.name.as_str(), |subject| subject.name);
    LedgerEntry {
        name: name.to_owned(),
        ..entry.clone()
    }
}

/// Whether an hour of an instance that begins at this time or later is to be billed.
fn has_hours_from(entry: &LedgerEntry, at: Timestamp) -> bool {
    let hours = |ended| first_hour_from(entry.since, ended).max(1);
    entry
        .ended
        .is_none_or(|ended| first_hour_from(entry.since, at) < hours(ended))
}

/// Whether an entry has as many backups as it may have, and would have at most half as many on the next invoice.
pub(super) fn is_full(entry: &LedgerEntry) -> bool {
    let over = entry.backups.iter().filter(|backup| backup.ended.is_some());
    entry.backups.len() >= MAX_BACKUPS && 2 * over.count() >= entry.backups.len()
}

/// Whether everything in an entry has ended.
pub fn is_over(entry: &LedgerEntry) -> bool {
    if entry.backups.is_empty() {
        entry.ended.is_some()
    } else {
        entry.backups.iter().all(|backup| backup.ended.is_some())
    }
}

/// The last moment at which something in an entry ended or, if that is later, began. The first hour of what began just now counts,
/// although times of deletions are truncated to seconds.
pub(super) fn last_moment(entry: &LedgerEntry) -> Option<Timestamp> {
    let begun = |since: Timestamp| since.saturating_add(SignedDuration::from_millis(1)).ok();
    let backups = entry.backups.iter();
    let of_backups = backups.flat_map(|backup| [backup.ended, begun(backup.since)]);
    of_backups
        .chain([entry.ended, begun(entry.since)])
        .flatten()
        .max()
}

/// The ends of everything in an entry.
pub(super) fn ends(entry: &LedgerEntry) -> impl Iterator<Item = Timestamp> {
    let of_backups = entry.backups.iter().map(|backup| backup.ended);
    of_backups.chain([entry.ended]).flatten()
}

/// The lines of entries, with their hours that begin before this time.
pub fn lines_of(entries: &[LedgerEntry], until: Timestamp, prices: &PriceHistory) -> Vec<InvoiceLine> {
    let lines = entries.iter().filter_map(|entry| line_of(entry, until, prices));
    lines.collect()
}
