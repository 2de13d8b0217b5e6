//! The identity of an object beyond the life of its API object: the UID and creation time that it had first. Ids, digests of keys, names
//! of deliveries, servers and bills derive from it, so what any tool saves and writes back is the same account, server, webhook or
//! backup. The API server gives each new object another UID and creation time, and nobody else can set these.

use std::fmt::Display;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// Annotation of Accounts, Instances, `PrivateNetworks`, Webhooks and Backups: `<UID> <creation time>` of the first object. The operator writes it
/// with its first write to the object, or when it creates one. An admission policy lets nobody else write it but cluster administrators.
pub const ORIGIN_ANNOTATION: &str = "stellage.dev/origin";

/// How much later than its origin an object must have been created to count as restored. What the operator creates has the time of
/// its own clock as origin, which may differ from the API server's by a minute.
const RESTORED_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// The UID that an object was first created with. Preconditions and owner references need `metadata.uid` instead.
pub fn uid(metadata: &ObjectMeta) -> &str {
    match parts(metadata) {
        Some((uid, _)) => uid,
        None => metadata.uid.as_deref().unwrap_or_default(),
    }
}

/// When an object was first created.
pub fn created_at(metadata: &ObjectMeta) -> Option<Timestamp> {
    match parts(metadata) {
        Some((_, created)) => Some(created),
        None => metadata.creation_timestamp.as_ref().map(|time| time.0),
    }
}

/// Whether the object was saved and written back, rather than just created.
pub fn is_restored(metadata: &ObjectMeta) -> bool {
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    parts(metadata)
        .zip(created)
        .is_some_and(|((_, first), created)| created.duration_since(first) >= RESTORED_AFTER)
}

/// The sequence number from which the events of an object count that was restored without its status: past all that there were.
pub fn sequence(metadata: &ObjectMeta) -> i64 {
    let created = metadata.creation_timestamp.as_ref();
    created.map_or(0, |time| time.0.as_second())
}

/// Whether the annotation still has to be written.
pub fn is_missing(metadata: &ObjectMeta) -> bool {
    parts(metadata).is_none()
}

/// Adds the annotation to a merge patch of an object that has none.
pub fn add_to(patch: &mut Value, metadata: &ObjectMeta) {
    if is_missing(metadata)
        && let Some(created) = created_at(metadata)
    {
        patch["metadata"]["annotations"][ORIGIN_ANNOTATION] = annotation(uid(metadata), created).into();
    }
}

/// The value of the annotation.
pub fn annotation(uid: &str, created: impl Display) -> String {
    format!("{uid} {created}")
}

/// The value of the annotation for an object that is about to be created, before the API server has given it a UID.
pub fn of_new(now: Timestamp) -> String {
    let bits = rand::random::<u128>();
    // A random UUID has version 4 and variant 1 (RFC 9562).
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now);
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    annotation(&parts.join("-"), second)
}

/// Of two objects with one origin, the older one has it: compares objects by age, then UID.
pub fn age(metadata: &ObjectMeta) -> (Option<Timestamp>, &str) {
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, metadata.uid.as_deref().unwrap_or_default())
}

/// The name of another object that has the origin of this one and is older, among `others` of the same kind and account.
pub fn older_twin<'a>(
    metadata: &ObjectMeta,
    others: impl IntoIterator<Item = &'a ObjectMeta>,
) -> Option<String> {
    let is_twin = |other: &&ObjectMeta| {
        other.uid != metadata.uid && uid(other) == uid(metadata) && age(other) < age(metadata)
    };
    let older = others.into_iter().find(is_twin)?;
    older.name.clone()
}

fn parts(metadata: &ObjectMeta) -> Option<(&str, Timestamp)> {
    let (uid, created) = metadata
        .annotations
        .as_ref()?
        .get(ORIGIN_ANNOTATION)?
        .split_once(' ')?;
    Some((uid, created.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(uid: &str, created: &str, origin: Option<&str>) -> ObjectMeta {
        let mut metadata = json!({ "name": uid, "uid": uid, "creationTimestamp": created });
        if let Some(origin) = origin {
            metadata["annotations"] = json!({ ORIGIN_ANNOTATION: origin });
        }
        serde_json::from_value(metadata).unwrap()
    }

    #[test]
    fn a_restored_object_keeps_uid_and_creation_time_of_the_first_one() {
        let of = |origin| {
            let metadata = object("new", "2026-11-23T10:00:00Z", origin);
            (
                uid(&metadata).to_owned(),
                created_at(&metadata).unwrap().to_string(),
            )
        };
        let own = ("new".to_owned(), "2026-11-23T10:00:00Z".to_owned());
        let first = ("old".to_owned(), "2026-11-21T10:00:00Z".to_owned());
        assert_eq!(of(None), own);
        assert_eq!(of(Some("old 2026-11-21T10:00:00Z")), first);
        assert_eq!(of(Some("nonsense")), own);
    }

    #[test]
    fn an_object_counts_as_restored_only_if_it_is_clearly_younger_than_its_origin() {
        let first = Some("old 2026-11-21T10:00:00Z");
        for (created, is) in [
            ("2026-11-21T09:00:00Z", false),
            ("2026-11-21T10:01:59Z", false),
            ("2026-11-21T10:02:00Z", true),
        ] {
            assert_eq!(is_restored(&object("new", created, first)), is, "{created}");
        }
        assert!(!is_restored(&object("new", "2026-11-21T10:02:00Z", None)));
    }

    #[test]
    fn the_first_write_adds_the_annotation_and_later_ones_leave_it_alone() {
        let mut metadata = object("one", "2026-11-21T10:00:00Z", None);
        let mut patch = json!({ "metadata": { "finalizers": [] } });
        add_to(&mut patch, &metadata);
        let value = "one 2026-11-21T10:00:00Z";
        let expected =
            json!({ "metadata": { "finalizers": [], "annotations": { ORIGIN_ANNOTATION: value } } });
        assert_eq!(patch, expected);
        metadata.annotations = Some([(ORIGIN_ANNOTATION.to_owned(), value.to_owned())].into());
        let mut patch = json!({});
        add_to(&mut patch, &metadata);
        assert_eq!(patch, json!({}));
    }

    #[test]
    fn a_new_origin_is_a_random_uuid_and_the_second() {
        let now = "2026-11-21T10:00:00.7Z".parse().unwrap();
        let (one, other) = (of_new(now), of_new(now));
        assert_ne!(one, other);
        let (uid, created) = one.split_once(' ').unwrap();
        assert_eq!(created, "2026-11-21T10:00:00Z");
        let lengths: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(
            uid.as_bytes()[14] == b'4' && "89ab".contains(char::from(uid.as_bytes()[19])),
            "{uid}"
        );
    }

    #[test]
    fn of_two_objects_with_one_origin_the_older_has_it() {
        let origin = Some("old 2026-11-21T10:00:00Z");
        let older = object("b", "2026-11-23T10:00:00Z", origin);
        let younger = object("a", "2026-11-23T10:00:01Z", origin);
        let other = object("c", "2026-11-20T10:00:00Z", None);
        let all = [&older, &younger, &other];
        assert_eq!(older_twin(&younger, all), Some("b".to_owned()));
        assert_eq!(older_twin(&older, all), None);
        assert_eq!(older_twin(&other, all), None);
        let same_age = object("a", "2026-11-23T10:00:00Z", origin);
        assert_eq!(older_twin(&older, [&same_age]), Some("a".to_owned()), "by UID");
    }
}
