//! Public identifiers: pure functions of an object's name and UID (decisions, section 2).

use rand::RngExt as _;
use sha2::{Digest, Sha256};

/// Characters of an id's suffix.
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Length of an id's suffix.
pub const SUFFIX: usize = 16;
/// What the ids of Accounts begin with.
const ACCOUNT_PREFIX: &str = "usr_";

/// The id of an Instance: its name if that has the form of an id, else `i-` and a suffix derived from its UID.
pub fn instance_id(name: &str, uid: &str) -> String {
    if is_instance_id(name) {
        name.to_owned()
    } else {
        format!("i-{}", derived_suffix(uid.as_bytes()))
    }
}

/// The id of an Account: `usr_` and a suffix derived from its UID.
pub fn account_id(uid: &str) -> String {
    format!("{ACCOUNT_PREFIX}{}", derived_suffix(uid.as_bytes()))
}

/// What follows `usr_` in the id of an Account.
pub fn suffix_of_account(id: &str) -> &str {
    id.strip_prefix(ACCOUNT_PREFIX).unwrap_or(id)
}

/// The id of a Webhook: `wh_` and the suffix of its name if that has the form `wh-<16 of [a-z0-9]>`, else a suffix derived
/// from its UID.
pub fn webhook_id(name: &str, uid: &str) -> String {
    match name.strip_prefix("wh-").filter(|suffix| is_suffix(suffix)) {
        Some(suffix) => format!("wh_{suffix}"),
        None => format!("wh_{}", derived_suffix(uid.as_bytes())),
    }
}

/// The name of the Webhook with this id, if it was created through REST; `None` if `id` is not a webhook id.
pub fn webhook_name(id: &str) -> Option<String> {
    let suffix = id.strip_prefix("wh_").filter(|suffix| is_suffix(suffix))?;
    Some(format!("wh-{suffix}"))
}

/// The id of a Backup: `bkp_` and the suffix of its name if that has the form `bkp-<16 of [a-z0-9]>`, else a suffix derived from
/// its UID.
pub fn backup_id(name: &str, uid: &str) -> String {
    match name.strip_prefix("bkp-").filter(|suffix| is_suffix(suffix)) {
        Some(suffix) => format!("bkp_{suffix}"),
        None => format!("bkp_{}", derived_suffix(uid.as_bytes())),
    }
}

/// The name of the Backup with this id, if REST or the schedule created it; `None` if `id` is not a backup id.
pub fn backup_name(id: &str) -> Option<String> {
    let suffix = id.strip_prefix("bkp_").filter(|suffix| is_suffix(suffix))?;
    Some(format!("bkp-{suffix}"))
}

/// The id of a `PrivateNetwork`: its name if that has the form `pn-<16 of [a-z0-9]>`, else `pn-` and a suffix derived from its UID.
pub fn network_id(name: &str, uid: &str) -> String {
    network_name(name).unwrap_or_else(|| format!("pn-{}", derived_suffix(uid.as_bytes())))
}

/// The name of the `PrivateNetwork` with this id, if REST created it; `None` if `id` is not the id of one.
pub fn network_name(id: &str) -> Option<String> {
    let is_id = id.strip_prefix("pn-").is_some_and(is_suffix);
    is_id.then(|| id.to_owned())
}

/// The name of a Backup that is derived from `seed`.
pub fn derived_backup_name(seed: &str) -> String {
    format!("bkp-{}", derived_suffix(seed.as_bytes()))
}

/// The name of an account's invoice whose period begins at `from` (RFC 3339). Derived from both, so that there is never a second
/// one.
pub fn invoice_name(account_uid: &str, from: &str) -> String {
    let suffix = derived_suffix(format!("{account_uid}\n{from}").as_bytes());
    format!("inv-i{}", &suffix[1..])
}

/// The name of a credit note that is asked for. None is ever that of an invoice, however it is chosen: an admission policy asks for it.
pub fn credit_note_name(seed: &str) -> String {
    format!("inv-c{}", &derived_suffix(seed.as_bytes())[1..])
}

/// The id of an Invoice: its name with `inv_` in place of `inv-`.
pub fn invoice_id(name: &str) -> String {
    match name.strip_prefix("inv-") {
        Some(suffix) => format!("inv_{suffix}"),
        None => name.to_owned(),
    }
}

/// The name of the Invoice with this id; `None` if `id` is not an invoice id.
pub fn invoice_name_of(id: &str) -> Option<String> {
    let suffix = id.strip_prefix("inv_").filter(|suffix| is_suffix(suffix))?;
    Some(format!("inv-{suffix}"))
}

/// The id of an event, derived from its object's UID and its sequence number, so that a transition recorded twice is one
/// event.
pub fn event_id(uid: &str, sequence: i64) -> String {
    format!("evt_{}", derived_suffix(format!("{uid}\n{sequence}").as_bytes()))
}

