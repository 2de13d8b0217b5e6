//! What asks a command to stop: a signal, or the end of its parent.

use crate::Failure;
use std::{os::unix::process::parent_id, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};

/// Listens from its creation on.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    parent: Option<u32>,
}

impl Stop {
    /// With `parent`, the end of that process counts as well.
    pub(crate) fn listen(parent: Option<u32>) -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::Other(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
            parent,
        })
    }

    /// Returns what asked.
    pub(crate) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
            _ = self.quit.recv() => "SIGQUIT",
            () = parent_is_gone(self.parent) => "the end of the parent process",
        }
    }
}

/// An orphan is given another parent.
async fn parent_is_gone(parent: Option<u32>) {
    let Some(parent) = parent else {
        return std::future::pending().await;
    };
    while parent_id() == parent {
        sleep(Duration::from_millis(200)).await;
    }
}
