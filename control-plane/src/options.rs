//! What can be chosen about a control plane.

use crate::Assets;
use std::{fs::File, path::PathBuf};

/// Options for a [`ControlPlane`](crate::ControlPlane); made by [`ControlPlane::options`](crate::ControlPlane::options).
#[derive(Debug, Default)]
pub struct Options {
    pub(crate) assets: Option<Assets>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) lock: Option<File>,
    pub(crate) remove: Vec<PathBuf>,
    pub(crate) audit_log: bool,
    pub(crate) etcd_args: Vec<String>,
    pub(crate) apiserver_args: Vec<String>,
    pub(crate) controller_manager_args: Vec<String>,
}

impl Options {
    /// Binaries that have been found already; by default they are found, or built, on start.
    #[must_use]
    pub fn assets(mut self, assets: Assets) -> Self {
        self.assets = Some(assets);
        self
    }

    /// Where data, kubeconfigs and logs go. In a given folder the logs (`NAME.log`) stay when the rest goes; the
    /// default is a temporary folder that goes whole.
    #[must_use]
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.folder = Some(folder.into());
        self
    }

    /// Other files and folders to remove in the end, also after `kill -9`.
    #[must_use]
    pub fn remove(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.remove.extend(paths);
        self
    }

    /// An open file with a lock on it, that stays locked until the last file is removed, also after `kill -9`.
    #[must_use]
    pub fn lock(mut self, lock: File) -> Self {
        self.lock = Some(lock);
        self
    }

    /// Has the API server log every request's metadata; read it with [`ControlPlane::requests`](crate::ControlPlane::requests).
    #[must_use]
    pub fn audit_log(mut self) -> Self {
        self.audit_log = true;
        self
    }

    /// One more argument for etcd, such as `--quota-backend-bytes=…`; the last of a name counts.
    #[must_use]
    pub fn etcd_arg(mut self, arg: impl Into<String>) -> Self {
        self.etcd_args.push(arg.into());
        self
    }

    /// One more argument for kube-apiserver; the last of a name counts.
    #[must_use]
    pub fn apiserver_arg(mut self, arg: impl Into<String>) -> Self {
        self.apiserver_args.push(arg.into());
        self
    }

    /// One more argument for kube-controller-manager; the last of a name counts.
    #[must_use]
    pub fn controller_manager_arg(mut self, arg: impl Into<String>) -> Self {
        self.controller_manager_args.push(arg.into());
        self
    }
}
