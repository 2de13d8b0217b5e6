//! Decides what to do next with a `PrivateNetwork`, given the other networks of its account, its instances, and what the provider says.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;

use super::prefix::{choose, overlapping, parse};
use crate::provider::{Progress, ProviderError};
use resources::{
    PrivateNetwork, PrivateNetworkStatus,
    conditions::{self, Desired, READY, RECONCILING, STALLED},
    origin::{self, ORIGIN_ANNOTATION},
};

/// When to check again what is not reported, such as a change of the catalogue or of another network of the account.
const CHECK_AGAIN: Duration = Duration::from_mins(1);
/// When to look again whether a network is still there: nobody watches what it consists of.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// What a decision depends on, besides the network and the provider.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Whether the namespace belongs to an Account. Otherwise the network is left alone.
    pub has_account: bool,
    /// Whether its region has private networks; `None` if there is no such region.
    pub is_offered: Option<bool>,
    /// All networks of the account, this one included.
    pub all: &'a [Arc<PrivateNetwork>],
    /// Number of instances in it.
    pub attached: usize,
}

/// What to ask the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Nothing.
    Nothing,
    /// Make it, and say whether servers can be attached.
    Make,
    /// Remove what it made of it.
    Remove,
}

/// The provider's answer.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// It was not asked.
    NotAsked,
    /// How far it is.
    Observed(&'a Progress),
    /// The call failed.
    Failed(&'a ProviderError),
}

/// The output of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The status to write, if it differs from the current one.
    pub status: PrivateNetworkStatus,
    /// When to reconcile again if nothing happens before then.
    pub recheck_after: Option<Duration>,
    /// Whether the next reconcile comes after a backoff.
    pub retry: bool,
    /// Whether nothing is left of it, so that the finalizer goes.
    pub finished: bool,
}

/// Why a network cannot be made.
struct Obstacle {
    reason: &'static str,
    message: String,
}

/// What to ask the provider before [`decide()`].
pub fn question(network: &PrivateNetwork, situation: &Situation<'_>) -> Question {
    if network.is_deleting() {
        let is_removed = situation.attached == 0 && older_twin(network, situation).is_none();
        return if is_removed {
            Question::Remove
        } else {
            Question::Nothing
        };
    }
    match prefix(network, situation) {
        // The prefix is stored first, so that what is made has the same one in another pass.
        Ok(prefix) if network.status.as_ref().and_then(|status| status.prefix.as_ref()) == Some(&prefix) => {
            Question::Make
        }
        _ => Question::Nothing,
    }
}

/// Decides what to do about a network. Pure: the same input gives the same output, and if nothing has changed, the status does not
/// change either.
pub fn decide(
    network: &PrivateNetwork,
    situation: &Situation<'_>,
    seen: Seen<'_>,
    now: Timestamp,
) -> Decision {
    let mut decision = Decision {
        status: network.status.clone().unwrap_or_default(),
        recheck_after: None,
        retry: false,
        finished: false,
    };
    decision.status.id = Some(network.id());
    let is_deleting = network.is_deleting();
    let (state, reason, message) = match (prefix(network, situation), seen) {
        _ if is_deleting && older_twin(network, situation).is_some() => {
            decision.finished = true;
            return decision;
        }
        (_, Seen::Observed(Progress::Done)) if is_deleting => {
            decision.finished = true;
            return decision;
        }
        _ if is_deleting && situation.attached > 0 => {
            let n = situation.attached;
            let instances = if n == 1 { "instance is" } else { "instances are" };
            let message =
                format!("{n} {instances} still in the network; it is removed once they are deleted");
            (State::Working, "InUse", message)
        }
        (Err(obstacle), Seen::NotAsked) if !is_deleting => {
            decision.recheck_after = Some(CHECK_AGAIN);
            (State::Stalled, obstacle.reason, obstacle.message)
        }
        // Nothing is known to have changed.
        (_, Seen::Failed(_)) if !is_deleting && is_ready(network) => {
            decision.retry = true;
            return decision;
        }
        (_, Seen::Failed(error)) => {
            decision.retry = true;
            (State::Working, error.reason(), error.to_string())
        }
        (_, Seen::Observed(Progress::Failed(trouble))) => {
            decision.retry = true;
            (State::Working, trouble.reason, trouble.message.clone())
        }
        (_, Seen::Observed(Progress::Done)) => {
            decision.recheck_after = Some(LOOK_AGAIN);
            let message = "instances can be attached to the network";
            (State::Ready, "Ready", message.to_owned())
        }
        (prefix, Seen::NotAsked | Seen::Observed(Progress::Idle | Progress::Busy)) => {
            if let Ok(prefix) = prefix
                && !is_deleting
            {
                decision.status.prefix = Some(prefix);
            }
            decision.retry = !matches!(seen, Seen::NotAsked);
            let (reason, message) = if is_deleting {
                ("Deleting", "the network is being removed")
            } else {
                ("Creating", "the network is being made")
            };
            (State::Working, reason, message.to_owned())
        }
    };
    describe(
        &mut decision.status,
        state,
        reason,
        &message,
        network.metadata.generation,
        now,
    );
    decision
}

