//! The commands for kubectl users, run as users type them.

mod backups;
mod events;
mod instances;
mod plugin;
mod rights;
mod webhooks;

use std::process::{Output, Stdio};

use control_plane::Identity;
use serde_json::Value;
use tokio::process::Command;

use crate::support::{STELLAGE, shared};

/// The result of a command.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    notes: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            out: text(&output.stdout),
            notes: text(&output.stderr),
        }
    }

    /// Its output; fails unless the command succeeded.
    #[track_caller]
    fn text(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out.trim_end()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("not JSON ({error}): {self:?}"))
    }

    /// Its error message; fails unless the command failed with nothing on stdout.
    #[track_caller]
    fn error(&self) -> &str {
        assert!(self.code == Some(1) && self.out.is_empty(), "{self:?}");
        self.notes.trim_end()
    }
}

/// `stellage <arguments>` as the administrator, with the words of `line` and a namespace.
async fn run(namespace: &str, line: &str) -> Ran {
    let words: Vec<&str> = line.split(' ').chain(["-n", namespace]).collect();
    run_words(&words).await
}

async fn run_words(words: &[&str]) -> Ran {
    Ran::of(command(words).await.output().await.unwrap())
}

async fn command(words: &[&str]) -> Command {
    let plane = shared().await.plane;
    let mut command = Command::new(STELLAGE);
    command
        .args(words)
        .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}
