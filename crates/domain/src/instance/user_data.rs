//! The user data of an instance: the Secret that holds it, and which operations need it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource as _;

use crate::{provider::Trouble, user_data::UserData};
use resources::{
    Instance, MANAGED_BY, OperationKind,
    instance::{USER_DATA_KEY, USER_DATA_LABEL, UserDataReference},
};

/// How long after its creation an instance waits for its Secret without a word. The Secret needs the instance's UID for its owner
/// reference, so REST creates it second, and `kubectl apply` creates the objects of a file in their order.
const SECRET_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// Reason of the condition of an instance whose user data is missing.
pub const USER_DATA_MISSING: &str = "UserDataMissing";
/// Reason of the condition of an instance whose user data cannot be used.
pub const USER_DATA_INVALID: &str = "UserDataInvalid";

/// Whether an operation installs a server, for which it needs the user data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installs {
    /// It does not.
    No,
    /// It does if there is no server any more.
    IfMissing,
    /// It does.
    Yes,
}

impl Installs {
    /// Whether the operation in the status of an instance installs a server.
    pub fn of(instance: &Instance) -> Self {
        let Some(status) = &instance.status else {
            return Self::No;
        };
        let Some(operation) = &status.operation else {
            return Self::No;
        };
        match operation.kind {
            OperationKind::Create | OperationKind::Rebuild => Self::Yes,
            // The first operation that boots a server creates it.
            OperationKind::Start | OperationKind::Reboot | OperationKind::Resize
                if status.provisioned_at.is_none() =>
            {
                Self::Yes
            }
            OperationKind::Start => Self::IfMissing,
            _ => Self::No,
        }
    }
}

/// The reference of an instance with this name to a new Secret. The name of the Secret is random, so that none that is left over
/// from another instance has it.
pub fn reference(instance_name: &str, random: &str) -> UserDataReference {
    UserDataReference {
        name: format!("{instance_name}-{random}"),
        key: USER_DATA_KEY.to_owned(),
    }
}

/// The Secret with the user data of an instance, which owns it; `None` if the instance has none.
pub fn secret(instance: &Instance, user_data: &str, annotations: BTreeMap<String, String>) -> Option<Secret> {
    let reference = instance.spec.user_data_ref.as_ref()?;
    let managed = (MANAGED_BY.0.to_owned(), MANAGED_BY.1.to_owned());
    let owner = instance.controller_owner_ref(&());
    Some(Secret {
        metadata: ObjectMeta {
            name: Some(reference.name.clone()),
            namespace: instance.metadata.namespace.clone(),
            labels: Some(BTreeMap::from([managed])),
            annotations: Some(annotations),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([(
            reference.key.clone(),
            ByteString(user_data.as_bytes().to_vec()),
        )])),
        ..Secret::default()
    })
}

/// Whether an instance is so new that a missing Secret is probably about to be created.
pub fn awaits_secret(instance: &Instance, now: Timestamp) -> bool {
    // Not the time of its origin: it may have been restored.
    let created = instance.metadata.creation_timestamp.as_ref();
    created.is_some_and(|created| now.duration_since(created.0) < SECRET_GRACE)
}

