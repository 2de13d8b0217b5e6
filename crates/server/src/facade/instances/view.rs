//! Instances as responses show them (specification, section 2.2).

use jiff::Timestamp;

use crate::{facade::response::snake_case, service::instances::IndexedInstance};
use api::{InstanceMetrics, InstanceSummary, NewInstance, Seconds};
use domain::instance::{current, explain};
use resources::{Instance, tracking};

/// An instance as lists show it.
pub fn summary(item: &IndexedInstance) -> InstanceSummary {
    let instance = &*item.instance;
    InstanceSummary {
        id: item.id.to_string(),
        name: instance.display_name().to_owned(),
        status: item.state,
        status_reason: explain(instance).map(|why| snake_case(&why.reason)),
        plan: item.plan,
        region: instance.spec.region.clone(),
        image: image(instance).to_owned(),
        ip_address: instance.status.as_ref().and_then(|s| s.ip_address.clone()),
        ipv6_address: instance.status.as_ref().and_then(|s| s.ipv6_address.clone()),
        tags: instance.spec.tags.clone(),
        created_at: Seconds(instance.created_at()),
        updated_at: Seconds(updated_at(instance)),
    }
}

/// The last change of spec or status that a client can see.
fn updated_at(instance: &Instance) -> Timestamp {
    let status = instance.status.as_ref().and_then(|status| status.updated_at);
    instance
        .created_at()
        .max(status.unwrap_or(Timestamp::MIN))
        .max(tracking::spec_written_at(instance).unwrap_or(Timestamp::MIN))
}

/// An instance as the answer to a create shows it.
pub fn created(item: &IndexedInstance) -> NewInstance {
    let instance = &*item.instance;
    NewInstance {
        id: item.id.to_string(),
        name: instance.display_name().to_owned(),
        status: item.state,
        plan: item.plan,
        region: instance.spec.region.clone(),
        image: image(instance).to_owned(),
        created_at: Seconds(instance.created_at()),
    }
}

/// An instance as its detail shows it.
pub fn detail(item: &IndexedInstance, metrics: Option<InstanceMetrics>) -> api::Instance {
    let instance = &*item.instance;
    let (spec, status) = (&instance.spec, instance.status.as_ref());
    let size = item.plan.size();
    let (status_reason, status_message) = explain(instance)
        .map(|why| (snake_case(&why.reason), why.message))
        .unzip();
    api::Instance {
        id: item.id.to_string(),
        name: instance.display_name().to_owned(),
        status: item.state,
        status_reason,
        status_message,
        plan: item.plan,
        pending_plan: (spec.plan != item.plan).then_some(spec.plan),
        region: spec.region.clone(),
        image: image(instance).to_owned(),
        ip_address: status.and_then(|s| s.ip_address.clone()),
        ipv6_address: status.and_then(|s| s.ipv6_address.clone()),
        private_ip_address: status.and_then(|s| s.private_ip_address.clone()),
        disk_size: status.and_then(|s| s.disk_size_gb).unwrap_or(size.disk_gb),
        memory: size.memory_gb,
        vcpu: size.vcpu,
        backup_enabled: spec.backup_enabled,
        monitoring_enabled: spec.monitoring_enabled,
        deletion_protection: spec.deletion_protection,
        tags: spec.tags.clone(),
        last_requested_by: current(instance).last_requested_by.clone(),
        created_at: Seconds(instance.created_at()),
        metrics,
    }
}

