//! Limits how often an account holder is notified: by default, one mail an hour for each webhook and ten a day for each account
//! (decisions, section 8).

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use crate::mail::MailLimits;

/// The period over which an account's mails are counted.
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

    /// When a webhook may be mailed about again; `last` is the time of the last mail about it.
    pub(super) fn next_of_webhook(&self, last: Timestamp) -> Timestamp {
        let interval = SignedDuration::try_from(self.limits.interval).unwrap_or(SignedDuration::MAX);
        last.checked_add(interval).unwrap_or(Timestamp::MAX)
    }

    /// Whether the earlier mails of this Account are known. If not, [`begin`](Self::begin) must be called
    /// first.
    pub(super) fn knows(&self, account: &str) -> bool {
        self.sent.contains_key(account)
    }

    /// Records when earlier processes sent mails to this Account. A mail about several webhooks has one time.
    pub(super) fn begin(&mut self, account: &str, earlier: BTreeSet<Timestamp>) {
        self.sent.insert(account.into(), earlier.into_iter().collect());
    }

    /// Whether a mail to this Account may be sent now. If not, returns when.
    pub(super) fn check(&mut self, account: &str, now: Timestamp) -> Result<(), Timestamp> {
        let Some(sent) = self.sent.get_mut(account) else {
            return Ok(());
        };
        while sent.front().is_some_and(|at| now.duration_since(*at) >= DAY) {
            sent.pop_front();
        }
        let surplus = (sent.len() + 1).saturating_sub(self.limits.per_day);
        match surplus.checked_sub(1).and_then(|index| sent.get(index)) {
            Some(at) => Err(at.checked_add(DAY).unwrap_or(Timestamp::MAX)),
            None => Ok(()),
        }
    }

    /// Counts a mail that was sent to this Account. Returns the times of the mails in the 24 hours up to this one, at most as
    /// many as are allowed, with its own time last.
    pub(super) fn count(&mut self, account: &str, at: Timestamp) -> Arc<[Timestamp]> {
        let sent = self.sent.entry(account.into()).or_default();
        sent.push_back(at);
        let skip = sent.len().saturating_sub(self.limits.per_day);
        let latest = sent.iter().skip(skip);
        latest
            .filter(|before| at.duration_since(**before) < DAY)
            .copied()
            .collect()
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
        assert_eq!(limiter.next_of_webhook(at(0)), at(60));
        assert!(!limiter.knows("ns"));
        // Two webhooks in one mail.
        limiter.begin("ns", [at(-30), at(-30)].into());
        assert!(limiter.knows("ns"));
        let mut take = |account: &str, now| {
            let allowed = limiter.check(account, at(now));
            if allowed.is_ok() {
                let counted = limiter.count(account, at(now));
                assert!(counted.len() <= 3 && counted.last() == Some(&at(now)));
            }
            allowed.map_err(|next| next.as_second() / 60)
        };
        assert_eq!(take("ns", 0), Ok(()));
        assert_eq!(take("ns", 60), Ok(()));
        assert_eq!(take("ns", 61), Err(24 * 60 - 30), "an earlier process sent one");
        assert_eq!(take("ns", 24 * 60 - 30), Ok(()));
        assert_eq!(take("ns", 24 * 60 - 29), Err(24 * 60));
        assert_eq!(take("other", 61), Ok(()));
    }
}
