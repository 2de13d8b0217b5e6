//! A long-running child process with its log.

use crate::{Error, ProcessGroup};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::OpenOptions,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// A process that exits by itself sooner than this after its start would do so again if restarted.
const MIN_RUN: Duration = Duration::from_secs(5);

/// A child process that belongs to a [`ProcessGroup`] and writes to a log file. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    log: PathBuf,
    child: Child,
    started: Instant,
}

impl Daemon {
    /// Starts `command` in `group`, with its output appended to `log`.
    pub fn spawn(name: &str, mut command: Command, group: &ProcessGroup, log: &Path) -> Result<Self, Error> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(Error::file("open", log))?;
        let errors = output.try_clone().map_err(Error::file("open", log))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .process_group(group.id())
            .spawn()
            .map_err(|source| Error::Spawn {
                program: command.get_program().to_string_lossy().into_owned(),
                source,
            })?;
        Ok(Self {
            name: name.to_owned(),
            log: log.to_owned(),
            child,
            started: Instant::now(),
        })
    }

    /// The name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if it has exited.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// The exit status, if it has exited and should be restarted: because it was killed, or had run for a while. An error with
    /// the end of its log if it exited by itself soon after its start.
    pub fn to_be_restarted(&mut self) -> Result<Option<ExitStatus>, Error> {
        match self.exited() {
            Some(status) if status.signal().is_none() && self.started.elapsed() < MIN_RUN => {
                Err(self.error(format!("exited ({status})")))
            }
            ended => Ok(ended),
        }
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGSTOP, which suspends it until [`resume`](Self::resume).
    pub fn halt(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGTERM, and SIGKILL if it still runs after `grace`. Returns the exit status.
    pub async fn stop(&mut self, grace: Duration) -> Option<ExitStatus> {
        if self.exited().is_none() {
            self.signal(Signal::TERM);
            let deadline = Instant::now() + grace;
            while self.exited().is_none() && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        self.kill();
        self.exited()
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        tail(&self.log)
    }

    /// An error about this process, with the end of its log.
    pub fn error(&self, what: impl Into<String>) -> Error {
        Error::Process {
            name: self.name.clone(),
            what: what.into(),
            log: self.log.clone(),
            tail: self.log_tail(),
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last 15 lines of a file, empty if there is none; long lines (Go panics, JSON) are cut.
pub(crate) fn tail(path: &Path) -> String {
    const WINDOW: u64 = 16 * 1024;
    let Ok(mut file) = std::fs::File::open(path) else {
        return String::new();
    };
    let size = file.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = Vec::new();
    let _ = file.seek(SeekFrom::Start(size.saturating_sub(WINDOW)));
    let _ = file.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(15)..]
        .iter()
        .map(|line| format!("  {}", line.chars().take(400).collect::<String>()))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_its_last_15_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(
            &path,
            (1..=40)
                .map(|n| format!("line {n}"))
                .collect::<Vec<_>>()
                .join("\n"),
        )
        .unwrap();
        let tail = tail(&path);
        assert!(tail.starts_with("  line 26\n"), "{tail}");
        assert!(tail.ends_with("  line 40"), "{tail}");
    }
}
