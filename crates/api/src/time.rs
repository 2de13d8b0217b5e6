//! Times as `/v1` shows them: RFC 3339, in UTC.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer};

/// A time in UTC, cut to whole seconds: `2026-11-21T10:00:00Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Seconds(pub Timestamp);

/// A time in UTC, cut to milliseconds: `2026-11-21T10:00:00.250Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Milliseconds(pub Timestamp);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}", self.0)
    }
}

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Milliseconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_cut_not_rounded() {
        let time: Timestamp = "2026-11-21T10:04:59.9999Z".parse().unwrap();
        assert_eq!(Seconds(time).to_string(), "2026-11-21T10:04:59Z");
        assert_eq!(Milliseconds(time).to_string(), "2026-11-21T10:04:59.999Z");
    }
}
