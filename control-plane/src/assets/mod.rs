//! The binaries: from `KUBEBUILDER_ASSETS` if it is set, otherwise from a cache. They are put into the cache once:
//! downloaded, or built from Go modules where that is not possible.
//!
//! - `download`: downloads the publishers' binaries;
//! - `compile`: builds the binaries;
//! - `pins`: their versions and linker flags.
//!
//! Helm, Prometheus, KubeVirt's servers, those of CSI and the kinds beside these, which only tests need, are built in the same way:
//! [`helm`], [`promtool`], [`prometheus`], [`kubevirt`], [`storage`], [`kinds`].

mod compile;
mod download;
mod pins;

use self::pins::Bundle;
use crate::Error;
use std::{
    env,
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
};

/// The environment variable for a folder with the binaries, as in kubebuilder and envtest.
pub const KUBEBUILDER_ASSETS: &str = "KUBEBUILDER_ASSETS";
/// The environment variable that is `never` on machines where everything must be built from source.
pub const STELLAGE_DOWNLOADS: &str = "STELLAGE_DOWNLOADS";

/// The paths of the binaries.
#[derive(Debug, Clone)]
pub struct Assets {
    pub(crate) etcd: PathBuf,
    pub(crate) kube_apiserver: PathBuf,
    pub(crate) kube_controller_manager: PathBuf,
    kubectl: PathBuf,
}

impl Assets {
    /// Finds the binaries, or downloads them, or builds them, which takes about ten minutes on two cores and calls `say` with lines
    /// of progress. Blocks.
    pub fn find_or_build(say: impl Fn(&str)) -> Result<Self, Error> {
        if let Some(folder) = env::var_os(KUBEBUILDER_ASSETS).filter(|folder| !folder.is_empty()) {
            return Self::in_named_folder(Path::new(&folder), env::var_os("PATH").as_deref());
        }
        Ok(Self::all_in(&cached(&pins::CONTROL_PLANE, &say)?))
    }

    /// The folder with `kubectl`, for `PATH`.
    pub fn kubectl_folder(&self) -> &Path {
        self.kubectl.parent().unwrap_or(Path::new("/"))
    }

    /// The folder with the servers.
    pub fn folder(&self) -> &Path {
        self.etcd.parent().unwrap_or(Path::new("/"))
    }

    /// `kubectl`.
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    fn all_in(folder: &Path) -> Self {
        Self {
            etcd: folder.join("etcd"),
            kube_apiserver: folder.join("kube-apiserver"),
            kube_controller_manager: folder.join("kube-controller-manager"),
            kubectl: folder.join("kubectl"),
        }
    }

    fn in_named_folder(folder: &Path, path: Option<&OsStr>) -> Result<Self, Error> {
        let folder = std::path::absolute(folder).map_err(Error::file("find", folder))?;
        let mut assets = Self::all_in(&folder);
        let missing: Vec<&str> = [
            ("etcd", &assets.etcd),
            ("kube-apiserver", &assets.kube_apiserver),
            ("kube-controller-manager", &assets.kube_controller_manager),
        ]
        .into_iter()
        .filter_map(|(name, path)| (!path.is_file()).then_some(name))
        .collect();
        if !missing.is_empty() {
            return Err(Error::Missing(format!(
                "{KUBEBUILDER_ASSETS}={} lacks {}: add it, or unset the variable to build the binaries once",
                folder.display(),
                missing.join(", "),
            )));
        }
        if !assets.kubectl.is_file() {
            assets.kubectl = in_path("kubectl", path).ok_or_else(|| {
                Error::Missing(format!(
                    "kubectl is neither in {KUBEBUILDER_ASSETS}={} nor in PATH: install it, or unset the variable \
                     to build the binaries once",
                    folder.display(),
                ))
            })?;
        }
        Ok(assets)
    }
}

/// The environment variable that names a Helm 4 program to use instead of building one.
pub const STELLAGE_HELM: &str = "STELLAGE_HELM";

/// Finds Helm, or builds it and [`storage`], which takes about five minutes on two cores and calls `say` with lines of progress. Blocks.
pub fn helm(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    named_or_cached(STELLAGE_HELM, &pins::TOOLS, "helm", &say)
}

/// The environment variable that names a promtool program of Prometheus 3 to use instead of building one.
pub const STELLAGE_PROMTOOL: &str = "STELLAGE_PROMTOOL";

/// Finds promtool, or builds it and Prometheus, which takes about three minutes on two cores and calls `say` with lines of progress. Blocks.
pub fn promtool(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    named_or_cached(STELLAGE_PROMTOOL, &pins::PROMTOOL, "promtool", &say)
}

/// The environment variable that names a program of Prometheus 3 to use instead of building one.
pub const STELLAGE_PROMETHEUS: &str = "STELLAGE_PROMETHEUS";

/// Finds Prometheus, or builds it with [`promtool`]. Blocks.
pub fn prometheus(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    named_or_cached(STELLAGE_PROMETHEUS, &pins::PROMTOOL, "prometheus", &say)
}

/// The environment variable that names a folder with KubeVirt's servers to use instead of building them.
pub const STELLAGE_KUBEVIRT: &str = "STELLAGE_KUBEVIRT";

