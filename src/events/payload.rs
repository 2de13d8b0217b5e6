//! Bodies of deliveries (specification, sections 2.5, 6.1 and 6.2). They are serialised here, once; these bytes are then
//! stored, signed and sent.

use jiff::Timestamp;
use serde::Serialize;

use super::{EventType, OutboxEntry};
use crate::resources::{Instance, InstanceState, InstanceStatus, Plan, ids};

/// The account holder, as events show them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct User {
    /// Identifier, `usr_…`.
    pub id: String,
    /// E-mail address.
    pub email: String,
}

/// An instance, as events show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InstanceObject<'a> {
    /// Identifier, `i-…`.
    pub id: String,
    /// Display name.
    pub name: &'a str,
    /// State at the time of the event.
    pub status: Option<InstanceState>,
    /// Plan in effect.
    pub plan: Option<Plan>,
    /// Region code.
    pub region: &'a str,
    /// IPv4 address, `null` until it is known.
    pub ip_address: Option<&'a str>,
}

impl<'a> InstanceObject<'a> {
    /// An instance with this status.
    pub fn of(instance: &'a Instance, status: &'a InstanceStatus) -> Self {
        Self {
            id: instance.id(),
            name: instance.display_name(),
            status: status.state,
            plan: status.plan,
            region: &instance.spec.region,
            ip_address: status.ip_address.as_deref(),
        }
    }
}

/// The keys of `data` in instance events.
#[derive(Clone, Debug, Serialize)]
struct InstanceData<'a> {
    instance: InstanceObject<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a User>,
}

/// The body of every delivery.
#[derive(Clone, Debug, Serialize)]
struct Envelope<'a, D> {
    id: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    created_at: String,
    data: D,
}

/// The body of an event (specification, section 6.2), with its time in milliseconds.
pub fn body(id: &str, event_type: EventType, created_at: Timestamp, data: impl Serialize) -> String {
    let envelope = Envelope {
        id,
        event_type: event_type.as_str(),
        created_at: format!("{created_at:.3}"),
        data,
    };
    // Serialising fails only for maps whose keys are not strings; there are none.
    serde_json::to_string(&envelope).unwrap_or_default()
}

/// An event of an instance whose status is now `status`. `created` and `deleted` events contain the account holder.
pub fn instance_event(
    instance: &Instance,
    status: &InstanceStatus,
    event_type: EventType,
    user: &User,
    sequence: i64,
    now: Timestamp,
) -> OutboxEntry {
    let id = ids::event_id(instance.metadata.uid.as_deref().unwrap_or_default(), sequence);
    let carries_user = matches!(
        event_type,
        EventType::InstanceCreated | EventType::InstanceDeleted
    );
    let data = InstanceData {
        instance: InstanceObject::of(instance, status),
        user: carries_user.then_some(user),
    };
    OutboxEntry {
        body: body(&id, event_type, now, data),
        id,
        event_type,
        sequence,
        created_at: now,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_envelope_has_the_keys_of_the_specification_and_the_user_where_it_belongs() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        let status: InstanceStatus = serde_json::from_value(json!({
            "state": "running", "plan": "starter", "ipAddress": "198.18.0.7",
        }))
        .unwrap();
        let user = User {
            id: "usr_1".into(),
            email: "ada@example.com".into(),
        };
        let now: Timestamp = "2026-11-21T10:00:00.123456Z".parse().unwrap();
        for (event_type, with_user) in [
            (EventType::InstanceCreated, true),
            (EventType::InstanceDeleted, true),
            (EventType::InstanceStarted, false),
            (EventType::InstanceStopped, false),
        ] {
            let entry = instance_event(&instance, &status, event_type, &user, 3, now);
            let mut data = json!({ "instance": {
                "id": instance.id(), "name": "web", "status": "running", "plan": "starter", "region": "fr-par-1",
                "ip_address": "198.18.0.7",
            }});
            if with_user {
                data["user"] = json!({ "id": "usr_1", "email": "ada@example.com" });
            }
            let body: serde_json::Value = serde_json::from_str(&entry.body).unwrap();
            assert_eq!(
                body,
                json!({ "id": ids::event_id("u", 3), "type": event_type.as_str(), "created_at": "2026-11-21T10:00:00.123Z", "data": data })
            );
            assert_eq!(entry.id, ids::event_id("u", 3));
        }
    }
}
