//! The rules of the decisions, section 7, implemented as slowly and obviously as possible.

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "it is only compiled for tests, which fail by panicking"
)]

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use resources::Plan;

/// What happened to an instance, in the order in which it was seen.
#[derive(Clone, Debug)]
pub struct History {
    /// When its server first ran, and its plan.
    pub since: Timestamp,
    pub plan: Plan,
    /// Plans that came into effect later. A clock that was set back gives times that are too early.
    pub changes: Vec<(Timestamp, Plan)>,
    pub ended: Option<Timestamp>,
}

/// Monthly prices in cents, in the order of the plans, and from when on they hold.
pub type PriceChanges = Vec<(Timestamp, [u64; 4])>;

/// A line as the reference has it: hours by plan and month's price in cents, and the amount in cents.
pub type ReferenceLine = (Vec<(Plan, u64, u64)>, u64);

fn month(moment: Timestamp) -> (i16, i8) {
    let date = moment.to_zoned(TimeZone::UTC).date();
    (date.year(), date.month())
}

fn next_hour(hour: Timestamp) -> Timestamp {
    hour + SignedDuration::from_hours(1)
}

/// The beginnings of all hours that begin before `until`, each with the plan for which it is billed.
pub fn hours(history: &History, until: Timestamp) -> Vec<(Timestamp, Plan)> {
    let mut hours = Vec::new();
    let mut changes = history.changes.iter().peekable();
    let (mut hour, mut plan) = (history.since, history.plan);
    loop {
        let is_over = history.ended.is_some_and(|ended| hour >= ended) && hour > history.since;
        if is_over || hour >= until {
            return hours;
        }
        let mut dearest = plan;
        // Whatever comes next in the order of events, and is not later than this hour, was in effect in this hour.
        while let Some((at, new)) = changes.next_if(|(at, _)| *at < next_hour(hour)) {
            let is_in_the_month = *at < hour || month(*at) == month(hour);
            if is_in_the_month {
                dearest = dearest.max(*new);
            }
            plan = *new;
        }
        hours.push((hour, dearest));
        hour = next_hour(hour);
    }
}

/// What an hour that was billed before it was over ended up dearer: thousandths of a cent, and the month's price of its plan. `before` and
/// `now` are what was known when the two invoices were closed, of which the first ended at `at`.
pub fn difference(
    before: &History,
    now: &History,
    at: Timestamp,
    prices: &PriceChanges,
) -> Option<(u64, u64)> {
    let (hour, billed) = hours(before, at)
        .pop()
        .filter(|(hour, _)| next_hour(*hour) > at)?;
    let (_, plan) = hours(now, next_hour(hour))
        .into_iter()
        .find(|(begun, _)| *begun == hour)?;
    let mut monthly = prices[0].1;
    for (from, changed) in prices {
        if *from <= hour {
            monthly = *changed;
        }
    }
    let of = |plan: Plan| monthly[Plan::ALL.iter().position(|p| *p == plan).unwrap()];
    let hourly = |plan| (of(plan) * 1000).div_ceil(672);
    let difference = hourly(plan).saturating_sub(hourly(billed));
    (difference > 0).then(|| (difference, of(plan)))
}

/// The line for the period. `earlier` is what was billed for the same month: cents, and the month's price of the dearest plan; `extra` is
/// a [`difference`].
pub fn line(
    history: &History,
    (from, to): (Timestamp, Timestamp),
    prices: &PriceChanges,
    earlier: (u64, u64),
    extra: Option<(u64, u64)>,
) -> Option<ReferenceLine> {
    let mut by_plan: Vec<(Plan, u64, u64)> = Vec::new();
    let (difference, its_cap) = extra.unwrap_or_default();
    let (mut exact, mut cap) = (u128::from(difference), earlier.1.max(its_cap));
    for (hour, plan) in hours(history, to) {
        if hour < from {
            continue;
        }
        let mut monthly = prices[0].1;
        for (at, changed) in prices {
            if *at <= hour {
                monthly = *changed;
            }
        }
        let monthly = monthly[Plan::ALL.iter().position(|p| *p == plan).unwrap()];
        exact += (u128::from(monthly) * 1000).div_ceil(672);
        cap = cap.max(monthly);
        match by_plan.iter_mut().find(|(p, m, _)| (*p, *m) == (plan, monthly)) {
            Some((_, _, count)) => *count += 1,
            None => by_plan.push((plan, monthly, 1)),
        }
    }
    if by_plan.is_empty() && extra.is_none() {
        return None;
    }
    let capped = exact.min(u128::from(cap - earlier.0) * 1000);
    let amount = capped / 1000 + u128::from(capped % 1000 >= 500);
    Some((by_plan, u64::try_from(amount).unwrap()))
}

/// What a backup of this many thousandths of a GB costs in the period, in thousandths of a GB-hour and, not rounded, in millionths of a
/// cent, with the month's price of a GB. `prices` are those of a GB; `earlier` is what was billed for the same month.
pub fn backup(
    history: &History,
    megabytes: u64,
    (from, to): (Timestamp, Timestamp),
    prices: &[(Timestamp, u64)],
    earlier: (u64, u64),
) -> Option<(u64, u64, u64)> {
    let (mut count, mut exact, mut cap) = (0, 0, earlier.1);
    let mut hour = history.since;
    while hour < to && history.ended.is_none_or(|ended| hour < ended) {
        let mut monthly = prices[0].1;
        for (at, changed) in prices {
            if *at <= hour {
                monthly = *changed;
            }
        }
        if hour >= from && monthly > 0 {
            count += megabytes;
            exact += (monthly * 1000).div_ceil(672) * megabytes;
            cap = cap.max(monthly);
        }
        hour = next_hour(hour);
    }
    (count > 0).then(|| (count, exact.min(cap * megabytes * 1000 - earlier.0), cap))
}