/// The installed image; before the installation, the requested one.
fn image(instance: &Instance) -> &str {
    let installed = instance.status.as_ref().and_then(|s| s.image.as_deref());
    installed.unwrap_or(&instance.spec.image)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use domain::instance::visible;

    use super::*;
    use crate::service::index::Indexed as _;

    fn shown(status: Value, plan: &str) -> IndexedInstance {
        let mut object = json!({
            "metadata": {
                "name": "i-abcdefgh01234567", "namespace": "demo", "uid": "u", "creationTimestamp": "2026-11-21T10:00:00Z",
                "managedFields": [{ "time": "2026-11-21T10:05:00Z" }],
            },
            "spec": { "name": "web-1", "plan": plan, "planOnReboot": plan, "region": "fr-par-1", "image": "debian-13" },
        });
        if !status.is_null() {
            object["status"] = status;
        }
        IndexedInstance::of(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn running() -> Value {
        json!({
            "state": "running", "power": "Running", "powerState": "Running", "plan": "business", "image": "debian-13",
            "ipAddress": "198.18.0.7", "diskSizeGB": 160, "updatedAt": "2026-11-21T10:04:59.999Z",
        })
    }

    #[test]
    fn a_new_instance_shows_the_requested_plan_and_image() {
        let shown = shown(Value::Null, "starter");
        let created = serde_json::to_value(created(&shown)).unwrap();
        assert_eq!(
            created,
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "provisioning", "plan": "starter",
                "region": "fr-par-1", "image": "debian-13", "created_at": "2026-11-21T10:00:00Z",
            })
        );
        let detail = serde_json::to_value(super::detail(&shown, None)).unwrap();
        assert_eq!(
            detail,
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "provisioning", "plan": "starter",
                "status_reason": "provisioning", "status_message": "the server is being created",
                "region": "fr-par-1", "image": "debian-13", "ip_address": null, "ipv6_address": null, "private_ip_address": null, "disk_size": 40,
                "memory": 2, "vcpu": 1, "backup_enabled": false, "monitoring_enabled": false,
                "deletion_protection": false, "tags": [], "last_requested_by": "kubernetes",
                "created_at": "2026-11-21T10:00:00Z",
            })
        );
    }

    #[test]
    fn a_pending_plan_is_shown_beside_the_one_in_effect() {
        let shown = shown(running(), "enterprise");
        let detail = serde_json::to_value(super::detail(&shown, Some(InstanceMetrics::default()))).unwrap();
        assert_eq!(
            (&detail["plan"], &detail["pending_plan"], &detail["image"]),
            (&json!("business"), &json!("enterprise"), &json!("debian-13"))
        );
        assert_eq!((&detail["vcpu"], &detail["disk_size"]), (&json!(2), &json!(160)));
        assert_eq!(
            detail["metrics"],
            json!({ "cpu_usage": null, "memory_usage": null, "disk_usage": null, "network_in": null, "network_out": null })
        );
    }

    /// Two values of a field with this schema, if it is a simple one.
    fn samples(schema: &Value) -> Option<[Value; 2]> {
        if let Some(words) = schema["enum"].as_array() {
            return Some([words[0].clone(), words[1].clone()]);
        }
        match schema["type"].as_str()? {
            "string" if schema["format"] == "date-time" => {
                Some([json!("2026-11-21T10:00:01Z"), json!("2026-11-21T10:00:02Z")])
            }
            "string" => Some([json!("a"), json!("b")]),
            "integer" => Some([json!(1), json!(2)]),
            "boolean" => Some([json!(false), json!(true)]),
            "array" => samples(&schema["items"]).map(|items| items.map(|item| json!([item]))),
            _ => None,
        }
    }

    #[test]
    fn every_field_of_the_status_that_is_shown_moves_updated_at() {
        let crds: Vec<Value> = resources::crds().iter().map(|crd| json!(crd)).collect();
        let crd = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == "Instance");
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
        let fields = crd.unwrap().pointer(path).unwrap().as_object().unwrap();
        let mut seen = Vec::new();
        for (name, schema) in fields {
            // The one changes with the spec, and the other is what moves.
            if ["lastRequestedBy", "updatedAt"].contains(&name.as_str()) {
                continue;
            }
            let Some(values) = samples(schema) else { continue };
            let [one, other] = values.map(|value| {
                let mut status = running();
                status[name] = value;
                shown(status, "business")
            });
            let fields = |item: &IndexedInstance| {
                let mut all = [json!(summary(item)), json!(detail(item, None))];
                for part in &mut all {
                    // It may be foreseen from the spec; `state` is compared.
                    for word in ["status", "status_reason", "status_message"] {
                        part.as_object_mut().unwrap().remove(word);
                    }
                }
                all
            };
            if name == "state" || fields(&one) != fields(&other) {
                let [one, other] = [&one, &other].map(|item| item.instance.status.as_ref().unwrap());
                assert!(visible(one) != visible(other), "{name} is missing in visible()");
                seen.push(name.as_str());
            }
        }
        assert!(
            seen.contains(&"privateIPAddress") && seen.contains(&"plan"),
            "{seen:?}"
        );
    }

    #[test]
    fn a_list_item_has_exactly_its_fields() {
        let shown = shown(running(), "business");
        assert_eq!(
            serde_json::to_value(summary(&shown)).unwrap(),
            json!({
                "id": "i-abcdefgh01234567", "name": "web-1", "status": "running", "plan": "business", "region": "fr-par-1",
                "image": "debian-13", "ip_address": "198.18.0.7", "ipv6_address": null, "tags": [],
                "created_at": "2026-11-21T10:00:00Z", "updated_at": "2026-11-21T10:05:00Z",
            })
        );
        let waiting = summary(&self::shown(Value::Null, "starter"));
        assert_eq!(waiting.status_reason.as_deref(), Some("provisioning"));
    }
}
