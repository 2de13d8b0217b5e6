//! The operations of an account holder: what each changes in the spec, and from which states it is allowed.

use resources::{
    InstanceSpec,
    InstanceState::{self, Error, Rebooting, Running, Starting, Stopped, Stopping},
    PowerState,
};

/// An operation on an existing instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Power on.
    Start,
    /// Ask the guest to shut down.
    Stop,
    /// Cut the power.
    PowerOff,
    /// Power-cycle.
    Reboot,
    /// Reinstall from an image.
    Rebuild,
    /// Change to another plan.
    ChangePlan,
}

impl Action {
    /// The action as spelled in the REST path; a plan change is a PATCH.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::PowerOff => "poweroff",
            Self::Reboot => "reboot",
            Self::Rebuild => "rebuild",
            Self::ChangePlan => "plan change",
        }
    }

    /// The states from which the action is allowed (decisions, section 3).
    pub const fn allowed_from(self) -> &'static [InstanceState] {
        match self {
            Self::Start => &[Stopped, Error],
            Self::Stop => &[Running],
            Self::PowerOff => &[Running, Stopping, Starting, Rebooting, Error],
            Self::Reboot => &[Running, Error],
            Self::Rebuild | Self::ChangePlan => &[Running, Stopped, Error],
        }
    }

    /// Requests the action in the spec. `nonce` is an RFC 3339 time that differs from the existing ones. The caller sets
    /// image and plan.
    pub fn request(self, spec: &mut InstanceSpec, nonce: &str) {
        let nonce = Some(nonce.to_owned());
        match self {
            Self::Start => {
                spec.power_state = PowerState::Running;
                spec.start_requested_at = nonce;
            }
            Self::Stop => spec.power_state = PowerState::Stopped,
            Self::PowerOff => {
                spec.power_state = PowerState::Stopped;
                spec.power_off_requested_at = nonce;
            }
            Self::Reboot => {
                spec.power_state = PowerState::Running;
                spec.reboot_requested_at = nonce;
            }
            Self::Rebuild => spec.rebuild_requested_at = nonce,
            Self::ChangePlan => {}
        }
    }
}
