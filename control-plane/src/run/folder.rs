//! `.run/`: the local run's folder in the checkout.

use crate::Failure;
use control_plane::{ControlPlane, Error, write_private};
use rustix::process::{Pid, test_kill_process};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use url::Url;

/// How long the previous run's watchdog may take to remove its files.
const LAST_RUN_ENDS_WITHIN: Duration = Duration::from_secs(10);
const LOCK: &str = "lock";
/// The name of this program's own pid file.
const SELF: &str = "control-plane";
/// The processes with a pid file.
const PROCESSES: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "stellage",
    super::product::GATEWAY,
    SELF,
];

pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Locks the folder for this run and empties it. The caller holds the lock during the run.
    pub(super) fn take(checkout: &Path) -> Result<(Self, File), Failure> {
        let path = checkout.join(".run");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(Failure::file("create", &path))?;
        let folder = Self { path };
        let path = folder.file(LOCK);
        let lock = File::create(&path).map_err(Failure::file("create", &path))?;
        let deadline = Instant::now() + LAST_RUN_ENDS_WITHIN;
        while lock.try_lock().is_err() {
            let pid = folder.live_pid();
            if pid.is_some() || Instant::now() > deadline {
                let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(Failure::Other(format!(
                    "a local run is already active in this checkout{who}: stop it first, with Ctrl-C in its terminal or \
                     with kill $(cat .run/{SELF}.pid)"
                )));
            }
            thread::sleep(Duration::from_millis(100));
        }
        folder.clear()?;
        folder.write_pid(SELF, std::process::id())?;
        Ok((folder, lock))
    }

    /// Removes this program's pid file if there is no control plane yet to remove it.
    pub(super) fn leave(&self) {
        let _ = fs::remove_file(self.pid_file(SELF));
    }

    /// The process in the pid file, if it is alive.
    fn live_pid(&self) -> Option<i32> {
        let text = fs::read_to_string(self.pid_file(SELF)).ok()?;
        let pid = text.trim().parse().ok()?;
        match test_kill_process(Pid::from_raw(pid)?) {
            Err(rustix::io::Errno::SRCH) => None,
            Ok(()) | Err(_) => Some(pid),
        }
    }

    fn clear(&self) -> Result<(), Failure> {
        let clear = || -> io::Result<()> {
            for entry in fs::read_dir(&self.path)? {
                let entry = entry?;
                if entry.file_name() == LOCK {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    fs::remove_dir_all(entry.path())?;
                } else {
                    fs::remove_file(entry.path())?;
                }
            }
            Ok(())
        };
        clear().map_err(Failure::file("empty", &self.path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn pid_file(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}.pid"))
    }

    pub(super) fn env(&self) -> PathBuf {
        self.file("env")
    }

    pub(super) fn ready(&self) -> PathBuf {
        self.file("ready.json")
    }

    pub(super) fn kubectl_cache(&self) -> PathBuf {
        self.file("kubectl-cache")
    }

    pub(super) fn bin(&self) -> PathBuf {
        self.file("bin")
    }

    /// Folder for mails, if there is no mail server.
    fn catalogue(&self) -> PathBuf {
        self.file("catalogue.yaml")
    }

    pub(super) fn mail(&self) -> PathBuf {
        self.file("mail")
    }

    /// Creates the folder for mails, and returns its URL.
    pub(super) fn create_mail(&self) -> Result<String, Failure> {
        let mail = self.mail();
        fs::create_dir_all(&mail).map_err(Failure::file("create", &mail))?;
        // Percent-encode spaces and the like in the checkout's path.
        Url::from_file_path(&mail)
            .map(String::from)
            .map_err(|()| Failure::Other(format!("{} is not an absolute path", mail.display())))
    }

    /// Writes the catalogue of a run without one of its own: the built-in one with a seller, without which no invoice is issued.
    pub(super) fn write_catalogue(&self) -> Result<PathBuf, Failure> {
        let path = self.catalogue();
        let seller = "seller: {name: Stellage (local run), address: [1 Loopback Street], country: DE, vatId: DE123456789}\n";
        fs::write(&path, seller).map_err(Failure::file("write", &path))?;
        Ok(path)
    }

    /// Files to remove at the end of the run, in addition to those of the control plane.
    pub(super) fn disposable(&self) -> Vec<PathBuf> {
        let mut paths = vec![
            self.env(),
            self.ready(),
            self.kubectl_cache(),
            self.bin(),
            self.catalogue(),
            self.mail(),
        ];
        paths.extend(PROCESSES.map(|name| self.pid_file(name)));
        paths
    }

    pub(super) fn write_pid(&self, name: &str, pid: u32) -> Result<(), Failure> {
        let path = self.pid_file(name);
        fs::write(&path, format!("{pid}\n")).map_err(Failure::file("write", path))
    }

    /// Writes the pid files of the running servers.
    pub(super) fn write_pids(&self, plane: &ControlPlane) -> Result<(), Failure> {
        let pids = plane.pids();
        pids.into_iter()
            .try_for_each(|(name, pid)| self.write_pid(name, pid))
    }

    /// Creates `.run/bin` with links to the programs, for `PATH`.
    pub(super) fn link_programs(&self, programs: &[(&str, &Path)]) -> Result<(), Failure> {
        let bin = self.bin();
        fs::create_dir_all(&bin).map_err(Failure::file("create", &bin))?;
        for (name, target) in programs {
            let link = bin.join(name);
            symlink(target, &link).map_err(Failure::file("create", link))?;
        }
        Ok(())
    }

    /// Writes `.run/env` for `source`; only its owner may read it.
    pub(super) fn write_env(&self, variables: &[(&str, &str)]) -> Result<(), Error> {
        let mut text = String::new();
        for (name, value) in variables {
            let _ = writeln!(text, "export {name}={}", quoted(value));
        }
        let _ = writeln!(
            text,
            "export PATH={}:\"$PATH\"",
            quoted(&self.bin().to_string_lossy())
        );
        write_private(&self.env(), &text)
    }
}

/// Quotes a word for a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_shell() {
        for text in [
            "plain-1.2/3:4",
            "",
            "two words",
            "it's",
            "$HOME `id` \"\\",
            "a\nb",
        ] {
            let script = format!("printf %s {}", quoted(text));
            let output = std::process::Command::new("sh")
                .args(["-c", &script])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), text);
        }
    }

    #[test]
    fn a_locked_folder_is_refused_with_the_id_of_its_process() {
        let checkout = tempfile::tempdir().unwrap();
        let (folder, lock) = Folder::take(checkout.path()).unwrap();
        fs::write(folder.file("etcd.log"), "old").unwrap();
        let Err(failure) = Folder::take(checkout.path()) else {
            panic!("locked twice")
        };
        assert!(
            failure
                .to_string()
                .contains(&format!("(process {})", std::process::id())),
            "{failure}"
        );
        assert!(folder.file("etcd.log").exists());
        // Unlock explicitly: a child of another test may have inherited the file.
        lock.unlock().unwrap();
        Folder::take(checkout.path()).unwrap();
        assert!(!folder.file("etcd.log").exists());
    }
}
