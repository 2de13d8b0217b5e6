//! When backups are made, and how they are named.

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use resources::ids;

/// Seconds of a day. Times are UTC, so all days are alike.
const DAY: i64 = 86_400;

/// How long after its end a failed scheduled backup is tried once more (decisions, section 7).
pub const RETRY_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// The second of the day at which an instance is backed up, spread over the day by its id.
fn second_of_day(instance_id: &str) -> i64 {
    let digest = Sha256::digest(instance_id);
    let number = digest
        .iter()
        .take(8)
        .fold(0_u64, |number, byte| (number << 8) | u64::from(*byte));
    i64::try_from(number % DAY.unsigned_abs()).unwrap_or(0)
}

/// The first time of an instance's schedule after `after`.
pub fn next_run(instance_id: &str, after: Timestamp) -> Timestamp {
    let after = after.as_second();
    let today = after - after.rem_euclid(DAY) + second_of_day(instance_id);
    let next = if today > after { today } else { today + DAY };
    Timestamp::from_second(next).unwrap_or(Timestamp::MAX)
}

/// What to do about an instance's schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// When the next backup is due, to be stored with the instance.
    pub next: Option<Timestamp>,
    /// The time of the schedule for which to make a backup now.
    pub due: Option<Timestamp>,
}

/// What to do about the schedule of an instance whose next backup is due at `next`. However many runs were missed, only
/// the first of them is made up for.
pub fn plan(instance_id: &str, is_wanted: bool, next: Option<Timestamp>, now: Timestamp) -> Plan {
    let following = Some(next_run(instance_id, now));
    match next {
        _ if !is_wanted => Plan::default(),
        Some(due) if due <= now => Plan {
            next: following,
            due: Some(due),
        },
        // A time that is more than a day away was written when the clock was wrong.
        Some(next) if next.duration_since(now) <= SignedDuration::from_secs(DAY) => Plan {
            next: Some(next),
            due: None,
        },
        _ => Plan {
            next: following,
            due: None,
        },
    }
}

/// The name of the Backup of an instance for a time of its schedule, or of its second attempt. It is derived from
/// these, so that neither a crash nor a second leader makes two Backups.
pub fn scheduled_name(instance_uid: &str, scheduled_for: Timestamp, is_retry: bool) -> String {
    let number = u8::from(is_retry);
    ids::derived_backup_name(&format!(
        "{instance_uid}\n{}\n{number}",
        scheduled_for.as_second()
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    #[test]
    fn the_times_of_many_instances_are_spread_over_the_day() {
        let mut hours = [0; 24];
        for number in 0..2400 {
            let next = next_run(&format!("i-{number:016}"), at(0));
            hours[usize::try_from(next.as_second().rem_euclid(DAY) / 3600).unwrap()] += 1;
        }
        assert!(hours.iter().all(|count| (60..140).contains(count)), "{hours:?}");
    }

    #[test]
    fn names_differ_by_instance_day_and_try() {
        let name = |uid, day: i64, retry| scheduled_name(uid, at(day * DAY), retry);
        assert_eq!(name("a", 1, false), name("a", 1, false));
        let names = [
            name("a", 1, false),
            name("a", 1, true),
            name("a", 2, false),
            name("b", 1, false),
        ];
        let distinct: std::collections::HashSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), 4);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

        /// The operator looks at irregular times, and is down in between. The reference goes through all times of the schedule
        /// since the last look.
        #[test]
        fn every_run_is_made_once_and_of_those_missed_only_the_first(
            looks in prop::collection::vec((1..300_000_i64, prop::bool::weighted(0.85)), 1..60),
        ) {
            let id = "i-abcdefgh01234567";
            let (mut now, mut next) = (at(0), None);
            let mut last_look: Option<Timestamp> = None;
            for (seconds, is_wanted) in looks {
                now += SignedDuration::from_secs(seconds);
                let plan = plan(id, is_wanted, next, now);
                next = plan.next;
                let missed = last_look.and_then(|last| {
                    let days = last.as_second() / DAY..=now.as_second() / DAY;
                    let mut runs = days.map(|day| Timestamp::from_second(day * DAY + second_of_day(id)).unwrap());
                    runs.find(|run| *run > last && *run <= now)
                });
                prop_assert_eq!(plan.due, missed.filter(|_| is_wanted));
                last_look = is_wanted.then_some(now);
            }
        }

        #[test]
        fn after_the_clock_was_set_back_the_schedule_goes_on_within_a_day(ahead in 90_000..10_000_000_i64) {
            let id = "i-abcdefgh01234567";
            let next = plan(id, true, None, at(ahead)).next;
            let again = plan(id, true, next, at(0));
            prop_assert_eq!(again.due, None);
            prop_assert!(again.next.unwrap() <= at(DAY));
        }
    }
}
