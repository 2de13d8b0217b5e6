//! Instances: `/v1/instances` (specification, section 2.2).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{schema, time::Seconds};
use resources::{InstanceState, Plan};

/// An instance in a list.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct InstanceSummary {
    /// Identifier.
    #[schema(schema_with = schema::instance_id)]
    pub id: String,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    pub name: String,
    /// Status in the lifecycle.
    #[schema(schema_with = schema::instance_status)]
    pub status: InstanceState,
    /// Why the instance is not in the requested state, as for a single instance. Present only while it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[a-z_]+$", example = "provisioning_failed")]
    pub status_reason: Option<String>,
    /// The plan in effect.
    pub plan: Plan,
    /// Region code.
    #[schema(example = "fr-par-1")]
    pub region: String,
    /// Installed image.
    #[schema(example = "debian-13")]
    pub image: String,
    /// IPv4 address; `null` until it is known.
    #[schema(required, format = Ipv4, example = "198.18.0.7")]
    pub ip_address: Option<String>,
    /// IPv6 address; `null` until it is known.
    #[schema(required, format = Ipv6, example = "2001:db8::7")]
    pub ipv6_address: Option<String>,
    /// Tags.
    #[schema(example = json!(["env:prod"]))]
    pub tags: Vec<String>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// When a field of the instance last changed.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:02:31Z")]
    pub updated_at: Seconds,
}

/// A newly created instance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
pub struct NewInstance {
    /// Identifier.
    #[schema(schema_with = schema::instance_id)]
    pub id: String,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    pub name: String,
    /// `provisioning` at first.
    #[schema(schema_with = schema::instance_status)]
    pub status: InstanceState,
    /// The plan.
    pub plan: Plan,
    /// Region code.
    #[schema(example = "fr-par-1")]
    pub region: String,
    /// Operating-system image.
    #[schema(example = "debian-13")]
    pub image: String,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
}

/// An instance with all its fields.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct Instance {
    /// Identifier.
    #[schema(schema_with = schema::instance_id)]
    pub id: String,
    /// Display name and host name; need not be unique.
    #[schema(example = "web-1")]
    pub name: String,
    /// Status in the lifecycle.
    #[schema(schema_with = schema::instance_status)]
    pub status: InstanceState,
    /// Why the instance is not in the requested state, for programs: `provisioning`, `stopping`, `guest_shutdown`,
    /// `plan_change_pending`, `provisioning_failed`, `provider_timeout` and others; more may be added. Present only while the
    /// instance is not in the requested state.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^[a-z_]+$", example = "provisioning_failed")]
    pub status_reason: Option<String>,
    /// The reason for people. Present only together with `status_reason`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "the provider reports: no capacity in fr-par-1")]
    pub status_message: Option<String>,
    /// The plan in effect.
    pub plan: Plan,
    /// The plan that takes effect with the next reboot, or stop and start. Present only while a plan change is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pending_plan: Option<Plan>,
    /// Region code.
    #[schema(example = "fr-par-1")]
    pub region: String,
    /// Installed image.
    #[schema(example = "debian-13")]
    pub image: String,
    /// IPv4 address; `null` until it is known.
    #[schema(required, format = Ipv4, example = "198.18.0.7")]
    pub ip_address: Option<String>,
    /// IPv6 address; `null` until it is known.
    #[schema(required, format = Ipv6, example = "2001:db8::7")]
    pub ipv6_address: Option<String>,
    /// IPv4 address in its private network; `null` without one, and until it is known.
    #[schema(required, format = Ipv4)]
    pub private_ip_address: Option<String>,
    /// Disk in GB. It never shrinks.
    #[schema(example = 40)]
    pub disk_size: i32,
    /// Memory in GB, from the plan in effect.
    #[schema(example = 2)]
    pub memory: i32,
    /// Virtual CPUs, from the plan in effect.
    #[schema(example = 1)]
    pub vcpu: i32,
    /// Whether the instance is backed up daily. The last seven of these backups are kept.
    pub backup_enabled: bool,
    /// Whether the server's usage is sampled every minute, and alerts are fired.
    pub monitoring_enabled: bool,
    /// Whether deletion and rebuilds are refused.
    pub deletion_protection: bool,
    /// Tags.
    #[schema(example = json!(["env:prod"]))]
    pub tags: Vec<String>,
    /// Who last asked for a change: the id of an API key, which may be revoked by now, or `kubernetes` if it was not asked for through
    /// this API.
    #[schema(required, example = "key-ta4q7hz0c9k2m8x1")]
    pub last_requested_by: Option<String>,
    /// When it was created.
    #[schema(value_type = String, format = DateTime, example = "2026-11-21T10:00:00Z")]
    pub created_at: Seconds,
    /// Current usage. Present only with `include=metrics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub metrics: Option<InstanceMetrics>,
}

