//! The body of a request. The connection counts as busy once it has arrived.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::admission::{Admitted, Receiving};

/// The body of a request.
pub struct Arriving {
    body: Incoming,
    /// `None` if there is no body.
    receiving: Option<Receiving>,
}

impl Arriving {
    /// Begins a request of a connection.
    pub(super) fn new(body: Incoming, connection: &Admitted) -> Self {
        let receiving = if body.is_end_stream() {
            connection.begin_without_body();
            None
        } else {
            Some(connection.begin())
        };
        Self { body, receiving }
    }

    fn has_arrived(&self) {
        if let Some(receiving) = &self.receiving {
            receiving.end();
        }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.has_arrived();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.has_arrived();
    }
}
