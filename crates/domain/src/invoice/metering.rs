//! Records in the status of an instance which plans it had in which hours. At most one entry an hour, however often the plan
//! changes, and none for an hour in which it does not change.

use jiff::{SignedDuration, Timestamp};

use super::Period;
use resources::{
    Plan,
    metering::{MAX_CHANGES, MeteredHour, Metering},
};

/// Nanoseconds of an hour.
const HOUR: i128 = 3_600_000_000_000;

/// The metering of an instance whose server runs for the first time now, with this plan.
pub fn begin(plan: Plan, now: Timestamp) -> Metering {
    Metering {
        since: now,
        changes: vec![MeteredHour {
            hour: 0,
            plan,
            then: plan,
        }],
    }
}

/// Records that `plan` is in effect from now on. The hour in progress is billed for it if it is dearer than the earlier
/// plans of that hour, unless that hour belongs to a month that has ended: its invoice may have been issued, so `plan`
/// counts from the next hour. Returns whether the plan is a new one.
pub fn change(metering: &mut Metering, plan: Plan, now: Timestamp) -> bool {
    let Some(last) = metering.changes.last().copied() else {
        *metering = begin(plan, metering.since);
        return true;
    };
    if last.then == plan {
        return false;
    }
    // Not before the last change, in case the clock was set back.
    let hour = hour_of(metering.since, now).max(last.hour);
    let began_at = beginning(metering.since, hour);
    let is_open = Period::month_of(began_at).contains(now.max(began_at));
    let counting = if is_open { plan } else { last.then };
    // The bound is beyond what two months can have; if it is reached, the last hours are merged into one.
    if last.hour == hour || metering.changes.len() >= MAX_CHANGES {
        if let Some(last) = metering.changes.last_mut() {
            if is_open {
                last.plan = last.plan.max(plan);
            }
            last.then = plan;
        }
    } else {
        metering.changes.push(MeteredHour {
            hour,
            plan: last.then.max(counting),
            then: plan,
        });
    }
    true
}

/// Forgets the hours that began before `until`, because they have been invoiced.
pub fn forget(metering: &mut Metering, until: Timestamp) {
    let first = first_hour_from(metering.since, until);
    let invoiced = metering
        .changes
        .iter()
        .take_while(|entry| entry.hour < first)
        .count();
    // The last of them says which plan follows.
    metering.changes.drain(..invoiced.saturating_sub(1));
}

/// The changes that are known, with what `metering` knows of the last known hour and of later ones. What is known of an earlier hour
/// stays: an instance that was written back with an older status does not reprice it. There are at most as many as can be stored: if
/// there were more, the last hours are merged into one.
pub fn merged(known: &[MeteredHour], metering: &Metering) -> Vec<MeteredHour> {
    let Some((last, before)) = known.split_last() else {
        return metering.changes.clone();
    };
    let mut merged = before.to_vec();
    let mut same = *last;
    let (of_hour, later): (Vec<MeteredHour>, Vec<MeteredHour>) = metering
        .changes
        .iter()
        .filter(|change| change.hour >= last.hour)
        .partition(|change| change.hour == last.hour);
    if let Some(change) = of_hour.first() {
        same.plan = same.plan.max(change.plan);
        same.then = change.then;
    }
    merged.push(same);
    merged.extend(later);
    if merged.len() > MAX_CHANGES {
        let beyond = merged.split_off(MAX_CHANGES);
        if let (Some(last), Some(final_one)) = (merged.last_mut(), beyond.last()) {
            last.then = final_one.then;
            let dearest = beyond.iter().map(|change| change.plan).max();
            last.plan = dearest.map_or(last.plan, |plan| plan.max(last.plan));
        }
    }
    merged
}

/// The same metering with its hours counted from another moment: what an instance was restored with may count from a later one
/// than the ledger does.
pub fn counted_from(since: Timestamp, metering: &Metering) -> Metering {
    let offset = hour_of(since, metering.since);
    let changes = metering.changes.iter();
    Metering {
        since,
        changes: changes
            .map(|change| MeteredHour {
                hour: change.hour + offset,
                ..*change
            })
            .collect(),
    }
}

/// The number of the hour that contains a moment; 0 before the first.
pub(super) fn hour_of(since: Timestamp, moment: Timestamp) -> i64 {
    let hours = (moment.as_nanosecond() - since.as_nanosecond()).div_euclid(HOUR);
    i64::try_from(hours.max(0)).unwrap_or(i64::MAX)
}

/// The number of the first hour that begins at or after a moment.
pub(super) fn first_hour_from(since: Timestamp, moment: Timestamp) -> i64 {
    let nanoseconds = moment.as_nanosecond() - since.as_nanosecond();
    let hours = nanoseconds.div_euclid(HOUR) + i128::from(nanoseconds.rem_euclid(HOUR) > 0);
    i64::try_from(hours.max(0)).unwrap_or(i64::MAX)
}

