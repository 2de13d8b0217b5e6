//! `ApiKey`: one REST key, stored only as the digest of a random secret.

use jiff::{SignedDuration, Timestamp, civil::Date};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{conditions, ids, names, text, times, validation};

/// API keys that an account may have unless the operator's settings say otherwise (decisions, section 8).
pub const DEFAULT_KEY_QUOTA: u32 = 50;

/// What keys begin with.
pub const PREFIX: &str = "stl_";
/// Random characters of a key or of a link's token, of 62 kinds: 256 bits.
const RANDOM: usize = 43;
/// How long a sign-in link of the console works.
pub const LINK_LASTS: SignedDuration = SignedDuration::from_mins(15);
/// How long the ApiKey of a link works, and with it the session that the link starts.
pub const KEY_LASTS: SignedDuration = SignedDuration::from_hours(12);

/// What a key may do.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Deserialize,
    Serialize,
    schemars::JsonSchema,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum KeyScope {
    /// GET only; other methods are refused with 403 `token_readonly`.
    Read,
    /// All methods.
    #[default]
    Write,
}

/// A REST key of the account whose namespace it is in. Deleting it revokes the key within a second.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[kube(
    group = "stellage.dev",
    version = "v1",
    kind = "ApiKey",
    plural = "apikeys",
    shortname = "key",
    category = "stellage",
    namespaced,
    status = "ApiKeyStatus",
    derive = "PartialEq",
    doc = "One REST key of the account whose namespace it is in. Only the digest of the key is stored, so nothing here is secret. Delete the object to revoke the key.",
    printcolumn(name = "Scope", type_ = "string", json_path = ".spec.scope"),
    printcolumn(name = "Ends-In", type_ = "string", json_path = ".spec.lastCharacters"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".spec.expiresAt"),
    printcolumn(name = "Last-Used", type_ = "string", json_path = ".status.lastUsedOn"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "For", type_ = "string", json_path = ".spec.name", priority = 1),
    selectable = ".spec.writeSecretRef.name"
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.sha256) != has(self.writeSecretRef)")
    .message("give either sha256, of a key that you have made, or writeSecretRef, for a key that the operator makes"))]
#[x_kube(validation = Rule::new("has(self.sha256) == has(oldSelf.sha256)")
    .message("sha256 and writeSecretRef are immutable: delete this ApiKey and create another"))]
pub struct ApiKeySpec {
    /// SHA-256, as 64 lower-case hexadecimal digits, of the bytes of the Account's UID, one line feed (0x0A), and the key as it
    /// stands after `Bearer `. The UID is that in the Account's annotation `stellage.dev/origin`, or else its `metadata.uid`. The key
    /// is `stl_`, the Account's `status.installation` and `_` if there is one, the 16 characters after `usr_` in the Account's `status.id`,
    /// and 43 random letters and digits. In any other account the digest is worth nothing. Immutable.
    #[x_kube(validation = Rule::new("self.matches('^[0-9a-f]{64}$')").message("must be the SHA-256 of the key as 64 lower-case hexadecimal digits; `stellage key create` creates one"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is immutable: delete this ApiKey and create another"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub sha256: Option<String>,

    /// Instead of `sha256`: the operator makes the key and writes it into a Secret, so that it needs no other tool. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is immutable: delete this ApiKey and create another"))]
    pub write_secret_ref: Option<WriteSecretReference>,

    /// What the key is for, in the words of whoever created it: up to 63 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = text::of_label())]
    pub name: Option<String>,

    /// `read` or `write`.
    #[serde(default)]
    pub scope: KeyScope,

    /// When the key stops working. Default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_moment")]
    pub expires_at: Option<Timestamp>,

    /// The key's last four characters, to tell keys apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    #[x_kube(validation = Rule::new("self.matches('^[!-~]*$')").message("must be visible ASCII characters"))]
    pub last_characters: Option<String>,
}

/// The Secret that the operator writes a key into, once.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteSecretReference {
    /// Name of a Secret in the same namespace, which must not exist: the operator creates it, and it goes with the ApiKey. Whoever may read
    /// it has the key.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::of_object())]
    pub name: String,
    /// Key in that Secret, whose value is the REST key.
    #[serde(default = "default_entry")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be letters, digits, '-', '_' or '.'"))]
    pub key: String,
}

fn default_entry() -> String {
    "key".to_owned()
}

/// What the operator has seen of a key, and made. The REST API writes the day of its last use, the controllers the rest.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.sha256) || has(self.sha256)").message("sha256 is never taken away"))]
pub struct ApiKeyStatus {
    /// The latest day, in UTC, on which a request came with the key, or from the console of somebody who has signed in with it. It is
    /// written within seconds of the first request of a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "times::optional_latest_day")]
    pub last_used_on: Option<Date>,

    /// With `spec.writeSecretRef`: the digest of the key in the Secret, as `spec.sha256` otherwise is. It is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("is never changed"))]
    pub sha256: Option<String>,

    /// With `spec.writeSecretRef`: the last four characters of the key in the Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    pub last_characters: Option<String>,

    /// With `spec.writeSecretRef`: Ready (the key is in the Secret, and works).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions::schema")]
    pub conditions: Vec<Condition>,
}

/// The digest of a key: SHA-256 of the Account's UID, a line feed and the key.
pub fn digest(account_uid: &str, key: &str) -> [u8; 32] {
    // Neither part can contain a line feed: a header could not carry it.
    Sha256::new()
        .chain_update(account_uid)
        .chain_update("\n")
        .chain_update(key)
        .finalize()
        .into()
}

