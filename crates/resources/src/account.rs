//! `Account`: one account holder, and the namespace that holds all their objects.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{
    conditions,
    invoice::{MAX_ADDRESS_LINE, MAX_ADDRESS_LINES, MAX_TEXT, Party},
    money::TaxRate,
    quota::SizeQuotas,
    times,
    webhook::DEFAULT_WEBHOOK_QUOTA,
};

/// Keeps an Account until what it owns has been deleted.
pub const FINALIZER: &str = "stellage.dev/account";

/// Annotation on a namespace that the operator has created: the origin UID of the Account that it was created for. The
/// operator deletes only namespaces with this annotation.
pub const MADE_FOR_ANNOTATION: &str = "stellage.dev/made-for-account";
/// Annotation on a namespace that an Account has adopted: the Account's origin UID.
pub const ADOPTED_FOR_ANNOTATION: &str = "stellage.dev/adopted-for-account";

/// Condition of an [`Account`]: its namespace exists and belongs to it.
pub const NAMESPACE_READY: &str = "NamespaceReady";

/// Annotation on the namespace of a suspended Account: the reason. The admission policy for tenants goes by it.
pub const SUSPENDED_ANNOTATION: &str = "stellage.dev/suspended";

/// Annotation on the namespace of a suspended Account whose servers are kept off: `Stop`. Without it the controllers may stop no server
/// that is to run (the admission policy operator-operations.stellage.dev).
pub const SUSPENDED_SERVERS_ANNOTATION: &str = "stellage.dev/suspended-servers";

/// Condition of an [`Account`]: it is suspended, and its namespace says so; the message says why. Absent otherwise.
pub const SUSPENDED: &str = "Suspended";

/// Condition of an [`Account`]: nobody tells its holder about webhooks, because the operator has no mail server. Absent until that is
/// so.
pub const MAIL_UNAVAILABLE: &str = "MailUnavailable";

/// Most e-mails within 24 hours that the operator may be set to send to an account holder, so that a status can list them.
pub const MAX_MAILS_PER_DAY: u16 = 1000;

/// Instances that an account may have if neither its spec nor the operator's settings say otherwise (decisions, section 8).
pub const DEFAULT_INSTANCE_QUOTA: u32 = 100;

/// Requests per hour allowed for each key if the Account's spec sets no limit (decisions, section 6).
pub const DEFAULT_RATE_LIMIT_PER_HOUR: u32 = 3600;

/// An account holder and their limits.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Account",
    plural = "accounts",
    shortname = "acct",
    category = "stellage",
    status = "AccountStatus",
    derive = "PartialEq",
    doc = "One account holder. The operator creates the Account's namespace, the quota in it, and the RoleBinding that lets the operator access Secrets there.",
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id"),
    printcolumn(name = "Email", type_ = "string", json_path = ".spec.email"),
    printcolumn(name = "Namespace", type_ = "string", json_path = ".status.namespace"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", priority = 1),
    printcolumn(name = "Suspended", type_ = "string", json_path = ".spec.suspended.reason", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must be at most 63 characters: it is the value of a label on the account's namespace"),
    validation = Rule::new("has(self.spec.__namespace__) || !self.metadata.name.contains('.')")
        .message("metadata.name is also the namespace, so it must not have dots; choose another name or set spec.namespace"),
    validation = Rule::new("has(self.spec.__namespace__) || !self.metadata.name.startsWith('kube-')")
        .message("metadata.name is also the namespace, and kube-* namespaces belong to Kubernetes; choose another name or set spec.namespace")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.__namespace__) == has(oldSelf.__namespace__) && (!has(self.__namespace__) || self.__namespace__ == oldSelf.__namespace__)")
    .message("spec.namespace is immutable, because it holds all objects of the account; create another Account instead"))]
pub struct AccountSpec {
    /// E-mail address of the account holder. Notifications are sent to it, and events contain it.
    #[schemars(length(max = 254))]
    #[x_kube(validation = Rule::new("self.matches('^[^@\\\\s]+@[^@\\\\s]+[.][^@\\\\s]+$')").message("must be an e-mail address such as ada@example.com"))]
    pub email: String,

    /// Namespace that holds all objects of this account. Default: the Account's name. Immutable. An existing namespace
    /// is adopted only if a cluster administrator has labelled it `stellage.dev/account: <name of this Account>`, and it has never
    /// been another account's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be a namespace name: lower-case letters, digits and '-', with a letter or digit at both ends"))]
    #[x_kube(validation = Rule::new("!self.startsWith('kube-')").message("must not be a kube-* namespace: those belong to Kubernetes"))]
    pub namespace: Option<String>,