/// When an hour begins.
pub(super) fn beginning(since: Timestamp, hour: i64) -> Timestamp {
    SignedDuration::try_from_hours(hour)
        .and_then(|hours| since.checked_add(hours).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Plan::{Business, Enterprise, Starter};

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn entries(metering: &Metering) -> Vec<(i64, Plan, Plan)> {
        let changes = metering.changes.iter();
        changes
            .map(|entry| (entry.hour, entry.plan, entry.then))
            .collect()
    }

    #[test]
    fn an_hour_counts_for_the_dearest_plan_in_it_and_the_next_one_for_the_last() {
        let mut metering = begin(Starter, time("2026-11-10T10:20:00Z"));
        change(&mut metering, Enterprise, time("2026-11-10T12:30:00Z"));
        change(&mut metering, Business, time("2026-11-10T13:19:59Z"));
        change(&mut metering, Business, time("2026-11-10T15:00:00Z"));
        assert_eq!(
            entries(&metering),
            [(0, Starter, Starter), (2, Enterprise, Business)]
        );
        change(&mut metering, Starter, time("2026-11-10T13:20:00Z"));
        assert_eq!(entries(&metering)[2], (3, Business, Starter));
    }

    #[test]
    fn hours_that_count_from_a_later_moment_are_the_same_hours() {
        let since = time("2026-11-10T10:20:00Z");
        let mut later = begin(Starter, time("2026-11-10T15:30:00Z"));
        change(&mut later, Business, time("2026-11-10T17:40:00Z"));
        let shifted = counted_from(since, &later);
        assert_eq!(shifted.since, since);
        assert_eq!(
            entries(&shifted),
            [(5, Starter, Starter), (7, Business, Business)]
        );
        assert_eq!(counted_from(later.since, &later), later);
    }

    #[test]
    fn many_changes_in_an_hour_are_one_entry() {
        let since = time("2026-11-10T10:00:00Z");
        let mut metering = begin(Starter, since);
        for second in 0..3600 {
            let plan = Plan::ALL[usize::try_from(second % 3).unwrap()];
            change(&mut metering, plan, since + SignedDuration::from_secs(second));
        }
        assert_eq!(entries(&metering), [(0, Plan::Performance, Plan::Performance)]);
    }

    #[test]
    fn a_change_after_the_end_of_the_month_leaves_the_hour_before_it_alone() {
        let mut metering = begin(Starter, time("2026-11-30T23:30:00Z"));
        change(&mut metering, Enterprise, time("2026-12-01T00:10:00Z"));
        change(&mut metering, Business, time("2026-12-01T00:20:00Z"));
        assert_eq!(entries(&metering), [(0, Starter, Business)]);
    }

    #[test]
    fn a_clock_that_was_set_back_changes_no_earlier_hour() {
        let mut metering = begin(Starter, time("2026-11-10T10:00:00Z"));
        change(&mut metering, Business, time("2026-11-10T20:00:00Z"));
        change(&mut metering, Starter, time("2026-11-10T05:00:00Z"));
        assert_eq!(
            entries(&metering),
            [(0, Starter, Starter), (10, Business, Starter)]
        );
    }

    #[test]
    fn an_older_status_that_was_written_back_changes_no_known_hour() {
        let since = time("2026-11-10T10:00:00Z");
        let older = begin(Starter, since);
        let mut newer = older.clone();
        change(&mut newer, Enterprise, time("2026-11-10T12:30:00Z"));
        change(&mut newer, Starter, time("2026-11-10T20:00:00Z"));
        assert_eq!(merged(&newer.changes, &older), newer.changes);
        let mut later = older;
        change(&mut later, Business, time("2026-11-11T10:00:00Z"));
        let all = merged(&newer.changes, &later);
        assert_eq!(all[..3], newer.changes[..]);
        assert_eq!((all.len(), all[3].hour, all[3].then), (4, 24, Business));
        // A raise in the last known hour counts.
        let mut raised = newer.clone();
        change(&mut raised, Enterprise, time("2026-11-10T20:30:00Z"));
        assert_eq!(merged(&newer.changes, &raised), raised.changes);
    }

    #[test]
    fn what_has_been_invoiced_is_forgotten() {
        let mut metering = begin(Starter, time("2026-11-30T10:30:00Z"));
        change(&mut metering, Business, time("2026-11-30T12:00:00Z"));
        change(&mut metering, Enterprise, time("2026-12-01T00:45:00Z"));
        let (all, business) = (entries(&metering), (1, Business, Business));
        forget(&mut metering, time("2026-11-30T11:29:00Z"));
        assert_eq!(entries(&metering), all);
        forget(&mut metering, time("2026-12-01T00:00:00Z"));
        assert_eq!(entries(&metering), [business, (14, Enterprise, Enterprise)]);
    }
}
