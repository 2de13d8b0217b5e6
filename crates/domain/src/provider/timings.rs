//! Durations and deadlines of operations on a server.

use std::time::Duration;

use resources::OperationKind;

/// Default provisioning time in seconds, on which the other times are based (decisions, section 4).
pub const DEFAULT_PROVISIONING_SECONDS: f64 = 150.0;

/// Durations and deadlines. The simulated durations scale with the configured provisioning time; with 0, everything is
/// done at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timings {
    scale: f64,
    deadline: Duration,
}

impl Timings {
    /// The timings for a provisioning time in seconds, which must be finite and not negative.
    pub fn for_provisioning(seconds: f64) -> Self {
        // An operation is overdue after 15 minutes (decisions, section 3), or twice the provisioning time if that is longer.
        let deadline = Duration::from_secs_f64((seconds * 2.0).max(900.0));
        Self {
            scale: seconds / DEFAULT_PROVISIONING_SECONDS,
            deadline,
        }
    }

    /// How long the simulator takes for an operation.
    pub fn duration(&self, kind: OperationKind) -> Duration {
        let seconds = match kind {
            OperationKind::Create => DEFAULT_PROVISIONING_SECONDS,
            OperationKind::Start | OperationKind::Stop => 10.0,
            OperationKind::PowerOff => 2.0,
            OperationKind::Reboot => 15.0,
            OperationKind::Resize => 20.0,
            OperationKind::Rebuild => 60.0,
            OperationKind::Delete => 5.0,
        };
        Duration::from_secs_f64(seconds * self.scale)
    }

    /// How long the simulator takes for a backup of this size in GB: 30 s, and 1.5 s for each GB.
    pub fn backup_duration(&self, size_gb: f64) -> Duration {
        Duration::from_secs_f64(1.5_f64.mul_add(size_gb.max(0.0), 30.0) * self.scale)
    }

    /// How long a guest may take to shut down before its power is cut.
    pub fn soft_stop_grace(&self) -> Duration {
        Duration::from_secs_f64(120.0 * self.scale)
    }

    /// How long an operation may take before it counts as failed.
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }
}

impl Default for Timings {
    fn default() -> Self {
        Self::for_provisioning(DEFAULT_PROVISIONING_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_times_scale_with_the_provisioning_time_and_the_deadline_stays_beyond_it() {
        let shipped = Timings::default();
        assert_eq!(shipped.duration(OperationKind::Create), Duration::from_secs(150));
        assert_eq!(shipped.duration(OperationKind::Rebuild), Duration::from_secs(60));
        assert_eq!(shipped.deadline(), Duration::from_secs(900));
        let none = Timings::for_provisioning(0.0);
        assert_eq!(
            (none.duration(OperationKind::Create), none.soft_stop_grace()),
            (Duration::ZERO, Duration::ZERO)
        );
        assert_eq!(
            Timings::for_provisioning(3600.0).deadline(),
            Duration::from_secs(7200)
        );
    }
}