fn is_ready(network: &PrivateNetwork) -> bool {
    network.ready().is_some_and(|ready| ready.status == "True")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Working,
    Stalled,
}

fn describe(
    status: &mut PrivateNetworkStatus,
    state: State,
    reason: &'static str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) {
    for (type_, of) in [
        (RECONCILING, State::Working),
        (STALLED, State::Stalled),
        (READY, State::Ready),
    ] {
        let holds = state == of;
        let message = if holds || type_ == READY { message } else { "" };
        let desired = Desired {
            type_,
            status: Some(holds),
            reason,
            message: message.to_owned(),
        };
        conditions::set(&mut status.conditions, desired, generation, now);
    }
}

fn older_twin(network: &PrivateNetwork, situation: &Situation<'_>) -> Option<String> {
    let all = situation.all.iter().map(|other| &other.metadata);
    origin::older_twin(&network.metadata, all)
}

/// The prefix that a network has or gets; why it cannot be made.
fn prefix(network: &PrivateNetwork, situation: &Situation<'_>) -> Result<String, Obstacle> {
    let obstacle = |reason, message| Err(Obstacle { reason, message });
    let (metadata, spec) = (&network.metadata, &network.spec);
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    if !situation.has_account {
        return obstacle(
            "NoAccount",
            format!(
                "namespace {namespace} belongs to no Account, so the network is ignored; create an Account with spec.namespace {namespace}"
            ),
        );
    }
    if let Some(older) = older_twin(network, situation) {
        return obstacle(
            "OriginTaken",
            format!(
                "this is a copy of PrivateNetwork {older}, which is older: both have the same annotation {ORIGIN_ANNOTATION}; delete this one, or create it without the annotation"
            ),
        );
    }
    let in_effect = network.status.as_ref().and_then(|status| status.prefix.clone());
    match situation.is_offered {
        Some(true) => {}
        // Servers may be in it.
        _ if in_effect.is_some() => {}
        Some(false) => {
            return obstacle(
                "InvalidSpec",
                format!(
                    "private networks are not available in region {}; delete this one",
                    spec.region
                ),
            );
        }
        None => {
            return obstacle(
                "InvalidSpec",
                format!("spec.region {} is not available; delete this one", spec.region),
            );
        }
    }
    if let Some(prefix) = in_effect {
        return Ok(prefix);
    }
    let is_other = |other: &&Arc<PrivateNetwork>| other.metadata.uid != metadata.uid;
    let others = situation.all.iter().filter(is_other);
    let Some(given) = &spec.prefix else {
        let name = metadata.name.as_deref().unwrap_or_default();
        let chosen = choose(name, others.map(|other| &**other));
        return match chosen {
            Some(prefix) => Ok(prefix.to_string()),
            None => obstacle(
                "NoFreePrefix",
                "the other networks of the account leave no free prefix; delete one of them".to_owned(),
            ),
        };
    };
    let wanted = match parse(given) {
        Ok(wanted) => wanted,
        Err(complaint) => return obstacle("InvalidSpec", format!("spec.prefix {complaint}")),
    };
    // Of several that are new, the oldest has its way.
    let has_priority = |other: &&Arc<PrivateNetwork>| {
        let has_one = other
            .status
            .as_ref()
            .is_some_and(|status| status.prefix.is_some());
        has_one || origin::age(&other.metadata) < origin::age(metadata)
    };
    let first = others.filter(has_priority).map(|other| &**other);
    match overlapping(wanted, first) {
        Some(other) => obstacle(
            "PrefixTaken",
            format!(
                "spec.prefix {given} overlaps {} of PrivateNetwork {}; delete this one, and create it with another prefix, or with none",
                other.prefix().unwrap_or_default(),
                other.metadata.name.as_deref().unwrap_or_default(),
            ),
        ),
        None => Ok(given.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::provider::Trouble;

    fn network(name: &str, second: u8, with: &Value) -> Arc<PrivateNetwork> {
        let mut object = json!({
            "metadata": {
                "name": name, "namespace": "demo", "uid": name, "generation": 1,
                "creationTimestamp": format!("2026-11-21T10:00:0{second}Z"),
            },
            "spec": { "region": "fr-par-1" },
        });
        for part in ["metadata", "spec", "status"] {
            for (key, value) in with[part].as_object().into_iter().flatten() {
                object[part][key] = value.clone();
            }
        }
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn situation(all: &[Arc<PrivateNetwork>]) -> Situation<'_> {
        Situation {
            has_account: true,
            is_offered: Some(true),
            all,
            attached: 0,
        }
    }

    fn decided(network: &PrivateNetwork, situation: &Situation<'_>, seen: Seen<'_>) -> Decision {
        decide(network, situation, seen, "2026-11-21T10:01:00Z".parse().unwrap())
    }

    fn reason(decision: &Decision) -> (&str, bool) {
        let ready = conditions::find(&decision.status.conditions, READY).unwrap();
        (&ready.reason, ready.status == "True")
    }

    #[test]
    fn a_network_gets_its_prefix_before_it_is_made_and_keeps_it() {
        let new = network("pn-a", 0, &json!({}));
        let all = [new.clone()];
        let situation = situation(&all);
        assert_eq!(question(&new, &situation), Question::Nothing);
        let first = decided(&new, &situation, Seen::NotAsked);
        assert_eq!(reason(&first), ("Creating", false));
        let mut known = (*new).clone();
        known.status = Some(first.status);
        assert_eq!(question(&known, &situation), Question::Make);
        let busy = decided(&known, &situation, Seen::Observed(&Progress::Busy));
        assert!(busy.retry && reason(&busy) == ("Creating", false));
        let done = decided(&known, &situation, Seen::Observed(&Progress::Done));
        assert_eq!((reason(&done), done.retry), (("Ready", true), false));
        assert_eq!(done.status.prefix, known.status.as_ref().unwrap().prefix);
        assert_eq!(done.recheck_after, Some(LOOK_AGAIN));
        known.status = Some(done.status);
        let again = decided(&known, &situation, Seen::Observed(&Progress::Done));
        assert_eq!(Some(again.status), known.status, "nothing changes");
    }

    #[test]
    fn of_two_networks_with_overlapping_prefixes_the_one_that_has_it_or_the_older_has_its_way() {
        let wants = json!({ "spec": { "prefix": "10.1.2.0/24" } });
        let has = json!({ "spec": { "prefix": "10.1.0.0/16" }, "status": { "prefix": "10.1.0.0/16" } });
        let (older, younger, with) = (
            network("pn-b", 0, &wants),
            network("pn-a", 1, &wants),
            network("pn-c", 2, &has),
        );
        let two = [older.clone(), younger.clone()];
        assert_eq!(
            reason(&decided(&older, &situation(&two), Seen::NotAsked)),
            ("Creating", false)
        );
        let refused = decided(&younger, &situation(&two), Seen::NotAsked);
        assert_eq!(reason(&refused), ("PrefixTaken", false));
        assert!(conditions::is_true(&refused.status.conditions, STALLED) && refused.status.prefix.is_none());
        let three = [older.clone(), with];
        assert_eq!(
            reason(&decided(&older, &situation(&three), Seen::NotAsked)),
            ("PrefixTaken", false)
        );
    }

    #[test]
    fn a_network_that_cannot_be_made_says_why_and_the_provider_is_not_asked() {
        let new = network("pn-a", 0, &json!({}));
        let all = [new.clone()];
        let free = situation(&all);
        for (situation, expected) in [
            (
                Situation {
                    has_account: false,
                    ..free
                },
                "NoAccount",
            ),
            (
                Situation {
                    is_offered: None,
                    ..free
                },
                "InvalidSpec",
            ),
            (
                Situation {
                    is_offered: Some(false),
                    ..free
                },
                "InvalidSpec",
            ),
        ] {
            assert_eq!(question(&new, &situation), Question::Nothing);
            assert_eq!(
                reason(&decided(&new, &situation, Seen::NotAsked)),
                (expected, false)
            );
        }
        let wrong = network("pn-a", 0, &json!({ "spec": { "prefix": "192.0.2.0/24" } }));
        assert_eq!(
            reason(&decided(&wrong, &free, Seen::NotAsked)),
            ("InvalidSpec", false)
        );
    }

    #[test]
    fn what_the_provider_complains_of_is_said_and_it_is_asked_again() {
        let known = network("pn-a", 0, &json!({ "status": { "prefix": "10.128.4.0/24" } }));
        let all = [known.clone()];
        let trouble = Trouble {
            reason: "PrivateNetworkMissing",
            message: "none".to_owned(),
        };
        let failed = Progress::Failed(trouble);
        let decision = decided(&known, &situation(&all), Seen::Observed(&failed));
        assert!(decision.retry && reason(&decision) == ("PrivateNetworkMissing", false));
        let error = ProviderError::Unavailable("busy".to_owned());
        let decision = decided(&known, &situation(&all), Seen::Failed(&error));
        assert!(decision.retry && reason(&decision) == ("ProviderUnavailable", false));
        // One that was well stays so until something else is seen.
        let ready = decided(&known, &situation(&all), Seen::Observed(&Progress::Done));
        let mut ready_network = (*known).clone();
        ready_network.status = Some(ready.status);
        let decision = decided(&ready_network, &situation(&all), Seen::Failed(&error));
        assert!(decision.retry && Some(&decision.status) == ready_network.status.as_ref());
        let decision = decided(&ready_network, &situation(&all), Seen::Observed(&failed));
        assert_eq!(reason(&decision), ("PrivateNetworkMissing", false));
    }

    #[test]
    fn a_deleted_network_stays_while_instances_are_in_it_and_then_until_it_is_removed() {
        let with = json!({
            "metadata": { "deletionTimestamp": "2026-11-21T11:00:00Z" }, "status": { "prefix": "10.128.4.0/24" },
        });
        let deleted = network("pn-a", 0, &with);
        let all = [deleted.clone()];
        let used = Situation {
            attached: 2,
            ..situation(&all)
        };
        assert_eq!(question(&deleted, &used), Question::Nothing);
        assert_eq!(
            reason(&decided(&deleted, &used, Seen::NotAsked)),
            ("InUse", false)
        );
        let unused = situation(&all);
        assert_eq!(question(&deleted, &unused), Question::Remove);
        let busy = decided(&deleted, &unused, Seen::Observed(&Progress::Busy));
        assert!(busy.retry && !busy.finished && reason(&busy) == ("Deleting", false));
        assert!(decided(&deleted, &unused, Seen::Observed(&Progress::Done)).finished);
    }

    #[test]
    fn a_copy_is_left_alone_and_goes_without_what_is_the_older_ones() {
        let origin =
            json!({ "metadata": { "annotations": { ORIGIN_ANNOTATION: "u 2026-11-21T09:00:00Z" } } });
        let older = network("pn-a", 0, &origin);
        let copy = network("pn-b", 1, &origin);
        let all = [older, copy.clone()];
        assert_eq!(
            reason(&decided(&copy, &situation(&all), Seen::NotAsked)),
            ("OriginTaken", false)
        );
        let mut deleted = (*copy).clone();
        deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-21T11:00:00Z")).unwrap();
        assert_eq!(question(&deleted, &situation(&all)), Question::Nothing);
        assert!(decided(&deleted, &situation(&all), Seen::NotAsked).finished);
    }
}
