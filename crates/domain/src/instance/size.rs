//! What an instance has of vCPUs, memory and disk, for the account's quotas.

use resources::{
    Instance,
    conditions::{self, READY},
    quota::Sizes,
    refusal::Cause,
};

/// What an instance has: by the plan in effect, and by the one that an operation in progress brings about. Its disk counts as it is, since
/// it never shrinks. An instance that is being deleted, or has not been accepted, has nothing.
pub fn has_size(instance: &Instance) -> Sizes {
    let status = instance.status.as_ref();
    let Some(status) = status.filter(|status| status.state.is_some() && !instance.is_deleting()) else {
        return Sizes::default();
    };
    let plan = status.plan.unwrap_or(instance.spec.plan);
    let becomes = status.operation.as_ref().map_or(plan, |operation| operation.plan);
    let disk = status.disk_size_gb.and_then(|disk| u64::try_from(disk).ok());
    let sizes = Sizes::of(plan).max(Sizes::of(becomes));
    Sizes {
        disk_gb: sizes.disk_gb.max(disk.unwrap_or_default()),
        ..sizes
    }
}

/// The same, with the plan that its spec asks for, at once or at the next reboot, unless the quotas have no room for that.
pub fn will_have_size(instance: &Instance) -> Sizes {
    let refused = instance.status.as_ref().and_then(|status| status.refused_plan);
    if instance.is_deleting() || refused == Some(instance.spec.plan) || is_kept_out(instance) {
        return has_size(instance);
    }
    has_size(instance).max(Sizes::of(instance.spec.plan))
}

/// Whether a new instance has not been accepted because of the quotas.
fn is_kept_out(instance: &Instance) -> bool {
    let status = instance.status.as_ref();
    let conditions = status
        .filter(|status| status.state.is_none() && status.observed_generation == instance.metadata.generation)
        .map(|status| status.conditions.as_slice());
    let ready = conditions::find(conditions.unwrap_or_default(), READY);
    ready.is_some_and(|ready| ready.reason == Cause::QuotaExceeded.reason())
}

/// Whether an instance waits until the quotas have room for it, or for its plan.
pub fn waits_for_room(instance: &Instance) -> bool {
    is_kept_out(instance)
        || instance
            .status
            .as_ref()
            .is_some_and(|status| status.refused_plan.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(plan: &str, status: &Value) -> Instance {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "uid": "u", "generation": 2 },
            "spec": { "plan": plan, "region": "fr-par-1", "image": "debian-13" },
            "status": status,
        }))
        .unwrap()
    }

    fn vcpus(instance: &Instance) -> (u64, u64) {
        (has_size(instance).vcpu, will_have_size(instance).vcpu)
    }

    #[test]
    fn the_largest_of_the_plans_in_effect_under_way_and_asked_for_counts() {
        let new = instance("business", &json!({}));
        assert_eq!(vcpus(&new), (0, 2));
        let running = json!({ "state": "running", "plan": "starter", "diskSizeGB": 160 });
        assert_eq!(vcpus(&instance("starter", &running)), (1, 1));
        assert_eq!(has_size(&instance("starter", &running)).disk_gb, 160);
        assert_eq!(vcpus(&instance("enterprise", &running)), (1, 8));
        let resizing = json!({
            "state": "resizing", "plan": "performance",
            "operation": { "kind": "Resize", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": "starter", "image": "debian-13" },
        });
        assert_eq!(vcpus(&instance("starter", &resizing)), (4, 4));
    }

    #[test]
    fn what_is_refused_or_being_deleted_does_not_count() {
        let refused = json!({ "state": "running", "plan": "starter", "refusedPlan": "enterprise" });
        assert_eq!(vcpus(&instance("enterprise", &refused)), (1, 1));
        assert_eq!(vcpus(&instance("performance", &refused)), (1, 4), "another plan");
        let kept_out = json!({ "observedGeneration": 2, "conditions": [{
            "type": "Ready", "status": "False", "reason": "QuotaExceeded", "message": "",
            "lastTransitionTime": "2026-11-21T10:00:00Z",
        }] });
        let kept_out = instance("enterprise", &kept_out);
        assert_eq!((vcpus(&kept_out), waits_for_room(&kept_out)), ((0, 0), true));
        let mut deleted = instance("enterprise", &json!({ "state": "running", "plan": "enterprise" }));
        deleted.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
            "2026-11-21T10:00:00Z".parse().unwrap(),
        ));
        assert_eq!(vcpus(&deleted), (0, 0));
    }
}
