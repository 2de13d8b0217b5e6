//! Public identifiers: pure functions of an object's name and UID (decisions, section 2).

use rand::RngExt as _;
use sha2::{Digest, Sha256};

/// Characters of an id's suffix.
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
/// Length of an id's suffix.
const SUFFIX: usize = 16;

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
    format!("usr_{}", derived_suffix(uid.as_bytes()))
}

/// Whether `name` has the form `i-<16 of [a-z0-9]>`.
pub fn is_instance_id(name: &str) -> bool {
    name.strip_prefix("i-")
        .is_some_and(|suffix| suffix.len() == SUFFIX && suffix.bytes().all(|b| ALPHABET.contains(&b)))
}

/// A fresh random instance id (about 82 bits).
pub fn random_instance_id() -> String {
    format!("i-{}", random_suffix())
}

/// A random suffix of 16 characters of `[a-z0-9]`.
pub fn random_suffix() -> String {
    let mut rng = rand::rng();
    (0..SUFFIX)
        .map(|_| char::from(ALPHABET[rng.random_range(0..ALPHABET.len())]))
        .collect()
}

/// A suffix of 16 characters of `[a-z0-9]` that is a function of `seed` alone.
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
    fn random_ids_have_the_form_and_differ() {
        let (a, b) = (random_instance_id(), random_instance_id());
        assert!(is_instance_id(&a) && is_instance_id(&b));
        assert_ne!(a, b);
    }
}
