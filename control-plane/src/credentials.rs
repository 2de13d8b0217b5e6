//! The users of the API server: two identities, each with a token.

use crate::{Error, random};
use k8s_openapi::ByteString;
use serde_json::json;
use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// A user of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// `admin` in `system:masters`, who may do anything.
    Admin,
    /// The operator's service account `stellage` in `stellage-system`, with the rights that RBAC grants it.
    Operator,
}

impl Identity {
    const ALL: [Self; 2] = [Self::Admin, Self::Operator];

    /// The user name in RBAC and the audit log.
    pub const fn user(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "system:serviceaccount:stellage-system:stellage",
        }
    }

    const fn groups(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Operator => {
                "system:serviceaccounts,system:serviceaccounts:stellage-system,system:authenticated"
            }
        }
    }

    pub(crate) const fn kubeconfig(self) -> &'static str {
        match self {
            Self::Admin => "kubeconfig",
            Self::Operator => "operator.kubeconfig",
        }
    }
}

/// The tokens, and the file with them for the API server.
#[derive(Debug)]
pub(crate) struct Tokens {
    admin: String,
    operator: String,
    pub(crate) file: PathBuf,
}

impl Tokens {
    pub(crate) fn create(folder: &Path) -> Result<Self, Error> {
        let tokens = Self {
            admin: random::hex(16)?,
            operator: random::hex(16)?,
            file: folder.join("tokens.csv"),
        };
        let lines: String = Identity::ALL
            .map(|identity| {
                let (token, user) = (tokens.of(identity), identity.user());
                format!("{token},{user},{user},\"{}\"\n", identity.groups())
            })
            .concat();
        write_private(&tokens.file, &lines)?;
        Ok(tokens)
    }

    fn of(&self, identity: Identity) -> &str {
        match identity {
            Identity::Admin => &self.admin,
            Identity::Operator => &self.operator,
        }
    }

    /// Writes both kubeconfigs. `certificates` are those of the API server and of its own authority, so that clients
    /// can verify it.
    pub(crate) fn write_kubeconfigs(
        &self,
        folder: &Path,
        server: &str,
        certificates: &[u8],
    ) -> Result<(), Error> {
        for identity in Identity::ALL {
            let name = match identity {
                Identity::Admin => "admin",
                Identity::Operator => "operator",
            };
            // YAML is a superset of JSON.
            let config = json!({
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "local", "cluster": {
                    "server": server,
                    "certificate-authority-data": ByteString(certificates.to_owned()),
                }}],
                "users": [{"name": name, "user": {"token": self.of(identity)}}],
                "contexts": [{"name": "local", "context": {"cluster": "local", "user": name}}],
                "current-context": "local",
            });
            write_private(&folder.join(identity.kubeconfig()), &format!("{config:#}\n"))?;
        }
        Ok(())
    }
}

/// Writes a file that only its owner may read; replaces an existing file.
pub fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let _ = fs::remove_file(path);
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::file("write", path))
}
