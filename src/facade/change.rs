//! PATCH, decided: what a request changes in a spec. No I/O.

use utoipa::ToSchema;

use super::{
    error::{ApiError, Detail, ErrorCode},
    fields::Fields,
    index::Shown,
};
use crate::{
    lifecycle::Action,
    resources::{InstanceSpec, Plan, PlanChange, validation},
};

/// What can be changed; what is left out stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(as = ChangeInstance, example = json!({"plan": "business", "reboot": true}))]
pub struct Change {
    /// Another plan. Allowed from `running` and `stopped`.
    #[schema(nullable = false)]
    pub plan: Option<Plan>,
    /// Whether a plan change, in this request or pending, is applied now: the server is rebooted unless this is `false`.
    #[schema(nullable = false)]
    pub reboot: Option<bool>,
    /// Another name.
    #[schema(
        nullable = false,
        min_length = 1,
        max_length = 63,
        pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"
    )]
    pub name: Option<String>,
    /// The tags, all of them.
    #[schema(nullable = false, schema_with = tags_schema)]
    pub tags: Option<Vec<String>>,
    /// Whether a backup is made every day.
    #[schema(nullable = false)]
    pub backup_enabled: Option<bool>,
    /// Whether usage is watched and alerts fire.
    #[schema(nullable = false)]
    pub monitoring_enabled: Option<bool>,
}

/// The schema of `tags` in requests.
pub(super) fn tags_schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    super::view::schema(&serde_json::json!({
        "type": "array", "maxItems": validation::MAX_TAGS, "description": "Free labels for finding instances.",
        "items": { "type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,63}$" }, "examples": [["env:prod"]]
    }))
}

/// The plan that a field names.
pub(super) fn read_plan(fields: &mut Fields) -> Option<Plan> {
    let known = |text: &str| match text.parse::<Plan>() {
        Ok(_) => Ok(()),
        Err(()) => Err("must be starter, business, performance or enterprise"),
    };
    fields.string("plan", &known)?.parse().ok()
}

