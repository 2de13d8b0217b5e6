//! The name under which this program was called.

use std::{env, ffi::OsStr, path::Path};

/// The file name under which kubectl finds its plugin `kubectl stellage`.
pub const PLUGIN: &str = "kubectl-stellage";

/// The command as users type it: `stellage`, or `kubectl stellage` if this runs as a kubectl plugin.
pub fn program() -> &'static str {
    name_for(env::args_os().next().as_deref())
}

fn name_for(called_as: Option<&OsStr>) -> &'static str {
    let file = called_as.and_then(|path| Path::new(path).file_name());
    if file == Some(OsStr::new(PLUGIN)) {
        "kubectl stellage"
    } else {
        "stellage"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubectl_plugin_is_recognised_by_its_file_name() {
        for (called_as, expected) in [
            (Some("/usr/local/bin/kubectl-stellage"), "kubectl stellage"),
            (Some("kubectl-stellage"), "kubectl stellage"),
            (Some("/opt/kubectl-stellage/stellage"), "stellage"),
            (Some("stellage"), "stellage"),
            (None, "stellage"),
        ] {
            assert_eq!(name_for(called_as.map(OsStr::new)), expected, "{called_as:?}");
        }
    }
}