    /// Maximum number of instances, created through REST or with kubectl (a native ResourceQuota). Default: what the operator
    /// sets with `--default-instance-quota`, 100 unless it is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000), extend("format" = "int32"))]
    pub instance_quota: Option<i32>,

    /// Maximum number of webhooks, created through REST or with kubectl (a native ResourceQuota). Default: 20.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000), extend("format" = "int32"))]
    pub webhook_quota: Option<i32>,

    /// Maximum number of virtual CPUs that all instances have together, whoever creates or resizes them. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000), extend("format" = "int32"))]
    pub vcpu_quota: Option<i32>,

    /// Maximum memory of all instances together, in GB. Default: no limit.
    #[serde(default, rename = "memoryQuotaGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000), extend("format" = "int32"))]
    pub memory_quota_gb: Option<i32>,

    /// Maximum disk size of all instances together, in GB. Default: no limit.
    #[serde(default, rename = "diskQuotaGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000), extend("format" = "int32"))]
    pub disk_quota_gb: Option<i32>,

    /// Set while the account is suspended: its holder can read everything and change nothing, through REST, in the console and with
    /// kubectl. Webhooks, backups and invoices go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<Suspension>,

    /// REST requests per hour for each of the account's keys. Default: 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000), extend("format" = "int32"))]
    pub rate_limit_per_hour: Option<i32>,

    /// The account holder as invoices name it, and its tax.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub billing: Option<Billing>,

    /// Time until which the account's invoices are to be closed: the open invoice is issued with the hours that began before it,
    /// and the next one goes on from there. Set by stellage invoice close. A time in the past of that invoice has no effect, and
    /// one in the future takes effect then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_moment")]
    pub invoices_closed_until: Option<String>,
}

/// Why an account is suspended, and what becomes of its servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Suspension {
    /// The reason, in words for the account holder, such as "invoice 2026-000042 is overdue". It is shown wherever something is refused.
    #[schemars(schema_with = "text")]
    pub reason: String,

    /// Whether the servers of the account are left as they are, or stopped: Leave or Stop. Stopped servers that should be running
    /// start again once the account is no longer suspended.
    #[serde(default)]
    pub servers: SuspendedServers,
}

impl Suspension {
    /// Reason of the condition [`SUSPENDED`].
    pub const fn condition(&self) -> &'static str {
        match self.servers {
            SuspendedServers::Leave => "ServersLeft",
            SuspendedServers::Stop => "ServersStopped",
        }
    }
}

/// What becomes of the servers of a suspended account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum SuspendedServers {
    /// They are left as they are.
    #[default]
    Leave,
    /// They are stopped, and kept off.
    Stop,
}

/// The account holder on invoices. What is issued stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Billing {
    /// Name of the company or person. Default: the Account's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text")]
    pub name: Option<String>,

    /// Address lines, at most six of 1 to 100 characters each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "address")]
    pub address: Vec<String>,

    /// Country, as an ISO 3166-1 code of two capital letters, such as DE. E-invoices need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2), regex(pattern = "^[A-Z]{2}$"))]
    pub country: Option<String>,

    /// VAT identifier, such as DE123456789.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text")]
    pub vat_id: Option<String>,

    /// What the account holder wants to find on invoices, such as an order number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text")]
    pub reference: Option<String>,

    /// Tax rate in percent instead of the catalogue's, such as 0 or "7.7", at the time of issue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "tax_rate")]
    pub tax_rate: Option<TaxRate>,

    /// Why there is no tax, or another one, such as "Reverse charge: the buyer owes the tax".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "text")]
    pub tax_note: Option<String>,
}

/// A whole number, or a text with up to two decimals: Kubernetes advises against floating-point numbers.
fn tax_rate(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-kubernetes-validations": [{
            "rule": "type(self) == int ? self >= 0 && self <= 100 : self.matches('^(100([.]0{1,2})?|[0-9]{1,2}([.][0-9]{1,2})?)$')",
            "message": "must be a rate in percent from 0 to 100, a whole number or a text with at most two decimals, such as 19 or \"7.7\"",
        }],
    })
}

fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string", "minLength": 1, "maxLength": MAX_TEXT,
        "x-kubernetes-validations": [{
            "rule": "!self.matches('[\\x00-\\x1f\\x7f]')",
            "message": "must not have control characters",
        }]
    })
}

fn address(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": MAX_ADDRESS_LINES,
        "items": {
            "type": "string", "minLength": 1, "maxLength": MAX_ADDRESS_LINE,
            "description": "One line of the address.",
            "x-kubernetes-validations": [{
                "rule": "!self.matches('[\\\\x00-\\\\x1f\\\\x7f]')",
                "message": "must not have control characters",
            }]
        }
    })
}

