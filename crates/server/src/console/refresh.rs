//! How an open page stays up to date: a part of it is reloaded, every two seconds while an operation is in progress and until its
//! effects are listed too, and every fifteen seconds otherwise. A hidden page does not reload; `assets/page.js` holds it back.

use http::HeaderMap;
use jiff::Timestamp;

/// The header that says when an operation was last in progress, in Unix seconds.
const BUSY_AT: &str = "stellage-busy-at";
/// Seconds between refreshes while an operation is in progress.
const FAST: u32 = 2;
/// Seconds between refreshes otherwise.
const SLOW: u32 = 15;
/// Seconds until the effects of an operation show everywhere: events are listed, and the counters of a webhook have been written.
const SETTLES: i64 = 15;

/// How a page refreshes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refresh {
    /// The path to reload from.
    pub path: String,
    /// Seconds until the next refresh.
    pub seconds: u32,
    /// When an operation was last in progress, in Unix seconds; `None` if that is long ago.
    pub busy_at: Option<i64>,
    /// Whether a note about what was in progress is out of date.
    pub is_over: bool,
}

impl Refresh {
    /// The next refresh of a page.
    pub fn new(path: &str, is_busy: bool, busy_at: Option<i64>, is_over: bool, now: Timestamp) -> Self {
        let now = now.as_second();
        let busy_at = if is_busy { Some(now) } else { busy_at };
        let busy_at = busy_at.filter(|at| (0..SETTLES).contains(&now.saturating_sub(*at)));
        Self {
            path: path.to_owned(),
            seconds: if busy_at.is_some() { FAST } else { SLOW },
            busy_at,
            is_over,
        }
    }
}

/// When an operation was last in progress on the page that asks.
pub fn busy_at(headers: &HeaderMap) -> Option<i64> {
    headers.get(BUSY_AT)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_refreshes_fast_until_what_has_ended_shows_everywhere() {
        let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
        let begun = Refresh::new("/x", true, None, false, at(0));
        assert_eq!((begun.seconds, begun.busy_at), (FAST, Some(1_800_000_000)));
        let ended = Refresh::new("/x", false, begun.busy_at, true, at(14));
        assert_eq!((ended.seconds, ended.busy_at), (FAST, begun.busy_at));
        let settled = Refresh::new("/x", false, ended.busy_at, true, at(15));
        assert_eq!((settled.seconds, settled.busy_at), (SLOW, None));
        // A header that somebody made up.
        let future = Refresh::new("/x", false, Some(i64::MAX), true, at(0));
        assert_eq!(future.seconds, SLOW);
        let past = Refresh::new("/x", false, Some(i64::MIN), true, at(0));
        assert_eq!(past.seconds, SLOW);
    }
}
