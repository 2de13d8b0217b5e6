//! Hostile receivers: the outcome of an attempt, its duration, and the bytes that are read.

use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::{Sender, loopback, short};
use crate::support::{
    PATIENCE, eventually,
    receivers::{Hostile, HostileReceiver},
};

/// Maximum number of bytes that a flooder can send: those that are read, and those in kernel buffers.
const MOST_SENT: u64 = 512 * 1024;

#[tokio::test]
async fn every_hostile_receiver_gets_one_request_an_end_and_little_memory() {
    let sender = Sender::new(short(), loopback());
    let all = Hostile::all(Duration::from_secs(20));
    let attempts = all.into_iter().map(async |kind| {
        let receiver = HostileReceiver::start(kind);
        let begun = Instant::now();
        let outcome = timeout(PATIENCE, sender.post(&receiver.url())).await;
        let (outcome, took) = (outcome.expect("an end"), begun.elapsed());
        assert_eq!(outcome.label(), kind.outcome(), "{kind:?}: {outcome:?}");
        assert_eq!(outcome.is_success(), outcome.status == Some(200), "{kind:?}");
        assert!(outcome.response.len() <= 4096, "{kind:?}");
        assert!(outcome.duration <= took, "{kind:?}");
        // The body is read only for the log, until its deadline, which does not count.
        assert!(
            kind != Hostile::SlowBody || outcome.duration + short().response_timeout <= took,
            "{outcome:?} took {took:?}"
        );
        eventually(
            "the connection to be let go",
            async || receiver.open(),
            |open| *open == 0,
        )
        .await;
        assert_eq!(receiver.accepted(), 1, "{kind:?}");
        assert!(receiver.requests() <= 1, "{kind:?}");
        assert!(
            receiver.sent() < MOST_SENT,
            "{kind:?} got rid of {} bytes",
            receiver.sent()
        );
    });
    futures::future::join_all(attempts).await;
}
