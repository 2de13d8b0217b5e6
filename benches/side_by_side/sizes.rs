//! Sizes and durations of the measurements.

use std::time::Duration;

/// Sizes and durations of the measurements.
pub struct Sizes {
    /// Number of instances in the first reads.
    pub few: u64,
    /// Number of instances in (a), (b) and (e); must be even.
    pub large: u64,
    /// Number of instances in the last reads and the last memory measurement, if those are made.
    pub most: Option<u64>,
    /// Number of instances in a turn of (d).
    pub converging: u64,
    /// Number of instances brought to run in the comparison with KWOK.
    pub kwok: u64,
    /// Whether to build KWOK, which takes minutes, if the cache does not contain it.
    pub builds_kwok: bool,
    /// Whether KWOK is also measured with a stage that writes only the state, which takes another cluster.
    pub kwok_of_least: bool,
    /// Whether to use up Kubernetes Events before measuring transitions, and to wait afterwards until outboxes are cleared and
    /// invoices written.
    pub drained: bool,
    /// Number of turns for each side.
    pub rounds: usize,
    /// Number of creates in each turn, with and without a quota.
    pub creates: u64,
    /// Warm-up of each turn.
    pub warm_up: Duration,
    /// Measured time of each turn.
    pub measured: Duration,
    /// Measured time of each turn of the reads in which a tenth of the instances change.
    pub changing: Duration,
    /// Minimum share of those changes that must be reached.
    pub changed: f64,
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
    /// Number of finished deliveries whose memory is measured.
    pub finished: u64,
    /// Number of pending deliveries whose memory is measured.
    pub pending: u64,
    /// Number of hostile connections to the facade.
    pub hostile_connections: usize,
    /// How long healthy receivers are measured in each turn, without and with hostile ones.
    pub hostile: Duration,
    /// Minimum number of events in such a turn, so that its p99 is meaningful: the receipts of one event depend on each other.
    pub hostile_events: u64,
    /// What the cluster contains when many webhooks and instances are measured.
    pub scale: Scale,
    /// Time between two samples of a monitored instance.
    pub sampling: Duration,
    /// Number of accounts whose invoices are closed at once, and the total number of their instances.
    pub month_end: (u64, u64),
    /// Number of completed backups whose memory is measured.
    pub backups: u64,
}

/// What the cluster contains.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Number of accounts, which all have the same numbers of webhooks and instances.
    pub accounts: u64,
    /// Webhooks per account.
    pub webhooks: u64,
    /// Instances per account.
    pub instances: u64,
}

impl Sizes {
    /// The sizes for real measurements.
    pub const FULL: Self = Self {
        few: 100,
        large: 10_000,
        most: Some(100_000),
        converging: 5_000,
        kwok: 5_000,
        builds_kwok: true,
        kwok_of_least: true,
        drained: true,
        rounds: 3,
        creates: 2_000,
        warm_up: Duration::from_secs(1),
        measured: Duration::from_secs(3),
        changing: Duration::from_secs(20),
        changed: 0.9,
        transitions: Duration::from_secs(10),
        transition_webhooks: &[0, 1, 5],
        settling: Duration::from_secs(15),
        idle: Duration::from_secs(30),
        webhooks_measured: Duration::from_secs(5),
        webhooks: &[0, 1, 5, 50],
        finished: 100_000,
        pending: 10_000,
        hostile_connections: 10_000,
        hostile: Duration::from_secs(160),
        hostile_events: 1_500,
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
        kwok: 10,
        builds_kwok: false,
        kwok_of_least: false,
        drained: false,
        rounds: 1,
        creates: 100,
        warm_up: Duration::from_millis(50),
        measured: Duration::from_millis(200),
        changing: Duration::from_secs(1),
        changed: 0.0,
        transitions: Duration::from_secs(1),
        transition_webhooks: &[0, 1],
        settling: Duration::from_millis(500),
        idle: Duration::from_secs(1),
        webhooks_measured: Duration::from_millis(500),
        webhooks: &[0, 1],
        finished: 1_000,
        pending: 100,
        hostile_connections: 500,
        hostile: Duration::from_secs(3),
        hostile_events: 0,
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