/// The id of an alert: `alr_` and a suffix derived from its instance's UID and the sequence number of its event.
pub fn alert_id(uid: &str, sequence: i64) -> String {
    format!(
        "alr_{}",
        derived_suffix(format!("{uid}\nalert\n{sequence}").as_bytes())
    )
}

/// The name of the Delivery of an event to a webhook. Derived from both, so that there is never a second one.
pub fn delivery_name(webhook_uid: &str, event_id: &str) -> String {
    format!(
        "dlv-{}",
        derived_suffix(format!("{webhook_uid}\n{event_id}").as_bytes())
    )
}

/// The id of a Delivery: its name with `dlv_` in place of `dlv-`.
pub fn delivery_id(name: &str) -> String {
    match name.strip_prefix("dlv-") {
        Some(suffix) => format!("dlv_{suffix}"),
        None => name.to_owned(),
    }
}

/// The name of the Delivery with this id; `None` if `id` is not a delivery id.
pub fn delivery_name_of(id: &str) -> Option<String> {
    let suffix = id.strip_prefix("dlv_").filter(|suffix| is_suffix(suffix))?;
    Some(format!("dlv-{suffix}"))
}

fn is_suffix(text: &str) -> bool {
    text.len() == SUFFIX && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9'))
}

/// Whether `name` has the form `i-<16 of [a-z0-9]>`.
pub fn is_instance_id(name: &str) -> bool {
    name.strip_prefix("i-").is_some_and(is_suffix)
}

/// Whether `id` has the form of the id of an event that has happened, `evt_<16 of [a-z0-9]>`: not that of a test event.
pub fn is_event_id(id: &str) -> bool {
    id.strip_prefix("evt_").is_some_and(is_suffix)
}

/// Whether `name` may be the name of an object (a DNS subdomain name, RFC 1123). Any other text must not become part of a path of the
/// API server.
pub fn is_object_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let mut bytes = name.bytes();
    name.len() <= 253
        && bytes.clone().next().is_some_and(is_inner)
        && bytes.clone().next_back().is_some_and(is_inner)
        && bytes.all(|byte| is_inner(byte) || byte == b'-' || byte == b'.')
}

/// A random suffix of 16 characters of `[a-z0-9]` (about 82 bits).
pub fn random_suffix() -> String {
    let mut rng = rand::rng();
    (0..SUFFIX)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}

/// A suffix of 16 characters of `[a-z0-9]`, derived from `seed`.
pub fn derived_suffix(seed: &[u8]) -> String {
    let digest = Sha256::digest(seed);
    let mut number = digest
        .iter()
        .take(16)
        .fold(0_u128, |n, byte| (n << 8) | u128::from(*byte));
    (0..SUFFIX)
        .map(|_| {
            let index = usize::try_from(number % 36).unwrap_or(0);
            number /= 36;
            char::from(ALPHABET[index])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_the_form_of_an_id_is_the_id() {
        assert_eq!(instance_id("i-abcdefgh01234567", "uid"), "i-abcdefgh01234567");
    }

    #[test]
    fn any_other_name_gets_an_id_from_the_uid_alone() {
        for name in ["web", "i-short", "i-ABCDEFGH01234567", "i-abcdefgh012345678"] {
            let id = instance_id(name, "5d3c9d6e-0000-4000-8000-000000000001");
            assert!(is_instance_id(&id), "{id}");
            assert_eq!(id, instance_id("another", "5d3c9d6e-0000-4000-8000-000000000001"));
            assert_ne!(id, instance_id(name, "5d3c9d6e-0000-4000-8000-000000000002"));
        }
    }

    #[test]
    fn webhooks_and_deliveries_are_found_by_their_ids() {
        assert_eq!(webhook_id("wh-abcdefgh01234567", "uid"), "wh_abcdefgh01234567");
        let derived = webhook_id("orders", "uid");
        assert!(derived.starts_with("wh_") && derived == webhook_id("other", "uid"));
        assert_eq!(
            webhook_name("wh_abcdefgh01234567").as_deref(),
            Some("wh-abcdefgh01234567")
        );
        assert_eq!(webhook_name("wh_short"), None);
        let name = delivery_name("uid", "evt_1");
        assert_ne!(name, delivery_name("uid", "evt_2"));
        assert_eq!(
            delivery_name_of(&delivery_id(&name)).as_deref(),
            Some(name.as_str())
        );
        assert_eq!(delivery_name_of("dlv-abcdefgh01234567"), None);
    }

    #[test]
    fn an_event_is_named_by_object_and_transition() {
        assert_eq!(event_id("uid", 1), event_id("uid", 1));
        assert_ne!(event_id("uid", 1), event_id("uid", 2));
        assert_ne!(event_id("uid", 1), event_id("other", 1));
    }

    #[test]
    fn random_suffixes_make_ids_and_differ() {
        let (a, b) = (random_suffix(), random_suffix());
        assert!(is_instance_id(&format!("i-{a}")) && is_instance_id(&format!("i-{b}")));
        assert_ne!(a, b);
    }
}
