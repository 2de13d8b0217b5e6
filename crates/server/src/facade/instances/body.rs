//! Request bodies for instances.

use crate::{
    facade::{
        extract::fields::Fields,
        response::error::{Detail, Error},
    },
    service::error::no_daily_backups,
};
use api::{ChangeInstance, CreateInstance, RebuildInstance, WantedPower};
use domain::{
    catalogue::{Catalogue, Offer},
    user_data::UserData,
};
use resources::{InstanceSpec, Plan, PowerState, validation};

use super::installation;

/// Reads a request; 422 names every invalid field.
pub fn create(mut fields: Fields, catalogue: &Catalogue) -> Result<CreateInstance, Error> {
    let name = fields.string("name", &validation::name);
    let name = fields.missing("name", name);
    let plan = read_plan(&mut fields);
    let plan = fields.missing("plan", plan);
    let region = fields.string("region", &|text| check_region(text, catalogue));
    let offer = region.as_deref().and_then(|region| catalogue.offer(region));
    let (image, backup) = installation::read(&mut fields, offer);
    let ssh_keys = fields.strings("ssh_keys", validation::MAX_SSH_KEYS, &validation::ssh_key);
    if let Some(Err(complaint)) = ssh_keys.as_deref().map(validation::length_of_ssh_keys) {
        fields.problem(Detail::new("ssh_keys", "invalid_value", complaint));
    }
    let user_data = fields.string("user_data", &|text| match UserData::parse(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(problem) => Err(problem.to_string()),
    });
    let backup_enabled = fields.boolean("backup_enabled");
    let monitoring_enabled = fields.boolean("monitoring_enabled");
    let private_network = fields.string("private_network", &validation::private_network);
    if let Some(offer) = offer {
        if backup_enabled == Some(true) && !offer.backups {
            fields.problem(no_daily_backups(offer.region));
        }
        if private_network.is_some() && !offer.private_networks {
            let message = format!(
                "must be left out: private networks are not available in region {}",
                offer.region
            );
            fields.problem(Detail::new("private_network", "invalid_value", message));
        }
    }
    let region = fields.missing("region", region);
    let tags = read_tags(&mut fields);
    let deletion_protection = fields.boolean("deletion_protection");
    let power_state = read_power_state(&mut fields);
    fields.finish()?;
    let (Some(name), Some(plan), Some(region)) = (name, plan, region) else {
        // Unreachable: `finish` reports missing fields.
        return Err(Error::fault());
    };
    Ok(CreateInstance {
        name,
        plan,
        region,
        image,
        backup,
        ssh_keys: ssh_keys
            .into_iter()
            .flatten()
            .map(|key| validation::normalised_ssh_key(&key))
            .collect(),
        user_data,
        backup_enabled: backup_enabled.unwrap_or_default(),
        monitoring_enabled: monitoring_enabled.unwrap_or_default(),
        private_network,
        tags: tags.unwrap_or_default(),
        deletion_protection: deletion_protection.unwrap_or_default(),
        power_state: power_state.unwrap_or_default(),
    })
}

/// The spec of the instance. If a backup is restored, its image is still missing; user data is not part of it.
pub fn spec(body: CreateInstance) -> InstanceSpec {
    InstanceSpec {
        name: Some(body.name),
        plan: body.plan,
        region: body.region,
        image: body.image.unwrap_or_default(),
        ssh_keys: body.ssh_keys,
        user_data_ref: None,
        private_network: body.private_network,
        backup_enabled: body.backup_enabled,
        monitoring_enabled: body.monitoring_enabled,
        tags: body.tags,
        power_state: match body.power_state {
            WantedPower::Running => PowerState::Running,
            WantedPower::Stopped => PowerState::Stopped,
        },
        plan_on_reboot: None,
        start_requested_at: None,
        power_off_requested_at: None,
        reboot_requested_at: None,
        rebuild_requested_at: None,
        restore_from: None,
        deletion_protection: body.deletion_protection,
    }
}

