//! Builds the object of a new Webhook. No I/O.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::service::idempotency::REQUEST_HASH_ANNOTATION;
use api::CreateWebhook;
use resources::{
    SecretReference, Webhook, WebhookSpec,
    origin::{self, ORIGIN_ANNOTATION},
    webhook::{SECRET_CHANGED_ANNOTATION, SECRET_KEY, SECRET_PENDING},
};

/// The object with this name. Its Secret gets the same name.
pub(super) fn object(
    new: &CreateWebhook,
    name: &str,
    request_hash: Option<String>,
    now: Timestamp,
) -> Webhook {
    let mut webhook = Webhook::new(
        name,
        WebhookSpec {
            url: new.url.clone(),
            events: new.events.clone(),
            secret_ref: SecretReference {
                name: name.to_owned(),
                key: SECRET_KEY.to_owned(),
            },
            description: new.description.clone().filter(|text| !text.is_empty()),
            active: new.active,
            enable_requested_at: None,
        },
    );
    let origin = origin::of_new(now);
    let mut annotations = BTreeMap::from([
        (ORIGIN_ANNOTATION.to_owned(), origin),
        (SECRET_CHANGED_ANNOTATION.to_owned(), SECRET_PENDING.to_owned()),
    ]);
    annotations.extend(request_hash.map(|hash| (REQUEST_HASH_ANNOTATION.to_owned(), hash)));
    webhook.metadata.annotations = Some(annotations);
    webhook
}

#[cfg(test)]
mod tests {
    use super::*;
    use resources::EventType;

    #[test]
    fn the_object_refers_to_a_secret_of_its_own_name() {
        let new = CreateWebhook {
            url: "https://hooks.example.com/in".to_owned(),
            events: vec![EventType::InstanceCreated],
            secret: None,
            description: Some(String::new()),
            active: true,
        };
        let webhook = object(&new, "wh-abcdefgh01234567", Some("hash".into()), Timestamp::now());
        assert_eq!(webhook.spec.secret_ref.name, "wh-abcdefgh01234567");
        assert_eq!(webhook.spec.secret_ref.key, "secret");
        assert_eq!(webhook.id(), "wh_abcdefgh01234567");
        assert_eq!(webhook.spec.description, None);
    }
}
