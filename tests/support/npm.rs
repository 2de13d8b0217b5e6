//! npm packages, installed once for each set of pinned versions.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use sha2::{Digest as _, Sha256};
use tokio::process::Command;

use super::say_not_run;

/// Timeout of an installation on a machine that may be busy.
const INSTALLS: Duration = Duration::from_mins(15);

/// Whether Node.js is installed, which `make test` does not require. If not, reports that `what` was not tested.
pub async fn there_is_node(what: &str) -> bool {
    let version = async |program: &str| {
        let output = Command::new(program).arg("--version").output().await.ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.trim_start_matches('v')
            .split('.')
            .next()?
            .parse::<u32>()
            .ok()
    };
    let there = version("node").await.is_some_and(|major| major >= 20) && version("npm").await.is_some();
    if !there {
        say_not_run(&format!(
            "{what}, since Node.js 20 or newer with npm is not installed (Debian: apt-get install npm)"
        ));
    }
    there
}

/// A folder with packages. It is locked, because its users may also write into it.
pub struct Packages {
    pub folder: PathBuf,
    _lock: File,
}

impl Packages {
    /// The packages pinned by the `package.json` and `package-lock.json` in a folder.
    pub async fn of(sources: &Path, name: &str) -> Self {
        let pins = ["package.json", "package-lock.json"].map(|pin| sources.join(pin));
        let digest = Sha256::digest(pins.each_ref().map(|pin| fs::read(pin).unwrap()).concat());
        let cache = control_plane::cache_folder().unwrap();
        let folder = cache.join(format!("{name}-{}", &hex::encode(digest)[..12]));
        fs::create_dir_all(&folder).unwrap();
        let lock = File::create(folder.join("lock")).unwrap();
        let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock));
        let packages = Self {
            _lock: lock.await.unwrap().unwrap(),
            folder,
        };
        let is_complete = packages.folder.join("installed");
        if !is_complete.exists() {
            for pin in pins {
                fs::copy(&pin, packages.folder.join(pin.file_name().unwrap())).unwrap();
            }
            let install = Command::new("npm")
                .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
                .current_dir(&packages.folder)
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output();
            let output = tokio::time::timeout(INSTALLS, install).await.unwrap().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "npm ci: {errors}");
            fs::write(is_complete, "").unwrap();
        }
        packages
    }
}
