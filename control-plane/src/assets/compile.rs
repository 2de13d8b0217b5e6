//! Builds the binaries from the pinned Go modules, once.

use super::{in_path, pins::Bundle};
use crate::{Error, ProcessGroup, daemon::tail};
use std::{
    env,
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Observed disk usage: 0.7 GB of modules, 3 GB of build cache, the linker's temporary files and the binaries.
const DISK_SPACE_GB: u64 = 6;
const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Builds all programs of a bundle into `target`, which is created only when they are complete. The caller holds the lock.
pub(super) fn into(bundle: &Bundle, target: &Path, say: &impl Fn(&str)) -> Result<(), Error> {
    let parent = target.parent().unwrap_or(Path::new("."));
    check_go(bundle)?;
    check_space(parent)?;
    say(&format!(
        "Building {} from pinned Go modules into {}. This happens once, and takes {} on two cores.",
        bundle.purpose,
        target.display(),
        bundle.takes,
    ));
    let work = tempfile::Builder::new()
        .prefix(".building-")
        .tempdir_in(parent)
        .map_err(Error::file("create a folder in", parent))?;
    // However this process ends, the compilers are stopped and the folder is removed.
    let group = ProcessGroup::new(&[work.path().to_owned()], None)?;
    let (modules, temporary, binaries) = (
        work.path().join("modules"),
        work.path().join("tmp"),
        work.path().join("bin"),
    );
    for folder in [&modules, &temporary, &binaries] {
        fs::create_dir(folder).map_err(Error::file("create", folder))?;
    }
    for (name, text) in [("go.mod", bundle.go_mod), ("go.sum", bundle.go_sum)] {
        let path = modules.join(name);
        fs::write(&path, text).map_err(Error::file("write", path))?;
    }
    let started = Instant::now();
    for (position, (binary, package)) in (1..).zip(bundle.binaries) {
        let mut command = Command::new("go");
        command
            .args([
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-ldflags",
                &bundle.linker_flags(),
                "-tags",
                bundle.tags,
                "-o",
            ])
            .arg(binaries.join(binary))
            .arg(package)
            .current_dir(&modules)
            // Ignore the user's settings for other projects.
            .envs([("CGO_ENABLED", "0"), ("GOFLAGS", ""), ("GOWORK", "off")])
            .env("GOTMPDIR", &temporary);
        let name = format!("[{position}/{}] {binary}", bundle.binaries.len());
        build(binary, command, &group, &work.path().join("log"), |note| {
            say(&format!("{name}{note} ({} s)", started.elapsed().as_secs()));
        })?;
    }
    fs::rename(&binaries, target).map_err(Error::file("create", target))?;
    say(&format!("They are in {}.", target.display()));
    Ok(())
}

fn build(
    binary: &'static str,
    mut command: Command,
    group: &ProcessGroup,
    log: &Path,
    say: impl Fn(&str),
) -> Result<(), Error> {
    let output = File::create(log).map_err(Error::file("create", log))?;
    let errors = output.try_clone().map_err(Error::file("create", log))?;
    let mut go = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(group.id())
        .spawn()
        .map_err(|source| Error::Spawn {
            program: "go".to_owned(),
            source,
        })?;
    say("");
    let mut said = Instant::now();
    let status = loop {
        match go.try_wait().map_err(|source| Error::Spawn {
            program: "go".to_owned(),
            source,
        })? {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(100)),
        }
        if said.elapsed() >= PROGRESS_EVERY {
            said = Instant::now();
            say(", still building");
        }
    };
    if status.success() {
        Ok(())
    } else {
        Err(Error::Build {
            binary,
            status,
            tail: tail(log),
        })
    }
}

fn check_go(bundle: &Bundle) -> Result<(), Error> {
    let wanted = bundle.go_version();
    let how = format!("install it from https://go.dev/dl/, or set {}", bundle.instead);
    if in_path("go", env::var_os("PATH").as_deref()).is_none() {
        return Err(Error::Missing(format!(
            "building {} once needs Go {wanted} or newer, but `go` is not in PATH: {how}",
            bundle.purpose
        )));
    }
    let found = go_env("GOVERSION")?;
    if version(&found) < version(wanted) {
        return Err(Error::Missing(format!(
            "building {} once needs Go {wanted} or newer, but this is {found}: {how}",
            bundle.purpose
        )));
    }
    Ok(())
}

fn go_env(variable: &str) -> Result<String, Error> {
    let output = Command::new("go")
        .args(["env", variable])
        // Outside the checkout, where a go.mod could switch the toolchain.
        .current_dir("/")
        .output()
        .map_err(|source| Error::Spawn {
            program: "go".to_owned(),
            source,
        })?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Turns `go1.26.8 X:nodwarf5` or `1.26.0` into comparable numbers; a release candidate counts as its release.
fn version(text: &str) -> Vec<u32> {
    text.trim_start_matches("go")
        .split_whitespace()
        .next()
        .unwrap_or_default()
        .split('.')
        .map(|part| {
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or(0)
        })
        .collect()
}

fn check_space(cache: &Path) -> Result<(), Error> {
    let mut folders = vec![("STELLAGE_CACHE_DIR", cache.to_owned())];
    for variable in ["GOCACHE", "GOMODCACHE"] {
        folders.push((variable, PathBuf::from(go_env(variable)?)));
    }
    for (variable, folder) in folders {
        // A missing folder will be on its parent's file system.
        let existing = folder
            .ancestors()
            .find(|folder| folder.is_dir())
            .unwrap_or(Path::new("/"));
        let output = Command::new("df")
            .arg("-Pk")
            .arg(existing)
            .env("LC_ALL", "C")
            .output()
            .map_err(|source| Error::Spawn {
                program: "df".to_owned(),
                source,
            })?;
        // If `df` does not answer, assume that there is enough space.
        let Some(free) = available_kb(&String::from_utf8_lossy(&output.stdout)) else {
            continue;
        };
        if free < DISK_SPACE_GB * 1024 * 1024 {
            return Err(Error::Missing(format!(
                "building them needs {DISK_SPACE_GB} GB of disk space, but {} has {:.1} GB: free some, or \
                 set {variable} to a folder on another disk",
                folder.display(),
                // One decimal is precise enough.
                f64::from(u32::try_from(free / 1024).unwrap_or(u32::MAX)) / 1024.0,
            )));
        }
    }
    Ok(())
}

/// The fourth column of the second line of `df -Pk`.
fn available_kb(output: &str) -> Option<u64> {
    output.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_by_number() {
        assert!(version("go1.26.8") >= version("1.26.0"));
        assert!(version("go1.9.7") < version("1.26.0"));
        assert!(version("go1.27rc1 X:nodwarf5") > version("1.26.0"));
        assert!(version("") < version("1.26.0"));
    }

    #[test]
    fn free_space_is_read_from_df() {
        let output = "Filesystem     1024-blocks     Used Available Capacity Mounted on\n\
                      /dev/vda         264212084 17073568  78427696      18% /\n";
        assert_eq!(available_kb(output), Some(78_427_696));
        assert_eq!(available_kb(""), None);
    }
}
