//! What requests about webhooks say, decided: the objects that they make and change. No I/O.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use utoipa::ToSchema;

use crate::{
    events::EventType,
    facade::{
        error::{ApiError, Detail, ErrorCode},
        fields::Fields,
        idempotency::REQUEST_HASH_ANNOTATION,
        modify::nonce,
    },
    resources::{
        SecretReference, Webhook, WebhookSpec,
        webhook::{MAX_SECRET_CHARACTERS, SECRET_KEY},
    },
};

/// How long the previous secret signs too unless the request says otherwise: 24 h (decisions, section 5).
const DEFAULT_OVERLAP_SECONDS: u64 = 86_400;
/// Longest overlap: a week, as with the senders that offer the most.
const MAX_OVERLAP_SECONDS: u64 = 604_800;

type UrlCheck<'a> = &'a dyn Fn(&str) -> Result<(), String>;

/// A webhook to be made.
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(as = CreateWebhook)]
pub struct NewWebhook {
    /// HTTPS URL that events are POSTed to, with a public address; without user name, password and fragment.
    #[schema(max_length = 2048, pattern = "^https://")]
    pub url: String,
    /// Types of events to send; one that is there twice counts once.
    #[schema(min_items = 1, max_items = 8)]
    pub events: Vec<EventType>,
    /// Signing secret; without one `whsec_` and the base64 of 32 random bytes.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
    /// Whether events are recorded and sent.
    #[schema(required = false, default = true)]
    pub active: bool,
}

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

fn known_event(text: &str) -> Result<(), String> {
    match EventType::parse(text) {
        Some(_) => Ok(()),
        None => Err(format!(
            "must be one of {}",
            EventType::ALL.map(EventType::as_str).join(", ")
        )),
    }
}

fn read_events(fields: &mut Fields) -> Option<Vec<EventType>> {
    let texts = fields.strings("events", EventType::ALL.len(), &known_event)?;
    let mut events = Vec::new();
    for event in texts.iter().filter_map(|text| EventType::parse(text)) {
        if !events.contains(&event) {
            events.push(event);
        }
    }
    if events.is_empty() && !fields.is_told("events") {
        fields.problem(Detail::new(
            "events",
            "invalid_value",
            "must have at least one type of events",
        ));
    }
    Some(events)
}

impl NewWebhook {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields, check: UrlCheck<'_>) -> Result<Self, ApiError> {
        let url = read_url(&mut fields, check);
        let url = fields.missing("url", url);
        let events = read_events(&mut fields);
        let events = fields.missing("events", events);
        let secret = read_secret(&mut fields);
        let active = fields.boolean("active");
        fields.finish()?;
        let (Some(url), Some(events)) = (url, events) else {
            // What is missing has been told.
            return Err(ApiError::fault());
        };
        Ok(Self {
            url,
            events,
            secret,
            active: active.unwrap_or(true),
        })
    }

    /// The object under this name. Its Secret will have the same.
    pub fn webhook(&self, name: &str, request_hash: Option<String>) -> Webhook {
        let mut webhook = Webhook::new(
            name,
            WebhookSpec {
                url: self.url.clone(),
                events: self.events.clone(),
                secret_ref: SecretReference {
                    name: name.to_owned(),
                    key: SECRET_KEY.to_owned(),
                },
                active: self.active,
                enable_requested_at: None,
            },
        );
        webhook.metadata.annotations =
            request_hash.map(|hash| BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)]));
        webhook
    }
}

/// What can be changed; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
pub struct ChangeWebhook {
    /// Another URL.
    #[schema(nullable = false, max_length = 2048, pattern = "^https://")]
    pub url: Option<String>,
    /// The types of events, all of them.
    #[schema(nullable = false, min_items = 1, max_items = 8)]
    pub events: Option<Vec<EventType>>,
    /// Whether events are recorded and sent; `true` also enables a webhook that was disabled.
    #[schema(nullable = false)]
    pub active: Option<bool>,
    /// Another signing secret, from now on the only one.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
}

