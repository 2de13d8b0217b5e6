//! Random histories, billed period by period.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use crate::invoice::reference::{self, History, PriceChanges};
use crate::{
    catalogue::{Catalogue, Prices},
    invoice::{Billed, Period, PriceHistory, line, metering},
};
use resources::{
    Plan,
    metering::Metering,
    money::{Cents, Currency, UnitPrice},
};

/// Some hours before the end of a month, so that histories of some days cross it.
const START: &str = "2026-11-28T00:00:00Z";

fn start() -> Timestamp {
    START.parse().unwrap()
}

fn at(milliseconds: i64) -> Timestamp {
    start() + SignedDuration::from_millis(milliseconds)
}

/// Times that are often close to full hours, to the end of the month, and to each other.
fn moment() -> impl Strategy<Value = Timestamp> {
    let hour = 3_600_000_i64;
    prop_oneof![
        (0..40 * 24 * hour).prop_map(at),
        (0..200_i64, -2..3_i64).prop_map(move |(hours, off)| at(hours * hour + off)),
        (-2 * hour..2 * hour).prop_map(move |off| at(72 * hour + off)),
        (70..75_i64, 0..12_i64).prop_map(move |(hours, fives)| at(hours * hour + fives * 300_000)),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    prop::sample::select(Plan::ALL.to_vec())
}

fn prices() -> impl Strategy<Value = [u64; 4]> {
    let price = prop_oneof![Just(0_u64), 1..10_u64, 1..10_000_u64, Just(100_000_000)];
    prop::array::uniform4(price).prop_map(|mut prices| {
        prices.sort_unstable();
        prices
    })
}

fn history() -> impl Strategy<Value = History> {
    let changes = prop::collection::vec((moment(), plan()), 0..40);
    // Mostly in order; a time out of order comes from a clock that was set back.
    let changes = (changes, prop::bool::weighted(0.8)).prop_map(|(mut changes, sorted)| {
        if sorted {
            changes.sort_by_key(|(at, _)| *at);
        }
        changes
    });
    (moment(), plan(), changes, prop::option::of(moment())).prop_map(|(since, plan, changes, ended)| {
        let ended = ended.map(|ended| ended.max(since - SignedDuration::from_millis(999)));
        // Nothing changes once it has been deleted, or before it first ran; and the same plan again is no change.
        let mut current = plan;
        let changes = changes
            .into_iter()
            .map(|(at, plan)| (at.max(since), plan))
            .take_while(|(at, _)| ended.is_none_or(|ended| *at < ended))
            .filter(|(_, plan)| std::mem::replace(&mut current, *plan) != *plan)
            .collect();
        History {
            since,
            plan,
            changes,
            ended,
        }
    })
}

/// The periods of all invoices until two months later: whole months, and some that were closed early.
fn periods(closings: &[Timestamp]) -> Vec<Period> {
    let mut closings = closings.to_vec();
    closings.sort_unstable();
    closings.dedup();
    let mut closings = closings.into_iter().peekable();
    let mut periods = vec![Period::starting_at(start())];
    while let Some(last) = periods.last_mut() {
        if let Some(until) = closings.next_if(|until| *until < last.to) {
            if last.from < until {
                last.to = until;
                let next = Period::starting_at(until);
                periods.push(next);
            }
        } else if periods.len() < 20 && periods[periods.len() - 1].to < at(70 * 24 * 3_600_000) {
            let next = Period::starting_at(periods[periods.len() - 1].to);
            periods.push(next);
        } else {
            break;
        }
    }
    periods
}

fn catalogue_prices(monthly: [u64; 4]) -> Prices {
    let by_plan = Plan::ALL.into_iter().zip(monthly.map(Cents)).collect();
    Prices::of(&Currency::default(), &by_plan)
}

fn price_history(changes: &PriceChanges) -> PriceHistory {
    let mut history = PriceHistory::new(catalogue_prices(changes[0].1));
    for (at, monthly) in &changes[1..] {
        let catalogue = Catalogue {
            prices: catalogue_prices(*monthly),
            ..Catalogue::default()
        };
        history.record(&catalogue, *at);
    }
    history
}

fn metered(history: &History) -> Metering {
    let mut metering = metering::begin(history.plan, history.since);
    for (at, plan) in &history.changes {
        metering::change(&mut metering, *plan, *at);
    }
    metering
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_invoice_is_as_the_reference_has_it(
        history in history(),
        mut changes in prop::collection::vec((moment(), prices()), 1..4),
        closings in prop::collection::vec(moment(), 0..4),
        forgets in any::<bool>(),
    ) {
        changes.sort_by_key(|(at, _)| *at);
        let mut metering = metered(&history);
        let mut prices = price_history(&changes);
        let (mut billed, mut expected) = (Billed::default(), (0, 0));
        let mut month = Period::month_of(start());
        let mut hours = 0;
        let periods = periods(&closings);
        for period in &periods {
            if !month.contains(period.from) {
                month = Period::month_of(period.from);
                (billed, expected) = (Billed::default(), (0, 0));
            }
            let line = line(&metering, history.ended, *period, &prices, billed, None);
            let reference = reference::line(&history, (period.from, period.to), &changes, expected, None);
            match (line, reference) {
                (Some(line), Some((by_plan, amount))) => {
                    let by_plan = by_plan.into_iter();
                    let by_plan =
                        by_plan.map(|(plan, monthly, hours)| (plan.as_str(), UnitPrice::hourly(Cents(monthly)).0, hours));
                    let mut merged: Vec<(&str, u64, u64)> = Vec::new();
                    // Two monthly prices can have the same hourly one.
                    for (plan, price, hours) in by_plan {
                        match merged.iter_mut().find(|(p, u, _)| (*p, *u) == (plan, price)) {
                            Some((_, _, count)) => *count += hours,
                            None => merged.push((plan, price, hours)),
                        }
                    }
                    let mut of_line: Vec<_> =
                        line.hours.iter().map(|h| (h.plan.as_str(), h.unit_price, h.thousandths / 1000)).collect();
                    hours += of_line.iter().map(|(_, _, hours)| hours).sum::<u64>();
                    of_line.sort_unstable();
                    merged.sort_unstable();
                    prop_assert_eq!(of_line, merged);
                    prop_assert_eq!(line.amount, Cents(amount));
                    billed = line.billed(billed);
                    expected = (expected.0 + amount, billed.cap.0);
                    prop_assert!(billed.amount <= billed.cap);
                }
                (None, None) => {}
                (line, reference) => prop_assert!(false, "{line:?} {reference:?}"),
            }
            if forgets {
                metering::forget(&mut metering, period.to);
                prices.forget(period.to);
            }
        }
        // Each hour begun is billed once.
        let end = periods.last().unwrap().to;
        let begun = reference::hours(&history, end).into_iter().filter(|(hour, _)| *hour >= start());
        prop_assert_eq!(hours, u64::try_from(begun.count()).unwrap());
    }

    #[test]
    fn forty_changes_stay_small(history in history()) {
        let metering = metered(&history);
        let bytes = serde_json::to_string(&metering).unwrap().len();
        prop_assert!(metering.changes.len() <= 1 + history.changes.len());
        prop_assert!(bytes < 3_500, "{bytes}");
    }
}
