//! Which account owns a namespace, and since when this process has known. Time of day is not used: the API server's may differ from
//! this machine's, which somebody may set back.

use std::{collections::HashMap, time::Instant};

/// The owners of namespaces.
#[derive(Debug, Default)]
pub(super) struct Owners {
    by_namespace: HashMap<Box<str>, Owner>,
}

#[derive(Debug)]
struct Owner {
    /// UID of the Account.
    uid: String,
    since: Instant,
}

impl Owners {
    /// Records that a namespace belongs to the Account with this UID, or to none.
    pub(super) fn changed(&mut self, namespace: &str, uid: Option<String>, now: Instant) {
        match uid {
            None => {
                self.by_namespace.remove(namespace);
            }
            Some(uid) if self.owner_at(namespace, now) == Some(&uid) => {}
            Some(uid) => {
                let owner = Owner { uid, since: now };
                self.by_namespace.insert(namespace.into(), owner);
            }
        }
    }

    /// The UID of the Account that owns a namespace, if the same Account already owned it at that time.
    pub(super) fn owner_at(&self, namespace: &str, at: Instant) -> Option<&str> {
        let owner = self.by_namespace.get(namespace)?;
        (owner.since <= at).then_some(owner.uid.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_namespace_belongs_to_an_account_from_when_this_process_saw_it() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut owners = Owners::default();
        owners.changed("demo", Some("first".to_owned()), at(10));
        owners.changed("demo", Some("first".to_owned()), at(20));
        assert_eq!(owners.owner_at("demo", at(9)), None);
        assert_eq!(owners.owner_at("demo", at(10)), Some("first"));
        owners.changed("demo", Some("second".to_owned()), at(30));
        assert_eq!(owners.owner_at("demo", at(29)), None, "it was the former one's");
        assert_eq!(owners.owner_at("demo", at(30)), Some("second"));
        owners.changed("demo", None, at(40));
        assert_eq!(owners.owner_at("demo", at(50)), None);
        assert!(owners.by_namespace.is_empty());
    }
}