impl ChangeWebhook {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields, check: UrlCheck<'_>) -> Result<Self, ApiError> {
        if fields.is_empty() {
            return Err(ApiError::invalid(vec![Detail::new(
                "body",
                "missing",
                "must have at least one of url, events, active, secret",
            )]));
        }
        let change = Self {
            url: read_url(&mut fields, check),
            events: read_events(&mut fields),
            active: fields.boolean("active"),
            secret: read_secret(&mut fields),
        };
        for field in ["id", "created_at"] {
            fields.immutable(field, "cannot be set by clients");
        }
        fields.immutable(
            "disabled",
            "cannot be set; \"active\": true enables the webhook again",
        );
        fields.finish()?;
        Ok(change)
    }

    /// The spec as it will be.
    pub fn apply(&self, webhook: &Webhook, now: Timestamp) -> WebhookSpec {
        let mut spec = webhook.spec.clone();
        if let Some(url) = &self.url {
            spec.url.clone_from(url);
        }
        if let Some(events) = &self.events {
            spec.events.clone_from(events);
        }
        spec.active = self.active.unwrap_or(spec.active);
        if self.active == Some(true) && webhook.disabled().is_some() {
            spec.enable_requested_at = Some(nonce(now, &[&spec.enable_requested_at]));
        }
        spec
    }
}

/// Which example to send.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
pub struct TestWebhook {
    /// One of the webhook's types of events; by default its first.
    #[schema(nullable = false)]
    pub r#type: Option<EventType>,
}

impl TestWebhook {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let text = fields.string("type", &known_event);
        fields.finish()?;
        Ok(Self {
            r#type: text.as_deref().and_then(EventType::parse),
        })
    }

    /// The type to send to this webhook: 422 for one that it does not want, 409 `invalid_state` for one that is not to be sent
    /// to. One that was disabled can be tested: that shows whether its receiver is mended.
    pub fn type_for(&self, webhook: &Webhook) -> Result<EventType, ApiError> {
        if !webhook.spec.active {
            return Err(not_active());
        }
        let events = &webhook.spec.events;
        let wanted = self.r#type.or_else(|| events.first().copied());
        wanted.filter(|event| events.contains(event)).ok_or_else(|| {
            let types: Vec<_> = events.iter().map(|event| event.as_str()).collect();
            ApiError::invalid(vec![Detail::new(
                "type",
                "invalid_value",
                format!("must be one of the webhook's event types: {}", types.join(", ")),
            )])
        })
    }
}

/// 409 for a test of a webhook that nothing is sent to.
pub(in crate::facade) fn not_active() -> ApiError {
    let message = "is not active; set it to true with PATCH, then test";
    ApiError {
        details: vec![Detail::new("active", "invalid_state", message)],
        ..ApiError::new(ErrorCode::InvalidState, format!("the webhook {message}"))
    }
}

/// A rotation of the signing secret.
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
pub struct RotateSecret {
    /// The new secret; without one `whsec_` and the base64 of 32 random bytes.
    #[schema(nullable = false, min_length = 1, max_length = 255)]
    pub secret: Option<String>,
    /// For how long `webhook-signature` lists the previous secret's signature too; 0: not at all.
    #[schema(required = false, minimum = 0, maximum = 604_800, default = 86_400)]
    pub overlap_seconds: u64,
}

impl RotateSecret {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let secret = read_secret(&mut fields);
        let overlap = fields.integer("overlap_seconds", MAX_OVERLAP_SECONDS);
        fields.finish()?;
        Ok(Self {
            secret,
            overlap_seconds: overlap.unwrap_or(DEFAULT_OVERLAP_SECONDS),
        })
    }

    /// Until when the previous secret signs too; `None`: not at all.
    pub fn expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let seconds = i64::try_from(self.overlap_seconds).ok().filter(|s| *s > 0)?;
        now.checked_add(SignedDuration::from_secs(seconds)).ok()
    }
}

/// Which deliveries to send again.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
pub struct RecoverWebhook {
    /// Only those that were given up at this RFC 3339 time or later; without one all that are kept.
    #[schema(nullable = false, value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
}

