//! POST /v1/instances, decided: what is asked for, and the object that it becomes. No I/O.

use std::{collections::BTreeMap, time::Duration};

use kube::ResourceExt as _;
use utoipa::ToSchema;

use super::{
    change::{read_plan, read_tags, tags_schema},
    error::ApiError,
    fields::Fields,
    idempotency::REQUEST_HASH_ANNOTATION,
};
use crate::{
    catalogue::Catalogue,
    resources::{Instance, InstanceSpec, Plan, PlanChange, PowerState, instance::FINALIZER, validation},
};

/// An instance to be made.
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(as = CreateInstance, example = json!({
    "name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13", "tags": ["env:prod"]
}))]
pub struct Order {
    /// Display name and host name; need not be unique.
    #[schema(min_length = 1, max_length = 63, pattern = "^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")]
    pub name: String,
    /// Size and price class.
    pub plan: Plan,
    /// Region code; GET /v1/regions lists them.
    #[schema(pattern = "^[a-z]{2}-[a-z]{3,}-[1-9][0-9]*$", max_length = 63)]
    pub region: String,
    /// Operating-system image; GET /v1/images lists them.
    #[schema(pattern = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length = 63)]
    pub image: String,
    /// SSH public keys for the first login, one OpenSSH line each.
    #[serde(default)]
    #[schema(required = false, max_items = 20)]
    pub ssh_keys: Vec<String>,
    /// Whether a backup is made every day.
    #[serde(default)]
    #[schema(required = false, default = false)]
    pub backup_enabled: bool,
    /// Whether usage is watched and alerts fire.
    #[serde(default)]
    #[schema(required = false, default = false)]
    pub monitoring_enabled: bool,
    /// Private network to attach.
    #[schema(nullable = false, pattern = "^pn-[a-z0-9]+(-[a-z0-9]+)*$", max_length = 63)]
    pub private_network: Option<String>,
    /// Free labels for finding instances.
    #[schema(required = false, schema_with = tags_schema)]
    pub tags: Vec<String>,
}

impl Order {
    /// Reads a request; 422 naming everything that is wrong.
    pub fn read(mut fields: Fields, catalogue: &Catalogue) -> Result<Self, ApiError> {
        let served_region = |text: &str| {
            validation::region(text)?;
            if catalogue.serves_region(text) {
                Ok(())
            } else {
                Err("is not on offer; GET /v1/regions lists the regions")
            }
        };
        let served_image = |text: &str| {
            validation::image(text)?;
            if catalogue.serves_image(text) {
                Ok(())
            } else {
                Err("is not on offer; GET /v1/images lists the images")
            }
        };
        let name = fields.string("name", &validation::name);
        let name = fields.missing("name", name);
        let plan = read_plan(&mut fields);
        let plan = fields.missing("plan", plan);
        let region = fields.string("region", &served_region);
        let region = fields.missing("region", region);
        let image = fields.string("image", &served_image);
        let image = fields.missing("image", image);
        let ssh_keys = fields.strings("ssh_keys", validation::MAX_SSH_KEYS, &validation::ssh_key);
        let backup_enabled = fields.boolean("backup_enabled");
        let monitoring_enabled = fields.boolean("monitoring_enabled");
        let private_network = fields.string("private_network", &validation::private_network);
        let tags = read_tags(&mut fields);
        fields.finish()?;
        let (Some(name), Some(plan), Some(region), Some(image)) = (name, plan, region, image) else {
            // What is missing has been told.
            return Err(ApiError::fault());
        };
        Ok(Self {
            name,
            plan,
            region,
            image,
            // Files of keys end in a line feed.
            ssh_keys: ssh_keys
                .into_iter()
                .flatten()
                .map(|key| key.trim_ascii().to_owned())
                .collect(),
            backup_enabled: backup_enabled.unwrap_or_default(),
            monitoring_enabled: monitoring_enabled.unwrap_or_default(),
            private_network,
            tags: tags.unwrap_or_default(),
        })
    }

    /// The object, under the name that is its id. With the finalizer already on it, which saves the controller a write.
    pub fn into_instance(self, name: &str, request_hash: Option<String>) -> Instance {
        let mut instance = Instance::new(
            name,
            InstanceSpec {
                name: Some(self.name),
                plan: self.plan,
                region: self.region,
                image: self.image,
                ssh_keys: self.ssh_keys,
                private_network: self.private_network,
                backup_enabled: self.backup_enabled,
                monitoring_enabled: self.monitoring_enabled,
                tags: self.tags,
                power_state: PowerState::Running,
                plan_change: PlanChange::Immediate,
                start_requested_at: None,
                power_off_requested_at: None,
                reboot_requested_at: None,
                rebuild_requested_at: None,
                deletion_protection: false,
            },
        );
        instance.finalizers_mut().push(FINALIZER.to_owned());
        instance.metadata.annotations =
            request_hash.map(|hash| BTreeMap::from([(REQUEST_HASH_ANNOTATION.to_owned(), hash)]));
        instance
    }
}

