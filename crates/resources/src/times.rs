//! Schemas of times and days, and how exact a time is.

use jiff::{Timestamp, tz::TimeZone};
use schemars::{Schema, SchemaGenerator, json_schema};

/// Of the times that `format: date-time` accepts, those that the programs can read: with seconds and a zone, and before the year
/// 9000; at the end of 9999 it depends on the zone whether they can represent a time.
pub(super) const READABLE: &str = "^[0-8][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$";

/// A time that the controllers write.
pub(super) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "pattern": READABLE })
}

/// An optional time that the controllers write.
pub(super) fn optional_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time", "pattern": READABLE, "nullable": true })
}

/// An optional day that programs write, the latest of its kind: it is never set back.
pub(super) fn optional_latest_day(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "format": "date", "nullable": true,
        "x-kubernetes-validations": [{ "rule": "self >= oldSelf", "message": "is never set back" }],
    })
}

/// An optional time that people write. Not `format: date-time`, which accepts times without a zone and whose error message
/// does not say what is wrong.
pub(super) fn optional_rfc3339(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "nullable": true, "maxLength": 40,
        "x-kubernetes-validations": [{
            "rule": "self.matches('^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$')",
            "message": "must be an RFC 3339 time such as 2026-11-21T10:00:00Z",
        }]
    })
}

/// An optional time that people write and programs compare: as [`optional_rfc3339`], and a day that exists, before the year 9000
/// like all times.
pub(super) fn optional_moment(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = optional_rfc3339(generator);
    if let Some(rules) = schema
        .get_mut("x-kubernetes-validations")
        .and_then(serde_json::Value::as_array_mut)
    {
        rules.push(serde_json::json!({
            "rule": "!self.matches('^[0-9]{4}-(02-3|0[469]-31|11-31)') && !self.startsWith('9') && (!self.matches('^[0-9]{4}-02-29') || (int(self.substring(0, 4)) % 4 == 0 && (int(self.substring(0, 4)) % 100 != 0 || int(self.substring(0, 4)) % 400 == 0)))",
            "message": "must be a day that exists, before the year 9000",
        }));
    }
    schema
}

/// Whether the schema accepts a time, written in UTC.
pub fn is_in_schema(time: Timestamp) -> bool {
    (0..9000).contains(&time.to_zoned(TimeZone::UTC).year())
}

/// Truncates a time to milliseconds, which keeps a status readable.
pub fn milliseconds(time: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(time.as_millisecond()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_time_the_schema_accepts_can_be_read() {
        let pattern = regex::Regex::new(READABLE).unwrap();
        for time in [
            "0000-01-01T00:00:00+23:59",
            "2026-11-21T10:00:00Z",
            "2026-11-21T10:00:00.123456789-11:30",
            "2028-02-29T23:59:59Z",
            "8999-12-31T23:59:59-23:59",
        ] {
            assert!(pattern.is_match(time), "{time}");
            time.parse::<Timestamp>().unwrap();
        }
        for time in [
            "9999-12-29T23:59:59-23:59",
            "9000-01-01T00:00:00Z",
            "2026-11-21T10:00:00",
            "2026-11-21T10:00",
            "2026-11-21t10:00:00z",
            "2026-11-21T10:00:00+24:60",
            "2026-11-21T10:00:00.1234567891Z",
            "2026-11-21",
        ] {
            assert!(!pattern.is_match(time), "{time}");
        }
    }
}
