//! When an account holder may be sent the next mail: by default one an hour about each webhook, and ten a day in all (decisions,
//! section 8). No I/O.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::mail::MailLimits;
use resources::Webhook;

/// The period over which an account's mails are counted.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Those of these webhooks that a mail may be about now, and when there may be one about the next of the others.
pub(super) fn due(
    limits: MailLimits,
    webhooks: Vec<Arc<Webhook>>,
    now: Timestamp,
) -> (Vec<Arc<Webhook>>, Option<Timestamp>) {
    let interval = SignedDuration::try_from(limits.interval).unwrap_or(SignedDuration::MAX);
    let next = |webhook: &Webhook| {
        let last = webhook.status.as_ref()?.notified_at?;
        let next = last.checked_add(interval).unwrap_or(Timestamp::MAX);
        (next > now).then_some(next)
    };
    let (due, later): (Vec<_>, Vec<_>) = webhooks.into_iter().partition(|webhook| next(webhook).is_none());
    (due, later.iter().filter_map(|webhook| next(webhook)).min())
}

/// When an account holder who was `sent` mails at these times may be sent another one; `None` is now.
pub(super) fn next_mail(limits: MailLimits, sent: &[Timestamp], now: Timestamp) -> Option<Timestamp> {
    let of_day = within_day(sent, now);
    let surplus = of_day.len().checked_sub(limits.per_day)?;
    let first = of_day.get(surplus)?;
    Some(first.checked_add(DAY).unwrap_or(Timestamp::MAX))
}

/// The times to record after a mail at `at`: those of the last day that count, with this one.
pub(super) fn with(limits: MailLimits, sent: &[Timestamp], at: Timestamp) -> Vec<Timestamp> {
    let mut times = within_day(sent, at);
    if !times.contains(&at) {
        times.push(at);
    }
    let surplus = times.len().saturating_sub(limits.per_day);
    times.split_off(surplus)
}

fn within_day(sent: &[Timestamp], now: Timestamp) -> Vec<Timestamp> {
    let mut times: Vec<_> = sent
        .iter()
        .copied()
        .filter(|at| now.duration_since(*at) < DAY)
        .collect();
    times.sort();
    times
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_account_has_as_many_mails_a_day_as_are_allowed() {
        let limits = MailLimits {
            interval: Duration::from_hours(1),
            per_day: 3,
        };
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let mut sent = vec![at(-30)];
        let mut take = |now| {
            if let Some(next) = next_mail(limits, &sent, at(now)) {
                return Err(next.as_second() / 60);
            }
            sent = with(limits, &sent, at(now));
            assert!(sent.len() <= 3 && sent.last() == Some(&at(now)));
            Ok(())
        };
        assert_eq!(take(0), Ok(()));
        assert_eq!(take(60), Ok(()));
        assert_eq!(take(61), Err(24 * 60 - 30));
        assert_eq!(take(24 * 60 - 30), Ok(()));
        assert_eq!(take(24 * 60 - 29), Err(24 * 60));
    }
}
