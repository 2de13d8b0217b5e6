//! Hours and amount of one backup in one period.

use jiff::Timestamp;

use super::{Billed, Period, PriceHistory, metering::first_hour_from};
use resources::money::{Cents, PER_CENT, UnitPrice};

/// Thousandths of a GB in a GB.
const PER_GB: u64 = 1000;

/// One backup in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupLine {
    /// Hours, and the price of each.
    pub hours: Vec<(u64, UnitPrice)>,
    /// By how much the hours exceed what a month costs, in thousandths of a cent.
    pub reduction: u64,
    /// The amount to be paid.
    pub amount: Cents,
    /// The highest monthly price so far.
    pub cap: Cents,
}

impl BackupLine {
    /// What has been billed for the calendar month, after this line.
    pub const fn billed(&self, earlier: Billed) -> Billed {
        Billed {
            amount: Cents(earlier.amount.0 + self.amount.0),
            cap: self.cap,
        }
    }
}

/// The line of a backup of this size that was completed at `since`, and was deleted at `ended` or still exists, by the
/// rules for instances. The monthly price is that of a GB times the size, rounded up to a cent. `None` if no hour that
/// costs something began in the period.
pub fn line(
    since: Timestamp,
    ended: Option<Timestamp>,
    megabytes: u64,
    period: Period,
    prices: &PriceHistory,
    earlier: Billed,
) -> Option<BackupLine> {
    let first = first_hour_from(since, period.from);
    let end = ended.map_or(i64::MAX, |ended| first_hour_from(since, ended));
    let end = end.min(first_hour_from(since, period.to));
    let mut line = BackupLine {
        hours: Vec::new(),
        reduction: 0,
        amount: Cents(0),
        cap: earlier.cap,
    };
    let mut exact = 0;
    for (from, to, prices) in prices.spans() {
        let (from, to) = (
            first.max(first_hour_from(since, from)),
            end.min(first_hour_from(since, to)),
        );
        let monthly = Cents((prices.backup_gb.0 * megabytes).div_ceil(PER_GB));
        if from >= to || monthly.0 == 0 {
            continue;
        }
        let (hours, unit_price) = (to.abs_diff(from), UnitPrice::hourly(monthly));
        match line.hours.iter_mut().find(|(_, price)| *price == unit_price) {
            Some((known, _)) => *known += hours,
            None => line.hours.push((hours, unit_price)),
        }
        exact += hours * unit_price.0;
        line.cap = line.cap.max(monthly);
    }
    if line.hours.is_empty() {
        return None;
    }
    let left = line.cap.0.saturating_sub(earlier.amount.0) * PER_CENT;
    line.reduction = exact.saturating_sub(left);
    line.amount = Cents((exact.min(left) + PER_CENT / 2) / PER_CENT);
    Some(line)
}
