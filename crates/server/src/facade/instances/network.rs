//! `private_network` in a request: the network to attach a new server to.

use crate::{
    facade::{App, extract::fields::Fields, response::error::Detail},
    service::{
        error::Error,
        id::{NetworkId, PublicId as _},
        index::Object as _,
    },
};
use resources::validation;

/// The name of the object that a request names, or what is wrong with it; `None` if it names none, or if the text cannot name one.
pub(super) struct NamedNetwork(Option<Result<String, String>>);

impl NamedNetwork {
    /// Looks up the network. This must happen before all fields are read, so that one answer names every invalid field.
    pub(super) async fn find(app: &App, namespace: &str, fields: &Fields) -> Result<Self, Error> {
        let named = fields.peek("private_network");
        let Some(text) = named.filter(|text| validation::private_network(text).is_ok()) else {
            return Ok(Self(None));
        };
        let region = fields.peek("region");
        let found = app
            .service
            .network_to_attach(namespace, NetworkId::parse(text), region)
            .await?;
        Ok(Self(Some(found.map(|item| item.network.name().to_owned()))))
    }

    /// If there is no such network, adds that to the problems.
    pub(super) fn check(&self, fields: &mut Fields) {
        if let Some(Err(message)) = &self.0 {
            fields.problem(Detail::new("private_network", "invalid_value", message.clone()));
        }
    }

    /// The name of the object.
    pub(super) fn name(self) -> Option<String> {
        self.0.and_then(Result::ok)
    }
}