/// The tags of a request; the same tag twice is one.
pub(super) fn read_tags(fields: &mut Fields) -> Option<Vec<String>> {
    let mut tags: Vec<String> = Vec::new();
    for tag in fields.strings("tags", validation::MAX_TAGS, &validation::tag)? {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    Some(tags)
}

impl Change {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields) -> Result<Self, ApiError> {
        if fields.is_empty() {
            return Err(ApiError::invalid(vec![Detail::new(
                "body",
                "missing",
                "must have at least one of plan, reboot, name, tags, backup_enabled, monitoring_enabled",
            )]));
        }
        let change = Self {
            plan: read_plan(&mut fields),
            reboot: fields.boolean("reboot"),
            name: fields.string("name", &validation::name),
            tags: read_tags(&mut fields),
            backup_enabled: fields.boolean("backup_enabled"),
            monitoring_enabled: fields.boolean("monitoring_enabled"),
        };
        fields.immutable(
            "image",
            "cannot be changed here; POST /v1/instances/{id}/rebuild installs another image",
        );
        fields.immutable(
            "region",
            "cannot be changed; create another instance in that region",
        );
        fields.immutable(
            "ssh_keys",
            "cannot be changed; keys are installed when the server is made",
        );
        fields.immutable(
            "private_network",
            "cannot be changed; create another instance in that network",
        );
        fields.immutable(
            "status",
            "cannot be set; start, stop, poweroff and reboot change it",
        );
        for field in [
            "id",
            "ip_address",
            "ipv6_address",
            "created_at",
            "updated_at",
            "metrics",
            "pending_plan",
        ] {
            fields.immutable(field, "cannot be set by clients");
        }
        for field in ["disk_size", "memory", "vcpu"] {
            fields.immutable(field, "cannot be set; it follows from the plan");
        }
        fields.finish()?;
        Ok(change)
    }

    /// The spec as it will be. 409 `invalid_state` if it changes the plan and the instance's status does not allow that.
    pub fn apply(&self, shown: &Shown) -> Result<InstanceSpec, ApiError> {
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

/// 409 `invalid_state` unless the action is allowed from the status that the instance is in.
pub(super) fn check_state(action: Action, shown: &Shown) -> Result<(), ApiError> {
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
    Err(ApiError {
        details: vec![Detail::new("status", "invalid_state", message.clone())],
        ..ApiError::new(ErrorCode::InvalidState, format!("the instance {message}"))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::{
        super::{body::input, entry::Entry as _},
        *,
    };

    fn shown(state: &str, in_effect: &str, wanted: &str, when: &str) -> Shown {
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
        Shown::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn change(body: &Value) -> Result<Change, ApiError> {
        Change::read(input(&body.to_string())?.fields)
    }

    #[test]
    fn reboot_decides_when_a_plan_takes_effect() {
        use Plan::{Business, Enterprise, Starter};
        use PlanChange::{Immediate, OnReboot};
        // (in effect, wanted, when) and body, then (wanted, when) after it
        let table = [
            (
                ("starter", "starter", "Immediate"),
                json!({"plan": "business"}),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                json!({"plan": "business", "reboot": true}),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                json!({"plan": "business", "reboot": false}),
                (Business, OnReboot),
            ),
            (
                ("starter", "starter", "OnReboot"),
                json!({"plan": "business"}),
                (Business, Immediate),
            ),
            (
                ("starter", "starter", "OnReboot"),
                json!({"plan": "starter"}),
                (Starter, OnReboot),
            ),
            (
                ("starter", "starter", "Immediate"),
                json!({"reboot": true}),
                (Starter, Immediate),
            ),
            (
                ("starter", "starter", "Immediate"),
                json!({"reboot": false}),
                (Starter, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"reboot": true}),
                (Business, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"reboot": false}),
                (Business, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"plan": "business"}),
                (Business, Immediate),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"plan": "business", "reboot": false}),
                (Business, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"plan": "starter"}),
                (Starter, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"plan": "enterprise", "reboot": false}),
                (Enterprise, OnReboot),
            ),
            (
                ("starter", "business", "OnReboot"),
                json!({"tags": []}),
                (Business, OnReboot),
            ),
        ];
        for ((in_effect, wanted, when), body, expected) in table {
            for state in ["running", "stopped"] {
                let spec = change(&body)
                    .unwrap()
                    .apply(&shown(state, in_effect, wanted, when))
                    .unwrap();
                assert_eq!((spec.plan, spec.plan_change), expected, "{wanted} {when} {body}");
            }
        }
    }

    #[test]
    fn a_plan_changes_only_where_the_status_allows_it() {
        let busy = shown("rebooting", "starter", "business", "OnReboot");
        assert_eq!(busy.state.as_str(), "rebooting");
        for body in [
            json!({"plan": "enterprise"}),
            json!({"plan": "enterprise", "reboot": false}),
            json!({"plan": "starter"}),
            json!({"reboot": true}),
        ] {
            let error = change(&body).unwrap().apply(&busy).unwrap_err();
            assert_eq!(
                (error.code, error.details[0].field.as_ref()),
                (ErrorCode::InvalidState, "status"),
                "{body}"
            );
            assert!(
                error.message.contains("rebooting") && error.message.contains("running, stopped"),
                "{error}"
            );
        }
        for body in [json!({"tags": ["b"]}), json!({"name": "x", "reboot": false})] {
            assert!(change(&body).unwrap().apply(&busy).is_ok(), "{body}");
        }
    }

    #[test]
    fn what_is_the_same_changes_nothing() {
        let before = shown("running", "starter", "starter", "Immediate");
        let body = json!({"name": "web", "tags": ["a", "a"], "backup_enabled": false, "plan": "starter", "reboot": true});
        assert_eq!(
            change(&body).unwrap().apply(&before).unwrap(),
            before.instance.spec
        );
    }

    #[test]
    fn wrong_fields_are_refused() {
        let table = [
            (json!({}), "body", "missing"),
            (json!({"plan": "huge"}), "plan", "invalid_value"),
            (json!({"plan": null}), "plan", "null"),
            (json!({"tags": null}), "tags", "null"),
            (json!({"tags": ["a b"]}), "tags[0]", "invalid_value"),
            (json!({"rebot": false}), "rebot", "unknown_field"),
            (json!({"reboot": "false"}), "reboot", "invalid_type"),
            (json!({"image": "debian-13"}), "image", "immutable"),
            (json!({"region": "fr-par-1"}), "region", "immutable"),
            (json!({"ssh_keys": []}), "ssh_keys", "immutable"),
            (json!({"private_network": "pn-1"}), "private_network", "immutable"),
            (json!({"id": "i-1"}), "id", "immutable"),
            (json!({"status": "running"}), "status", "immutable"),
            (json!({"vcpu": 64}), "vcpu", "immutable"),
            (json!({"name": "-"}), "name", "invalid_value"),
        ];
        for (body, field, code) in table {
            let error = change(&body).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput, "{body}");
            assert_eq!(
                (error.details[0].field.as_ref(), error.details[0].code),
                (field, code),
                "{body}"
            );
        }
    }
}