fn mail_times(generator: &mut SchemaGenerator) -> Schema {
    let mut item = times::time(generator);
    item.insert("description".to_owned(), "When an e-mail was sent.".into());
    json_schema!({ "type": "array", "maxItems": MAX_MAILS_PER_DAY, "items": item })
}

/// The observed state of an Account.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AccountStatus {
    /// Public identifier of the account holder, `usr_…`. Events contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// Name of the installation, if it has one. New API keys begin with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 12))]
    pub installation: Option<String>,

    /// The namespace that belongs to this account, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// When the account holder was sent e-mails, in the 24 hours up to the last one. From these, a restarted operator knows how
    /// many more it may send today, also if the webhooks that they were about are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "mail_times")]
    pub notified_at: Vec<Timestamp>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub observed_generation: Option<i64>,

    /// Ready, Reconciling, Stalled, NamespaceReady; Suspended while the account is suspended; and MailUnavailable while the operator
    /// has no mail server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

impl Account {
    /// Name of the installation, if it has one.
    pub fn installation(&self) -> Option<&str> {
        self.status.as_ref()?.installation.as_deref()
    }

    /// The namespace that this account asks for: `spec.namespace`, else its name.
    pub fn wanted_namespace(&self) -> &str {
        self.spec
            .namespace
            .as_deref()
            .or(self.metadata.name.as_deref())
            .unwrap_or_default()
    }

    /// The namespace that belongs to this account, if it has one.
    pub fn owned_namespace(&self) -> Option<&str> {
        let status = self.status.as_ref()?;
        conditions::is_true(&status.conditions, NAMESPACE_READY).then_some(status.namespace.as_deref())?
    }

    /// Maximum number of instances: `default` unless the spec says otherwise, and no more than its quotas of vCPUs, memory and disk have
    /// room for if all have the smallest plan. That is as much of those quotas as Kubernetes can count.
    pub fn instance_quota(&self, default: u32) -> u32 {
        let quota = self.spec.instance_quota.and_then(|n| u32::try_from(n).ok());
        let room = self.size_quotas().most_instances();
        let room = room.and_then(|room| u32::try_from(room).ok());
        quota.unwrap_or(default).min(room.unwrap_or(u32::MAX))
    }

    /// Maximum number of webhooks.
    pub fn webhook_quota(&self) -> u32 {
        self.spec
            .webhook_quota
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(DEFAULT_WEBHOOK_QUOTA)
    }

    /// What its instances may have together.
    pub fn size_quotas(&self) -> SizeQuotas {
        let limit = |limit: Option<i32>| limit.and_then(|limit| u64::try_from(limit).ok());
        SizeQuotas {
            vcpu: limit(self.spec.vcpu_quota),
            memory_gb: limit(self.spec.memory_quota_gb),
            disk_gb: limit(self.spec.disk_quota_gb),
        }
    }

    /// Why its servers are kept off; `None` if they are not, or the namespace does not say so yet.
    pub fn keeps_servers_off(&self) -> Option<&str> {
        let suspension = self.spec.suspended.as_ref()?;
        let known = conditions::find(&self.status.as_ref()?.conditions, SUSPENDED)?;
        let is_off = suspension.servers == SuspendedServers::Stop && known.reason == suspension.condition();
        is_off.then_some(suspension.reason.as_str())
    }

    /// The annotations about its suspension that its namespace has.
    pub fn suspension_annotations(&self) -> [(&'static str, Option<&str>); 2] {
        let suspension = self.spec.suspended.as_ref();
        let stops = suspension.filter(|suspension| suspension.servers == SuspendedServers::Stop);
        [
            (
                SUSPENDED_ANNOTATION,
                suspension.map(|suspension| suspension.reason.as_str()),
            ),
            (SUSPENDED_SERVERS_ANNOTATION, stops.map(|_| "Stop")),
        ]
    }

    /// Time until which its invoices are to be closed.
    pub fn invoices_closed_until(&self) -> Option<Timestamp> {
        self.spec.invoices_closed_until.as_deref()?.parse().ok()
    }

    /// The account holder, as invoices name it now.
    pub fn buyer(&self) -> Party {
        let billing = self.spec.billing.clone().unwrap_or_default();
        let name = self.metadata.name.clone().unwrap_or_default();
        Party {
            name: billing.name.unwrap_or(name),
            address: billing.address,
            country: billing.country,
            vat_id: billing.vat_id,
            email: Some(self.spec.email.clone()),
            reference: billing.reference,
        }
    }

    /// Requests per hour for each of its keys.
    pub fn rate_limit_per_hour(&self) -> u32 {
        self.spec
            .rate_limit_per_hour
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(DEFAULT_RATE_LIMIT_PER_HOUR)
    }
}
