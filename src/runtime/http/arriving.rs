//! The body of a request. The connection counts as busy once it has arrived.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::admission::Receiving;

/// The body of a request.
pub struct Arriving {
    body: Incoming,
    receiving: Receiving,
}

impl Arriving {
    pub(super) fn new(body: Incoming, receiving: Receiving) -> Self {
        if body.is_end_stream() {
            receiving.end();
        }
        Self { body, receiving }
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
            self.receiving.end();
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
        self.receiving.end();
    }
}
