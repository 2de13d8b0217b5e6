//! What can go wrong with a control plane.

use std::{io, path::PathBuf, process::ExitStatus};

/// What can go wrong between wanting a control plane and having one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that has to be on the machine is not; one line that also says how to get it.
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
    /// A file or folder could not be used.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// The verb: read, write, create…
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// The system's answer.
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
    /// No free port was found on loopback.
    #[error("no free port on 127.0.0.1: {0}")]
    Port(io::Error),
    /// A kubeconfig could not be used.
    #[error(transparent)]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// The API server could not be talked to.
    #[error(transparent)]
    Client(#[from] Box<kube::Error>),
}

impl Error {
    /// For `map_err`: an I/O error with the file and the verb.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }
}
