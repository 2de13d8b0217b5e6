//! Sizes and durations of the measurements.

use std::time::Duration;

/// Sizes and durations of the measurements.
pub struct Sizes {
    /// Instances of the first footprint.
    pub small: u64,
    /// Instances in (a), (b) and (e).
    pub large: u64,
    /// Instances in (d).
    pub converging: u64,
    /// Turns of each side in (a), (b) and (c).
    pub rounds: usize,
    /// Creates of each turn with and without a quota.
    pub creates: u64,
    /// Warm-up of each turn.
    pub warm_up: Duration,
    /// Measured time of each turn.
    pub measured: Duration,
    /// How long a process is idle before its memory is read.
    pub settling: Duration,
    /// How long the CPU time of the idle process is then measured.
    pub idle: Duration,
    /// Measured time of each measurement of webhooks.
    pub webhooks_measured: Duration,
    /// Numbers of webhooks.
    pub webhooks: &'static [usize],
    /// Finished deliveries whose memory is measured.
    pub finished: u64,
    /// Pending deliveries whose memory is measured.
    pub pending: u64,
    /// Hostile connections to the facade.
    pub hostile_connections: usize,
    /// How long healthy receivers are measured, without and with hostile ones.
    pub hostile: Duration,
    /// What is in the cluster when many webhooks and instances are measured.
    pub scale: Scale,
}

/// What is in the cluster.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Accounts, each with as many webhooks and instances as the others.
    pub accounts: u64,
    /// Webhooks of an account.
    pub webhooks: u64,
    /// Instances of an account.
    pub instances: u64,
}

impl Sizes {
    /// The sizes for real measurements.
    pub const FULL: Self = Self {
        small: 1_000,
        large: 10_000,
        converging: 5_000,
        rounds: 3,
        creates: 2_000,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(4),
        settling: Duration::from_secs(5),
        idle: Duration::from_secs(30),
        webhooks_measured: Duration::from_secs(10),
        webhooks: &[0, 1, 5, 50],
        finished: 100_000,
        pending: 10_000,
        hostile_connections: 10_000,
        hostile: Duration::from_secs(60),
        scale: Scale {
            accounts: 500,
            webhooks: 20,
            instances: 200,
        },
    };

    /// Small sizes, for testing the bench itself.
    pub const QUICK: Self = Self {
        small: 50,
        large: 500,
        converging: 250,
        rounds: 1,
        creates: 200,
        warm_up: Duration::from_millis(300),
        measured: Duration::from_secs(1),
        settling: Duration::from_secs(1),
        idle: Duration::from_secs(2),
        webhooks_measured: Duration::from_secs(3),
        webhooks: &[0, 1, 5, 50],
        finished: 5_000,
        pending: 500,
        hostile_connections: 500,
        hostile: Duration::from_secs(15),
        scale: Scale {
            accounts: 20,
            webhooks: 10,
            instances: 50,
        },
    };
}