/// Finds KubeVirt's servers, or builds them, which takes about three minutes on two cores and calls `say` with lines of progress. Returns
/// the folder with `virt-api`, `virt-controller`, and `kubevirt.json`, the objects that KubeVirt's operator installs for them. Blocks.
pub fn kubevirt(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    let Some(folder) = env::var_os(STELLAGE_KUBEVIRT).filter(|folder| !folder.is_empty()) else {
        return cached(&pins::KUBEVIRT, &say);
    };
    let folder = PathBuf::from(folder);
    if let Some(missing) = ["virt-api", "virt-controller", "kubevirt.json"]
        .into_iter()
        .find(|name| !folder.join(name).is_file())
    {
        return Err(Error::Missing(format!(
            "{STELLAGE_KUBEVIRT}={} lacks {missing}: name a folder that `control-plane kubevirt` printed, or unset the \
             variable to build the programs once",
            folder.display()
        )));
    }
    Ok(folder)
}

/// Like [`kubevirt`], of the newest version that can be built. Blocks.
pub fn newest_kubevirt(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    cached(&pins::NEWEST_KUBEVIRT, &say)
}

/// Finds the kinds of external-snapshotter, and the `Vpc` and `Subnet` of kube-ovn, or takes them from their Go modules. Returns the file
/// with them. Blocks.
pub fn kinds(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    Ok(cached(&pins::KINDS, &say)?.join("kinds.yaml"))
}

/// Finds what makes volumes and snapshots, or builds it with [`helm`]. Returns the folder with external-provisioner's `csi-provisioner`,
/// external-snapshotter's `csi-snapshotter` and `snapshot-controller`, and `csi-driver`, a driver for tests. Blocks.
pub fn storage(say: impl Fn(&str)) -> Result<PathBuf, Error> {
    cached(&pins::TOOLS, &say)
}

/// The program that `variable` names, otherwise the one in a bundle.
fn named_or_cached(
    variable: &str,
    bundle: &Bundle,
    program: &str,
    say: &impl Fn(&str),
) -> Result<PathBuf, Error> {
    let Some(path) = env::var_os(variable).filter(|path| !path.is_empty()) else {
        return Ok(cached(bundle, say)?.join(program));
    };
    let path = PathBuf::from(path);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::Missing(format!(
        "{variable}={} is not a file: name the program, or unset the variable to build it once",
        path.display()
    )))
}

/// The folder in the cache with the programs of a bundle, which are downloaded or built if they are not there.
fn cached(bundle: &Bundle, say: &impl Fn(&str)) -> Result<PathBuf, Error> {
    let cache = cache_folder()?;
    let name = format!("{}-{}", bundle.name, bundle.key());
    let (built, downloaded) = (cache.join(&name), cache.join(format!("{name}-downloaded")));
    let may_download = !bundle.downloads.is_empty() && may_download()?;
    // If a folder exists, it is complete, because it is renamed into place.
    let there = || {
        let is_there = |folder: &&PathBuf| folder.is_dir() && (may_download || **folder == built);
        [&built, &downloaded].into_iter().find(is_there).cloned()
    };
    if let Some(folder) = there() {
        return Ok(folder);
    }
    fs::create_dir_all(&cache).map_err(Error::file("create", &cache))?;
    // Another checkout may be getting the same binaries.
    let path = cache.join(format!("{name}.lock"));
    let lock = File::create(&path).map_err(Error::file("create", &path))?;
    if lock.try_lock().is_err() {
        say(&format!(
            "Another process is downloading or building the same ({}); waiting for it.",
            path.display()
        ));
        lock.lock().map_err(Error::file("lock", &path))?;
    }
    if let Some(folder) = there() {
        return Ok(folder);
    }
    if may_download && download::into(bundle, &downloaded, say)? {
        return Ok(downloaded);
    }
    compile::into(bundle, &built, say)?;
    Ok(built)
}

/// Whether [`STELLAGE_DOWNLOADS`] allows downloads.
fn may_download() -> Result<bool, Error> {
    match env::var(STELLAGE_DOWNLOADS).as_deref() {
        Ok("never") => Ok(false),
        Ok("") | Err(_) => Ok(true),
        Ok(other) => Err(Error::Missing(format!(
            "{STELLAGE_DOWNLOADS}={other} is unknown: set it to never, to build everything from source, or unset it"
        ))),
    }
}

/// The first executable file called `name` in `path`.
fn in_path(name: &str, path: Option<&OsStr>) -> Option<PathBuf> {
    env::split_paths(path?)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The folder for things that are built or downloaded once:
/// `${STELLAGE_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/stellage}`. An error if none of the three variables is set.
pub fn cache_folder() -> Result<PathBuf, Error> {
    let variable = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let folder = variable("STELLAGE_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("stellage")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/stellage")))
        .ok_or_else(|| {
            Error::Missing("HOME is not set: set it, or set STELLAGE_CACHE_DIR to a folder".to_owned())
        })?;
    std::path::absolute(&folder).map_err(Error::file("find", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(folder: &Path, names: &[&str]) {
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
    }

    #[test]
    fn a_named_folder_without_a_server_is_refused_in_one_line_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        touch(folder.path(), &["etcd", "kube-apiserver", "kubectl"]);
        let message = Assets::in_named_folder(folder.path(), None)
            .unwrap_err()
            .to_string();
        assert!(message.contains("lacks kube-controller-manager:"), "{message}");
        assert_eq!(message.lines().count(), 1);
    }

    #[test]
    fn kubectl_may_come_from_the_path() {
        let (folder, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        touch(
            folder.path(),
            &["etcd", "kube-apiserver", "kube-controller-manager"],
        );
        let message = Assets::in_named_folder(folder.path(), None)
            .unwrap_err()
            .to_string();
        assert!(message.contains("kubectl is neither in"), "{message}");
        touch(path.path(), &["kubectl"]);
        let assets = Assets::in_named_folder(folder.path(), Some(path.path().as_os_str())).unwrap();
        assert_eq!(assets.kubectl_folder(), path.path());
        assert_eq!(assets.folder(), folder.path());
    }
}
