//! Requests to stop: signals, or the end of the parent process.

use crate::Failure;
use std::{os::unix::process::parent_id, time::Duration};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};

/// Listens for requests to stop, from the moment it is created.
pub(crate) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    parent: Option<u32>,
}

impl Stop {
    /// Listens for signals, and for the end of the process `parent` if it is given.
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

    /// Waits for a request to stop, and returns its source.
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

/// Waits until the parent has ended: an orphan gets another parent.
async fn parent_is_gone(parent: Option<u32>) {
    let Some(parent) = parent else {
        return std::future::pending().await;
    };
    while parent_id() == parent {
        sleep(Duration::from_millis(200)).await;
    }
}
