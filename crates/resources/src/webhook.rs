//! `Webhook`: one receiver of an account's events.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference},
};
use kube::{CustomResource, KubeSchema, Resource as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::{conditions, event::EventType, ids, names, origin, text, times};

/// Webhooks that an account may have if its spec sets no quota (decisions, section 1).
pub const DEFAULT_WEBHOOK_QUOTA: u32 = 20;

/// Maximum length of a signing secret, in characters (decisions, section 5).
pub const MAX_SECRET_CHARACTERS: usize = 255;

/// Whether a signing secret begins or ends in white space. It is used as it is, but that is rarely meant.
pub fn has_outer_white_space(secret: &str) -> bool {
    secret.trim() != secret
}

/// A random secret in the form of Standard Webhooks.
pub fn random_secret() -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// Key in the Secret that holds the signing secret, unless `spec.secretRef.key` names another.
pub const SECRET_KEY: &str = "secret";

/// Label, `true`, of the Secrets that webhooks may use although they are not theirs. Without it the operator would read, change
/// and sign with any Secret of the namespace for whoever may change a Webhook.
pub const WEBHOOK_SECRET_LABEL: &str = "stellage.dev/webhook-secret";

/// Annotation of a [`Webhook`] with the resourceVersion of its Secret that REST wrote last. Its change makes the controller
/// read the Secret at once; it notices other changes of the Secret within ten seconds.
pub const SECRET_CHANGED_ANNOTATION: &str = "stellage.dev/secret-changed";
/// Value of [`SECRET_CHANGED_ANNOTATION`] while REST creates the Secret of a new webhook: its owner reference needs the webhook's
/// UID, so it comes second.
pub const SECRET_PENDING: &str = "pending";
/// How long after its creation a webhook may wait for the Secret that REST creates. Longer than any call to the API server.
const SECRET_GRACE: SignedDuration = SignedDuration::from_secs(30);

/// Condition of a [`Webhook`]: the signing secret exists and is usable.
pub const SECRET_READY: &str = "SecretReady";
/// Condition of a [`Webhook`]: True if the last attempt succeeded or none was made yet; False if it failed.
pub const HEALTHY: &str = "Healthy";
/// Condition of a [`Webhook`]: True while deliveries are held or dropped because there are too many. Absent until that happens.
pub const BACKLOG: &str = "Backlog";

/// Where the signing secret is stored.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Name of a Secret in the same namespace. It must carry the label `stellage.dev/webhook-secret: "true"`, or be the
    /// webhook's own: one that Stellage created for it, with the Webhook as its controlling owner. No other Secret is used.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::of_object())]
    pub name: String,
    /// Key in that Secret. Its value is the signing secret, 1 to 255 characters. With the keys `previous-secret` and
    /// `previous-expires-at` (RFC 3339) in the same Secret, deliveries are signed with the previous secret too until then. If
    /// this key is not `secret`, they are named after it: `<key>.previous` and `<key>.previous-expires-at`.
    #[serde(default = "default_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_key() -> String {
    SECRET_KEY.to_owned()
}

impl SecretReference {
    /// Key in the Secret that holds the signing secret from before the last rotation, while deliveries are signed with both.
    /// Webhooks with different keys of one Secret do not share it.
    pub fn previous_key(&self) -> String {
        match self.key.as_str() {
            SECRET_KEY => "previous-secret".to_owned(),
            key => format!("{key}.previous"),
        }
    }

    /// Key in the Secret that holds the RFC 3339 time until which deliveries are signed with the previous secret too.
    pub fn previous_expires_key(&self) -> String {
        match self.key.as_str() {
            SECRET_KEY => "previous-expires-at".to_owned(),
            key => format!("{key}.previous-expires-at"),
        }
    }
}

