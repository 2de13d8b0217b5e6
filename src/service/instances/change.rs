//! Changes of an instance, decided: what they make of its spec. No I/O.

use crate::{
    lifecycle::Action,
    resources::{InstanceSpec, Plan, PlanChange},
    service::error::{Detail, Error, ErrorKind},
};

use super::IndexedInstance;

/// What to change; what is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceChange {
    /// Another plan. Allowed from `running` and `stopped`.
    pub plan: Option<Plan>,
    /// Whether a plan change, in this request or pending, is applied now: the server is rebooted unless this is `false`.
    pub reboot: Option<bool>,
    /// Another name.
    pub name: Option<String>,
    /// The tags, all of them.
    pub tags: Option<Vec<String>>,
    /// Whether a backup is made every day.
    pub backup_enabled: Option<bool>,
    /// Whether usage is watched and alerts fire.
    pub monitoring_enabled: Option<bool>,
    /// Whether deletion is refused.
    pub deletion_protection: Option<bool>,
}

impl InstanceChange {
    /// The spec as it will be. `invalid_state` if it changes the plan and the instance's status does not allow that.
    pub fn apply(&self, shown: &IndexedInstance) -> Result<InstanceSpec, Error> {
        let mut spec = shown.instance.spec.clone();
        if let Some(name) = &self.name
            && name != shown.instance.display_name()
        {
            spec.name = Some(name.clone());
        }
        if let Some(tags) = &self.tags {
            spec.tags.clone_from(tags);
        }
        spec.backup_enabled = self.backup_enabled.unwrap_or(spec.backup_enabled);
        spec.monitoring_enabled = self.monitoring_enabled.unwrap_or(spec.monitoring_enabled);
        spec.deletion_protection = self.deletion_protection.unwrap_or(spec.deletion_protection);
        let (plan, plan_change) = self.wanted_plan(&spec, shown.plan);
        if (plan, plan_change) != (spec.plan, spec.plan_change) {
            check_state(Action::ChangePlan, shown)?;
            (spec.plan, spec.plan_change) = (plan, plan_change);
        }
        Ok(spec)
    }

    /// `reboot` says only whether a plan change, in this request or pending, is applied now.
    fn wanted_plan(&self, spec: &InstanceSpec, in_effect: Plan) -> (Plan, PlanChange) {
        let unchanged = (spec.plan, spec.plan_change);
        match (self.plan, self.reboot) {
            // Nothing is pending, and nothing else is asked for.
            (Some(plan), _) if plan == in_effect && spec.plan == in_effect => unchanged,
            // Back to what is in effect: the pending change is dropped.
            (Some(plan), _) if plan == in_effect => (plan, spec.plan_change),
            (Some(plan), Some(false)) => (plan, PlanChange::OnReboot),
            (Some(plan), _) => (plan, PlanChange::Immediate),
            (None, Some(true)) if spec.plan != in_effect => (spec.plan, PlanChange::Immediate),
            (None, _) => unchanged,
        }
    }
}

/// `invalid_state` unless the action is allowed from the status that the instance is in.
pub fn check_state(action: Action, shown: &IndexedInstance) -> Result<(), Error> {
    let allowed = action.allowed_from();
    if allowed.contains(&shown.state) {
        return Ok(());
    }
    let names: Vec<_> = allowed.iter().map(|state| state.as_str()).collect();
    let message = format!(
        "is {}; {} is allowed from {}",
        shown.state.as_str(),
        action.as_str(),
        names.join(", ")
    );
    Err(Error {
        details: vec![Detail::new("status", "invalid_state", message.clone())],
        ..Error::new(ErrorKind::InvalidState, format!("the instance {message}"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::service::index::Indexed as _;

    fn shown(state: &str, in_effect: &str, wanted: &str, when: &str) -> IndexedInstance {
        let power = if state == "stopped" { "Stopped" } else { "Running" };
        let mut object = json!({
            "metadata": { "name": "web", "namespace": "demo", "uid": "u" },
            "spec": {
                "plan": wanted, "planChange": when, "region": "fr-par-1", "image": "debian-13", "powerState": power,
                "tags": ["a"],
            },
            "status": { "state": state, "power": power, "powerState": power, "plan": in_effect, "image": "debian-13" },
        });
        if state == "rebooting" {
            object["status"]["operation"] = json!({
                "kind": "Reboot", "startedAt": "2026-11-21T10:00:00Z", "endsIn": "Running", "plan": wanted, "image": "debian-13"
            });
        }
        IndexedInstance::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn plan(plan: &str, reboot: Option<bool>) -> InstanceChange {
        InstanceChange {
            plan: plan.parse().ok(),
            reboot,
            ..InstanceChange::default()
        }
    }

    #[test]
    fn reboot_decides_when_a_plan_takes_effect() {
        use Plan::{Business, Enterprise, Starter};
        use PlanChange::{Immediate, OnReboot};
        // (in effect, wanted, when) and body, then (wanted, when) after it
        let table = [
            (
                ("starter", "starter", "Immediate"),
                plan("business", None),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                plan("business", Some(true)),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                plan("business", Some(false)),
                (Business, OnReboot),
            ),
            (
                ("starter", "starter", "OnReboot"),
                plan("business", None),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "OnReboot"),
                plan("starter", None),
                (Starter, OnReboot),
            ),
            (
                ("starter", "starter", "Immediate"),
                plan("", Some(true)),
                (Starter, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                plan("", Some(false)),
                (Starter, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("", Some(true)),
                (Business, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("", Some(false)),
                (Business, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("business", None),
                (Business, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("business", Some(false)),
                (Business, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("starter", None),
                (Starter, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                plan("enterprise", Some(false)),
                (Enterprise, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                InstanceChange {
                    tags: Some(Vec::new()),
                    ..InstanceChange::default()
                },
                (Business, OnReboot),
            ),
        ];
        for ((in_effect, wanted, when), change, expected) in table {
            for state in ["running", "stopped"] {
                let spec = change.apply(&shown(state, in_effect, wanted, when)).unwrap();
                assert_eq!(
                    (spec.plan, spec.plan_change),
                    expected,
                    "{wanted} {when} {change:?}"
                );
            }
        }
    }

    #[test]
    fn a_plan_changes_only_where_the_status_allows_it() {
        let busy = shown("rebooting", "starter", "business", "OnReboot");
        assert_eq!(busy.state.as_str(), "rebooting");
        for change in [
            plan("enterprise", None),
            plan("enterprise", Some(false)),
            plan("starter", None),
            plan("", Some(true)),
        ] {
            let error = change.apply(&busy).unwrap_err();
            assert_eq!(
                (error.kind, error.details[0].field.as_ref()),
                (ErrorKind::InvalidState, "status"),
                "{change:?}"
            );
            assert!(
                error.message.contains("rebooting") && error.message.contains("running, stopped"),
                "{error}"
            );
        }
        for change in [
            InstanceChange {
                tags: Some(Vec::new()),
                ..InstanceChange::default()
            },
            plan("", Some(false)),
        ] {
            assert!(change.apply(&busy).is_ok(), "{change:?}");
        }
    }

    #[test]
    fn what_is_the_same_changes_nothing() {
        let before = shown("running", "starter", "starter", "Immediate");
        let change = InstanceChange {
            name: Some("web".to_owned()),
            tags: Some(vec!["a".to_owned()]),
            backup_enabled: Some(false),
            ..plan("starter", Some(true))
        };
        assert_eq!(change.apply(&before).unwrap(), before.instance.spec);
    }
}
