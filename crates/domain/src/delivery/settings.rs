//! Settings of deliveries: flags and their environment variables.

use clap::Args;
use resources::delivery::MAX_RESPONSE_BYTES;

use super::{Bound, DeliveryLimits, DeliveryLog, RetrySchedule};

/// Hours for which logged events and finished deliveries are kept unless the settings say otherwise (decisions, section 5).
pub const DEFAULT_RETENTION_HOURS: u32 = 24;

/// Deliveries that may wait for an attempt in all, by default (decisions, section 8).
pub const PENDING_IN_ALL: u32 = 100_000;
/// Deliveries that may be held in all, by default (decisions, section 8).
pub const HELD_IN_ALL: u32 = 50_000;

/// How events are delivered and recorded.
#[derive(Args, Clone, Debug)]
pub struct DeliverySettings {
    /// Delays before the retries of a failed delivery, 1 to 20; after the last one has failed the webhook is disabled
    #[arg(long, env = "STELLAGE_RETRY_SCHEDULE", value_name = "DELAYS", default_value_t)]
    pub retry_schedule: RetrySchedule,

    /// Whether events, and their deliveries that succeed at the first attempt, are logged. Set from the common settings, because
    /// the REST API shows them.
    #[arg(skip)]
    pub delivery_log: DeliveryLog,

    /// Attempts at the same time
    #[arg(long, env = "STELLAGE_DELIVERY_CONCURRENCY", default_value_t = 512, value_parser = clap::value_parser!(u16).range(2..=16384))]
    pub delivery_concurrency: u16,

    /// Attempts at the same time per webhook
    #[arg(long, env = "STELLAGE_DELIVERY_CONCURRENCY_PER_WEBHOOK", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub delivery_concurrency_per_webhook: u16,

    /// Deliveries that may wait for an attempt per webhook; more are held until there is room
    #[arg(long, env = "STELLAGE_PENDING_DELIVERIES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub pending_deliveries: u32,

    /// The same, per account
    #[arg(long, env = "STELLAGE_PENDING_DELIVERIES_PER_ACCOUNT", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub pending_deliveries_per_account: u32,

    /// The same, for all accounts together; beyond that, deliveries of the accounts with the most pending ones are held first
    #[arg(long, env = "STELLAGE_PENDING_DELIVERIES_IN_ALL", default_value_t = PENDING_IN_ALL, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub pending_deliveries_in_all: u32,

    /// Deliveries that may be held per webhook; if there are more, the oldest are dropped and counted
    #[arg(long, env = "STELLAGE_HELD_DELIVERIES", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub held_deliveries: u32,

    /// The same, per account
    #[arg(long, env = "STELLAGE_HELD_DELIVERIES_PER_ACCOUNT", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub held_deliveries_per_account: u32,

    /// The same, for all accounts together; beyond that, the oldest of the account with the most held deliveries are dropped
    #[arg(long, env = "STELLAGE_HELD_DELIVERIES_IN_ALL", default_value_t = HELD_IN_ALL, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub held_deliveries_in_all: u32,

    /// Bytes of a receiver's answer, as they are stored, to keep of the last attempt
    #[arg(long, env = "STELLAGE_KEPT_RESPONSE_BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(0..=i64::from(MAX_RESPONSE_BYTES)))]
    pub kept_response_bytes: u16,

    /// Events to keep in the log per account; the oldest are deleted first
    #[arg(long, env = "STELLAGE_LOGGED_EVENTS_PER_ACCOUNT", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub logged_events_per_account: u32,

    /// Size to keep of the log and the finished deliveries of an account together, in MiB; the oldest are deleted first
    #[arg(long, env = "STELLAGE_LOGGED_MEBIBYTES_PER_ACCOUNT", value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub logged_mebibytes_per_account: u32,

    /// The same, for all accounts together; beyond that, the oldest of the accounts that have the most are deleted first
    #[arg(long, env = "STELLAGE_LOGGED_MEBIBYTES_IN_ALL", value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub logged_mebibytes_in_all: u32,

    /// Hours to keep logged events and finished deliveries. Set from the common settings, because the REST API shows nothing
    /// older.
    #[arg(skip = DEFAULT_RETENTION_HOURS)]
    pub delivery_retention_hours: u32,

    /// Finished deliveries to keep per webhook
    #[arg(long, env = "STELLAGE_DELIVERY_RETENTION", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub delivery_retention: u32,
}

impl DeliverySettings {
    /// The limits of the scheduler.
    pub fn limits(&self) -> DeliveryLimits {
        DeliveryLimits {
            in_flight: self.delivery_concurrency.into(),
            in_flight_per_webhook: self.delivery_concurrency_per_webhook.into(),
            pending: bound(
                self.pending_deliveries,
                self.pending_deliveries_per_account,
                self.pending_deliveries_in_all,
            ),
            held: bound(
                self.held_deliveries,
                self.held_deliveries_per_account,
                self.held_deliveries_in_all,
            ),
            ..DeliveryLimits::default()
        }
    }
}

fn bound(webhook: u32, account: u32, total: u32) -> Bound {
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    Bound {
        webhook: size(webhook),
        account: size(account),
        total: size(total),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        delivery: DeliverySettings,
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_the_scheduler() {
        let limits = Flags::parse_from(["stellage"]).delivery.limits();
        assert_eq!(limits, DeliveryLimits::default());
    }
}
