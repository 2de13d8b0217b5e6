//! Instances as responses show them (specification, section 2.2).

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::{
    ToSchema,
    openapi::{Ref, RefOr, schema::Schema},
};

use crate::{
    facade::response::view::{Seconds, snake_case},
    service::{id::InstanceId, instances::IndexedInstance},
};
use domain::{instance::explain, provider::Usage};
use resources::{Instance, InstanceState, Plan, tracking};

/// An instance in a list.
#[derive(Serialize, ToSchema)]
#[schema(as = InstanceSummary)]
pub struct ListItem<'a> {
    /// Identifier.
    #[schema(schema_with = id_schema)]
    id: InstanceId,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    name: &'a str,
    /// Status in the lifecycle.
    #[schema(schema_with = status_schema)]
    status: InstanceState,
    /// The plan in effect.
    plan: Plan,
    /// Region code.
    #[schema(example = "fr-par-1")]
    region: &'a str,
    /// IPv4 address; `null` until it is known.
    #[schema(required, format = Ipv4, example = "198.18.0.7")]
    ip_address: Option<&'a str>,
    /// Tags.
    #[schema(example = json!(["env:prod"]))]
    tags: &'a [String],
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// When a field of the instance last changed.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    updated_at: Seconds,
}

impl<'a> ListItem<'a> {
    /// An instance as lists show it.
    pub fn of(item: &'a IndexedInstance) -> Self {
        let instance = &*item.instance;
        Self {
            id: item.id,
            name: instance.display_name(),
            status: item.state,
            plan: item.plan,
            region: &instance.spec.region,
            ip_address: instance.status.as_ref().and_then(|s| s.ip_address.as_deref()),
            tags: &instance.spec.tags,
            created_at: Seconds(instance.created_at()),
            updated_at: Seconds(updated_at(instance)),
        }
    }
}

/// The last change of spec or status that a client can see.
fn updated_at(instance: &Instance) -> Timestamp {
    let status = instance.status.as_ref().and_then(|status| status.updated_at);
    instance
        .created_at()
        .max(status.unwrap_or(Timestamp::MIN))
        .max(tracking::spec_written_at(instance).unwrap_or(Timestamp::MIN))
}

/// A newly created instance.
#[derive(Serialize, ToSchema)]
#[schema(as = NewInstance)]
pub struct NewInstance<'a> {
    /// Identifier.
    #[schema(schema_with = id_schema)]
    id: InstanceId,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    name: &'a str,
    /// `provisioning` at first.
    #[schema(schema_with = status_schema)]
    status: InstanceState,
    /// The plan.
    plan: Plan,
    /// Region code.
    #[schema(example = "fr-par-1")]
    region: &'a str,
    /// Operating-system image.
    #[schema(example = "debian-13")]
    image: &'a str,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
}

impl<'a> NewInstance<'a> {
    /// An instance as the answer to a create shows it.
    pub fn of(item: &'a IndexedInstance) -> Self {
        let instance = &*item.instance;
        Self {
            id: item.id,
            name: instance.display_name(),
            status: item.state,
            plan: item.plan,
            region: &instance.spec.region,
            image: image(instance),
            created_at: Seconds(instance.created_at()),
        }
    }
}

/// An instance with all its fields.
#[derive(Serialize, ToSchema)]
#[schema(as = Instance)]
pub struct InstanceView<'a> {
    /// Identifier.
    #[schema(schema_with = id_schema)]
    id: InstanceId,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    name: &'a str,
    /// Status in the lifecycle.
    #[schema(schema_with = status_schema)]
    status: InstanceState,
    /// Why the instance is not in the requested state, for programs: `provisioning`, `stopping`, `guest_shutdown`,
    /// `plan_change_pending`, `provisioning_failed`, `provider_timeout` and others; more may be added. Present only while the
    /// instance is not in the requested state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[a-z_]+$", example = "provisioning_failed")]
    status_reason: Option<String>,
    /// The reason for people. Present only together with `status_reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "the provider reports: no capacity in fr-par-1")]
    status_message: Option<String>,
    /// The plan in effect.
    plan: Plan,
    /// The plan that takes effect with the next reboot, or stop and start. Present only while a plan change is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pending_plan: Option<Plan>,
    /// Region code.
    #[schema(example = "fr-par-1")]
    region: &'a str,
    /// Installed image.
    #[schema(example = "debian-13")]
    image: &'a str,
    /// IPv4 address; `null` until it is known.
    #[schema(required, format = Ipv4, example = "198.18.0.7")]
    ip_address: Option<&'a str>,
    /// IPv6 address; `null` until it is known.
    #[schema(required, format = Ipv6, example = "2001:db8::7")]
    ipv6_address: Option<&'a str>,
    /// Disk in GB. It never shrinks.
    #[schema(example = 40)]
    disk_size: i32,
    /// Memory in GB, from the plan in effect.
    #[schema(example = 2)]
    memory: i32,
    /// Virtual CPUs, from the plan in effect.
    #[schema(example = 1)]
    vcpu: i32,
    /// Whether the instance is backed up daily. The last seven of these backups are kept.
    backup_enabled: bool,
    /// Whether the server's usage is sampled every minute, and alerts are fired.
    monitoring_enabled: bool,
    /// Whether deletion is refused.
    deletion_protection: bool,
    /// Tags.
    #[schema(example = json!(["env:prod"]))]
    tags: &'a [String],
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    created_at: Seconds,
    /// Current usage. Present only with `include=metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    metrics: Option<Usage>,
}

