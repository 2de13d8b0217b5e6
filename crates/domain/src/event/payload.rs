//! Bodies of deliveries (specification, sections 2.5, 6.1 and 6.2). They are serialised here, once; these bytes are then
//! stored, signed and sent.

use jiff::Timestamp;
use serde::Serialize;

use super::{EventType, OutboxEntry};
use resources::{
    Alert, Backup, BackupError, BackupPhase, BackupSource, BackupStatus, Instance, InstanceState,
    InstanceStatus, Plan, conditions::whole_seconds, ids, invoice::InvoiceType, money::Cents, origin,
};

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
    pub status: InstanceState,
    /// Plan in effect.
    pub plan: Plan,
    /// Region code.
    pub region: &'a str,
    /// IPv4 address, `null` until it is known.
    pub ip_address: Option<&'a str>,
}

impl<'a> InstanceObject<'a> {
    /// An instance with this status. One that has not been accepted is shown as REST shows it.
    pub fn of(instance: &'a Instance, status: &'a InstanceStatus) -> Self {
        Self {
            id: instance.id(),
            name: instance.display_name(),
            status: status.state.unwrap_or(InstanceState::Provisioning),
            plan: status.plan.unwrap_or(instance.spec.plan),
            region: &instance.spec.region,
            ip_address: status.ip_address.as_deref(),
        }
    }

    /// The instance of a backup, which no longer exists.
    fn gone(source: &'a BackupSource) -> Self {
        Self {
            id: source.id.clone(),
            name: &source.name,
            status: InstanceState::Deleting,
            plan: source.plan,
            region: &source.region,
            ip_address: source.ip_address.as_deref(),
        }
    }
}

/// A backup, as events show it (decisions, section 7).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackupObject<'a> {
    /// Identifier, `bkp_…`.
    pub id: String,
    /// Identifier of its instance.
    pub instance_id: &'a str,
    /// Display name of its instance when the backup began.
    pub instance_name: &'a str,
    /// Whether the instance has been deleted.
    pub instance_deleted: bool,
    /// Display name.
    pub name: &'a str,
    /// `completed` or `failed`.
    pub status: &'static str,
    /// Whether the daily schedule made it.
    pub scheduled: bool,
    /// Its size in GB; `null` if it failed.
    pub size_gb: Option<f64>,
    /// Size of the instance's disk in GB.
    pub disk_size: i32,
    /// Image of the instance.
    pub image: &'a str,
    /// When the backup was requested, RFC 3339.
    pub created_at: String,
    /// When it was completed, or failed, RFC 3339.
    pub completed_at: String,
}

impl<'a> BackupObject<'a> {
    /// A backup with this status, which has come to its end at this time.
    fn of(backup: &'a Backup, status: &'a BackupStatus, source: &'a BackupSource, ended: Timestamp) -> Self {
        let seconds = |time| whole_seconds(time).to_string();
        Self {
            id: backup.id(),
            instance_id: &source.id,
            instance_name: &source.name,
            instance_deleted: status.instance_deleted,
            name: backup.display_name(),
            status: match status.phase {
                Some(BackupPhase::Completed) => "completed",
                _ => "failed",
            },
            scheduled: backup.is_scheduled(),
            size_gb: status.size_gb,
            disk_size: source.disk_size_gb,
            image: &source.image,
            created_at: seconds(backup.created_at()),
            completed_at: seconds(ended),
        }
    }
}

/// Why something failed, as events show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorObject<'a> {
    /// For programs.
    pub code: &'a str,
    /// For people.
    pub message: &'a str,
}

/// The keys of `data` in backup events.
#[derive(Clone, Debug, Serialize)]
struct BackupData<'a> {
    backup: BackupObject<'a>,
    instance: InstanceObject<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorObject<'a>>,
}

impl<'a> BackupData<'a> {
    fn of(
        backup: &'a Backup,
        status: &'a BackupStatus,
        source: &'a BackupSource,
        instance: InstanceObject<'a>,
        now: Timestamp,
    ) -> Self {
        Self {
            backup: BackupObject::of(backup, status, source, now),
            instance,
            error: status.error.as_ref().map(|error| ErrorObject {
                code: &error.code,
                message: &error.message,
            }),
        }
    }
}

