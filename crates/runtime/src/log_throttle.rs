//! Keeps the log readable while everything fails.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How often a complaint is logged.
const EVERY: Duration = Duration::from_secs(1);

/// Lets one of many equal complaints through each second, and counts the others.
#[derive(Debug)]
pub struct LogThrottle {
    /// When the last one was let through, and how many were left out since.
    last: Mutex<Option<(Instant, u64)>>,
}

impl LogThrottle {
    /// Lets the first complaint through.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            last: Mutex::new(None),
        }
    }

    /// Whether to log a complaint now: how many have been left out before it, or `None` to leave it out, too.
    pub fn left_out(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock();
        if let Some((at, left_out)) = &mut *last
            && now.saturating_duration_since(*at) < EVERY
        {
            *left_out += 1;
            return None;
        }
        let before = last.replace((now, 0));
        Some(before.map_or(0, |(_, left_out)| left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_complaint_a_second_is_let_through_with_the_number_of_those_left_out() {
        let (complaints, begun) = (LogThrottle::new(), Instant::now());
        let after = |milliseconds| complaints.left_out(begun + Duration::from_millis(milliseconds));
        let let_through = [0, 1, 500, 999, 1000, 1500, 5000, 6000].map(after);
        assert_eq!(
            let_through,
            [Some(0), None, None, None, Some(3), None, Some(1), Some(0)]
        );
    }
}
