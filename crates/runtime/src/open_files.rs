//! How many files and connections the process may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

use super::http::ConnectionLimits;

/// File descriptors for everything but the connections of the REST API: probes, the API server, receivers, DNS.
const RESERVED: usize = 2048;

/// Raises the soft limit of the process to the hard one, and lowers the number of connections if it does not fit. Without
/// descriptors left, neither probes nor calls of the API server would work.
pub fn fitting(limits: ConnectionLimits) -> ConnectionLimits {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some() && limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, "cannot raise the limit of open files");
            limit = getrlimit(Resource::Nofile);
        }
    }
    let open_files = limit
        .current
        .and_then(|files| usize::try_from(files).ok())
        .unwrap_or(usize::MAX);
    let connections = within(limits.connections, open_files);
    if connections < limits.connections {
        tracing::warn!(
            open_files,
            connections,
            "the limit of open files (ulimit -n) allows fewer connections than --max-connections"
        );
    }
    ConnectionLimits {
        connections,
        ..limits
    }
}

/// The connections that leave enough descriptors for the rest; at most half of them if there are few.
fn within(connections: usize, open_files: usize) -> usize {
    connections.min((open_files / 2).max(open_files.saturating_sub(RESERVED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_the_rest() {
        assert_eq!(within(8192, usize::MAX), 8192);
        assert_eq!(within(8192, 20_000), 8192);
        assert_eq!(within(8192, 10_000), 7952);
        assert_eq!(within(8192, 1024), 512);
        assert_eq!(within(100, 1024), 100);
    }
}