/// The event for the end of a backup, whose status is now `status`. `source` describes its instance when it began, and `instance`
/// is that instance, if it still exists.
pub fn backup_event(
    backup: &Backup,
    status: &BackupStatus,
    source: &BackupSource,
    instance: Option<&Instance>,
    sequence: i64,
    now: Timestamp,
) -> OutboxEntry {
    let event_type = match status.phase {
        Some(BackupPhase::Completed) => EventType::BackupCompleted,
        _ => EventType::BackupFailed,
    };
    let unknown = InstanceStatus::default();
    let object = match instance {
        Some(instance) => InstanceObject::of(instance, instance.status.as_ref().unwrap_or(&unknown)),
        None => InstanceObject::gone(source),
    };
    let data = BackupData::of(backup, status, source, object, now);
    entry(origin::uid(&backup.metadata), sequence, event_type, now, data)
}

/// The event for a scheduled backup that the API server has refused to create, so that there is no object whose event it could be:
/// it is one of the instance's.
pub fn missed_backup_event(
    backup: &Backup,
    error: BackupError,
    instance: &Instance,
    instance_status: &InstanceStatus,
    sequence: i64,
    now: Timestamp,
) -> OutboxEntry {
    let status = BackupStatus {
        phase: Some(BackupPhase::Failed),
        error: Some(error),
        ..BackupStatus::default()
    };
    let source = BackupSource::of(instance);
    let object = InstanceObject::of(instance, instance_status);
    let data = BackupData::of(backup, &status, &source, object, now);
    entry(
        origin::uid(&instance.metadata),
        sequence,
        EventType::BackupFailed,
        now,
        data,
    )
}

/// An alert, as events show it (decisions, section 7).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AlertObject<'a> {
    /// Identifier, `alr_…`.
    pub id: &'a str,
    /// The rule that fired.
    pub rule: &'a str,
    /// The threshold that the metric has crossed.
    pub threshold: f64,
    /// When it first crossed it, RFC 3339.
    pub since: String,
}

/// The metric of an alert, as events show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricObject {
    /// The metric, as in `include=metrics`.
    pub name: &'static str,
    /// Its value when the alert fired.
    pub value: f64,
    /// Unit of value and threshold.
    pub unit: &'static str,
}

impl MetricObject {
    /// The unit of all metrics of alerts.
    pub const UNIT: &'static str = "percent";
}

/// The keys of `data` in alert events.
#[derive(Clone, Debug, Serialize)]
struct AlertData<'a> {
    alert: AlertObject<'a>,
    instance: InstanceObject<'a>,
    metric: MetricObject,
}

/// The event of an alert that has fired, about an instance whose status is now `status`.
pub fn alert_event(
    instance: &Instance,
    status: &InstanceStatus,
    alert: &Alert,
    sequence: i64,
    now: Timestamp,
) -> OutboxEntry {
    let event_type = EventType::AlertTriggered;
    let data = AlertData {
        alert: AlertObject {
            id: &alert.id,
            rule: &alert.rule,
            threshold: alert.threshold,
            since: whole_seconds(alert.since).to_string(),
        },
        instance: InstanceObject::of(instance, status),
        metric: MetricObject {
            name: alert.metric.as_str(),
            value: alert.value,
            unit: MetricObject::UNIT,
        },
    };
    entry(origin::uid(&instance.metadata), sequence, event_type, now, data)
}

/// An invoice that is issued, for its event.
#[derive(Clone, Copy, Debug)]
pub struct InvoiceIssued<'a> {
    /// UID of the Invoice.
    pub uid: &'a str,
    /// Identifier, `inv_…`.
    pub id: &'a str,
    pub number: &'a str,
    pub invoice_type: InvoiceType,
    /// The time that it covers, half-open.
    pub period: (Timestamp, Timestamp),
    /// The day on which it is due.
    pub due_date: &'a str,
    /// Number of its lines.
    pub lines_count: u32,
    /// The amount to be paid.
    pub amount: Cents,
    /// Currency of the amount.
    pub currency: &'a str,
}