/// The user data in the Secret that an instance refers to, or what is wrong.
pub fn of_secret(
    instance: &Instance,
    reference: &UserDataReference,
    secret: Option<&Secret>,
) -> Result<UserData, Trouble> {
    let UserDataReference { name, key } = reference;
    let missing = |message: String| Trouble {
        reason: USER_DATA_MISSING,
        message,
    };
    // The same words whether it exists or not: account holders may not read all Secrets.
    let Some(secret) = secret.filter(|secret| instance.may_use(secret)) else {
        return Err(missing(format!(
            "the server is not installed without its user data, and there is no Secret {name} for it in this namespace; create it with the user data under the key {key} and the label {USER_DATA_LABEL}: \"true\""
        )));
    };
    let value = secret.data.as_ref().and_then(|data| data.get(key));
    let Some(value) = value else {
        return Err(missing(format!(
            "the server is not installed without its user data, and the Secret {name} has no key {key}; add it under that key"
        )));
    };
    UserData::parse(&value.0).map_err(|problem| Trouble {
        reason: USER_DATA_INVALID,
        message: format!(
            "the server is not installed, because its user data, which the Secret {name} has under the key {key}, {problem}"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::testing;

    fn instance() -> Instance {
        testing::instance(json!({
            "metadata": { "creationTimestamp": "2026-11-27T10:00:00Z" },
            "spec": { "userDataRef": { "name": "boot" } },
        }))
    }

    fn read(instance: &Instance, secret: Option<&Secret>) -> Result<UserData, &'static str> {
        let reference = instance.spec.user_data_ref.as_ref().unwrap();
        of_secret(instance, reference, secret).map_err(|trouble| {
            assert!(
                trouble.message.contains("boot") && trouble.message.contains("user-data"),
                "{trouble:?}"
            );
            assert!(!trouble.message.contains("hunter2"), "{trouble:?}");
            trouble.reason
        })
    }

    #[test]
    fn user_data_is_read_from_its_own_secret_or_one_with_the_label_and_from_no_other() {
        let instance = instance();
        let own = secret(&instance, "#!/bin/sh\n", BTreeMap::new()).unwrap();
        assert_eq!(own.metadata.name.as_deref(), Some("boot"));
        let found = read(&instance, Some(&own)).unwrap();
        assert_eq!(found.text(), "#!/bin/sh\n");
        assert_eq!(read(&instance, None), Err(USER_DATA_MISSING));

        let mut of_another = own.clone();
        of_another.metadata.owner_references.as_mut().unwrap()[0].uid = "another".to_owned();
        assert_eq!(read(&instance, Some(&of_another)), Err(USER_DATA_MISSING));
        for (value, may) in [("true", true), ("yes", false)] {
            let labels = BTreeMap::from([(USER_DATA_LABEL.to_owned(), value.to_owned())]);
            of_another.metadata.labels = Some(labels);
            assert_eq!(read(&instance, Some(&of_another)).is_ok(), may, "{value}");
        }
    }

    #[test]
    fn a_secret_without_the_key_or_with_something_else_in_it_says_so_and_quotes_nothing() {
        let instance = instance();
        let with = |text: &str| secret(&instance, text, BTreeMap::new()).unwrap();
        let mut empty = with("#!/bin/sh\n");
        empty.data = None;
        assert_eq!(read(&instance, Some(&empty)), Err(USER_DATA_MISSING));
        for text in [
            "hunter2".to_owned(),
            "#cloud-config\npasswd: *hunter2\n".to_owned(),
            format!("#!/bin/sh\n{}", "#".repeat(32 * 1024)),
        ] {
            assert_eq!(read(&instance, Some(&with(&text))), Err(USER_DATA_INVALID));
        }
    }

    #[test]
    fn a_new_instance_awaits_its_secret_for_ten_seconds() {
        let awaits = |now: &str| awaits_secret(&instance(), now.parse().unwrap());
        assert!(awaits("2026-11-27T10:00:09Z") && !awaits("2026-11-27T10:00:10Z"));
    }

    #[test]
    fn what_makes_a_server_or_its_disk_needs_the_user_data() {
        use Installs::{IfMissing, No, Yes};
        for (kind, at_first, later) in [
            ("Create", Yes, Yes),
            ("Rebuild", Yes, Yes),
            ("Start", Yes, IfMissing),
            ("Reboot", Yes, No),
            ("Resize", Yes, No),
            ("Stop", No, No),
            ("PowerOff", No, No),
            ("Delete", No, No),
        ] {
            let operation = json!({
                "kind": kind, "startedAt": "2026-11-27T10:00:00Z", "endsIn": "Running", "plan": "starter", "image": "debian-13",
            });
            let of = |provisioned: Option<&str>| {
                let status = json!({ "operation": operation, "provisionedAt": provisioned });
                Installs::of(&testing::instance(json!({ "status": status })))
            };
            assert_eq!(of(None), at_first, "{kind}");
            assert_eq!(of(Some("2026-11-27T10:00:00Z")), later, "{kind}");
        }
        assert_eq!(Installs::of(&instance()), No);
    }
}
