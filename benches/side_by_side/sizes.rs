//! How much of everything.

use std::time::Duration;

/// How much of everything.
pub struct Sizes {
    /// Instances of the first footprint.
    pub small: u64,
    /// Instances that (a), (b) and (e) are about.
    pub large: u64,
    /// Instances of (d).
    pub converging: u64,
    /// Turns of each side in (a), (b) and (c).
    pub rounds: usize,
    /// Of each turn, what does not count.
    pub warm_up: Duration,
    /// Of each turn, what counts.
    pub measured: Duration,
    /// How long a process is left alone before its memory is read.
    pub settling: Duration,
    /// How long it is then watched while nothing happens.
    pub idle: Duration,
    /// Of each measurement of webhooks, what counts.
    pub webhooks_measured: Duration,
    /// Numbers of webhooks.
    pub webhooks: &'static [usize],
    /// Finished deliveries whose memory is measured.
    pub finished: u64,
    /// Pending deliveries whose memory is measured.
    pub pending: u64,
    /// How long healthy receivers are measured, without and with hostile ones.
    pub hostile: Duration,
}

impl Sizes {
    /// Those of the issue.
    pub const FULL: Self = Self {
        small: 1_000,
        large: 10_000,
        converging: 5_000,
        rounds: 3,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(4),
        settling: Duration::from_secs(5),
        idle: Duration::from_secs(30),
        webhooks_measured: Duration::from_secs(10),
        webhooks: &[0, 1, 5, 50],
        finished: 100_000,
        pending: 10_000,
        hostile: Duration::from_secs(60),
    };

    /// For trying the bench itself.
    pub const QUICK: Self = Self {
        small: 50,
        large: 500,
        converging: 250,
        rounds: 1,
        warm_up: Duration::from_millis(300),
        measured: Duration::from_secs(1),
        settling: Duration::from_secs(1),
        idle: Duration::from_secs(2),
        webhooks_measured: Duration::from_secs(3),
        webhooks: &[0, 1, 5, 50],
        finished: 5_000,
        pending: 500,
        hostile: Duration::from_secs(15),
    };
}
