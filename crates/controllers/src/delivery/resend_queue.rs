//! The requests to send a delivery from the event log again.

use std::collections::HashMap;

use domain::delivery::JobKey;

/// The requests that have not been completed yet.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Each request, with whether it has changed since work on it began.
    known: HashMap<JobKey, bool>,
    /// Requests that nobody is working on yet.
    new: Vec<JobKey>,
}

impl Requests {
    pub(crate) fn add(&mut self, request: JobKey) {
        if let Some(has_changed) = self.known.get_mut(&request) {
            *has_changed = true;
        } else {
            self.known.insert(request.clone(), false);
            self.new.push(request);
        }
    }

    /// Removes and returns the requests to start work on.
    pub(crate) fn take_new(&mut self) -> Vec<JobKey> {
        std::mem::take(&mut self.new)
    }

    /// Records that work on a request has ended. It starts over if the request has changed meanwhile, or must be tried `again`.
    pub(crate) fn ended(&mut self, request: JobKey, again: bool) {
        if self.known.remove(&request) == Some(true) || again {
            self.add(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::delivery::key;

    #[test]
    fn a_request_that_changes_while_it_is_worked_on_is_taken_up_once_more_and_no_more_often() {
        let mut requests = Requests::default();
        let request = key("ada", "dlv-a");
        for _ in 0..3 {
            requests.add(request.clone());
        }
        assert_eq!(requests.take_new(), std::slice::from_ref(&request));
        requests.add(request.clone());
        requests.add(request.clone());
        assert!(requests.take_new().is_empty());
        requests.ended(request.clone(), false);
        assert_eq!(requests.take_new(), std::slice::from_ref(&request));
        requests.ended(request.clone(), true);
        assert_eq!(requests.take_new(), std::slice::from_ref(&request));
        requests.ended(request, false);
        assert!(requests.take_new().is_empty() && requests.known.is_empty());
    }
}