/// Reads a request; 422 names every invalid field.
pub fn change(mut fields: Fields) -> Result<ChangeInstance, Error> {
    if fields.is_empty() {
        return Err(Error::invalid(vec![Detail::new(
            "body",
            "missing",
            "must have at least one of plan, reboot, name, tags, backup_enabled, monitoring_enabled, deletion_protection",
        )]));
    }
    let change = ChangeInstance {
        plan: read_plan(&mut fields),
        reboot: fields.boolean("reboot"),
        name: fields.string("name", &validation::name),
        tags: read_tags(&mut fields),
        backup_enabled: fields.boolean("backup_enabled"),
        monitoring_enabled: fields.boolean("monitoring_enabled"),
        deletion_protection: fields.boolean("deletion_protection"),
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
        "cannot be changed; keys are installed when the server is created",
    );
    fields.immutable(
        "user_data",
        "cannot be changed; it is used when the server is created, and again when it is rebuilt",
    );
    fields.immutable(
        "private_network",
        "cannot be changed; create another instance in that network",
    );
    fields.immutable(
        "status",
        "cannot be set; start, stop, poweroff and reboot change it",
    );
    fields.immutable(
        "power_state",
        "cannot be changed here; POST /v1/instances/{id}/start, …/stop and …/poweroff do",
    );
    for field in [
        "id",
        "ip_address",
        "ipv6_address",
        "private_ip_address",
        "created_at",
        "updated_at",
        "metrics",
        "pending_plan",
        "status_reason",
        "status_message",
    ] {
        fields.immutable(field, "cannot be set by clients");
    }
    for field in ["disk_size", "memory", "vcpu"] {
        fields.immutable(field, "cannot be set; it follows from the plan");
    }
    fields.finish()?;
    Ok(change)
}

/// Reads a request; 422 names every invalid field.
pub fn rebuild(mut fields: Fields, offer: Option<Offer<'_>>) -> Result<RebuildInstance, Error> {
    let (image, backup) = installation::read(&mut fields, offer);
    fields.finish()?;
    Ok(RebuildInstance { image, backup })
}

fn check_region(text: &str, catalogue: &Catalogue) -> Result<(), &'static str> {
    validation::region(text)?;
    match catalogue.offer(text) {
        Some(_) => Ok(()),
        None => Err("is not available; GET /v1/regions lists the regions"),
    }
}

fn read_plan(fields: &mut Fields) -> Option<Plan> {
    let known = |text: &str| match text.parse::<Plan>() {
        Ok(_) => Ok(()),
        Err(()) => Err("must be starter, business, performance or enterprise"),
    };
    fields.string("plan", &known)?.parse().ok()
}

fn read_power_state(fields: &mut Fields) -> Option<WantedPower> {
    let known = |text: &str| match text.parse::<WantedPower>() {
        Ok(_) => Ok(()),
        Err(_) => Err("must be running or stopped"),
    };
    fields.string("power_state", &known)?.parse().ok()
}

