//! Instances as text.

use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::{
    cli::{
        duration,
        objects::Shown,
        output::{self, or_dash},
    },
    lifecycle::current,
    resources::{
        Instance, InstanceState, Plan,
        conditions::{self, READY},
    },
};

/// The state as shown by REST, which reflects a new request immediately. `None` if the instance is not managed, because its
/// namespace belongs to no account.
pub(super) fn state(instance: &Instance) -> Option<InstanceState> {
    let is_orphan = instance
        .status
        .as_ref()
        .is_some_and(|status| status.state.is_none() && !status.conditions.is_empty());
    if is_orphan {
        return None;
    }
    current(instance).state
}

/// Reason and message of the Ready condition.
pub(super) fn why(instance: &Instance) -> Option<(&str, &str)> {
    let status = instance.status.as_ref()?;
    let ready = conditions::find(&status.conditions, READY)?;
    Some((&ready.reason, &ready.message))
}

impl Shown for Instance {
    /// The columns of `kubectl get`, and the reason.
    const COLUMNS: &'static [&'static str] =
        &["NAME", "STATE", "PLAN", "REGION", "IP", "READY", "AGE", "REASON"];

    fn row(&self, now: Timestamp) -> Vec<String> {
        row(self, now)
    }

    fn description(&self, now: Timestamp) -> String {
        description(self, now)
    }
}

fn row(instance: &Instance, now: Timestamp) -> Vec<String> {
    let status = instance.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    let plan = status
        .and_then(|status| status.plan)
        .unwrap_or(instance.spec.plan);
    vec![
        instance.name_any(),
        or_dash(state(instance)),
        plan.as_str().to_owned(),
        instance.spec.region.clone(),
        or_dash(status.and_then(|status| status.ip_address.as_deref())),
        or_dash(ready.map(|ready| ready.status.as_str())),
        duration::age(instance.created_at(), now),
        or_dash(ready.map(|ready| ready.reason.as_str())),
    ]
}

/// One instance in full.
fn description(instance: &Instance, now: Timestamp) -> String {
    let spec = &instance.spec;
    let status = current(instance);
    let ago = |time: Timestamp| format!("{time:.0} ({} ago)", duration::age(time, now));
    let in_effect = status.plan.unwrap_or(spec.plan);
    let mut fields = vec![("Name", instance.name_any())];
    if instance.display_name() != instance.name_any() {
        fields.push(("Display name", instance.display_name().to_owned()));
    }
    fields.extend([
        ("Namespace", instance.namespace().unwrap_or_default()),
        ("ID", instance.id()),
        ("State", or_dash(state(instance))),
        (
            "Why",
            why(instance).map_or_else(
                || "the operator has not processed it yet".to_owned(),
                |(reason, message)| format!("{reason}: {}", output::printable(message)),
            ),
        ),
        ("Plan", plan(in_effect)),
    ]);
    if spec.plan != in_effect {
        let when = match state(instance) {
            Some(InstanceState::Resizing) => "being changed to",
            _ => "with the next reboot, or stop and start",
        };
        fields.push(("Pending plan", format!("{}, {when}", plan(spec.plan))));
    }
    let installed = status.image.as_deref().unwrap_or(&spec.image);
    fields.push(("Image", installed.to_owned()));
    if installed != spec.image {
        fields.push(("Pending image", spec.image.clone()));
    }
    fields.extend([
        ("Region", spec.region.clone()),
        ("IPv4", or_dash(status.ip_address.as_deref())),
        ("IPv6", or_dash(status.ipv6_address.as_deref())),
        (
            "Disk",
            status
                .disk_size_gb
                .map_or_else(|| "-".to_owned(), |gb| format!("{gb} GB")),
        ),
        ("Private network", or_dash(spec.private_network.as_deref())),
        ("Tags", or_none(&spec.tags.join(", "))),
        ("Backups", on_off(spec.backup_enabled)),
        ("Monitoring", on_off(spec.monitoring_enabled)),
        ("Deletion protection", on_off(spec.deletion_protection)),
        ("Created", ago(instance.created_at())),
        (
            "Running since",
            match (status.power, status.started_at) {
                (Some(crate::resources::PowerState::Running), Some(at)) => ago(at),
                _ => "-".to_owned(),
            },
        ),
    ]);
    if let Some(operation) = instance
        .status
        .as_ref()
        .and_then(|status| status.operation.as_ref())
    {
        let kind = operation.kind.as_str().to_lowercase();
        fields.push((
            "Operation",
            format!("{kind}, since {}", ago(operation.started_at)),
        ));
    }
    let listed = instance.status.iter().flat_map(|status| &status.conditions);
    let listed: Vec<_> = listed
        .map(|condition| {
            let since = duration::age(condition.last_transition_time.0, now);
            [
                format!("  {}", condition.type_),
                condition.status.clone(),
                condition.reason.clone(),
                since,
            ]
        })
        .collect();
    let mut text = output::description(&fields);
    if !listed.is_empty() {
        text.push_str("\nConditions:\n");
        text.push_str(&output::table(&["  TYPE", "STATUS", "REASON", "SINCE"], &listed));
    }
    text
}

