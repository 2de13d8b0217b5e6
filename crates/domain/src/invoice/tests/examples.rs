//! Invoices that can be checked by hand.

use std::slice;

use jiff::Timestamp;

use crate::{
    catalogue::{Catalogue, Prices},
    invoice::{Billed, Line, Period, PriceHistory, backup, line, metering},
};
use resources::{Plan, invoice_page::MeteredBackup, metering::Metering, money::Cents};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn november() -> Period {
    Period::month_of(time("2026-11-10T00:00:00Z"))
}

fn billed(metering: &Metering, ended: Option<&str>, period: Period) -> Option<Line> {
    let prices = PriceHistory::new(Prices::default());
    line(
        metering,
        ended.map(time),
        period,
        &prices,
        Billed::default(),
        None,
    )
}

fn hours(line: &Line) -> Vec<(Plan, u64)> {
    let hours = line.hours.iter();
    hours
        .map(|entry| (entry.plan.parse().unwrap(), entry.thousandths / 1000))
        .collect()
}

#[test]
fn an_instance_that_lived_for_minutes_costs_an_hour() {
    let metering = metering::begin(Plan::Business, time("2026-11-10T10:00:00.500Z"));
    for ended in [
        "2026-11-10T10:00:00Z",
        "2026-11-10T10:00:01Z",
        "2026-11-10T11:00:00Z",
    ] {
        let line = billed(&metering, Some(ended), november()).unwrap();
        assert_eq!(hours(&line), [(Plan::Business, 1)], "{ended}");
        // 2.233 cents.
        assert_eq!(line.amount, Cents(2));
    }
    let line = billed(&metering, Some("2026-11-10T11:00:01Z"), november()).unwrap();
    // 4.466 cents.
    assert_eq!((hours(&line), line.amount), (vec![(Plan::Business, 2)], Cents(4)));
}

#[test]
fn a_whole_month_costs_the_month_and_not_more() {
    let since = time("2026-10-10T10:00:00Z");
    let line = billed(&metering::begin(Plan::Starter, since), None, november()).unwrap();
    // 720 hours of 0.745 cents would be 536.4 cents.
    assert_eq!(
        (hours(&line), line.amount),
        (vec![(Plan::Starter, 720)], Cents(500))
    );
    let february = Period::month_of(time("2027-02-01T00:00:00Z"));
    let line = billed(&metering::begin(Plan::Enterprise, since), None, february).unwrap();
    assert_eq!(
        (hours(&line), line.amount),
        (vec![(Plan::Enterprise, 672)], Cents(60_00))
    );
}

#[test]
fn an_hour_belongs_to_the_period_in_which_it_began() {
    let metering = metering::begin(Plan::Starter, time("2026-11-30T23:59:59.999Z"));
    let line = billed(&metering, Some("2026-12-01T00:30:00Z"), november()).unwrap();
    assert_eq!(hours(&line), [(Plan::Starter, 1)]);
    let december = Period::starting_at(november().to);
    assert_eq!(billed(&metering, Some("2026-12-01T00:30:00Z"), december), None);
    // One that begins with the month belongs to it alone.
    let metering = metering::begin(Plan::Starter, december.from);
    assert_eq!(billed(&metering, None, november()), None);
    assert_eq!(
        hours(&billed(&metering, None, december).unwrap()),
        [(Plan::Starter, 744)]
    );
}

#[test]
fn a_month_that_was_closed_early_costs_no_more_in_two_invoices() {
    let metering = metering::begin(Plan::Starter, time("2026-10-10T10:00:00Z"));
    let prices = PriceHistory::new(Prices::default());
    let (month, middle) = (november(), time("2026-11-28T12:00:00Z"));
    let first = Period { to: middle, ..month };
    let one = line(&metering, None, first, &prices, Billed::default(), None).unwrap();
    // 660 hours of 0.745 cents: 491.7.
    assert_eq!(one.amount, Cents(4_92));
    let earlier = one.billed(Billed::default());
    let rest = line(
        &metering,
        None,
        Period::starting_at(middle),
        &prices,
        earlier,
        None,
    )
    .unwrap();
    assert_eq!((hours(&rest), rest.amount), (vec![(Plan::Starter, 60)], Cents(8)));
}

#[test]
fn the_dearest_plan_of_the_month_sets_the_cap() {
    let mut metering = metering::begin(Plan::Enterprise, time("2026-11-01T00:00:00Z"));
    metering::change(&mut metering, Plan::Starter, time("2026-11-01T00:30:00Z"));
    let line = billed(&metering, None, november()).unwrap();
    // 8.929 + 719 × 0.745 = 544.584 cents: less than the 60 EUR of enterprise, more than the 5 of starter.
    assert_eq!(line.amount, Cents(5_45));
    assert_eq!(hours(&line), [(Plan::Enterprise, 1), (Plan::Starter, 719)]);
}

fn backup(since: &str, ended: Option<&str>, megabytes: u64) -> MeteredBackup {
    MeteredBackup {
        uid: since.to_owned(),
        since: time(since),
        megabytes,
        ended: ended.map(time),
        billed_until: None,
        billed: 0,
        cap_cents: 0,
    }
}

#[test]
fn the_backups_of_an_instance_cost_their_gb_hours_exactly_and_are_rounded_once() {
    let line =
        |backups: &[MeteredBackup], prices: &PriceHistory| backup::line(backups, november().to, prices);
    let day = backup("2026-11-10T10:30:00Z", Some("2026-11-11T10:30:00Z"), 12_345);
    let free = PriceHistory::new(Prices::default());
    assert_eq!(line(slice::from_ref(&day), &free), None);
    // A GB at 0.05 a month: 0.00744 cents an hour, rounded up to 0.008.
    let priced = PriceHistory::new(Prices::default().with_backups(Cents(5)));
    let one = line(slice::from_ref(&day), &priced).unwrap();
    assert_eq!(
        one.hours[0].hours().to_string(),
        "296.28",
        "12.345 GB for 24 hours"
    );
    assert_eq!(one.hours[0].amount().to_string(), "0.0237024");
    assert_eq!(one.amount, Cents(2));
    // Thirty of them: 71.1 cents, not thirty times 2 or 3.
    let thirty = line(&vec![day.clone(); 30], &priced).unwrap();
    assert_eq!((thirty.hours.len(), thirty.amount), (1, Cents(71)));
    // A price from the second day on.
    let mut later = free;
    let catalogue = Catalogue {
        prices: Prices::default().with_backups(Cents(5)),
        ..Catalogue::default()
    };
    later.record(&catalogue, time("2026-11-11T10:30:00Z"));
    let two_days = backup("2026-11-10T10:30:00Z", Some("2026-11-12T10:30:00Z"), 1000);
    assert_eq!(
        line(&[two_days], &later).unwrap().hours[0].hours().to_string(),
        "24"
    );
    // One that was gone before it was completed.
    let nothing = backup("2026-11-10T10:30:00Z", Some("2026-11-10T10:30:00Z"), 1000);
    assert_eq!(line(&[nothing], &priced), None);
}

#[test]
fn a_backup_costs_at_most_the_months_price_of_its_size() {
    let priced = PriceHistory::new(Prices::default().with_backups(Cents(5)));
    let month = backup("2026-11-01T00:00:00Z", None, 10_000);
    let line = backup::line(&[month], november().to, &priced).unwrap();
    // 7200 GB-hours of 0.008 cents would be 57.6 cents.
    assert_eq!(
        (line.reduction.to_string(), line.amount),
        ("0.07600".to_owned(), Cents(50))
    );
}
