//! Why a connection to a receiver failed, and how to extract that from the errors of the HTTP client.

use std::{error::Error as StdError, io, time::Duration};

use thiserror::Error;

/// Why a connection failed.
#[derive(Clone, Debug, Error)]
pub enum ConnectError {
    /// All addresses of the name are forbidden.
    #[error("no address of the name is allowed")]
    Forbidden,
    /// The name has no address.
    #[error("the name has no address")]
    NoAddress,
    /// The DNS lookup failed.
    #[error("the DNS lookup failed")]
    Lookup,
    /// No address accepted a TCP connection.
    #[error("{0}")]
    Tcp(&'static str),
    /// No address accepted a TCP connection in time.
    #[error("the TCP connection timed out")]
    TcpTimeout(Duration),
    /// The proxy could not or would not connect to this receiver, for this reason.
    #[error("{0}")]
    Proxy(&'static str),
    /// The proxy does not work, for this reason, which has nothing to do with the receiver.
    #[error("{0}")]
    BrokenProxy(&'static str),
    /// The TLS handshake did not finish in time.
    #[error("the TLS handshake timed out")]
    TlsTimeout(Duration),
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(rustls::Error),
    /// The receiver closed the connection before the end of the TLS handshake.
    #[error("closed")]
    Closed,
    /// The receiver sent more bytes than allowed.
    #[error("more bytes received than allowed")]
    Flood,
}

/// The first error of type `E` in a chain of causes. Also looks inside I/O errors, which are not part of the chain.
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
