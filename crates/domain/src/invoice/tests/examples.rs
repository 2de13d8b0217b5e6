//! Invoices that can be checked by hand.

use jiff::Timestamp;

use crate::{
    catalogue::Prices,
    invoice::{Billed, Line, Period, PriceHistory, backup, line, metering},
};
use resources::{
    Plan,
    metering::Metering,
    money::{Cents, UnitPrice},
};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn november() -> Period {
    Period::month_of(time("2026-11-10T00:00:00Z"))
}

fn billed(metering: &Metering, ended: Option<&str>, period: Period) -> Option<Line> {
    let prices = PriceHistory::new(Prices::default());
    line(metering, ended.map(time), period, &prices, Billed::default())
}

fn hours(line: &Line) -> Vec<(Plan, u64)> {
    line.hours.iter().map(|entry| (entry.plan, entry.hours)).collect()
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
    let one = line(&metering, None, first, &prices, Billed::default()).unwrap();
    // 660 hours of 0.745 cents: 491.7.
    assert_eq!(one.amount, Cents(4_92));
    let earlier = one.billed(Billed::default());
    let rest = line(&metering, None, Period::starting_at(middle), &prices, earlier).unwrap();
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

#[test]
fn a_backup_costs_its_size_for_each_hour_begun_and_nothing_without_a_price() {
    let since = time("2026-11-10T10:30:00Z");
    let free = PriceHistory::new(Prices::default());
    let line = |prices: &PriceHistory, ended: Option<&str>, earlier| {
        backup::line(since, ended.map(time), 12_400, november(), prices, earlier)
    };
    assert_eq!(line(&free, None, Billed::default()), None);
    // 12.4 GB at 0.05: 62 cents a month, so 0.093 cents an hour, rounded up.
    let priced = PriceHistory::new(Prices::default().with_backups(Cents(5)));
    let day = line(&priced, Some("2026-11-11T10:30:00Z"), Billed::default()).unwrap();
    let per_hour = |hours: &[(u64, UnitPrice)]| {
        hours
            .iter()
            .map(|(n, price)| (*n, price.to_string()))
            .collect::<Vec<_>>()
    };
    assert_eq!(per_hour(&day.hours), [(24, "0.00093".to_owned())]);
    assert_eq!(day.amount, Cents(2));
    let month = backup::line(
        time("2026-10-01T00:00:00Z"),
        None,
        12_400,
        november(),
        &priced,
        Billed::default(),
    );
    assert_eq!(month.unwrap().amount, Cents(62), "at most a month's");
    // A price from the second day on.
    let mut later = free;
    later.record(
        &Prices::default().with_backups(Cents(5)),
        time("2026-11-11T10:30:00Z"),
    );
    let two_days = line(&later, Some("2026-11-12T10:30:00Z"), Billed::default()).unwrap();
    assert_eq!(two_days.hours[0].0, 24);
    // One that was gone before it was completed.
    assert_eq!(
        line(&priced, Some("2026-11-10T10:30:00Z"), Billed::default()),
        None
    );
}
