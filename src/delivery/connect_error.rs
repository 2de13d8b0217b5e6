//! Why there is no connection to a receiver, and how that is found again in what the HTTP client makes of it.

use std::{error::Error as StdError, io, time::Duration};

use thiserror::Error;

/// Why there is no connection.
#[derive(Clone, Debug, Error)]
pub enum ConnectError {
    /// The name leads to forbidden addresses alone.
    #[error("no address of the name is allowed")]
    Forbidden,
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// The name could not be looked up.
    #[error("the name could not be looked up")]
    Lookup,
    /// No address could be dialled.
    #[error("{0}")]
    Tcp(&'static str),
    /// No address was reached in time.
    #[error("no connection in time")]
    TcpTimeout(Duration),
    /// The handshake did not end in time.
    #[error("no TLS in time")]
    TlsTimeout(Duration),
    /// The handshake failed.
    #[error(transparent)]
    Tls(rustls::Error),
    /// The connection was closed as soon as it stood, or in the handshake.
    #[error("closed")]
    Closed,
    /// The receiver sent more than it may.
    #[error("more was sent than is allowed")]
    Flood,
}

/// The first error of type `E` in a chain of causes, looking into I/O errors too, which hide theirs.
pub(super) fn find<'a, E: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        let hidden = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match hidden {
            Some(hidden) => Some(hidden),
            None => error.source(),
        };
    }
    None
}
