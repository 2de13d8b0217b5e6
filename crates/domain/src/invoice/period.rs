//! Periods of invoices.

use jiff::{Timestamp, civil::Date, tz::TimeZone};

/// The time that an invoice covers, within one calendar month (UTC).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its first moment.
    pub from: Timestamp,
    /// The first moment after it.
    pub to: Timestamp,
}

impl Period {
    /// The period from this moment to the end of its month.
    pub fn starting_at(from: Timestamp) -> Self {
        let next = month(from).last_of_month().tomorrow();
        Self {
            from,
            to: next.map_or(Timestamp::MAX, midnight),
        }
    }

    /// The month of this moment.
    pub fn month_of(moment: Timestamp) -> Self {
        Self::starting_at(midnight(month(moment)))
    }

    /// The month before this one.
    pub fn before(month: Self) -> Self {
        let last = month.from.checked_sub(jiff::SignedDuration::from_secs(1));
        last.map_or(month, Self::month_of)
    }

    /// Whether this moment is in the period.
    pub fn contains(&self, moment: Timestamp) -> bool {
        self.from <= moment && moment < self.to
    }
}

/// The first day of the month of this moment.
fn month(moment: Timestamp) -> Date {
    moment.to_zoned(TimeZone::UTC).date().first_of_month()
}

fn midnight(day: Date) -> Timestamp {
    let midnight = day.to_zoned(TimeZone::UTC);
    midnight.map_or(Timestamp::MAX, |midnight| midnight.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_period_ends_with_its_month() {
        for (from, to) in [
            ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2026-12-31T23:59:59.999Z", "2027-01-01T00:00:00Z"),
            ("2028-02-29T12:00:00Z", "2028-03-01T00:00:00Z"),
            ("2027-01-31T10:00:00Z", "2027-02-01T00:00:00Z"),
        ] {
            let period = Period::starting_at(time(from));
            assert_eq!((period.from, period.to), (time(from), time(to)));
            assert!(period.contains(period.from) && !period.contains(period.to));
        }
        let month = Period::month_of(time("2026-11-30T23:59:59Z"));
        assert_eq!(month.from, time("2026-11-01T00:00:00Z"));
        assert_eq!(Period::before(Period::starting_at(month.to)), month);
        assert_eq!(Period::starting_at(month.to), Period::month_of(month.to));
    }
}
