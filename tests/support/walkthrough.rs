//! The commands that the README and the pages under docs/ show, taken from their text and run in a shell.

use std::{fs, path::Path, process::Stdio};

use control_plane::{ControlPlane, Identity};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout_at},
};

use super::{PATIENCE, STELLAGE, Tenant, shared};

/// A command of a page, and what the page shows as its output.
#[derive(Clone, Debug)]
pub struct Step {
    pub command: String,
    pub shown: String,
}

/// The commands of the `console` blocks of a section; `heading` with its number signs.
pub fn steps(page: &str, heading: &str) -> Vec<Step> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let (_, rest) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("{page} has no section {heading}"));
    let level = number_signs(heading);
    let mut steps: Vec<Step> = Vec::new();
    let mut block = None;
    for line in rest.lines() {
        if let Some(language) = line.strip_prefix("```") {
            block = block.is_none().then_some(language);
            continue;
        }
        match (block, line.strip_prefix("$ ")) {
            (None, _) if (1..=level).contains(&number_signs(line)) => break,
            (Some("console"), Some(command)) => steps.push(Step {
                command: command.to_owned(),
                shown: String::new(),
            }),
            (Some("console"), None) => {
                let step = steps.last_mut().unwrap();
                let text = if is_complete(&step.command) {
                    &mut step.shown
                } else {
                    &mut step.command
                };
                text.push('\n');
                text.push_str(line);
            }
            _ => {}
        }
    }
    steps
}

fn number_signs(line: &str) -> usize {
    line.len() - line.trim_start_matches('#').len()
}

/// Whether a command does not go on in the next line.
fn is_complete(command: &str) -> bool {
    !command.ends_with(['\\', '|']) && command.matches('\'').count().is_multiple_of(2)
}

/// A shell with the variables of `.run/env`, for an account on the shared cluster. Killed when dropped.
pub struct Shell {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

/// Begins the line after the output of a command.
const END: &str = "--- end of the output, exit code";

impl Shell {
    pub async fn start(tenant: &Tenant) -> Self {
        let plane = shared().await.plane;
        Self::of(tenant, plane, Path::new(env!("CARGO_MANIFEST_DIR"))).await
    }

    /// For an account on any control plane, in this folder.
    pub async fn of(tenant: &Tenant, plane: &ControlPlane, folder: &Path) -> Self {
        let environment = [
            ("STELLAGE_URL", tenant.url.clone()),
            ("STELLAGE_API_KEY", tenant.key.clone()),
        ];
        Self::on(plane, folder, &[], &environment).await
    }

    /// As the administrator of any control plane, in this folder, with the programs of further folders.
    pub async fn on(
        plane: &ControlPlane,
        folder: &Path,
        programs: &[&Path],
        environment: &[(&str, String)],
    ) -> Self {
        let own = Path::new(STELLAGE).parent().unwrap();
        let folders = [&[own, plane.assets().kubectl_folder()], programs].concat();
        let folders: Vec<String> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        let path = format!(
            "{}:{}",
            folders.join(":"),
            std::env::var("PATH").unwrap_or_default()
        );
        let mut child = Command::new("bash")
            .arg("-s")
            .current_dir(folder)
            .env("PATH", path)
            .env("KUBECONFIG", plane.kubeconfig(Identity::Admin))
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut shell = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()).lines(),
            _child: child,
        };
        shell.run("exec 2>&1; set -o pipefail").await;
        shell
    }

    /// Runs a command, which must succeed. Returns what it has written to stdout and stderr.
    pub async fn run(&mut self, command: &str) -> String {
        let script = format!("{{ {command}\n}} </dev/null\nprintf '\\n{END} %s\\n' $?\n");
        self.input.write_all(script.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        // For the whole command: a loop that waits in vain may print a line every second.
        let deadline = Instant::now() + PATIENCE;
        let code = loop {
            let Ok(line) = timeout_at(deadline, self.output.next_line()).await else {
                panic!("{command}: takes too long after {seen:#?}");
            };
            let Some(line) = line.unwrap() else {
                panic!("{command}: the shell has ended after {seen:#?}");
            };
            if let Some(code) = line.strip_prefix(END) {
                break code.trim().to_owned();
            }
            seen.push(line);
        };
        let seen = seen.join("\n").trim().to_owned();
        assert_eq!(code, "0", "{command}: {seen}");
        seen
    }
}
