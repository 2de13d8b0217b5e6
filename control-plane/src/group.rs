//! A process group that is killed when the process that created it ends, even by `kill -9`.
//!
//! Two small helper processes do this, without signal handlers and without `unsafe`:
//!
//! - the *anchor* leads the group, so that the group exists as long as processes join it;
//! - the *watchdog*, outside the group, waits on a pipe whose only other end is in this process. When the pipe
//!   closes, for whatever reason, the watchdog kills the group and removes files.
//!
//! A child joins the group between fork and exec, so it cannot be missed.

use crate::Error;
use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

/// `$1` is the group; the other arguments are files to remove. A killed process may still be inside a system call that creates
/// a file, hence the repeated attempts.
const WATCHDOG: &str = r#"
trap '' HUP INT QUIT TERM
while read -r _; do :; done
kill -s KILL -- "-$1" 2>/dev/null
shift
[ $# -eq 0 ] && exit
for _ in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf -- "$@" && break
    sleep 0.2
done
"#;

/// A process group whose members are killed when this value is dropped or this process ends, however it ends.
#[derive(Debug)]
pub struct ProcessGroup {
    anchor: Child,
    watchdog: Child,
}

impl ProcessGroup {
    /// Creates the group. `remove` are the files and folders to remove when it ends. `lock`, an open file with a lock, stays
    /// locked until they are removed, even if this process ends earlier.
    pub fn new(remove: &[PathBuf], lock: Option<File>) -> Result<Self, Error> {
        let anchor = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                program: "cat".to_owned(),
                source,
            })?;
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "control-plane-watchdog", &anchor.id().to_string()])
            .args(remove)
            .stdin(Stdio::piped())
            .stdout(lock.map_or_else(Stdio::null, Stdio::from))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                program: "sh".to_owned(),
                source,
            })?;
        Ok(Self { anchor, watchdog })
    }

    /// The number to give to `CommandExt::process_group`.
    pub fn id(&self) -> i32 {
        // Process ids stay below 2^22 on Linux.
        i32::try_from(self.anchor.id()).unwrap_or(0)
    }

    /// Whether the watchdog still runs; without it, a `kill -9` of this process would leave the group behind.
    pub fn is_guarded(&mut self) -> bool {
        matches!(self.watchdog.try_wait(), Ok(None))
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
        // Reap it last: until then, the group's id cannot be reused.
        let _ = self.anchor.kill();
        let _ = self.anchor.wait();
    }
}
