//! The public id of an instance as a small value: what tables are keyed by.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::resources::{Instance, ids};

/// `i-` and 16 of `[a-z0-9]`, without the `i-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId([u8; 16]);

impl InstanceId {
    /// The id that a path names; `None` for anything without the form of one.
    pub fn parse(text: &str) -> Option<Self> {
        if !ids::is_instance_id(text) {
            return None;
        }
        text.as_bytes().get(2..)?.try_into().ok().map(Self)
    }

    /// The id of an object.
    pub fn of(instance: &Instance) -> Self {
        Self::parse(&instance.id()).unwrap_or(Self([b'0'; 16]))
    }

    fn text(self) -> [u8; 18] {
        let mut text = *b"i-0000000000000000";
        text[2..].copy_from_slice(&self.0);
        text
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl Serialize for InstanceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_back_as_it_was_written() {
        let text = "i-abcdefgh01234567";
        assert_eq!(InstanceId::parse(text).map(|id| id.to_string()).as_deref(), Some(text));
        for wrong in ["", "i-", "web", "i-ABCDEFGH01234567", "i-abcdefgh0123456", "i-abcdefgh0123456%20"] {
            assert_eq!(InstanceId::parse(wrong), None, "{wrong}");
        }
    }
}
