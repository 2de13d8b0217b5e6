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

const PROGRESS_EVERY: Duration = Duration::from_secs(30);

/// Builds all programs of a bundle into `target`, which is created only when they are complete. The caller holds the lock.
pub(super) fn into(bundle: &Bundle, target: &Path, say: &impl Fn(&str)) -> Result<(), Error> {
    let parent = target.parent().unwrap_or(Path::new("."));
    check_go(bundle)?;
    check_space(bundle, parent)?;
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
    let [modules, temporary, compiled, binaries] =
        ["modules", "tmp", "compiled", "bin"].map(|name| work.path().join(name));
    for folder in [&modules, &temporary, &compiled, &binaries] {
        fs::create_dir(folder).map_err(Error::file("create", folder))?;
    }
    let files = [("go.mod", bundle.go_mod), ("go.sum", bundle.go_sum)];
    for (name, text) in files.iter().chain(bundle.sources) {
        let path = modules.join(name);
        let folder = path.parent().unwrap_or(&modules);
        fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
        fs::write(&path, text).map_err(Error::file("write", path))?;
    }
    let go = || {
        let mut command = Command::new("go");
        command
            .current_dir(&modules)
            // Ignore the user's settings for other projects.
            .envs([
                ("CGO_ENABLED", "0"),
                ("GOFLAGS", "-buildvcs=false"),
                ("GOWORK", "off"),
            ])
            .env("GOTMPDIR", &temporary)
            // Nothing is built twice, so what has been compiled on the way goes with the other temporary files: gigabytes.
            .env("GOCACHE", &compiled);
        command
    };
    let started = Instant::now();
    let log = work.path().join("log");
    let all = bundle.binaries.len() + usize::from(bundle.prints.is_some());
    let mut position = 0;
    let mut run = |what, command: Command, output: Option<File>| {
        position += 1;
        let name = format!("[{position}/{all}] {what}");
        run(what, command, output, &group, &log, |note| {
            say(&format!("{name}{note} ({} s)", started.elapsed().as_secs()));
        })
    };
    for (binary, package) in bundle.binaries {
        let mut command = go();
        command
            .args([
                "build",
                "-trimpath",
                "-ldflags",
                &bundle.linker_flags(),
                "-tags",
                bundle.tags,
                "-o",
            ])
            .arg(binaries.join(binary))
            .arg(package);
        run(binary, command, None)?;
    }
    if let Some((package, file)) = bundle.prints {
        let path = binaries.join(file);
        let output = File::create(&path).map_err(Error::file("create", path))?;
        let mut command = go();
        command.args(["run", "-trimpath", package]);
        run(file, command, Some(output))?;
    }
    fs::rename(&binaries, target).map_err(Error::file("create", target))?;
    say(&format!("They are in {}.", target.display()));
    Ok(())
}

/// Runs `go`, with its standard output in a file, or in the log beside its errors.
fn run(
    what: &'static str,
    mut command: Command,
    output: Option<File>,
    group: &ProcessGroup,
    log: &Path,
    say: impl Fn(&str),
) -> Result<(), Error> {
    let errors = File::create(log).map_err(Error::file("create", log))?;
    let output = match output {
        Some(output) => output,
        None => errors.try_clone().map_err(Error::file("create", log))?,
    };
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
            binary: what,
            status,
            tail: tail(log),
        })
    }
}

fn check_go(bundle: &Bundle) -> Result<(), Error> {
    let wanted = bundle.go_version();
    let instead = bundle.instead.map(|instead| format!(", or set {instead}"));
    let how = format!(
        "install it from https://go.dev/dl/{}",
        instead.unwrap_or_default()
    );
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

fn check_space(bundle: &Bundle, cache: &Path) -> Result<(), Error> {
    let folders = [
        ("STELLAGE_CACHE_DIR", cache.to_owned()),
        ("GOMODCACHE", PathBuf::from(go_env("GOMODCACHE")?)),
    ];
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
        if free < bundle.disk_gb * 1024 * 1024 {
            return Err(Error::Missing(format!(
                "building them needs {} GB of disk space, but {} has {:.1} GB: free some, or set {variable} to a \
                 folder on another disk",
                bundle.disk_gb,
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