/// Annotation of an ApiKey with the one-time sign-in link of the console that it was made for: `<SHA-256 of the link's token> <deadline>`.
/// Whoever uses the link takes the annotation away, so nobody can use it again.
pub const LINK_ANNOTATION: &str = "stellage.dev/console-link";

/// Label of an ApiKey that a sign-in to the console through OpenID Connect has made: nobody knows the key, so it is worth no more than
/// the session.
pub const SIGN_IN_LABEL: &str = "stellage.dev/sign-in";

/// A one-time sign-in link, as the annotation has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleLink {
    /// Digest of the Account's UID and the link's token, as [`digest`] makes it.
    pub digest: [u8; 32],
    /// When it stops working.
    pub deadline: Timestamp,
}

impl ConsoleLink {
    /// The link of an ApiKey, if it has one.
    pub fn of(key: &ApiKey) -> Option<Self> {
        let text = key.metadata.annotations.as_ref()?.get(LINK_ANNOTATION)?;
        let (hash, deadline) = text.split_once(' ')?;
        let mut digest = [0; 32];
        hex::decode_to_slice(hash, &mut digest).ok()?;
        Some(Self {
            digest,
            deadline: deadline.parse().ok()?,
        })
    }

    /// The value of the annotation.
    pub fn annotation(&self) -> String {
        format!("{} {}", hex::encode(self.digest), self.deadline)
    }
}

/// The public id, without `usr_`, of the Account that a key names, so that its UID is found without a search; `None` for a key
/// of another form. The installation in which the key was made is for whoever passes requests on to one of several: the account may have
/// moved, and the installation may have got another name.
pub fn account_of(key: &str) -> Option<&str> {
    let rest = key.strip_prefix(PREFIX)?;
    let rest = match rest.split_once('_') {
        Some((installation, rest)) => validation::installation(installation).map(|()| rest).ok()?,
        None => rest,
    };
    let has_form =
        rest.len() == ids::SUFFIX + RANDOM && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    has_form.then(|| &rest[..ids::SUFFIX])
}

/// A new key of this installation for the Account with this UID, and the spec of its object. Without punctuation but underscores, so that a double
/// click selects it.
pub fn new_key(
    installation: Option<&str>,
    account_uid: &str,
    scope: KeyScope,
    expires_at: Option<Timestamp>,
) -> (String, ApiKeySpec) {
    let account = ids::account_id(account_uid);
    let installation = installation.map(|name| format!("{name}_")).unwrap_or_default();
    let account = ids::suffix_of_account(&account);
    let key = format!("{PREFIX}{installation}{account}{}", random());
    let spec = ApiKeySpec {
        sha256: Some(hex::encode(digest(account_uid, &key))),
        write_secret_ref: None,
        name: None,
        scope,
        expires_at,
        last_characters: Some(key[key.len() - 4..].to_owned()),
    };
    (key, spec)
}

/// A new link for the Account with this UID: its token, and what the annotation of its ApiKey holds.
pub fn new_link(account_uid: &str, now: Timestamp) -> (String, ConsoleLink) {
    let token = random();
    let link = ConsoleLink {
        digest: digest(account_uid, &token),
        deadline: now.saturating_add(LINK_LASTS).unwrap_or(now),
    };
    (token, link)
}

fn random() -> String {
    const ALPHABET: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut rng = rand::rng();
    (0..RANDOM)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}

/// A key of the Account with this UID that is not random.
#[cfg(any(test, feature = "testing"))]
pub fn test_key(account_uid: &str, secret: &str) -> String {
    let account = ids::account_id(account_uid);
    format!("{PREFIX}{}{secret:0>RANDOM$}", ids::suffix_of_account(&account))
}

impl ApiKey {
    /// Whether the key has expired at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.spec.expires_at.is_some_and(|end| end <= now)
    }

    /// The digest of the key, in hexadecimal digits; `None` until the operator has made the key.
    pub fn sha256(&self) -> Option<&str> {
        let made = || self.status.as_ref()?.sha256.as_deref();
        self.spec.sha256.as_deref().or_else(made)
    }

    /// The last characters of the key.
    pub fn last_characters(&self) -> Option<&str> {
        let made = || self.status.as_ref()?.last_characters.as_deref();
        self.spec.last_characters.as_deref().or_else(made)
    }

    /// The day on which it was last used.
    pub fn last_used_on(&self) -> Option<Date> {
        self.status.as_ref()?.last_used_on
    }

    /// Whether a sign-in to the console through OpenID Connect has made it.
    pub fn is_sign_in(&self) -> bool {
        let labels = self.metadata.labels.as_ref();
        labels.is_some_and(|labels| labels.contains_key(SIGN_IN_LABEL))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_link_is_read_from_its_annotation_and_belongs_to_one_account() {
        let now: Timestamp = "2026-11-22T10:00:00Z".parse().unwrap();
        let (token, link) = new_link("uid-a", now);
        assert_eq!(token.len(), RANDOM);
        assert_eq!(link.deadline, "2026-11-22T10:15:00Z".parse().unwrap());
        let mut key: ApiKey = serde_json::from_value(json!({
            "metadata": { "name": "a", "annotations": { LINK_ANNOTATION: link.annotation() } },
            "spec": { "sha256": "" },
        }))
        .unwrap();
        assert_eq!(ConsoleLink::of(&key), Some(link));
        assert_ne!(digest("uid-a", &token), digest("uid-b", &token));
        for wrong in ["", "00", "00 now", "zz 2026-11-22T10:15:00Z"] {
            let annotations = key.metadata.annotations.as_mut().unwrap();
            annotations.insert(LINK_ANNOTATION.to_owned(), wrong.to_owned());
            assert_eq!(ConsoleLink::of(&key), None, "{wrong}");
        }
    }
}
