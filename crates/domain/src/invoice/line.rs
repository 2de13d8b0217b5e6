//! Hours and amount of one instance in one period.

use jiff::Timestamp;

use super::{Period, PriceHistory, metering::first_hour_from};
use resources::{
    Plan,
    metering::Metering,
    money::{Cents, PER_CENT, UnitPrice},
};

/// Hours at one price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHours {
    pub plan: Plan,
    /// Number of hours.
    pub hours: u64,
    /// Price of an hour.
    pub unit_price: UnitPrice,
}

/// What has been billed for an instance in a calendar month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Billed {
    pub amount: Cents,
    /// The monthly price of the dearest plan that it had.
    pub cap: Cents,
}

/// One instance in one period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The hours, in the order in which each plan and price first occurred.
    pub hours: Vec<PlanHours>,
    /// By how much the hours exceed what a month costs, in thousandths of a cent.
    pub reduction: u64,
    /// The amount to be paid.
    pub amount: Cents,
    /// The monthly price of the dearest plan that it had in the calendar month so far.
    pub cap: Cents,
}

/// The line of an instance that was deleted at `ended`, or still exists. `earlier` is what invoices for earlier parts of the
/// same calendar month have billed for it. `None` if none of its hours began in the period.
pub fn line(
    metering: &Metering,
    ended: Option<Timestamp>,
    period: Period,
    prices: &PriceHistory,
    earlier: Billed,
) -> Option<Line> {
    let since = metering.since;
    let first = first_hour_from(since, period.from);
    // An instance that ran is billed for at least an hour: deletion times have whole seconds.
    let ended = ended.map_or(i64::MAX, |ended| first_hour_from(since, ended).max(1));
    let end = first_hour_from(since, period.to).min(ended);
    let mut line = Line {
        hours: Vec::new(),
        reduction: 0,
        amount: Cents(0),
        cap: earlier.cap,
    };
    for (plan, from, to) in runs(metering) {
        let (from, to) = (from.max(first), to.min(end));
        if from >= to {
            continue;
        }
        for (since_when, until_when, prices) in prices.spans() {
            let from = from.max(first_hour_from(since, since_when));
            let to = to.min(first_hour_from(since, until_when));
            if from < to {
                line.add(plan, to.abs_diff(from), prices.hourly(plan));
                line.cap = line.cap.max(prices.monthly(plan));
            }
        }
    }
    if line.hours.is_empty() {
        return None;
    }
    let exact: u64 = line
        .hours
        .iter()
        .map(|hours| hours.hours * hours.unit_price.0)
        .sum();
    let left = (line.cap.0.saturating_sub(earlier.amount.0)) * PER_CENT;
    line.reduction = exact.saturating_sub(left);
    line.amount = Cents((exact.min(left) + PER_CENT / 2) / PER_CENT);
    Some(line)
}

impl Line {
    fn add(&mut self, plan: Plan, hours: u64, unit_price: UnitPrice) {
        let same = |entry: &&mut PlanHours| entry.plan == plan && entry.unit_price == unit_price;
        match self.hours.iter_mut().find(same) {
            Some(entry) => entry.hours += hours,
            None => self.hours.push(PlanHours {
                plan,
                hours,
                unit_price,
            }),
        }
    }

    /// What has been billed for the calendar month, after this line.
    pub const fn billed(&self, earlier: Billed) -> Billed {
        Billed {
            amount: Cents(earlier.amount.0 + self.amount.0),
            cap: self.cap,
        }
    }
}

/// Each plan with the hours for which it is billed, from one hour to before another.
fn runs(metering: &Metering) -> impl Iterator<Item = (Plan, i64, i64)> {
    let changes = &metering.changes;
    changes.iter().enumerate().flat_map(|(index, entry)| {
        let next = changes.get(index + 1).map_or(i64::MAX, |next| next.hour);
        [
            (entry.plan, entry.hour, entry.hour + 1),
            (entry.then, entry.hour + 1, next),
        ]
    })
}