fn plan(plan: Plan) -> String {
    let size = plan.size();
    format!(
        "{} ({} vCPU, {} GB of memory)",
        plan.as_str(),
        size.vcpu,
        size.memory_gb
    )
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

fn on_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::objects::table;

    fn now() -> Timestamp {
        "2026-11-21T10:05:00Z".parse().unwrap()
    }

    fn instance(spec: &Value, status: Value) -> Instance {
        let mut object = json!({
            "metadata": {
                "name": "web", "namespace": "ada", "uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z", "generation": 2,
            },
            "spec": { "plan": "starter", "region": "fr-par-1", "image": "debian-13" },
        });
        for (field, value) in spec.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        if !status.is_null() {
            object["status"] = status;
        }
        serde_json::from_value(object).unwrap()
    }

    fn running() -> Value {
        json!({
            "id": "i-abcdefgh01234567", "state": "running", "power": "Running", "powerState": "Running", "plan": "starter",
            "image": "debian-13", "ipAddress": "198.18.0.7", "diskSizeGB": 40, "startedAt": "2026-11-21T10:03:00Z",
            "observedGeneration": 2,
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "Running", "message": "the server is on",
                "lastTransitionTime": "2026-11-21T10:03:00Z",
            }],
        })
    }

    #[test]
    fn a_list_has_the_columns_of_kubectl_and_the_reason() {
        let instances = [instance(&json!({}), running())];
        assert_eq!(
            table(&instances, true, now()),
            "NAMESPACE   NAME   STATE     PLAN      REGION     IP           READY   AGE   REASON\n\
             ada         web    running   starter   fr-par-1   198.18.0.7   True    5m    Running"
        );
        let fresh = [instance(&json!({}), Value::Null)];
        let text = table(&fresh, false, now());
        assert!(text.contains("web    provisioning   starter"), "{text}");
    }

    #[test]
    fn a_request_shows_before_the_controller_has_seen_it() {
        let mut stopping = instance(&json!({ "powerState": "Stopped" }), running());
        stopping.metadata.generation = Some(3);
        assert_eq!(state(&stopping), Some(InstanceState::Stopping));
    }

    #[test]
    fn an_instance_of_no_account_has_no_state_but_a_reason() {
        let status = json!({ "conditions": [{
            "type": "Ready", "status": "False", "reason": "NoAccount", "message": "namespace ada belongs to no Account",
            "lastTransitionTime": "2026-11-21T10:03:00Z",
        }]});
        let orphan = instance(&json!({}), status);
        assert_eq!(state(&orphan), None);
        let text = description(&orphan, now());
        assert!(
            text.contains("Why:                  NoAccount: namespace ada belongs to no Account"),
            "{text}"
        );
    }

    #[test]
    fn a_description_shows_the_current_and_the_pending_plan() {
        let pending = instance(
            &json!({ "plan": "business", "planOnReboot": "business", "name": "Web-1" }),
            running(),
        );
        let text = description(&pending, now());
        for line in [
            "Display name:         Web-1",
            "State:                running",
            "Why:                  Running: the server is on",
            "Plan:                 starter (1 vCPU, 2 GB of memory)",
            "Pending plan:         business (2 vCPU, 4 GB of memory), with the next reboot, or stop and start",
            "IPv4:                 198.18.0.7",
            "IPv6:                 -",
            "Running since:        2026-11-21T10:03:00Z (2m ago)",
            "  Ready   True     Running   2m",
        ] {
            assert!(text.lines().any(|text| text == line), "{line}\n{text}");
        }
    }
}