impl RecoverWebhook {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        let since = fields.string("since", &|text| {
            text.parse::<Timestamp>()
                .map(drop)
                .map_err(|_| "must be an RFC 3339 time such as 2026-11-21T10:00:00Z")
        });
        fields.finish()?;
        Ok(Self {
            since: since.and_then(|text| text.parse().ok()),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        delivery::{ReceiverUrl, TargetRules},
        facade::body::input,
    };

    fn guard(url: &str) -> Result<(), String> {
        match ReceiverUrl::parse(url, &TargetRules::default()) {
            Ok(_) => Ok(()),
            Err(complaint) => Err(complaint.to_string()),
        }
    }

    fn told(error: &ApiError) -> Vec<(String, &str)> {
        let details = error.details.iter();
        details.map(|d| (d.field.to_string(), d.code)).collect()
    }

    fn read(body: &Value) -> Result<NewWebhook, ApiError> {
        NewWebhook::read(input(&body.to_string())?.fields, &guard)
    }

    fn minimal() -> Value {
        json!({ "url": "https://hooks.example.com/in?x=1", "events": ["instance.created"] })
    }

    #[test]
    fn the_minimal_request_has_two_fields_and_makes_an_active_webhook() {
        let order = read(&minimal()).unwrap();
        assert_eq!((order.active, &order.secret), (true, &None));
        let webhook = order.webhook("wh-abcdefgh01234567", Some("hash".into()));
        assert_eq!(webhook.spec.secret_ref.name, "wh-abcdefgh01234567");
        assert_eq!(webhook.spec.secret_ref.key, "secret");
        assert_eq!(webhook.id(), "wh_abcdefgh01234567");
    }

    #[test]
    fn an_event_that_is_there_twice_counts_once() {
        let mut body = minimal();
        body["events"] = json!(["instance.stopped", "instance.created", "instance.stopped"]);
        assert_eq!(
            read(&body).unwrap().events,
            [EventType::InstanceStopped, EventType::InstanceCreated]
        );
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let body = json!({
            "url": "http://example.com", "events": ["instance.created", "instance.exploded", 7], "secret": "", "active": "yes",
            "name": "x",
        });
        assert_eq!(
            told(&read(&body).unwrap_err()),
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
            told(&read(&json!({})).unwrap_err()),
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

    fn webhook(disabled: bool, active: bool) -> Webhook {
        let mut object = json!({
            "metadata": { "name": "orders", "namespace": "demo", "uid": "u", "generation": 3 },
            "spec": {
                "url": "https://example.com", "events": ["instance.stopped"], "secretRef": { "name": "s" }, "active": active,
                "enableRequestedAt": "2026-11-21T10:00:00.000000Z",
            },
        });
        if disabled {
            object["status"] = json!({ "disabled": {
                "at": "2026-11-21T09:00:00Z", "reason": "Gone", "message": "m", "delivery": "d", "eventId": "e", "eventType": "instance.created",
                "attempts": 1, "error": "no", "generation": 3,
            }});
        }
        serde_json::from_value(object).unwrap()
    }

    fn change(body: &Value) -> Result<ChangeWebhook, ApiError> {
        ChangeWebhook::read(input(&body.to_string())?.fields, &guard)
    }

    #[test]
    fn active_enables_what_was_disabled_and_changes_nothing_otherwise() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let on = change(&json!({ "active": true })).unwrap();
        let enabled = on.apply(&webhook(true, true), now);
        assert_eq!(
            enabled.enable_requested_at.as_deref(),
            Some("2026-11-21T10:00:00.000001Z"),
            "another nonce than the one before"
        );
        let healthy = webhook(false, true);
        assert_eq!(on.apply(&healthy, now), healthy.spec);
        let off = change(&json!({ "active": false }))
            .unwrap()
            .apply(&webhook(true, true), now);
        assert!(!off.active && off.enable_requested_at == healthy.spec.enable_requested_at);
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
            assert_eq!(told(&error), [(field.to_owned(), code)], "{body}");
        }
    }

    #[test]
    fn a_test_sends_what_the_webhook_wants() {
        let test = |body: Value| TestWebhook::read(input(&body.to_string())?.fields);
        let default = test(json!({})).unwrap();
        assert_eq!(
            default.type_for(&webhook(false, true)),
            Ok(EventType::InstanceStopped)
        );
        assert!(default.type_for(&webhook(true, true)).is_ok());
        let refusal = default.type_for(&webhook(false, false)).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::InvalidState);
        let other = test(json!({ "type": "invoice.created" })).unwrap();
        assert_eq!(
            told(&other.type_for(&webhook(false, true)).unwrap_err()),
            [("type".to_owned(), "invalid_value")]
        );
        assert!(test(json!({ "type": "nonsense" })).is_err());
    }

    #[test]
    fn an_overlap_is_a_day_by_default_and_a_week_at_most() {
        let now: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let expiry =
            |body: Value| RotateSecret::read(input(&body.to_string())?.fields).map(|r| r.expiry(now));
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
    fn since_is_a_time_with_a_zone() {
        let since = |text: &str| {
            RecoverWebhook::read(input(&json!({ "since": text }).to_string())?.fields).map(|r| r.since)
        };
        assert!(since("2026-11-21T10:00:00+01:00").unwrap().is_some());
        for bad in ["yesterday", "2026-11-21", "2026-11-21T10:00:00", ""] {
            assert_eq!(since(bad).unwrap_err().details[0].field, "since", "{bad}");
        }
    }
}