impl<'a> InstanceView<'a> {
    /// An instance as its detail shows it.
    pub fn of(item: &'a IndexedInstance, metrics: Option<Usage>) -> Self {
        let instance = &*item.instance;
        let (spec, status) = (&instance.spec, instance.status.as_ref());
        let size = item.plan.size();
        let (status_reason, status_message) = explain(instance)
            .map(|why| (snake_case(&why.reason), why.message))
            .unzip();
        Self {
            id: item.id,
            name: instance.display_name(),
            status: item.state,
            status_reason,
            status_message,
            plan: item.plan,
            pending_plan: (spec.plan != item.plan).then_some(spec.plan),
            region: &spec.region,
            image: image(instance),
            ip_address: status.and_then(|s| s.ip_address.as_deref()),
            ipv6_address: status.and_then(|s| s.ipv6_address.as_deref()),
            disk_size: status.and_then(|s| s.disk_size_gb).unwrap_or(size.disk_gb),
            memory: size.memory_gb,
            vcpu: size.vcpu,
            backup_enabled: spec.backup_enabled,
            monitoring_enabled: spec.monitoring_enabled,
            deletion_protection: spec.deletion_protection,
            tags: &spec.tags,
            created_at: Seconds(instance.created_at()),
            metrics,
        }
    }
}

/// The installed image; before the installation, the requested one.
fn image(instance: &Instance) -> &str {
    let installed = instance.status.as_ref().and_then(|s| s.image.as_deref());
    installed.unwrap_or(&instance.spec.image)
}

fn id_schema() -> RefOr<Schema> {
    Ref::from_schema_name("InstanceId").into()
}

fn status_schema() -> RefOr<Schema> {
    Ref::from_schema_name("InstanceStatus").into()
}

/// Schemas shared by several answers that have no Rust type, by name.
pub(in crate::facade) fn shared_schemas() -> Value {
    // REST never shows `deleting`.
    let states: Vec<_> = InstanceState::ALL
        .into_iter()
        .filter(|state| *state != InstanceState::Deleting)
        .map(InstanceState::as_str)
        .collect();
    json!({
        "InstanceId": {
            "type": "string", "pattern": "^i-[a-z0-9]{16}$", "description": "Identifier of an instance.",
            "examples": ["i-4q7hz0c9k2m8x1ta"],
        },
        "InstanceStatus": {
            "type": "string", "enum": states, "description": "Status of an instance in its lifecycle.",
        },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::service::index::Indexed as _;

    fn shown(status: Value, plan: &str) -> IndexedInstance {
        let mut object = json!({
            "metadata": {
                "name": "i-abcdefgh01234567", "namespace": "demo", "uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z",
                "managedFields": [{ "time": "2026-11-21T10:05:00Z" }],
            },
            "spec": { "name": "web-1", "plan": plan, "planOnReboot": plan, "region": "fr-par-1", "image": "debian-13" },
        });
        if !status.is_null() {
            object["status"] = status;
        }
        IndexedInstance::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn running() -> Value {
        json!({
            "state": "running", "power": "Running", "powerState": "Running", "plan": "business", "image": "debian-13",
            "ipAddress": "198.18.0.7", "diskSizeGB": 160, "updatedAt": "2026-11-21T10:04:59.999Z",
        })
    }

    #[test]
    fn a_new_instance_shows_the_requested_plan_and_image() {
        let shown = shown(Value::Null, "starter");
        let created = serde_json::to_value(NewInstance::of(&shown)).unwrap();
        assert_eq!(
            created,
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "provisioning", "plan": "starter",
                "region": "fr-par-1", "image": "debian-13", "created_at": "2026-11-21T10:00:00Z",
            })
        );
        let detail = serde_json::to_value(InstanceView::of(&shown, None)).unwrap();
        assert_eq!(
            detail,
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "provisioning", "plan": "starter",
                "status_reason": "provisioning", "status_message": "the server is being created",
                "region": "fr-par-1", "image": "debian-13", "ip_address": null, "ipv6_address": null, "disk_size": 40,
                "memory": 2, "vcpu": 1, "backup_enabled": false, "monitoring_enabled": false,
                "deletion_protection": false, "tags": [],
                "created_at": "2026-11-21T10:00:00Z",
            })
        );
    }

    #[test]
    fn a_pending_plan_is_shown_beside_the_one_in_effect() {
        let shown = shown(running(), "enterprise");
        let detail = serde_json::to_value(InstanceView::of(&shown, Some(Usage::default()))).unwrap();
        assert_eq!(
            (&detail["plan"], &detail["pending_plan"], &detail["image"]),
            (&json!("business"), &json!("enterprise"), &json!("debian-13"))
        );
        assert_eq!((&detail["vcpu"], &detail["disk_size"]), (&json!(2), &json!(160)));
        assert_eq!(
            detail["metrics"],
            json!({ "cpu_usage": null, "memory_usage": null, "disk_usage": null, "network_in": null, "network_out": null })
        );
    }

    #[test]
    fn a_list_item_has_exactly_its_fields() {
        let shown = shown(running(), "business");
        assert_eq!(
            serde_json::to_value(ListItem::of(&shown)).unwrap(),
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "running", "plan": "business", "region": "fr-par-1",
                "ip_address": "198.18.0.7", "tags": [], "created_at": "2026-11-21T10:00:00Z", "updated_at": "2026-11-21T10:05:00Z",
            })
        );
    }
}
