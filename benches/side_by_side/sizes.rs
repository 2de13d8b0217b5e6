//! Sizes and durations of the measurements.

use std::time::Duration;

/// Sizes and durations of the measurements.
pub struct Sizes {
    /// Instances of the first reads.
    pub few: u64,
    /// Instances in (a), (b) and (e), an even number.
    pub large: u64,
    /// Instances of the last reads, and of the last measurement of memory, if they are made.
    pub most: Option<u64>,
    /// Instances of a turn of (d).
    pub converging: u64,
    /// Instances brought to run beside KWOK, if that is measured.
    pub kwok: Option<u64>,
    /// Whether Kubernetes Events are used up before transitions are measured, and outboxes cleared after them.
    pub drained: bool,
    /// Turns of each side.
    pub rounds: usize,
    /// Creates of each turn with and without a quota.
    pub creates: u64,
    /// Warm-up of each turn.
    pub warm_up: Duration,
    /// Measured time of each turn.
    pub measured: Duration,
    /// How long transitions are made in each turn.
    pub transitions: Duration,
    /// Numbers of webhooks beside which transitions are made.
    pub transition_webhooks: &'static [usize],
    /// How long a process is idle before its memory is read.
    pub settling: Duration,
    /// How long the CPU time of the idle process is then measured.
    pub idle: Duration,
    /// Measured time of each turn with webhooks.
    pub webhooks_measured: Duration,
    /// Numbers of webhooks.
    pub webhooks: &'static [usize],
    /// Finished deliveries whose memory is measured.
    pub finished: u64,
    /// Pending deliveries whose memory is measured.
    pub pending: u64,
    /// Hostile connections to the facade.
    pub hostile_connections: usize,
    /// How long healthy receivers are measured in each turn, without and with hostile ones.
    pub hostile: Duration,
    /// Fewest receipts of such a turn, so that its p99 means something.
    pub receipts: u64,
    /// What is in the cluster when many webhooks and instances are measured.
    pub scale: Scale,
    /// Time between two samples of a monitored instance.
    pub sampling: Duration,
    /// Accounts whose invoices are closed at once, and their instances in all.
    pub month_end: (u64, u64),
    /// Completed backups whose memory is measured.
    pub backups: u64,
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
        few: 100,
        large: 10_000,
        most: Some(100_000),
        converging: 5_000,
        kwok: Some(1_000),
        drained: true,
        rounds: 3,
        creates: 2_000,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
        transitions: Duration::from_secs(10),
        transition_webhooks: &[0, 1, 5],
        settling: Duration::from_secs(15),
        idle: Duration::from_secs(30),
        webhooks_measured: Duration::from_secs(5),
        webhooks: &[0, 1, 5, 50],
        finished: 100_000,
        pending: 10_000,
        hostile_connections: 10_000,
        hostile: Duration::from_secs(60),
        receipts: 1_000,
        scale: Scale {
            accounts: 500,
            webhooks: 20,
            instances: 200,
        },
        sampling: Duration::from_secs(60),
        month_end: (1_000, 10_000),
        backups: 100_000,
    };

    /// Small sizes, for testing the bench itself.
    pub const QUICK: Self = Self {
        few: 50,
        large: 500,
        most: None,
        converging: 100,
        kwok: None,
        drained: false,
        rounds: 1,
        creates: 100,
        warm_up: Duration::from_millis(200),
        measured: Duration::from_millis(500),
        transitions: Duration::from_secs(2),
        transition_webhooks: &[0, 1],
        settling: Duration::from_millis(500),
        idle: Duration::from_secs(1),
        webhooks_measured: Duration::from_secs(1),
        webhooks: &[0, 1, 5],
        finished: 1_000,
        pending: 100,
        hostile_connections: 500,
        hostile: Duration::from_secs(5),
        receipts: 0,
        scale: Scale {
            accounts: 10,
            webhooks: 5,
            instances: 20,
        },
        sampling: Duration::from_secs(2),
        month_end: (10, 100),
        backups: 300,
    };
}