/// A snapshot of a server's usage; unknown values are `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, ToSchema)]
pub struct InstanceMetrics {
    /// CPU usage in percent.
    #[schema(required, minimum = 0, maximum = 100, example = 12.5)]
    pub cpu_usage: Option<f64>,
    /// Memory usage in percent.
    #[schema(required, minimum = 0, maximum = 100, example = 41.0)]
    pub memory_usage: Option<f64>,
    /// Disk usage in percent.
    #[schema(required, minimum = 0, maximum = 100, example = 23.9)]
    pub disk_usage: Option<f64>,
    /// Bytes received since the last start.
    #[schema(required, minimum = 0, example = 1_048_576)]
    pub network_in: Option<i64>,
    /// Bytes sent since the last start.
    #[schema(required, minimum = 0, example = 524_288)]
    pub network_out: Option<i64>,
}

/// An instance to create.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(example = json!({
    "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"]
}))]
#[serde(deny_unknown_fields)]
pub struct CreateInstance {
    /// Display name and host name; need not be unique.
    #[schema(
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
    )]
    pub name: String,
    /// Size and price class.
    pub plan: Plan,
    /// Region code; `GET /v1/regions` lists them.
    #[schema(pattern = "^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$", max_length = 63)]
    pub region: String,
    /// Operating-system image; `GET /v1/images` lists them. Required, unless `backup` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        max_length = 63
    )]
    pub image: Option<String>,
    /// Identifier of a completed backup to restore, in place of `image`. The plan's disk must be as large as the backup's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^bkp_[a-z0-9]{16}$")]
    pub backup: Option<String>,
    /// SSH public keys for the first login, one OpenSSH line each; at most 16,384 characters in all.
    #[serde(default)]
    #[schema(required = false, max_items = 20)]
    pub ssh_keys: Vec<String>,
    /// User data for cloud-init: what the server does at its first boot, and again when it is rebuilt. Text that begins with
    /// `#cloud-config`, `#!`, `#include`, `#cloud-boothook`, `## template: jinja`, `Content-Type: multipart/` or `MIME-Version:`, or
    /// gzip of such text in base64; at most 32 KiB, and 256 KiB unpacked. It is never shown again. A simulated server ignores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 32768,
        example = "#cloud-config\npackages: [nginx]\n"
    )]
    pub user_data: Option<String>,
    /// Whether the instance is backed up daily. The last seven of these backups are kept.
    #[serde(default)]
    #[schema(required = false, default = false)]
    pub backup_enabled: bool,
    /// Whether the server's usage is sampled every minute, and alerts are fired.
    #[serde(default)]
    #[schema(required = false, default = false)]
    pub monitoring_enabled: bool,
    /// Identifier of the private network to attach the server to. It must be in the same region.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^pn-[a-z0-9]{16}$")]
    pub private_network: Option<String>,
    /// Labels of your choice, for finding instances.
    #[serde(default)]
    #[schema(required = false, schema_with = schema::tags)]
    pub tags: Vec<String>,
    /// Whether deletion and rebuilds are refused, through both REST and kubectl.
    #[serde(default)]
    #[schema(required = false, default = false)]
    pub deletion_protection: bool,
    /// Whether the server is running once it is created.
    #[serde(default)]
    #[schema(required = false)]
    pub power_state: WantedPower,
}

/// Whether a new server is running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema, strum::EnumString)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum WantedPower {
    /// Powered on.
    #[default]
    Running,
    /// Powered off until it is started.
    Stopped,
}

impl CreateInstance {
    /// An instance with this image, and nothing else but what is required.
    pub fn new(
        name: impl Into<String>,
        plan: Plan,
        region: impl Into<String>,
        image: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            plan,
            region: region.into(),
            image: Some(image.into()),
            backup: None,
            ssh_keys: Vec::new(),
            user_data: None,
            backup_enabled: false,
            monitoring_enabled: false,
            private_network: None,
            tags: Vec::new(),
            deletion_protection: false,
            power_state: WantedPower::Running,
        }
    }
}

/// Fields to change; those left out stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(min_properties = 1, example = json!({"plan": "business", "reboot": true}))]
#[serde(deny_unknown_fields)]
pub struct ChangeInstance {
    /// The new plan. Allowed from `running`, `stopped` and `error`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub plan: Option<Plan>,
    /// Whether to apply a plan change now, by rebooting the server. `false` leaves a plan change in this request pending
    /// until the next reboot; `true` without `plan` applies a pending one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reboot: Option<bool>,
    /// The new name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
    )]
    pub name: Option<String>,
    /// The new tags; they replace all present ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, schema_with = schema::tags)]
    pub tags: Option<Vec<String>>,
    /// Whether the instance is backed up daily. The last seven of these backups are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub backup_enabled: Option<bool>,
    /// Whether the server's usage is sampled every minute, and alerts are fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub monitoring_enabled: Option<bool>,
    /// Whether deletion and rebuilds are refused, through both REST and kubectl.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub deletion_protection: Option<bool>,
}

/// The image or backup to reinstall a server from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[schema(min_properties = 1, max_properties = 1, example = json!({"image": "debian-13"}))]
#[serde(deny_unknown_fields)]
pub struct RebuildInstance {
    /// Operating-system image; `GET /v1/images` lists them. Required, unless `backup` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(
        nullable = false,
        pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$",
        max_length = 63
    )]
    pub image: Option<String>,
    /// Identifier of a completed backup to restore, in place of `image`. The disk must be as large as the backup's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, pattern = "^bkp_[a-z0-9]{16}$")]
    pub backup: Option<String>,
}
