//! Applies a change to an instance's spec. No I/O.

use super::{Action, actions::NotAllowed, shown};
use api::ChangeInstance;
use resources::{Instance, InstanceSpec, Plan};

/// The changed spec; an error if the plan changes and the instance's state does not allow that.
pub fn changed_spec(change: &ChangeInstance, instance: &Instance) -> Result<InstanceSpec, NotAllowed> {
    let mut spec = instance.spec.clone();
    if let Some(name) = &change.name
        && name != instance.display_name()
    {
        spec.name = Some(name.clone());
    }
    if let Some(tags) = &change.tags {
        spec.tags.clone_from(tags);
    }
    spec.backup_enabled = change.backup_enabled.unwrap_or(spec.backup_enabled);
    spec.monitoring_enabled = change.monitoring_enabled.unwrap_or(spec.monitoring_enabled);
    spec.deletion_protection = change.deletion_protection.unwrap_or(spec.deletion_protection);
    let (state, in_effect) = shown(instance);
    let (plan, plan_on_reboot) = wanted_plan(change, &spec, in_effect);
    if (plan, plan_on_reboot) != (spec.plan, spec.plan_on_reboot) {
        Action::ChangePlan.check(state)?;
        (spec.plan, spec.plan_on_reboot) = (plan, plan_on_reboot);
    }
    Ok(spec)
}

/// The new plan, and the one that takes effect on reboot.
fn wanted_plan(change: &ChangeInstance, spec: &InstanceSpec, in_effect: Plan) -> (Plan, Option<Plan>) {
    let unchanged = (spec.plan, spec.plan_on_reboot);
    match (change.plan, change.reboot) {
        // The plan is in effect already, and none is pending.
        (Some(plan), _) if plan == in_effect && spec.plan == in_effect => unchanged,
        // Back to the plan in effect: drop the pending change.
        (Some(plan), _) if plan == in_effect => (plan, None),
        (Some(plan), Some(false)) => (plan, Some(plan)),
        (Some(plan), _) => (plan, None),
        (None, Some(true)) if spec.plan != in_effect => (spec.plan, None),
        (None, _) => unchanged,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use resources::InstanceState;

    fn instance(state: &str, in_effect: &str, wanted: &str, on_reboot: Option<&str>) -> Instance {
        let power = if state == "stopped" { "Stopped" } else { "Running" };
        let mut object = json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": {
                "plan": wanted, "planOnReboot": on_reboot, "region": "fr-par-1", "image": "debian-13", "powerState": power,
                "tags": ["a"],
            },
            "status": { "state": state, "power": power, "powerState": power, "plan": in_effect, "image": "debian-13" },
        });
        if state == "rebooting" {
            object["status"]["operation"] = json!({
                "kind": "Reboot", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": wanted, "image": "debian-13"
            });
        }
        serde_json::from_value(object).unwrap()
    }

    fn plan(plan: &str, reboot: Option<bool>) -> ChangeInstance {
        ChangeInstance {
            plan: plan.parse().ok(),
            reboot,
            ..ChangeInstance::default()
        }
    }

    #[test]
    fn reboot_decides_when_a_plan_takes_effect() {
        use Plan::{Business, Enterprise, Starter};
        // (in effect, wanted, on reboot) and body, then (wanted, on reboot) after it
        let table = [
            (
                ("starter", "starter", None),
                plan("business", None),
                (Business, None),
            ),
            (
                ("starter", "starter", None),
                plan("business", Some(true)),
                (Business, None),
            ),
            (
                ("starter", "starter", None),
                plan("business", Some(false)),
                (Business, Some(Business)),
            ),
            (
                ("starter", "starter", Some("business")),
                plan("business", None),
                (Business, None),
            ),
            (
                ("starter", "starter", Some("business")),
                plan("starter", None),
                (Starter, Some(Business)),
            ),
            (
                ("starter", "starter", None),
                plan("", Some(true)),
                (Starter, None),
            ),
            (
                ("starter", "starter", None),
                plan("", Some(false)),
                (Starter, None),
            ),
            (
                ("starter", "business", Some("business")),
                plan("", Some(true)),
                (Business, None),
            ),
            (
                ("starter", "business", Some("business")),
                plan("", Some(false)),
                (Business, Some(Business)),
            ),
            (
                ("starter", "business", Some("business")),
                plan("business", None),
                (Business, None),
            ),
            (
                ("starter", "business", Some("business")),
                plan("business", Some(false)),
                (Business, Some(Business)),
            ),
            (
                ("starter", "business", Some("business")),
                plan("starter", None),
                (Starter, None),
            ),
            (
                ("starter", "business", Some("business")),
                plan("enterprise", Some(false)),
                (Enterprise, Some(Enterprise)),
            ),
            (
                ("starter", "business", Some("business")),
                ChangeInstance {
                    tags: Some(Vec::new()),
                    ..ChangeInstance::default()
                },
                (Business, Some(Business)),
            ),
        ];
        for ((in_effect, wanted, on_reboot), change, expected) in table {
            for state in ["running", "stopped", "error"] {
                let spec = changed_spec(&change, &instance(state, in_effect, wanted, on_reboot)).unwrap();
                assert_eq!(
                    (spec.plan, spec.plan_on_reboot),
                    expected,
                    "{wanted} {on_reboot:?} {change:?}"
                );
            }
        }
    }

    #[test]
    fn a_plan_changes_only_if_the_status_allows_it() {
        let busy = instance("rebooting", "starter", "business", Some("business"));
        assert_eq!(shown(&busy).0, InstanceState::Rebooting);
        for change in [
            plan("enterprise", None),
            plan("enterprise", Some(false)),
            plan("starter", None),
            plan("", Some(true)),
        ] {
            let error = changed_spec(&change, &busy).unwrap_err();
            assert_eq!(
                error.to_string(),
                "is rebooting; plan change is allowed from running, stopped, error",
                "{change:?}"
            );
        }
        for change in [
            ChangeInstance {
                tags: Some(Vec::new()),
                ..ChangeInstance::default()
            },
            plan("", Some(false)),
        ] {
            assert!(changed_spec(&change, &busy).is_ok(), "{change:?}");
        }
    }

    #[test]
    fn equal_values_change_nothing() {
        let before = instance("running", "starter", "starter", None);
        let change = ChangeInstance {
            name: Some("web".to_owned()),
            tags: Some(vec!["a".to_owned()]),
            backup_enabled: Some(false),
            ..plan("starter", Some(true))
        };
        assert_eq!(changed_spec(&change, &before).unwrap(), before.spec);
    }
}
