//! Whether an account's quotas of vCPUs, memory and disk have room for an instance. They hold however instances are created and resized,
//! because only the leader decides, on one instance after the other.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use domain::instance::{has_size, will_have_size};
use resources::{Account, Instance, Refusal, origin, quota::Sizes, refusal::Cause};
use runtime::{ByNamespace, ReconcileQueue};

/// The room in the quotas of accounts.
pub(super) struct Room {
    /// As their watch shows them, which lags behind what was decided.
    instances: ByNamespace<Instance>,
    queue: ReconcileQueue<Instance>,
    /// By namespace; of accounts with such quotas alone.
    accounts: Mutex<HashMap<String, Decided>>,
}

/// What this process has decided about the instances of an account, by their origin UIDs.
#[derive(Default)]
struct Decided {
    /// What each has, and may have.
    sizes: HashMap<String, Sizes>,
    /// Those that there was no room for.
    waiting: HashSet<String>,
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
    /// For these instances. Those that wait for room are queued when there is some.
    pub(super) fn new(instances: ByNamespace<Instance>, queue: ReconcileQueue<Instance>) -> Self {
        Self {
            instances,
            queue,
            accounts: Mutex::default(),
        }
    }

    /// Why an instance cannot have the plan of its spec; `None` if it can. Then it counts from now on.
    pub(super) fn refusal(&self, account: &Account, instance: &Instance) -> Option<Refusal> {
        let quotas = account.size_quotas();
        if quotas.is_unlimited() {
            self.accounts.lock().remove(namespace(instance));
            return None;
        }
        if instance.is_deleting() {
            self.forget(instance);
            return None;
        }
        let (uid, plan) = (uid(instance), instance.spec.plan);
        let has = has_size(instance);
        let wanted = has.max(Sizes::of(plan));
        // Held, so that two are not decided on at the same time.
        let mut accounts = self.accounts.lock();
        let decided = accounts.entry(namespace(instance).to_owned()).or_default();
        let exceeded = if wanted == has {
            None
        } else {
            let all = self.instances.of(namespace(instance));
            let is_there = |uid: &String| all.iter().any(|instance| self::uid(instance) == uid);
            decided.sizes.retain(|uid, _| is_there(uid));
            decided.waiting.retain(is_there);
            let others = all
                .iter()
                .filter(|other| self::uid(other) != uid && !other.is_deleting());
            let others = others.map(|other| {
                let decided = decided.sizes.get(self::uid(other)).copied();
                decided.unwrap_or_else(|| known_size(other))
            });
            quotas.exceeded(others.sum(), has, wanted)
        };
        let size = if exceeded.is_none() { wanted } else { has };
        let before = decided.sizes.insert(uid.to_owned(), size);
        if exceeded.is_some() {
            decided.waiting.insert(uid.to_owned());
        } else {
            decided.waiting.remove(uid);
        }
        let is_smaller = before.is_some_and(|before| before != size && before.max(size) == before);
        let waiting = if is_smaller {
            std::mem::take(&mut decided.waiting)
        } else {
            HashSet::new()
        };
        drop(accounts);
        self.look_again(instance, &waiting);
        exceeded.map(|exceeded| Refusal {
            cause: Cause::QuotaExceeded,
            message: format!("there is no room for plan {}: {exceeded}", plan.as_str()),
        })
    }

    /// An instance needs no room: it is being deleted, or is not created for another reason.
    pub(super) fn forget(&self, instance: &Instance) {
        let mut accounts = self.accounts.lock();
        let Some(decided) = accounts.get_mut(namespace(instance)) else {
            return;
        };
        decided.waiting.remove(uid(instance));
        if decided.sizes.remove(uid(instance)).is_none() {
            return;
        }
        let waiting = std::mem::take(&mut decided.waiting);
        drop(accounts);
        self.look_again(instance, &waiting);
    }

    /// Queues the instances that wait for the room that this one has left.
    fn look_again(&self, instance: &Instance, waiting: &HashSet<String>) {
        if waiting.is_empty() {
            return;
        }
        let mut all = self.instances.of(namespace(instance));
        all.retain(|other| waiting.contains(uid(other)));
        self.queue.again(all);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use resources::Plan;
    use runtime::watch::{Change, Listener as _};

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
        Room::new(instances, ReconcileQueue::default())
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
