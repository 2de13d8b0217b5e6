//! Public ids as small `Copy` values, for indexes, paths and responses.

use std::{
    fmt::{Debug, Display},
    hash::Hash,
};

use serde::Serialize;

use crate::{Backup, Instance, PrivateNetwork, Webhook, ids};

/// The public id of the objects of one kind.
pub trait PublicId: Copy + Debug + Display + Eq + Hash + Ord + Serialize + Send + Sync + 'static {
    /// The prefix of the id.
    const PREFIX: &'static str;
    /// The name of the type, which is also that of its schema in the OpenAPI document.
    const TYPE: &'static str;

    /// The id with this suffix of 16 characters from `[a-z0-9]`.
    fn of_suffix(suffix: &str) -> Option<Self> {
        Self::parse(&format!("{}{suffix}", Self::PREFIX))
    }

    /// Parses an id; `None` if it is malformed.
    fn parse(text: &str) -> Option<Self>;

    /// The name of the object with this id if it was created through REST.
    fn name(self) -> String;
}

/// Defines a type for ids of the form `<prefix><16 of [a-z0-9]>`; it stores the 16 characters.
macro_rules! public_id {
    ($(#[$doc:meta])* $id:ident, $prefix:literal, $name_of:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $id([u8; 16]);

        impl $id {
            fn text(self) -> [u8; $prefix.len() + 16] {
                let mut text = [0; $prefix.len() + 16];
                text[..$prefix.len()].copy_from_slice($prefix.as_bytes());
                text[$prefix.len()..].copy_from_slice(&self.0);
                text
            }
        }

        impl PublicId for $id {
            const PREFIX: &'static str = $prefix;
            const TYPE: &'static str = stringify!($id);

            fn parse(text: &str) -> Option<Self> {
                $name_of(text)?;
                text.as_bytes().get($prefix.len()..)?.try_into().ok().map(Self)
            }

            fn name(self) -> String {
                $name_of(&self.to_string()).unwrap_or_default()
            }
        }

        impl Display for $id {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
            }
        }

        impl Serialize for $id {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
            }
        }
    };
}

public_id!(
    /// `i-` and 16 of `[a-z0-9]`; also the name of an instance created through REST.
    InstanceId, "i-", instance_name
);
public_id!(
    /// `wh_` and 16 of `[a-z0-9]`; an object created through REST is named `wh-…`.
    WebhookId, "wh_", ids::webhook_name
);
public_id!(
    /// `bkp_` and 16 of `[a-z0-9]`; an object created through REST is named `bkp-…`.
    BackupId, "bkp_", ids::backup_name
);
public_id!(
    /// `pn-` and 16 of `[a-z0-9]`; also the name of a private network created through REST.
    NetworkId, "pn-", ids::network_name
);
public_id!(
    /// `dlv_` and 16 of `[a-z0-9]`; the object is named `dlv-…`.
    DeliveryId, "dlv_", ids::delivery_name_of
);

public_id!(
    /// `inv_` and 16 of `[a-z0-9]`; the object is named `inv-…`.
    InvoiceId, "inv_", ids::invoice_name_of
);

public_id!(
    /// `evt_` and 16 of `[a-z0-9]`, of an event that has happened. There is no object of this name.
    EventId, "evt_", event_name
);

fn event_name(id: &str) -> Option<String> {
    ids::is_event_id(id).then(|| id.to_owned())
}

fn instance_name(id: &str) -> Option<String> {
    ids::is_instance_id(id).then(|| id.to_owned())
}

impl InstanceId {
    /// The id of an object.
    pub fn of(instance: &Instance) -> Self {
        Self::parse(&instance.id()).unwrap_or(Self([b'0'; 16]))
    }
}

impl BackupId {
    /// The id of an object.
    pub fn of(backup: &Backup) -> Self {
        Self::parse(&backup.id()).unwrap_or(Self([b'0'; 16]))
    }
}

impl NetworkId {
    /// The id of an object.
    pub fn of(network: &PrivateNetwork) -> Self {
        Self::parse(&network.id()).unwrap_or(Self([b'0'; 16]))
    }
}

impl WebhookId {
    /// The id of an object.
    pub fn of(webhook: &Webhook) -> Self {
        Self::parse(&webhook.id()).unwrap_or(Self([b'0'; 16]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parsed_id_prints_the_same_text() {
        let text = "i-abcdefgh01234567";
        assert_eq!(
            InstanceId::parse(text).map(|id| id.to_string()).as_deref(),
            Some(text)
        );
        for wrong in [
            "",
            "i-",
            "web",
            "i-ABCDEFGH01234567",
            "i-abcdefgh0123456",
            "i-abcdefgh0123456%20",
            "wh_abcdefgh01234567",
        ] {
            assert_eq!(InstanceId::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_id_gives_the_name_of_the_object_created_through_rest() {
        let name = |id: Option<String>| id.unwrap_or_default();
        assert_eq!(
            name(InstanceId::parse("i-abcdefgh01234567").map(PublicId::name)),
            "i-abcdefgh01234567"
        );
        assert_eq!(
            name(WebhookId::parse("wh_abcdefgh01234567").map(PublicId::name)),
            "wh-abcdefgh01234567"
        );
        assert_eq!(
            name(DeliveryId::parse("dlv_abcdefgh01234567").map(PublicId::name)),
            "dlv-abcdefgh01234567"
        );
        assert_eq!(WebhookId::parse("wh-abcdefgh01234567"), None);
    }
}
