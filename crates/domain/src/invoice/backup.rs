//! Hours and amount of all backups of one instance in one period.
//!
//! The unit is a GB for an hour. Each hour of a backup is billed once, in the period in which it began, as those of instances are, and
//! a backup costs at most the month's price of its size in a calendar month. The backups of an instance are summed exactly, and
//! rounded once.

use jiff::Timestamp;

use super::{
    PriceHistory,
    line::{add, sum},
    metering::first_hour_from,
};
use resources::{
    InvoicedHours,
    invoice_page::{BACKUP, MeteredBackup},
    money::{Cents, Exact, Hours, UnitPrice},
};

/// The backups of an instance in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupLine {
    /// GB-hours by price.
    pub hours: Vec<InvoicedHours>,
    /// By how much they exceed what a month costs.
    pub reduction: Exact,
    /// The amount to be paid.
    pub amount: Cents,
    /// The month's price of all of them, and what was billed before in the calendar month.
    pub limit: (Exact, Exact),
}

/// The line of some backups with their hours that begin before `until` and are on no earlier invoice. `None` if there are none that
/// cost something.
pub fn line(backups: &[MeteredBackup], until: Timestamp, prices: &PriceHistory) -> Option<BackupLine> {
    let (mut hours, mut reduction) = (Vec::new(), Exact::default());
    let mut limit = (Exact::default(), Exact::default());
    for backup in backups {
        let cost = cost(backup, until, prices);
        // One that costs less than a month reduces nothing: it counts with what it costs.
        let billed = Exact(backup.billed);
        let of_it = if cost.reduction.0 > 0 {
            monthly(cost.cap, backup.megabytes)
        } else {
            cost.billed
        };
        limit = (limit.0.plus(of_it), limit.1.plus(billed));
        for (gb_hours, monthly) in cost.hours {
            add(&mut hours, BACKUP, gb_hours, UnitPrice::hourly(monthly), monthly);
        }
        reduction = reduction.plus(cost.reduction);
    }
    let amount = sum(&hours).beyond(reduction).rounded();
    (!hours.is_empty()).then_some(BackupLine {
        hours,
        reduction,
        amount,
        limit,
    })
}

/// What a backup costs.
struct Cost {
    /// GB-hours, each with the month's price of a GB.
    hours: Vec<(Hours, Cents)>,
    reduction: Exact,
    /// What is billed for it in the calendar month, with earlier invoices.
    billed: Exact,
    /// The highest month's price of a GB in the calendar month so far.
    cap: Cents,
}

fn cost(backup: &MeteredBackup, until: Timestamp, prices: &PriceHistory) -> Cost {
    let since = backup.since;
    let first = first_hour_from(since, backup.billed_until.unwrap_or(Timestamp::MIN));
    let end = backup
        .ended
        .map_or(i64::MAX, |ended| first_hour_from(since, ended));
    let end = end.min(first_hour_from(since, until));
    let (mut hours, mut exact) = (Vec::new(), Exact::default());
    let mut cap = Cents(backup.cap_cents);
    for (from, to, prices) in prices.spans() {
        let from = first.max(first_hour_from(since, from));
        let to = end.min(first_hour_from(since, to));
        if from >= to || prices.backup_gb == Cents(0) {
            continue;
        }
        let gb_hours = Hours(to.abs_diff(from).saturating_mul(backup.megabytes));
        let unit_price = UnitPrice::hourly(prices.backup_gb);
        exact = exact.plus(Exact::of(gb_hours.0, unit_price));
        cap = cap.max(prices.backup_gb);
        hours.push((gb_hours, prices.backup_gb));
    }
    let billed = Exact(backup.billed);
    let reduction = exact.beyond(monthly(cap, backup.megabytes).beyond(billed));
    Cost {
        hours,
        reduction,
        billed: billed.plus(exact.beyond(reduction)),
        cap,
    }
}

/// The month's price of so many thousandths of a GB.
const fn monthly(gb: Cents, megabytes: u64) -> Exact {
    // Cents a GB times thousandths are thousandths of a cent; an exact amount is in millionths.
    Exact(gb.0.saturating_mul(megabytes).saturating_mul(1000))
}

/// The backup as the invoice that begins at `at` takes it over. `is_same_month` says whether the invoice before it ends within a month.
pub(super) fn carried(
    backup: &MeteredBackup,
    at: Timestamp,
    prices: &PriceHistory,
    is_same_month: bool,
) -> MeteredBackup {
    let (billed, cap) = if is_same_month {
        let cost = cost(backup, at, prices);
        (cost.billed, cost.cap)
    } else {
        (Exact(0), Cents(0))
    };
    MeteredBackup {
        billed_until: backup.billed_until.max(Some(at)),
        billed: billed.0,
        cap_cents: cap.0,
        ..backup.clone()
    }
}

/// Whether an hour of it begins at this time or later.
pub(super) fn has_hours_from(backup: &MeteredBackup, at: Timestamp) -> bool {
    let first = |moment| first_hour_from(backup.since, moment);
    backup.ended.is_none_or(|ended| first(at) < first(ended))
}
