//! Counts what an identity asks of an API server, from its audit log.

use std::{collections::BTreeMap, fmt};

use control_plane::{ControlPlane, audit::Request};

use crate::{Result, latencies::as_f64};

/// Resources that say nothing of servers: the leader's Lease, and the questions about rights and identity of a start.
const ASIDE: [&str; 4] = [
    "leases",
    "selfsubjectreviews",
    "selfsubjectaccessreviews",
    "subjectaccessreviews",
];

/// The requests of an identity, up to a position in the audit log.
pub struct Asked {
    user: &'static str,
    position: u64,
}

/// Numbers of requests, such as 3 times `create virtualmachines`, without watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    pub writes: BTreeMap<String, u64>,
    pub reads: BTreeMap<String, u64>,
}

impl Asked {
    pub const fn of(user: &'static str) -> Self {
        Self { user, position: 0 }
    }

    /// What was asked since the last call.
    pub fn take(&mut self, plane: &ControlPlane) -> Result<Requests> {
        let (requests, position) = plane.requests_from(self.position)?;
        self.position = position;
        let mut counted = Requests::default();
        let is_counted = |request: &&Request| {
            request.user == self.user && !request.resource.is_empty() && !ASIDE.contains(&&*request.resource)
        };
        for request in requests.iter().filter(is_counted) {
            let counts = if request.is_write() {
                &mut counted.writes
            } else if request.verb == "watch" {
                continue;
            } else {
                &mut counted.reads
            };
            *counts.entry(what(request)).or_default() += 1;
        }
        Ok(counted)
    }
}

fn what(request: &Request) -> String {
    let slash = if request.subresource.is_empty() { "" } else { "/" };
    let refused = if request.code >= 400 {
        format!(" ({})", request.code)
    } else {
        String::new()
    };
    format!(
        "{} {}{slash}{}{refused}",
        request.verb, request.resource, request.subresource
    )
}

impl Requests {
    /// Number of writes.
    pub fn writes(&self) -> f64 {
        as_f64(self.writes.values().sum())
    }

    /// Number of reads.
    pub fn reads(&self) -> f64 {
        as_f64(self.reads.values().sum())
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.writes.iter().chain(&self.reads);
        let all: Vec<_> = all.map(|(what, count)| format!("{count} × {what}")).collect();
        f.write_str(&all.join(", "))
    }
}
