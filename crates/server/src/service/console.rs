//! Access to the consoles of servers: tickets for the [gateway](crate::console_gateway).

use kube::Client;

use super::{
    Service, credentials::Credential, error::Error, id::InstanceId, instances::IndexedInstance,
    precondition::Precondition,
};
use crate::{
    console_gateway::{GatewayUrl, Ticket},
    sealing_key::{Sealed, SealingKey},
};
use api::{Console, ConsoleType, Seconds};
use domain::instance::has_console;
use resources::{InstanceState, origin};

/// The gateway, as the service knows it.
pub(super) struct Gateway {
    url: GatewayUrl,
    key: SealingKey,
}

impl Service {
    /// Sets where clients reach the gateway; without this, no console can be opened.
    #[must_use]
    pub fn with_console_gateway(self, url: GatewayUrl, client: Client) -> Self {
        let key = SealingKey::new(client, &self.settings.operator_namespace, Sealed::Tickets);
        Self {
            gateway: Some(Gateway { url, key }),
            ..self
        }
    }

    /// Where clients reach the gateway, if there is one.
    pub fn console_gateway(&self) -> Option<&GatewayUrl> {
        self.gateway.as_ref().map(|gateway| &gateway.url)
    }

    /// The consoles that can be opened in a region.
    pub fn consoles_in(&self, region: &str) -> &'static [ConsoleType] {
        let catalogue = self.catalogue();
        let offer = catalogue.offer(region).filter(|_| self.gateway.is_some());
        offer.map_or(&[], |offer| offer.consoles)
    }

    /// A ticket for a console of an instance; `invalid_input` if its region does not have this console, `invalid_state` if the server
    /// is off.
    pub async fn open_console(
        &self,
        credential: &Credential,
        id: Option<InstanceId>,
        r#type: ConsoleType,
        precondition: &Precondition,
    ) -> Result<Console, Error> {
        let namespace = &credential.tenant.namespace;
        let item = self.instances.find(namespace, id).await?;
        let instance = &item.instance;
        precondition.check(&**instance)?;
        let region = &instance.spec.region;
        let consoles = self.consoles_in(region);
        let Some(gateway) = self.gateway.as_ref().filter(|_| consoles.contains(&r#type)) else {
            return Err(not_offered(r#type, region, consoles));
        };
        check_console_state(&item)?;
        let unavailable = || Error::unavailable("no console can be opened at the moment; try again");
        let seal = gateway.key.seal().await.ok_or_else(unavailable)?;
        let ticket = Ticket {
            account: credential.tenant.account.to_string(),
            namespace: namespace.to_string(),
            instance: instance.metadata.name.clone().unwrap_or_default(),
            instance_uid: origin::uid(&instance.metadata).to_owned(),
            r#type,
            key: credential.key_name().to_owned(),
            key_uid: credential.key_uid().to_owned(),
            issued_at: self.clock.now(),
        };
        Ok(Console {
            r#type,
            url: gateway
                .url
                .with_ticket(&ticket.seal(seal).ok_or_else(Error::fault)?),
            expires_at: Seconds(ticket.expires_at()),
        })
    }
}

/// `invalid_state` unless the server has a console now.
pub fn check_console_state(item: &IndexedInstance) -> Result<(), Error> {
    let power = item.instance.status.as_ref().and_then(|status| status.power);
    if has_console(item.state, power) {
        return Ok(());
    }
    let why = match item.state {
        InstanceState::Error => "is error, and its power is off".to_owned(),
        state => format!("is {}", state.as_str()),
    };
    let message = format!("{why}; a console can be opened while the server is running, or is shutting down");
    Err(Error::invalid_state("the instance", "status", &message))
}

/// The refusal of a console that a region does not have.
fn not_offered(r#type: ConsoleType, region: &str, offered: &[ConsoleType]) -> Error {
    let message = if offered.is_empty() {
        format!(
            "must not be {}: consoles are not available in region {region}",
            r#type.as_str()
        )
    } else {
        let offered: Vec<&str> = offered.iter().map(|offered| offered.as_str()).collect();
        format!("must be {} in region {region}", offered.join(" or "))
    };
    Error::invalid_value("type", message)
}
