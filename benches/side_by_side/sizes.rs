//! Sizes and durations of the measurements.

use std::time::Duration;

/// Sizes and durations of the measurements.
pub struct Sizes {
    /// Number of instances in the first reads.
    pub few: u64,
    /// Number of instances in reads, memory and availability; must be even.
    pub large: u64,
    /// Number of instances in the last reads and the last memory measurement, if those are made.
    pub most: Option<u64>,
    /// Number of instances in a turn of the convergence.
    pub converging: u64,
    /// Whether to use up Kubernetes Events before measuring transitions, and to wait afterwards until outboxes are cleared and
    /// invoices written.
    pub drained: bool,
    /// Number of turns for each side.
    pub rounds: usize,
    /// Warm-up of each turn.
    pub warm_up: Duration,
    /// Measured time of each turn.
    pub measured: Duration,
    /// Duration of the transitions in each turn.
    pub transitions: Duration,
    /// The numbers of webhooks with which transitions are measured.
    pub transition_webhooks: &'static [usize],
    /// How long a process is idle before its memory is read.
    pub settling: Duration,
    /// How long the CPU time of the idle process is then measured.
    pub idle: Duration,
    /// Measured time of each turn with webhooks.
    pub webhooks_measured: Duration,
    /// The numbers of webhooks to measure with.
    pub webhooks: &'static [usize],
    /// How long healthy receivers are measured in each turn, without and with hostile ones.
    pub hostile: Duration,
    /// Number of accounts at a month's end.
    pub accounts: u64,
    /// Number of accounts in a backup.
    pub backed_up: u64,
    /// Number of lines of one account.
    pub lines: u64,
    /// Number of servers that are ordered one after the other in a region.
    pub ordered: u64,
    /// Number of those that are ordered at once.
    pub ordered_at_once: u64,
    /// Number of servers in the region with many.
    pub servers: u64,
    /// Number of accounts that have them.
    pub tenants: u64,
    /// Number of those whose nodes are drained.
    pub drained_servers: u64,
    /// How long a process with many servers in a region is idle before it is measured again.
    pub resting: Duration,
    /// Minimum number of events in such a turn, so that its p99 is meaningful: the receipts of one event depend on each other.
    pub hostile_events: u64,
}

impl Sizes {
    /// The sizes for real measurements.
    pub const FULL: Self = Self {
        few: 100,
        large: 10_000,
        most: Some(100_000),
        converging: 5_000,
        drained: true,
        rounds: 3,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
        transitions: Duration::from_secs(10),
        transition_webhooks: &[0, 1, 5],
        settling: Duration::from_secs(15),
        idle: Duration::from_secs(30),
        webhooks_measured: Duration::from_secs(5),
        webhooks: &[0, 1, 5, 50],
        hostile: Duration::from_secs(160),
        accounts: 1_000,
        backed_up: 20_000,
        lines: 40_000,
        ordered: 20,
        ordered_at_once: 100,
        servers: 10_000,
        tenants: 50,
        drained_servers: 1_000,
        resting: Duration::from_secs(60),
        hostile_events: 1_500,
    };

    /// Small sizes, for testing the bench itself.
    pub const QUICK: Self = Self {
        few: 50,
        large: 500,
        most: None,
        converging: 100,
        drained: false,
        rounds: 1,
        warm_up: Duration::from_millis(50),
        measured: Duration::from_millis(200),
        transitions: Duration::from_secs(1),
        transition_webhooks: &[0, 1],
        settling: Duration::from_millis(500),
        idle: Duration::from_secs(1),
        webhooks_measured: Duration::from_millis(500),
        webhooks: &[0, 1],
        hostile: Duration::from_secs(3),
        accounts: 20,
        backed_up: 20,
        lines: 1_000,
        ordered: 2,
        ordered_at_once: 4,
        servers: 20,
        tenants: 3,
        drained_servers: 3,
        resting: Duration::from_secs(2),
        hostile_events: 0,
    };
}
