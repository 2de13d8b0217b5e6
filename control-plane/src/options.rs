//! Options of a control plane.

use crate::Assets;
use std::{fs::File, path::PathBuf};

/// Options for a [`ControlPlane`](crate::ControlPlane); created by [`ControlPlane::options`](crate::ControlPlane::options).
#[derive(Debug, Default)]
pub struct Options {
    pub(crate) assets: Option<Assets>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) lock: Option<File>,
    pub(crate) remove: Vec<PathBuf>,
    pub(crate) audit_log: bool,
    pub(crate) without_controller_manager: bool,
    pub(crate) etcd_args: Vec<String>,
    pub(crate) apiserver_args: Vec<String>,
    pub(crate) controller_manager_args: Vec<String>,
}

impl Options {
    /// Binaries to use. By default, the start finds or builds them.
    #[must_use]
    pub fn assets(mut self, assets: Assets) -> Self {
        self.assets = Some(assets);
        self
    }

    /// Folder for data, kubeconfigs and logs. In the end everything except the logs (`NAME.log`) is removed. The
    /// default is a temporary folder, which is removed completely.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Other files and folders to remove in the end, even after `kill -9`.
    #[must_use]
    pub fn remove(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.remove.extend(paths);
        self
    }

    /// An open file with a lock, which is held until the last file is removed, even after `kill -9`.
    #[must_use]
    pub fn lock(mut self, lock: File) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Makes the API server log the metadata of every request; read it with [`ControlPlane::requests`](crate::ControlPlane::requests).
    #[must_use]
    pub fn audit_log(mut self) -> Self {
        self.audit_log = true;
        self
    }

    /// Leaves out kube-controller-manager, for callers that install CRDs before they call
    /// [`ControlPlane::start_controller_manager`](crate::ControlPlane::start_controller_manager): it looks for new kinds only every 30 s,
    /// and until it knows them counts no quota of them.
    #[must_use]
    pub fn without_controller_manager(mut self) -> Self {
        self.without_controller_manager = true;
        self
    }

    /// Adds an argument for etcd, such as `--quota-backend-bytes=…`. Of repeated arguments, the last one counts.
    #[must_use]
    pub fn etcd_arg(mut self, arg: impl Into<String>) -> Self {
        self.etcd_args.push(arg.into());
        self
    }

    /// Adds an argument for kube-apiserver. Of repeated arguments, the last one counts.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// Adds an argument for kube-controller-manager. Of repeated arguments, the last one counts.
    #[must_use]
    pub fn controller_manager_arg(mut self, arg: impl Into<String>) -> Self {
        self.controller_manager_args.push(arg.into());
        self
    }
}
