//! Whether an account's quotas of vCPUs, memory and disk have room for an instance. They hold however instances are created and resized,
//! because only the leader decides, on one instance after the other.

use std::collections::HashMap;

use parking_lot::Mutex;

use domain::instance::{has_size, waits_for_room, will_have_size};
use resources::{Account, Instance, Plan, Refusal, origin, quota::Sizes, refusal::Cause};
use runtime::{
    ByNamespace, ReconcileQueue,
    watch::{Change, Listener},
};

/// The plans that there was room for, until the statuses show them: by namespace, and by origin UID of the instance.
type Granted = HashMap<String, HashMap<String, Plan>>;

/// The room in the quotas of accounts.
pub(super) struct Room {
    /// As their watch shows them.
    instances: ByNamespace<Instance>,
    granted: Mutex<Granted>,
}

fn namespace(instance: &Instance) -> &str {
    instance.metadata.namespace.as_deref().unwrap_or_default()
}

fn uid(instance: &Instance) -> &str {
    origin::uid(&instance.metadata)
}

/// What an instance has, or will have by a spec that was decided about.
fn known_size(instance: &Instance) -> Sizes {
    let status = instance.status.as_ref();
    let is_decided = status.is_some_and(|status| {
        status.state.is_some() && status.observed_generation == instance.metadata.generation
    });
    if is_decided {
        will_have_size(instance)
    } else {
        has_size(instance)
    }
}

impl Room {
    /// For these instances.
    pub(super) fn new(instances: ByNamespace<Instance>) -> Self {
        Self {
            instances,
            granted: Mutex::default(),
        }
    }

    /// Why an instance cannot have the plan of its spec; `None` if it can. Then it counts from now on.
    pub(super) fn refusal(&self, account: &Account, instance: &Instance) -> Option<Refusal> {
        let quotas = account.size_quotas();
        if quotas.is_unlimited() || instance.is_deleting() {
            return None;
        }
        let (namespace, uid, plan) = (namespace(instance), uid(instance), instance.spec.plan);
        let has = has_size(instance);
        let wanted = has.max(Sizes::of(plan));
        // Held, so that two are not decided on at the same time.
        let mut granted = self.granted.lock();
        if wanted == has {
            if let Some(granted) = granted.get_mut(namespace) {
                granted.remove(uid);
            }
            return None;
        }
        let all = self.instances.of(namespace);
        let granted = granted.entry(namespace.to_owned()).or_default();
        granted.retain(|uid, _| all.iter().any(|instance| self::uid(instance) == uid));
        let others = all.iter().filter(|other| self::uid(other) != uid);
        let others = others.map(|other| {
            let granted = granted.get(self::uid(other)).filter(|_| !other.is_deleting());
            known_size(other).max(granted.map_or_else(Sizes::default, |plan| Sizes::of(*plan)))
        });
        let Some(exceeded) = quotas.exceeded(others.sum(), has, wanted) else {
            granted.insert(uid.to_owned(), plan);
            return None;
        };
        granted.remove(uid);
        Some(Refusal {
            cause: Cause::QuotaExceeded,
            message: format!("there is no room for plan {}: {exceeded}", plan.as_str()),
        })
    }
}

/// The listener for the watch of Instances, which must be called after that of their index. It queues those that wait for room when
/// another one goes.
pub fn room_listener(
    instances: ByNamespace<Instance>,
    queue: ReconcileQueue<Instance>,
) -> Box<dyn Listener<Instance>> {
    Box::new(move |change: &Change<Instance>| {
        let gone = match change {
            Change::Deleted(instance) => instance,
            Change::Applied(instance) if instance.is_deleting() => instance,
            Change::Applied(_) | Change::Replaced(_) | Change::Unreadable(_) => return,
        };
        let mut all = instances.of(namespace(gone));
        all.retain(|instance| waits_for_room(instance));
        queue.again(all);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    fn instance(name: &str, plan: &str, status: &Value) -> Instance {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "demo", "uid": name, "generation": 1 },
            "spec": { "plan": plan, "region": "fr-par-1", "image": "debian-13" },
            "status": status,
        }))
        .unwrap()
    }

    fn running(plan: &str) -> Value {
        json!({ "state": "running", "plan": plan, "observedGeneration": 1 })
    }

    fn account(vcpus: i32) -> Account {
        let mut account = resources::testing::account("demo", "demo", 1);
        account.spec.vcpu_quota = Some(vcpus);
        account
    }

    fn room(all: &[Instance]) -> Room {
        let mut instances = ByNamespace::default();
        let all = all.iter().cloned().map(Arc::new).collect();
        instances.changed(&Change::Replaced(all));
        Room::new(instances)
    }

    #[test]
    fn what_was_granted_counts_before_a_status_shows_it() {
        let new = ["a", "b", "c"].map(|name| instance(name, "business", &json!({})));
        let room = room(&new);
        let refusals = || new.each_ref().map(|new| room.refusal(&account(5), new).is_some());
        assert_eq!(refusals(), [false, false, true]);
        assert_eq!(refusals(), [false, false, true], "asked again");
        let message = room.refusal(&account(5), &new[2]).unwrap().message;
        assert!(
            message.contains("is 5: 4 are used, and this needs 2 more"),
            "{message}"
        );
    }

    #[test]
    fn a_larger_plan_needs_room_for_what_it_is_larger_by_and_a_smaller_one_none() {
        let other = instance("b", "performance", &running("performance"));
        let resized = |plan| instance("a", plan, &running("business"));
        let room = room(&[resized("business"), other]);
        for (plan, vcpus, fits) in [
            ("performance", 8, true),
            ("performance", 7, false),
            ("starter", 1, true),
            ("business", 1, true),
        ] {
            let refusal = room.refusal(&account(vcpus), &resized(plan));
            assert_eq!(refusal.is_none(), fits, "{plan} {vcpus}");
        }
    }

    #[test]
    fn a_new_leader_knows_from_the_statuses_what_was_granted_and_what_was_refused() {
        let mut pending = instance("b", "performance", &running("starter"));
        pending.spec.plan_on_reboot = Some(Plan::Performance);
        let mut status = running("starter");
        status["refusedPlan"] = json!("enterprise");
        let refused = instance("c", "enterprise", &status);
        let new = instance("a", "business", &json!({}));
        let room = room(&[pending, refused, new.clone()]);
        assert!(room.refusal(&account(6), &new).is_some());
        assert!(room.refusal(&account(7), &new).is_none());
    }

    #[test]
    fn an_instance_that_is_deleted_or_asks_for_less_gives_back_what_was_granted() {
        let [mut first, second] = ["a", "b"].map(|name| instance(name, "business", &json!({})));
        let room = room(&[first.clone(), second.clone()]);
        assert!(room.refusal(&account(3), &first).is_none());
        assert!(room.refusal(&account(3), &second).is_some());
        first.spec.plan = Plan::Starter;
        assert!(room.refusal(&account(3), &first).is_none());
        assert!(room.refusal(&account(3), &second).is_none());
    }
}