/// How long provisioning takes, in words; for the 150 s of the specification "2 to 3 minutes".
pub fn duration_in_words(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        return "a moment".to_owned();
    }
    let (unit, length) = match seconds {
        s if s < 60.0 => ("second", 1.0),
        s if s < 7200.0 => ("minute", 60.0),
        _ => ("hour", 3600.0),
    };
    let (least, most) = match (seconds / length).floor() {
        // Nobody counts half seconds.
        _ if unit == "second" => (seconds.ceil(), seconds.ceil()),
        floor => (floor, (seconds / length).ceil()),
    };
    let plural = if most > 1.0 { "s" } else { "" };
    if least < most {
        format!("{least} to {most} {unit}{plural}")
    } else {
        format!("{most} {unit}{plural}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{super::body::input, *};

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti user@example.com";

    fn order(body: &Value) -> Result<Order, ApiError> {
        Order::read(input(&body.to_string())?.fields, &Catalogue::default())
    }

    fn minimal() -> Value {
        json!({"name": "web-1", "plan": "starter", "region": "fr-par-1", "image": "debian-13"})
    }

    #[test]
    fn the_minimal_request_has_four_fields() {
        let order = order(&minimal()).unwrap();
        let object = order.into_instance("i-abcdefgh01234567", Some("hash".to_owned()));
        assert_eq!(object.id(), "i-abcdefgh01234567");
        assert_eq!(object.display_name(), "web-1");
        assert!(object.has_finalizer() && !object.spec.backup_enabled);
        assert_eq!(object.annotation(REQUEST_HASH_ANNOTATION), Some("hash"));
    }

    #[test]
    fn every_field_can_be_given() {
        let mut body = minimal();
        body["ssh_keys"] = json!([format!("{KEY}\n")]);
        body["backup_enabled"] = json!(true);
        body["monitoring_enabled"] = json!(true);
        body["private_network"] = json!("pn-abc1");
        body["tags"] = json!(["a", "b", "a"]);
        let order = order(&body).unwrap();
        assert_eq!((order.ssh_keys, order.tags), (vec![KEY.to_owned()], vec!["a".to_owned(), "b".to_owned()]));
        assert!(order.backup_enabled && order.monitoring_enabled && order.private_network.is_some());
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let body = json!({"plan": "tiny", "region": "Paris", "image": 7, "ssh_keys": [KEY, "nonsense"], "status": "running"});
        let error = order(&body).unwrap_err();
        let told: Vec<_> = error.details.iter().map(|d| (d.field.as_ref(), d.code)).collect();
        assert_eq!(
            told,
            [
                ("name", "missing"),
                ("plan", "invalid_value"),
                ("region", "invalid_value"),
                ("image", "invalid_type"),
                ("ssh_keys[1]", "invalid_value"),
                ("status", "unknown_field"),
            ]
        );
    }

    #[test]
    fn a_closed_catalogue_serves_only_what_it_lists() {
        let catalogue = Catalogue { open: false, ..Catalogue::default() };
        let read = |body: Value| Order::read(input(&body.to_string()).ok().unwrap().fields, &catalogue);
        assert!(read(minimal()).is_ok());
        let mut body = minimal();
        body["region"] = json!("xx-abc-1");
        body["image"] = json!("beos-5");
        assert_eq!(read(body.clone()).unwrap_err().details.len(), 2);
        assert!(order(&body).is_ok(), "the simulator takes any that is well-formed");
    }

    #[test]
    fn durations_are_told_in_words() {
        for (seconds, words) in [
            (0.0, "a moment"),
            (0.4, "a moment"),
            (1.0, "1 second"),
            (2.5, "3 seconds"),
            (45.0, "45 seconds"),
            (60.0, "1 minute"),
            (90.0, "1 to 2 minutes"),
            (150.0, "2 to 3 minutes"),
            (180.0, "3 minutes"),
            (7200.0, "2 hours"),
            (9000.0, "2 to 3 hours"),
        ] {
            assert_eq!(duration_in_words(Duration::from_secs_f64(seconds)), words);
        }
    }
}