/// Which events of the account are sent, and where.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "Webhook",
    plural = "webhooks",
    shortname = "wh",
    category = "stellage",
    namespaced,
    status = "WebhookStatus",
    derive = "PartialEq",
    doc = "One receiver of events of the account whose namespace it is in. If it was disabled, any change of its spec enables it again.",
    printcolumn(name = "URL", type_ = "string", json_path = ".spec.url"),
    printcolumn(name = "Active", type_ = "boolean", json_path = ".spec.active"),
    printcolumn(
        name = "Healthy",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Healthy')].status"
    ),
    printcolumn(name = "Pending", type_ = "integer", json_path = ".status.pending"),
    printcolumn(name = "Last-Success", type_ = "date", json_path = ".status.lastSuccessAt"),
    printcolumn(name = "Disabled-Since", type_ = "date", json_path = ".status.disabled.at"),
    printcolumn(name = "Why", type_ = "string", json_path = ".status.disabled.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "ID", type_ = "string", json_path = ".status.id", priority = 1),
    printcolumn(name = "Events", type_ = "string", json_path = ".spec.events", priority = 1),
    printcolumn(
        name = "Description",
        type_ = "string",
        json_path = ".spec.description",
        priority = 1
    ),
    printcolumn(name = "Held", type_ = "integer", json_path = ".status.held", priority = 1),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].status",
        priority = 1
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type=='Ready')].reason",
        priority = 1
    ),
    validation = Rule::new("size(self.metadata.name) <= 63")
        .message("metadata.name must be at most 63 characters: it is the value of a label on the webhook's deliveries")
)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSpec {
    /// HTTPS URL that events are POSTed to, without user name, password or fragment. Nothing is sent to names and addresses of
    /// the cluster or of private networks unless the administrator allows them; the condition Ready then says why.
    #[schemars(length(max = 2048))]
    #[x_kube(validation = Rule::new("self.startsWith('https://')").message("must begin with https://"))]
    #[x_kube(validation = Rule::new("isURL(self) && url(self).getHost() != ''").message("must be a URL with a host, such as https://hooks.example.com/stellage"))]
    #[x_kube(validation = Rule::new("!self.matches('^https://[^/?#]*@')").message("must not have a user name or password: deliveries are signed, the secret is in spec.secretRef"))]
    #[x_kube(validation = Rule::new("!self.contains('#')").message("must not have a fragment (#…): it would never be sent"))]
    pub url: String,

    /// Event types to send, at least one.
    #[schemars(schema_with = "event_types")]
    pub events: Vec<EventType>,

    /// The Secret in the same namespace that holds the signing secret.
    pub secret_ref: SecretReference,

    /// What the webhook is for, in the words of whoever created it: up to 255 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 255))]
    #[x_kube(validation = text::of_label())]
    pub description: Option<String>,

    /// Whether events are recorded and sent. Events that happen while this is false are never sent.
    #[serde(default = "yes")]
    pub active: bool,

    /// Set to a new RFC 3339 time, such as the current one, to enable the webhook again after it was disabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_rfc3339")]
    pub enable_requested_at: Option<String>,
}

const fn yes() -> bool {
    true
}

fn event_types(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "minItems": 1, "maxItems": 8, "x-kubernetes-list-type": "set",
        "items": {
            "type": "string", "description": "An event type, such as instance.created.",
            "enum": EventType::ALL.map(EventType::as_str),
        }
    })
}

/// Why a webhook was disabled.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    JsonSchema,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
pub enum DisableReason {
    /// The last retry of a delivery failed.
    RetriesExhausted,
    /// The receiver responded with 410 Gone.
    Gone,
}

impl DisableReason {
    /// The reason as the status spells it.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// When and why a webhook was disabled, and which delivery caused it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disabled {
    /// When the webhook was disabled.
    #[schemars(schema_with = "times::time")]
    pub at: Timestamp,
    /// Why, as one CamelCase word for programs.
    pub reason: DisableReason,
    /// Why, as a message for people.
    pub message: String,
    /// Name of the Delivery whose failure disabled the webhook.
    pub delivery: String,
    /// Id of that delivery's event, `evt_…`.
    pub event_id: String,
    /// Type of that event.
    pub event_type: EventType,
    /// Number of attempts of that delivery.
    #[schemars(extend("format" = "int32"))]
    pub attempts: i32,
    /// Status code of the last response, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int32"))]
    pub last_status_code: Option<i32>,
    /// Why the last attempt failed.
    pub error: String,
    /// The generation of the spec that was disabled. A later generation is enabled.
    #[schemars(extend("format" = "int64"))]
    pub generation: i64,
    /// When the account holder was notified by e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub notified_at: Option<Timestamp>,
    /// Why the notification e-mail could not be sent yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notification_error: Option<String>,
}

/// A time in which deliveries were held or dropped because there were too many. The account holder is notified of it once.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BacklogPeriod {
    /// When the condition Backlog became True.
    #[schemars(schema_with = "times::time")]
    pub since: Timestamp,
    /// `status.dropped` at that time.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub dropped_before: i64,
    /// When the account holder was notified by e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub notified_at: Option<Timestamp>,
    /// Why the notification e-mail could not be sent yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notification_error: Option<String>,
}