/// Reads the tags, without duplicates.
fn read_tags(fields: &mut Fields) -> Option<Vec<String>> {
    let mut tags: Vec<String> = Vec::new();
    for tag in fields.strings("tags", validation::MAX_TAGS, &validation::tag)? {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    Some(tags)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facade::{extract::body::fields, response::error::ErrorCode};
    use domain::catalogue::testing;

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";

    fn create(body: &Value) -> Result<CreateInstance, Error> {
        super::create(fields(&body.to_string())?, &Catalogue::default())
    }

    fn minimal() -> Value {
        json!({"name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13"})
    }

    #[test]
    fn the_minimal_request_has_four_fields() {
        let body = create(&minimal()).unwrap();
        let spec = super::spec(body);
        assert_eq!((spec.name.as_deref(), spec.plan), (Some("web-1"), Plan::Starter));
        assert!(!spec.backup_enabled && spec.power_state == PowerState::Running);
        assert!(!spec.deletion_protection);
    }

    #[test]
    fn every_field_can_be_given() {
        let mut body = minimal();
        body["ssh_keys"] = json!([format!("{KEY}\n")]);
        body["backup_enabled"] = json!(true);
        body["monitoring_enabled"] = json!(true);
        body["user_data"] = json!("#!/bin/sh\necho hello\n");
        body["private_network"] = json!("pn-abc1");
        body["tags"] = json!(["a", "b", "a"]);
        body["deletion_protection"] = json!(true);
        body["power_state"] = json!("stopped");
        let body = create(&body).unwrap();
        let spec = super::spec(body.clone());
        assert!(spec.deletion_protection && spec.power_state == PowerState::Stopped);
        assert_eq!(
            (body.ssh_keys, body.tags),
            (vec![KEY.to_owned()], vec!["a".to_owned(), "b".to_owned()])
        );
        assert!(body.backup_enabled && body.monitoring_enabled && body.private_network.is_some());
        assert_eq!(body.user_data.as_deref(), Some("#!/bin/sh\necho hello\n"));
    }

    #[test]
    fn ssh_keys_that_are_too_long_together_are_refused() {
        let mut body = minimal();
        let long = |characters: usize| format!("{KEY} {}", "ü".repeat(characters - KEY.len() - 1));
        body["ssh_keys"] = json!([long(8192), long(8192)]);
        assert!(create(&body).is_ok());
        body["ssh_keys"] = json!([long(8192), long(8193)]);
        let error = create(&body).unwrap_err();
        let named: Vec<_> = error.details.iter().map(|detail| &*detail.field).collect();
        assert_eq!(named, ["ssh_keys"]);
        assert!(
            error.details[0]
                .message
                .contains("at most 16384 characters in all")
        );
    }

    #[test]
    fn every_invalid_field_is_named() {
        let body = json!({"plan": "tiny", "region": "Paris", "image": 7, "ssh_keys": [KEY, "nonsense"], "user_data": "echo hello", "status": "running", "power_state": "off"});
        let error = create(&body).unwrap_err();
        let named: Vec<_> = error
            .details
            .iter()
            .map(|d| (d.field.as_ref(), d.code.as_ref()))
            .collect();
        assert_eq!(
            named,
            [
                ("name", "missing"),
                ("plan", "invalid_value"),
                ("region", "invalid_value"),
                ("image", "invalid_type"),
                ("ssh_keys[1]", "invalid_value"),
                ("user_data", "invalid_value"),
                ("power_state", "invalid_value"),
                ("status", "unknown_field"),
            ]
        );
    }

    #[test]
    fn what_a_region_does_not_offer_is_refused_there_and_elsewhere_it_is_not() {
        let catalogue = testing::catalogue();
        let read = |changes: Value| {
            let mut body = minimal();
            for (field, value) in changes.as_object().unwrap() {
                body[field] = value.clone();
            }
            super::create(fields(&body.to_string()).ok().unwrap(), &catalogue)
        };
        let all = json!({ "region": "de-fra-1", "image": "beos-5", "backup_enabled": true, "private_network": "pn-a" });
        let details = read(all.clone()).unwrap_err().details;
        let told: Vec<_> = details
            .iter()
            .map(|detail| (&*detail.field, &*detail.message))
            .collect();
        assert_eq!(
            told,
            [
                (
                    "image",
                    "is not available in region de-fra-1; GET /v1/images?region=de-fra-1 lists the images"
                ),
                (
                    "backup_enabled",
                    "must not be true: backups are not available in region de-fra-1"
                ),
                (
                    "private_network",
                    "must be left out: private networks are not available in region de-fra-1"
                ),
            ]
        );
        assert!(read(json!({ "region": "de-fra-1", "backup_enabled": false })).is_ok());
        let mut simulated = all;
        simulated["region"] = json!("fr-par-1");
        assert!(read(simulated).is_ok());
        let unlisted = read(json!({ "region": "xx-abc-1" })).unwrap_err();
        assert_eq!(unlisted.details[0].field, "region");
        let body = json!({ "name": "web", "plan": "starter", "region": "xx-abc-1", "image": "beos-5" });
        assert!(
            create(&body).is_ok(),
            "while all regions are simulated, any is available"
        );
    }

    fn change(body: &Value) -> Result<ChangeInstance, Error> {
        super::change(fields(&body.to_string())?)
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
            (json!({"user_data": "#!/bin/sh"}), "user_data", "immutable"),
            (json!({"private_network": "pn-1"}), "private_network", "immutable"),
            (json!({"id": "i-1"}), "id", "immutable"),
            (json!({"status": "running"}), "status", "immutable"),
            (json!({"vcpu": 64}), "vcpu", "immutable"),
            (json!({"power_state": "stopped"}), "power_state", "immutable"),
            (json!({"name": "-"}), "name", "invalid_value"),
        ];
        for (body, field, code) in table {
            let error = change(&body).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidInput, "{body}");
            assert_eq!(
                (error.details[0].field.as_ref(), error.details[0].code.as_ref()),
                (field, code),
                "{body}"
            );
        }
    }
}
