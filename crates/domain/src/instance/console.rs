//! Console access.

use resources::{
    InstanceState::{self, Error, Running, Stopping},
    PowerState,
};

/// Whether a server in this state and with this power, as last observed, has a console: it is on, and no operation is about to
/// replace its run by another.
pub fn has_console(state: InstanceState, power: Option<PowerState>) -> bool {
    power == Some(PowerState::Running) && matches!(state, Running | Stopping | Error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_of_a_server_that_is_on_opens_also_while_it_shuts_down_or_is_in_trouble() {
        let on = Some(PowerState::Running);
        let open = InstanceState::ALL
            .into_iter()
            .filter(|state| has_console(*state, on))
            .collect::<Vec<_>>();
        assert_eq!(open, [Running, Stopping, Error]);
        assert!(!has_console(Error, Some(PowerState::Stopped)) && !has_console(Error, None));
    }
}