/// Health and counters of a webhook.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookStatus {
    /// Public identifier, `wh_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,

    /// The generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("format" = "int64"))]
    pub observed_generation: Option<i64>,

    /// Set while the webhook is disabled: its events are held instead of sent. Any change of the spec enables it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled: Option<Disabled>,

    /// The last disablement that ended before the account holder could be notified of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unnotified: Option<Disabled>,

    /// Set while the condition Backlog is True, and after that until the account holder has been notified of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<BacklogPeriod>,

    /// When the account holder was last sent an e-mail about this webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub notified_at: Option<Timestamp>,

    /// Number of deliveries that wait for an attempt.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub pending: i64,

    /// Number of deliveries held until the webhook can receive deliveries again and there is room for them.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub held: i64,

    /// Number of deliveries that succeeded since the webhook was created. Updated at most every ten seconds.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub delivered: i64,

    /// Number of attempts that failed since the webhook was created.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub failed_attempts: i64,

    /// Number of deliveries that were dropped because there were too many. Updated at most every ten seconds.
    #[serde(default)]
    #[schemars(extend("format" = "int64"))]
    pub dropped: i64,

    /// When a delivery last succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub last_success_at: Option<Timestamp>,

    /// When an attempt last failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub last_failure_at: Option<Timestamp>,

    /// Why that attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,

    /// After a rotation: until when deliveries are signed with the previous secret too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_time")]
    pub previous_secret_expires_at: Option<Timestamp>,

    /// Ready, Healthy, SecretReady; Backlog once there were too many deliveries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

impl Webhook {
    /// The owner reference of the Deliveries of the Webhook with this name and UID.
    pub fn owner_reference(name: &str, uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: Self::api_version(&()).into_owned(),
            kind: Self::kind(&()).into_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            ..OwnerReference::default()
        }
    }

    /// The public id, a pure function of the object (decisions, section 2).
    pub fn id(&self) -> String {
        ids::webhook_id(
            self.metadata.name.as_deref().unwrap_or_default(),
            origin::uid(&self.metadata),
        )
    }

    /// Whether this webhook may use a Secret: its own, or one with the [`WEBHOOK_SECRET_LABEL`].
    pub fn may_use(&self, secret: &Secret) -> bool {
        let labels = secret.metadata.labels.as_ref();
        let is_labelled = labels.and_then(|labels| labels.get(WEBHOOK_SECRET_LABEL));
        is_labelled.is_some_and(|value| value == "true") || self.owns(secret)
    }

    /// Whether a Secret is the webhook's own: this Webhook is its controlling owner.
    pub fn owns(&self, secret: &Secret) -> bool {
        super::controls(self, &secret.metadata)
    }

    /// Whether REST has just created this webhook and is about to create its Secret, so that one that is missing is no problem.
    pub fn awaits_secret(&self, now: Timestamp) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        let announced = annotations.and_then(|all| all.get(SECRET_CHANGED_ANNOTATION));
        announced.is_some_and(|value| value == SECRET_PENDING)
            && now.duration_since(self.created_at()) < SECRET_GRACE
    }

    /// The version of the Secret that REST has announced with this version of the webhook or an earlier one.
    pub fn announced_secret(&self) -> Option<u64> {
        let announced = self
            .metadata
            .annotations
            .as_ref()?
            .get(SECRET_CHANGED_ANNOTATION)?;
        let own = self.metadata.resource_version.as_ref()?.parse().ok()?;
        // Account holders can write the annotation, too. The API server waits for a version that does not exist yet.
        announced.parse().ok().filter(|version| *version <= own)
    }

    /// When the object was created.
    pub fn created_at(&self) -> Timestamp {
        origin::created_at(&self.metadata).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// Whether the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// The disablement in `status`, if it applies to the current spec.
    pub fn disabled(&self) -> Option<&Disabled> {
        self.status
            .as_ref()?
            .disabled
            .as_ref()
            .filter(|disabled| Some(disabled.generation) == self.metadata.generation)
    }

    /// The latest disablement that the account holder has not been notified of, whether it lasts or not.
    pub fn untold(&self) -> Option<&Disabled> {
        let lasting = self.disabled();
        let ended = || self.status.as_ref()?.unnotified.as_ref();
        match lasting {
            Some(disabled) => Some(disabled).filter(|disabled| disabled.notified_at.is_none()),
            None => ended(),
        }
    }

    /// The backlog that the account holder has not been notified of, whether it lasts or not.
    pub fn untold_backlog(&self) -> Option<&BacklogPeriod> {
        let backlog = self.status.as_ref()?.backlog.as_ref();
        backlog.filter(|backlog| backlog.notified_at.is_none())
    }

    /// Whether events are sent, as `active` in REST shows it: `spec.active`, and not disabled.
    pub fn is_active(&self) -> bool {
        self.spec.active && self.disabled().is_none()
    }

    /// Whether `spec.events` lists this type.
    pub fn wants(&self, event_type: EventType) -> bool {
        self.spec.events.contains(&event_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_secret_has_the_form_of_standard_webhooks() {
        let secret = random_secret();
        let encoded = secret.strip_prefix("whsec_").unwrap();
        assert_eq!(BASE64_STANDARD.decode(encoded).unwrap().len(), 32);
        assert_ne!(secret, random_secret());
    }
}
