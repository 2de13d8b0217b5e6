//! How long operations on a simulated server take.

use std::time::Duration;

use super::Deadlines;
use resources::OperationKind;

/// Default provisioning time in seconds, on which the other times are based (decisions, section 4).
pub const DEFAULT_PROVISIONING_SECONDS: f64 = 150.0;

/// How long simulated operations take. All scale with the configured provisioning time; with 0, everything is done at once.
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

    /// How long simulated operations may take.
    pub fn deadlines(&self) -> Deadlines {
        Deadlines {
            soft_stop_grace: Duration::from_secs_f64(120.0 * self.scale),
            create: self.deadline,
            rebuild: self.deadline,
            other: self.deadline,
        }
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
        assert_eq!(shipped.deadlines().other, Duration::from_secs(900));
        let none = Timings::for_provisioning(0.0);
        assert_eq!(
            (
                none.duration(OperationKind::Create),
                none.deadlines().soft_stop_grace
            ),
            (Duration::ZERO, Duration::ZERO)
        );
        assert_eq!(
            Timings::for_provisioning(3600.0)
                .deadlines()
                .of(OperationKind::Create),
            Duration::from_secs(7200)
        );
    }
}
