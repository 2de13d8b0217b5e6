//! Hours and amount of one instance in one period.

use jiff::Timestamp;

use super::{
    Period, PriceHistory,
    metering::{beginning, first_hour_from},
};
use resources::{
    InvoicedHours, Plan,
    invoice_page::{DIFFERENCE, OpenHour},
    metering::Metering,
    money::{Cents, Exact, Hours, UnitPrice},
};

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
    pub hours: Vec<InvoicedHours>,
    /// By how much the hours exceed what a month costs.
    pub reduction: Exact,
    /// The amount to be paid: the hours without the reduction, rounded half up.
    pub amount: Cents,
    /// The monthly price of the dearest plan that it had in the calendar month so far.
    pub cap: Cents,
}

/// The line of an instance that was deleted at `ended`, or still exists. `earlier` is what invoices for earlier parts of the
/// same calendar month have billed for it, and `open` the hour that was in progress when the last of them was closed. `None` if there
/// is nothing: none of its hours began in the period, and that hour got no dearer.
pub fn line(
    metering: &Metering,
    ended: Option<Timestamp>,
    period: Period,
    prices: &PriceHistory,
    earlier: Billed,
    open: Option<OpenHour>,
) -> Option<Line> {
    let since = metering.since;
    let first = first_hour_from(since, period.from);
    // An instance that ran is billed for at least an hour: deletion times have whole seconds.
    let ended = ended.map_or(i64::MAX, |ended| first_hour_from(since, ended).max(1));
    let end = first_hour_from(since, period.to).min(ended);
    let mut line = Line {
        hours: Vec::new(),
        reduction: Exact(0),
        amount: Cents(0),
        cap: earlier.cap,
    };
    if let Some((plan, difference)) = open.and_then(|open| difference(metering, open, prices)) {
        add(&mut line.hours, DIFFERENCE, Hours::whole(1), difference, Cents(0));
        let began_at = beginning(since, open.map_or(0, |open| open.hour));
        line.cap = line.cap.max(prices.at(began_at).monthly(plan));
    }
    for (plan, from, to) in runs(metering) {
        let (from, to) = (from.max(first), to.min(end));
        if from >= to {
            continue;
        }
        for (since_when, until_when, prices) in prices.spans() {
            let from = from.max(first_hour_from(since, since_when));
            let to = to.min(first_hour_from(since, until_when));
            if from < to {
                let hours = Hours::whole(to.abs_diff(from));
                add(
                    &mut line.hours,
                    plan.as_str(),
                    hours,
                    prices.hourly(plan),
                    prices.monthly(plan),
                );
                line.cap = line.cap.max(prices.monthly(plan));
            }
        }
    }
    if line.hours.is_empty() {
        return None;
    }
    let exact = sum(&line.hours);
    let left = Exact::from(Cents(line.cap.0.saturating_sub(earlier.amount.0)));
    line.reduction = exact.beyond(left);
    line.amount = exact.beyond(line.reduction).rounded();
    Some(line)
}

/// The price of the plan that an hour ended up with, if that is dearer than what it was billed at, and by how much.
fn difference(metering: &Metering, open: OpenHour, prices: &PriceHistory) -> Option<(Plan, UnitPrice)> {
    let plan = metering
        .changes
        .iter()
        .find(|change| change.hour == open.hour)?
        .plan;
    let price = prices.at(beginning(metering.since, open.hour)).hourly(plan);
    let difference = price
        .0
        .checked_sub(open.unit_price)
        .filter(|difference| *difference > 0)?;
    Some((plan, UnitPrice(difference)))
}

/// The hour that is in progress at a time at which an invoice is closed, as it is billed there; `None` if an hour begins then.
pub(super) fn open_hour(
    metering: &Metering,
    at: Timestamp,
    prices: &PriceHistory,
    before: Option<OpenHour>,
) -> Option<OpenHour> {
    let hour = first_hour_from(metering.since, at) - 1;
    if hour < 0 || beginning(metering.since, hour + 1) <= at {
        return None;
    }
    let mut runs = runs(metering);
    let (plan, ..) = runs.find(|(_, from, to)| (*from..*to).contains(&hour))?;
    let price = prices.at(beginning(metering.since, hour)).hourly(plan);
    let earlier = before
        .filter(|before| before.hour == hour)
        .map_or(0, |before| before.unit_price);
    Some(OpenHour {
        hour,
        unit_price: price.0.max(earlier),
    })
}

/// Adds hours of a plan at a price.
pub(super) fn add(
    all: &mut Vec<InvoicedHours>,
    plan: &str,
    Hours(thousandths): Hours,
    unit_price: UnitPrice,
    monthly: Cents,
) {
    let same = |entry: &&mut InvoicedHours| entry.plan == plan && entry.unit_price == unit_price.0;
    match all.iter_mut().find(same) {
        Some(entry) => entry.thousandths += thousandths,
        None => all.push(InvoicedHours {
            plan: plan.to_owned(),
            thousandths,
            unit_price: unit_price.0,
            month_cents: monthly.0,
        }),
    }
}

/// What all hours cost.
pub(super) fn sum(hours: &[InvoicedHours]) -> Exact {
    let amounts = hours.iter().map(InvoicedHours::amount);
    amounts.fold(Exact::default(), Exact::plus)
}

impl Line {
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
