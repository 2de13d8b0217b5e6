//! Request bodies for webhooks.

use jiff::{SignedDuration, Timestamp};

use crate::facade::{
    extract::{fields::Fields, query::TIME_MUST},
    response::error::{Detail, Error},
};
use api::{
    ChangeWebhook, CreateWebhook, RecoverWebhook, RotateSecret, TestWebhook, webhook::DEFAULT_OVERLAP_SECONDS,
};
use domain::event::EventType;
use resources::{
    validation::{self, MAX_DESCRIPTION},
    webhook::MAX_SECRET_CHARACTERS,
};

/// Longest overlap: a week, the longest that other webhook senders offer.
const MAX_OVERLAP_SECONDS: u64 = 604_800;

type UrlCheck<'a> = &'a dyn Fn(&str) -> Result<(), String>;

fn read_url(fields: &mut Fields, check: UrlCheck<'_>) -> Option<String> {
    fields.string("url", check)
}

fn read_secret(fields: &mut Fields) -> Option<String> {
    fields.string("secret", &|text| {
        if (1..=MAX_SECRET_CHARACTERS).contains(&text.chars().count()) {
            Ok(())
        } else {
            Err("must be 1 to 255 characters")
        }
    })
}

fn read_description(fields: &mut Fields) -> Option<String> {
    fields.string("description", &|text| validation::label(text, MAX_DESCRIPTION))
}

/// Checks that a text is an event type.
fn check_event_type(text: &str) -> Result<(), String> {
    match EventType::parse(text) {
        Some(_) => Ok(()),
        None => Err(format!(
            "must be one of {}",
            EventType::ALL.map(EventType::as_str).join(", ")
        )),
    }
}

fn read_events(fields: &mut Fields) -> Option<Vec<EventType>> {
    let texts = fields.strings("events", EventType::ALL.len(), &check_event_type)?;
    let mut events = Vec::new();
    for event in texts.iter().filter_map(|text| EventType::parse(text)) {
        if !events.contains(&event) {
            events.push(event);
        }
    }
    if events.is_empty() && !fields.has_problem("events") {
        fields.problem(Detail::new(
            "events",
            "invalid_value",
            "must have at least one event type",
        ));
    }
    Some(events)
}

/// Reads a request; 422 names every invalid field.
pub fn create(mut fields: Fields, check: UrlCheck<'_>) -> Result<CreateWebhook, Error> {
    let url = read_url(&mut fields, check);
    let url = fields.missing("url", url);
    let events = read_events(&mut fields);
    let events = fields.missing("events", events);
    let secret = read_secret(&mut fields);
    let description = read_description(&mut fields);
    let active = fields.boolean("active");
    fields.finish()?;
    let (Some(url), Some(events)) = (url, events) else {
        // Unreachable: `finish` reports missing fields.
        return Err(Error::fault());
    };
    Ok(CreateWebhook {
        url,
        events,
        secret,
        description,
        active: active.unwrap_or(true),
    })
}

/// Reads a request; 422 names every invalid field.
pub fn change(mut fields: Fields, check: UrlCheck<'_>) -> Result<ChangeWebhook, Error> {
    if fields.is_empty() {
        return Err(Error::invalid(vec![Detail::new(
            "body",
            "missing",
            "must have at least one of url, events, description, active, secret",
        )]));
    }
    let change = ChangeWebhook {
        url: read_url(&mut fields, check),
        events: read_events(&mut fields),
        description: read_description(&mut fields),
        active: fields.boolean("active"),
        secret: read_secret(&mut fields),
    };
    for field in [
        "id",
        "created_at",
        "health",
        "health_reason",
        "health_message",
        "last_success_at",
        "last_failure_at",
        "pending",
        "held",
        "dropped",
        "previous_secret_expires_at",
    ] {
        fields.immutable(field, "cannot be set by clients");
    }
    fields.immutable(
        "disabled",
        "cannot be set; \"active\": true enables the webhook again",
    );
    fields.finish()?;
    Ok(change)
}

/// Reads a request; 422 names every invalid field.
pub fn test(mut fields: Fields) -> Result<TestWebhook, Error> {
    let text = fields.string("type", &check_event_type);
    fields.finish()?;
    Ok(TestWebhook {
        r#type: text.as_deref().and_then(EventType::parse),
    })
}

/// Reads a request; 422 names every invalid field.
pub fn rotate(mut fields: Fields) -> Result<RotateSecret, Error> {
    let secret = read_secret(&mut fields);
    let overlap = fields.integer("overlap_seconds", MAX_OVERLAP_SECONDS);
    fields.finish()?;
    Ok(RotateSecret {
        secret,
        overlap_seconds: overlap.unwrap_or(DEFAULT_OVERLAP_SECONDS),
    })
}