/// An invoice, as events show it (decisions, section 7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InvoiceObject<'a> {
    /// Identifier, `inv_…`.
    pub id: &'a str,
    pub number: &'a str,
    /// `invoice` or `credit_note`.
    #[serde(rename = "type")]
    pub invoice_type: &'static str,
    /// `issued`.
    pub status: &'static str,
    /// The time that it covers.
    pub period: PeriodObject,
    /// When it was issued, RFC 3339.
    pub issued_at: String,
    /// The day on which it is due.
    pub due_date: &'a str,
    /// Number of its lines.
    pub lines_count: u32,
}

/// The time that an invoice covers, half-open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeriodObject {
    /// The first moment, RFC 3339.
    pub from: String,
    /// The first moment after it, RFC 3339.
    pub to: String,
}

/// An amount of money, as events show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AmountObject {
    /// Decimal number with two places.
    pub value: String,
    /// ISO 4217 code.
    pub currency: String,
}

/// The keys of `data` in the event of an invoice.
#[derive(Clone, Debug, Serialize)]
struct InvoiceData<'a> {
    invoice: InvoiceObject<'a>,
    amount: AmountObject,
}

/// The event of an invoice that is issued now, the first one of its object.
pub fn invoice_event(issued: &InvoiceIssued<'_>, now: Timestamp) -> OutboxEntry {
    let (sequence, event_type) = (1, EventType::InvoiceCreated);
    let data = InvoiceData {
        invoice: InvoiceObject {
            id: issued.id,
            number: issued.number,
            invoice_type: match issued.invoice_type {
                InvoiceType::Invoice => "invoice",
                InvoiceType::CreditNote => "credit_note",
            },
            status: "issued",
            period: PeriodObject {
                from: issued.period.0.to_string(),
                to: issued.period.1.to_string(),
            },
            issued_at: whole_seconds(now).to_string(),
            due_date: issued.due_date,
            lines_count: issued.lines_count,
        },
        amount: AmountObject {
            value: issued.amount.to_string(),
            currency: issued.currency.to_owned(),
        },
    };
    entry(issued.uid, sequence, event_type, now, data)
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
    let carries_user = matches!(
        event_type,
        EventType::InstanceCreated | EventType::InstanceDeleted
    );
    let data = InstanceData {
        instance: InstanceObject::of(instance, status),
        user: carries_user.then_some(user),
    };
    entry(origin::uid(&instance.metadata), sequence, event_type, now, data)
}

/// The outbox entry of an event: the one with this sequence number of the object with this UID.
fn entry(
    uid: &str,
    sequence: i64,
    event_type: EventType,
    now: Timestamp,
    data: impl Serialize,
) -> OutboxEntry {
    let id = ids::event_id(uid, sequence);
    OutboxEntry {
        body: body(&id, event_type, now, data),
        id,
        event_type,
        sequence,
        created_at: now,
        traceparent: None,
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

    #[test]
    fn an_instance_that_was_not_accepted_has_status_and_plan_in_every_event() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": { "plan": "business", "region": "fr-par-1", "image": "debian-13" },
        }))
        .unwrap();
        let spec = json!({ "instance": "web", "instanceUID": "u" });
        let backup = Backup::new("before", serde_json::from_value(spec).unwrap());
        let alert: Alert = serde_json::from_value(json!({
            "id": "alr_1", "rule": "cpu", "phase": "Firing", "metric": "cpu_usage", "threshold": 90.0, "value": 95.0,
            "since": "2026-11-21T10:00:00Z", "firedAt": "2026-11-21T10:05:00Z",
        }))
        .unwrap();
        let user = User {
            id: "usr_1".into(),
            email: "ada@example.com".into(),
        };
        let (status, now) = (InstanceStatus::default(), Timestamp::UNIX_EPOCH);
        let source = BackupSource::of(&instance);
        let ended = BackupStatus::default();
        for (entry, state) in [
            (
                instance_event(&instance, &status, EventType::InstanceDeleted, &user, 1, now),
                "provisioning",
            ),
            (alert_event(&instance, &status, &alert, 1, now), "provisioning"),
            (
                backup_event(&backup, &ended, &source, Some(&instance), 1, now),
                "provisioning",
            ),
            (backup_event(&backup, &ended, &source, None, 1, now), "deleting"),
        ] {
            let body: serde_json::Value = serde_json::from_str(&entry.body).unwrap();
            let shown = &body["data"]["instance"];
            assert_eq!(
                (&shown["status"], &shown["plan"]),
                (&json!(state), &json!("business"))
            );
        }
    }
}
