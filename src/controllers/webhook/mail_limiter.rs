//! Limits how often an account holder is notified: one mail a webhook and hour, ten an account and day by default (decisions,
//! section 8).

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::mail::MailLimits;

/// The time in which the mails of an account are counted.
const DAY: SignedDuration = SignedDuration::from_hours(24);

/// The mails of the last day, by UID of the Account.
#[derive(Debug)]
pub(super) struct MailLimiter {
    limits: MailLimits,
    sent: HashMap<Arc<str>, VecDeque<Timestamp>>,
}

impl MailLimiter {
    pub(super) fn new(limits: MailLimits) -> Self {
        Self {
            limits,
            sent: HashMap::new(),
        }
    }

    /// Whether a mail about a webhook of this Account may be sent now, which counts as sent then; or else, from when on.
    /// `last` is the time of the last mail about the webhook. `earlier` gives the times of mails about any webhook of the
    /// Account, in case this process does not know any: an earlier process may have sent them.
    pub(super) fn take(
        &mut self,
        account: &str,
        last: Option<Timestamp>,
        earlier: impl FnOnce() -> Vec<Timestamp>,
        now: Timestamp,
    ) -> Result<(), Timestamp> {
        let interval = SignedDuration::try_from(self.limits.interval).unwrap_or(SignedDuration::MAX);
        if let Some(next) = last.and_then(|last| last.checked_add(interval).ok())
            && next > now
        {
            return Err(next);
        }
        let sent = self.sent.entry(account.into()).or_insert_with(|| {
            let mut earlier = earlier();
            earlier.sort_unstable();
            earlier.into()
        });
        while sent.front().is_some_and(|at| now.duration_since(*at) >= DAY) {
            sent.pop_front();
        }
        let surplus = (sent.len() + 1).saturating_sub(self.limits.per_day);
        if let Some(at) = surplus.checked_sub(1).and_then(|index| sent.get(index)) {
            return Err(at.checked_add(DAY).unwrap_or(Timestamp::MAX));
        }
        sent.push_back(now);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_webhook_has_one_mail_an_hour_and_an_account_ten_a_day() {
        let mut limiter = MailLimiter::new(MailLimits {
            interval: Duration::from_hours(1),
            per_day: 3,
        });
        let at = |minutes: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minutes);
        let mut take = |last: Option<i64>, now| {
            let taken = limiter.take("ns", last.map(at), || vec![at(-30)], at(now));
            taken.map_err(|next| next.as_second() / 60)
        };
        assert_eq!(take(None, 0), Ok(()));
        assert_eq!(take(Some(0), 59), Err(60));
        assert_eq!(take(Some(0), 60), Ok(()));
        assert_eq!(take(None, 61), Err(24 * 60 - 30), "an earlier process sent one");
        assert_eq!(take(None, 24 * 60 - 30), Ok(()));
        assert_eq!(take(None, 24 * 60 - 29), Err(24 * 60));
        let other = limiter.take("other", None, Vec::new, at(61));
        assert_eq!(other, Ok(()));
    }
}
