//! Durations on the command line: `30s`, `12h`, `90d`.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo, Timestamp};

/// Parses a number with a unit: seconds, minutes, hours, days (24 h) or weeks.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |_| "must be a number with a unit, s, m, h, d or w, such as 30s or 90d".to_owned();
    let span: Span = text.parse().map_err(wrong)?;
    let duration = span
        .to_duration(SpanRelativeTo::days_are_24_hours())
        .map_err(wrong)?;
    Duration::try_from(duration).map_err(wrong)
}

/// Parses an expiry: a duration from `now`, or an RFC 3339 time. In whole seconds.
pub(super) fn expiry(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let wrong = "must be a duration such as 90d, 12h or 2w, or an RFC 3339 time such as 2027-01-31T00:00:00Z";
    let end = if text.contains('T') || text.contains('t') {
        text.parse::<Timestamp>().map_err(|_| wrong.to_owned())?
    } else {
        let span = parse(text).map_err(|_| wrong.to_owned())?;
        let seconds = i64::try_from(span.as_secs()).map_err(|_| wrong.to_owned())?;
        let end = now.as_second().checked_add(seconds);
        let end = end.and_then(|end| Timestamp::from_second(end).ok());
        end.ok_or_else(|| "is too far in the future".to_owned())?
    };
    let end = Timestamp::from_second(end.as_second()).map_err(|error| error.to_string())?;
    if end <= now {
        return Err(format!("must be in the future; {end} is not"));
    }
    Ok(end)
}

/// An [`expiry`] counted from now, for clap.
pub(super) fn expiry_from_now(text: &str) -> Result<Timestamp, String> {
    expiry(text, Timestamp::now())
}

/// Parses a time in the past: an age at `now`, or an RFC 3339 time.
fn since(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let wrong =
        || "must be an age such as 30m or 2h, or an RFC 3339 time such as 2026-11-21T10:00:00Z".to_owned();
    if text.contains(['T', 't']) {
        return text.parse().map_err(|_| wrong());
    }
    let age = parse(text).map_err(|_| wrong())?;
    now.checked_sub(age).map_err(|_| "is too long ago".to_owned())
}

/// A time [`since`], counted from now, for clap.
pub(super) fn since_now(text: &str) -> Result<Timestamp, String> {
    since(text, Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_duration_or_a_future_time() {
        let now: Timestamp = "2026-11-21T10:00:00.5Z".parse().unwrap();
        let good = [
            ("90d", "2027-02-19T10:00:00Z"),
            ("12h", "2026-11-21T22:00:00Z"),
            ("2w", "2026-12-05T10:00:00Z"),
            ("2027-01-31T00:00:00Z", "2027-01-31T00:00:00Z"),
            ("2027-01-31T00:00:00+01:00", "2027-01-30T23:00:00Z"),
        ];
        for (text, end) in good {
            assert_eq!(expiry(text, now).unwrap().to_string(), end, "{text}");
        }
        for bad in [
            "",
            "90",
            "d",
            "-1d",
            "1y",
            "0s",
            "2026-11-21",
            "2026-11-21T09:00:00Z",
            "99999999999999w",
            "9ä",
        ] {
            assert!(expiry(bad, now).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_in_the_past_is_an_age_or_a_time() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        for (text, time) in [
            ("2h", "2026-11-21T08:00:00Z"),
            ("0s", "2026-11-21T10:00:00Z"),
            ("2026-11-21T09:00:00.5+01:00", "2026-11-21T08:00:00.5Z"),
        ] {
            assert_eq!(since(text, now).unwrap().to_string(), time, "{text}");
        }
        for bad in ["", "2", "-1h", "2026-11-21", "yesterday", "9999999999w"] {
            assert!(since(bad, now).is_err(), "{bad}");
        }
    }
}
