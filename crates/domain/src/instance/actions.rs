//! The operations of an account holder: what each changes in the spec, and from which states it is allowed.

use std::fmt::{Display, Formatter};

use resources::{
    InstanceSpec,
    InstanceState::{self, Error, Rebooting, Running, Starting, Stopped, Stopping},
    PowerState,
};

/// The state of an instance does not allow an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAllowed {
    /// The action.
    pub action: Action,
    /// The state.
    pub state: InstanceState,
}

impl Display for NotAllowed {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let allowed = self.action.allowed_from().iter();
        let names: Vec<_> = allowed.map(|state| state.as_str()).collect();
        let (state, action) = (self.state.as_str(), self.action.as_str());
        write!(f, "is {state}; {action} is allowed from {}", names.join(", "))
    }
}

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

    /// An error unless the action is allowed from this state.
    pub fn check(self, state: InstanceState) -> Result<(), NotAllowed> {
        if self.allowed_from().contains(&state) {
            Ok(())
        } else {
            Err(NotAllowed { action: self, state })
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