/// When the previous secret stops signing; `None` without an overlap.
pub fn expiry(rotation: &RotateSecret, now: Timestamp) -> Option<Timestamp> {
    let seconds = i64::try_from(rotation.overlap_seconds).ok().filter(|s| *s > 0)?;
    now.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Reads a request; 422 names every invalid field.
pub fn recover(mut fields: Fields) -> Result<RecoverWebhook, Error> {
    let since = fields.string("since", &|text| {
        text.parse::<Timestamp>().map(drop).map_err(|_| TIME_MUST)
    });
    fields.finish()?;
    Ok(RecoverWebhook {
        since: since.and_then(|text| text.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facade::extract::body::fields;
    use sender::{ReceiverUrl, TargetRules};

    fn guard(url: &str) -> Result<(), String> {
        match ReceiverUrl::parse(url, &TargetRules::default()) {
            Ok(_) => Ok(()),
            Err(complaint) => Err(complaint.to_string()),
        }
    }

    fn named(error: &Error) -> Vec<(String, &str)> {
        let details = error.details.iter();
        details.map(|d| (d.field.to_string(), d.code.as_ref())).collect()
    }

    fn read(body: &Value) -> Result<CreateWebhook, Error> {
        create(fields(&body.to_string())?, &guard)
    }

    fn minimal() -> Value {
        json!({ "url": "https://hooks.example.com/in?x=1", "events": ["instance.created"] })
    }

    #[test]
    fn the_minimal_request_has_two_fields_and_creates_an_active_webhook() {
        let body = read(&minimal()).unwrap();
        assert_eq!((body.active, &body.secret), (true, &None));
    }

    #[test]
    fn duplicate_event_types_are_ignored() {
        let mut body = minimal();
        body["events"] = json!(["instance.stopped", "instance.created", "instance.stopped"]);
        assert_eq!(
            read(&body).unwrap().events,
            [EventType::InstanceStopped, EventType::InstanceCreated]
        );
    }

    #[test]
    fn every_invalid_field_is_named() {
        let body = json!({
            "url": "http://example.com", "events": ["instance.created", "instance.exploded", 7], "secret": "", "active": "yes",
            "name": "x",
        });
        assert_eq!(
            named(&read(&body).unwrap_err()),
            [
                ("url".to_owned(), "invalid_value"),
                ("events[1]".to_owned(), "invalid_value"),
                ("events[2]".to_owned(), "invalid_type"),
                ("secret".to_owned(), "invalid_value"),
                ("active".to_owned(), "invalid_type"),
                ("name".to_owned(), "unknown_field"),
            ]
        );
        assert_eq!(
            named(&read(&json!({})).unwrap_err()),
            [("url".to_owned(), "missing"), ("events".to_owned(), "missing")]
        );
        for (field, value) in [
            ("events", json!([])),
            ("events", json!(vec!["instance.created"; 9])),
            ("events", json!(["nonsense"])),
            ("secret", json!("s".repeat(256))),
            ("secret", Value::Null),
            ("url", json!("https://10.0.0.1/")),
            ("url", json!(format!("https://example.com/{}", "x".repeat(2048)))),
            ("url", json!("https://user:pw@example.com/")),
            ("url", json!("https://example.com/#top")),
            ("url", json!("https:///path")),
            ("url", json!("ftp://example.com/")),
            ("description", json!("d".repeat(256))),
            ("description", json!("two\nlines")),
        ] {
            let mut body = minimal();
            body[field] = value.clone();
            let error = read(&body).unwrap_err();
            assert_eq!(error.details.len(), 1, "{field} {value}: {error:?}");
            assert!(error.details[0].field.starts_with(field), "{field} {value}");
        }
        let mut body = minimal();
        body["secret"] = json!("ß".repeat(255));
        assert!(read(&body).is_ok(), "characters are counted, not bytes");
    }

    fn change(body: &Value) -> Result<ChangeWebhook, Error> {
        super::change(fields(&body.to_string())?, &guard)
    }

    #[test]
    fn a_change_names_what_cannot_be_changed() {
        for (body, field, code) in [
            (json!({}), "body", "missing"),
            (json!({ "id": "wh_1" }), "id", "immutable"),
            (json!({ "disabled": null }), "disabled", "immutable"),
            (json!({ "active": null }), "active", "null"),
            (json!({ "events": [] }), "events", "invalid_value"),
            (json!({ "urll": "x" }), "urll", "unknown_field"),
        ] {
            let error = change(&body).unwrap_err();
            assert_eq!(named(&error), [(field.to_owned(), code)], "{body}");
        }
    }

    #[test]
    fn a_test_may_name_an_event_type() {
        let test = |body: Value| super::test(fields(&body.to_string())?);
        assert_eq!(test(json!({})).unwrap().r#type, None);
        let wanted = test(json!({ "type": "invoice.created" })).unwrap();
        assert_eq!(wanted.r#type, Some(EventType::InvoiceCreated));
        assert!(test(json!({ "type": "nonsense" })).is_err());
    }

    #[test]
    fn an_overlap_is_a_day_by_default_and_a_week_at_most() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let expiry = |body: Value| rotate(fields(&body.to_string())?).map(|r| super::expiry(&r, now));
        assert_eq!(
            expiry(json!({})).unwrap().unwrap().to_string(),
            "2026-11-22T10:00:00Z"
        );
        assert_eq!(expiry(json!({ "overlap_seconds": 0 })), Ok(None));
        assert!(expiry(json!({ "overlap_seconds": 604_800 })).is_ok());
        for bad in [json!(604_801), json!(-1), json!(1.5), json!("1")] {
            let error = expiry(json!({ "overlap_seconds": bad })).unwrap_err();
            assert_eq!(error.details[0].field, "overlap_seconds");
        }
    }

    #[test]
    fn since_must_be_a_time_with_an_offset() {
        let since = |text: &str| recover(fields(&json!({ "since": text }).to_string())?).map(|r| r.since);
        assert!(since("2026-11-21T10:00:00+01:00").unwrap().is_some());
        for bad in ["yesterday", "2026-11-21", "2026-11-21T10:00:00", ""] {
            assert_eq!(since(bad).unwrap_err().details[0].field, "since", "{bad}");
        }
    }
}
