//! Errors of a control plane.

use std::{io, path::PathBuf, process::ExitStatus};

/// Why a control plane cannot be started or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something required is missing on this machine. The message is one line that also names the fix.
    #[error("{0}")]
    Missing(String),
    /// A Go build failed.
    #[error("go build of {binary} failed ({status}); the end of its output:\n{tail}")]
    Build {
        /// The binary that was being built.
        binary: &'static str,
        /// How `go` ended.
        status: ExitStatus,
        /// The last lines of its output.
        tail: String,
    },
    /// A file or folder cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The verb: read, write, create…
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// A process ended, or did not become ready in time.
    #[error("{name} {what}; the end of {}:\n{tail}", log.display())]
    Process {
        /// The process's name.
        name: String,
        /// What happened to it.
        what: String,
        /// Its log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// There is no free port on loopback.
    #[error("no free port on 127.0.0.1: {0}")]
    Port(io::Error),
    /// A kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The API server cannot be reached.
    #[error(transparent)]
    Client(#[from] Box<kube::Error>),
}

impl Error {
    /// For `map_err`: adds the file and the action to an I/O error.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
