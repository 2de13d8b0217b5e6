//! The local run's settings, from the environment or as options.

use std::{os::unix::process::parent_id, path::PathBuf};

#[derive(clap::Args)]
pub(crate) struct Settings {
    /// The API's port on 127.0.0.1; 0 takes a free one
    #[arg(long, env = "PORT", default_value = "8080", value_parser = port)]
    pub(super) port: u16,
    /// Seconds that the simulator takes to provision an instance, from 0
    #[arg(long, env = "PROVISIONING", default_value = "150", value_name = "SECONDS", value_parser = provisioning)]
    pub(super) provisioning: u32,
    /// Stop when the parent process ends
    #[arg(long)]
    stop_with_parent: bool,
    /// The parent's process id, in case it ends before this program can ask for it
    #[arg(long, value_name = "PID", requires = "stop_with_parent")]
    parent: Option<u32>,
    /// The stellage program [default: the one next to this program]
    #[arg(long, value_name = "FILE")]
    pub(super) stellage: Option<PathBuf>,
}

impl Settings {
    /// The process whose end stops the run.
    pub(super) fn parent(&self) -> Option<u32> {
        self.stop_with_parent
            .then(|| self.parent.unwrap_or_else(parent_id))
    }
}

fn port(text: &str) -> Result<u16, String> {
    text.parse()
        .map_err(|_| "PORT is a number from 0 to 65535, 0 for a free port; without it, 8080".to_owned())
}

fn provisioning(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| {
        "PROVISIONING is a whole number of seconds from 0, without a unit; without it, 150".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_answered_with_the_variable_and_the_fix() {
        for wrong in ["", "http", "-1", "65536"] {
            assert!(
                port(wrong)
                    .unwrap_err()
                    .starts_with("PORT is a number from 0 to 65535")
            );
        }
        for wrong in ["", "150s", "-1", "1.5"] {
            assert!(
                provisioning(wrong)
                    .unwrap_err()
                    .starts_with("PROVISIONING is a whole number")
            );
        }
        assert_eq!((port("0"), provisioning("0")), (Ok(0), Ok(0)));
    }
}
