//! Tickets: what the REST API gives to a client, and the gateway takes, once. Sealed, so the client can neither read nor change one.

use std::{collections::HashMap, str::FromStr};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use url::{Host, Url};

use crate::seal::Seal;
use api::ConsoleType;

/// How long a ticket is valid.
pub const TICKET_LASTS: SignedDuration = SignedDuration::from_mins(1);
/// The path of the gateway.
pub const PATH: &str = "/v1/console";
/// The parameter of the ticket.
pub const PARAMETER: &str = "token";
/// What tickets are sealed for.
const PURPOSE: &str = "console";

/// Which console may be opened, with whose key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Ticket {
    /// Name of the Account.
    pub account: String,
    /// The account's namespace.
    pub namespace: String,
    /// Name of the Instance.
    pub instance: String,
    /// The UID that the Instance was first created with.
    pub instance_uid: String,
    /// The console.
    pub r#type: ConsoleType,
    /// Name of the ApiKey that it was asked for with.
    pub key: String,
    /// The UID that the ApiKey was first created with.
    pub key_uid: String,
    /// When it was issued.
    pub issued_at: Timestamp,
}

impl Ticket {
    /// Until when it is valid.
    pub fn expires_at(&self) -> Timestamp {
        self.issued_at.checked_add(TICKET_LASTS).unwrap_or(Timestamp::MAX)
    }

    /// The ticket as clients get it.
    pub(crate) fn seal(&self, seal: &Seal) -> Option<String> {
        seal.seal(PURPOSE, &serde_json::to_vec(self).ok()?)
    }

    fn open(seal: &Seal, text: &str) -> Option<Self> {
        serde_json::from_slice(&seal.open(PURPOSE, text)?).ok()
    }
}

/// Takes tickets, each once. Those of before it began are refused, since an earlier process may have taken them. So there may be only one
/// gateway at a time.
pub(super) struct TicketBox {
    since: Timestamp,
    /// Digests of those that were taken and are still valid, and until when they are.
    taken: Mutex<HashMap<[u8; 32], Timestamp>>,
}

impl TicketBox {
    pub(super) fn new(since: Timestamp) -> Self {
        Self {
            since,
            taken: Mutex::default(),
        }
    }

    /// The ticket in this text, if it is valid and has not been taken before.
    pub(super) fn take(&self, seal: &Seal, text: &str, now: Timestamp) -> Option<Ticket> {
        let ticket = Ticket::open(seal, text)?;
        let expires_at = ticket.expires_at();
        if ticket.issued_at < self.since || expires_at <= now {
            return None;
        }
        let mut taken = self.taken.lock();
        taken.retain(|_, until| *until > now);
        // Only one text opens as this ticket: base64 is decoded strictly.
        let digest = Sha256::digest(text).into();
        taken.insert(digest, expires_at).is_none().then_some(ticket)
    }
}

/// Where clients reach the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayUrl(Url);

impl FromStr for GatewayUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        let is_loopback = match url.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        let is_safe = url.scheme() == "wss" || url.scheme() == "ws" && is_loopback;
        let has_more = !url.username().is_empty()
            || url.password().is_some()
            || url.query().is_some()
            || url.fragment().is_some();
        if !is_safe || has_more || !url.path().ends_with(PATH) {
            return Err(format!(
                "must be a wss:// URL (ws:// on loopback) that ends in {PATH}, without user, query and fragment, such as wss://cloud.example.com{PATH}"
            ));
        }
        Ok(Self(url))
    }
}

impl GatewayUrl {
    /// The URL with a ticket.
    pub(crate) fn with_ticket(&self, ticket: &str) -> String {
        let mut url = self.0.clone();
        url.query_pairs_mut().append_pair(PARAMETER, ticket);
        url.into()
    }

    /// Scheme, host and port, for the policy of a page.
    pub(crate) fn origin(&self) -> String {
        // The origin of a URL, as the standard has it, has a scheme of HTTP's only for HTTP.
        self.0[..url::Position::BeforePath].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::KEY;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ticket(issued_at: Timestamp) -> Ticket {
        Ticket {
            account: "ada".to_owned(),
            namespace: "ada".to_owned(),
            instance: "i-4q7hz0c9k2m8x1ta".to_owned(),
            instance_uid: "7f0c".to_owned(),
            r#type: ConsoleType::Serial,
            key: "laptop".to_owned(),
            key_uid: "1b2c".to_owned(),
            issued_at,
        }
    }

    #[test]
    fn a_ticket_is_taken_once_within_a_minute() {
        let seal = Seal::new(&[1; KEY]).unwrap();
        let tickets = TicketBox::new(at(1000));
        let text = ticket(at(1000)).seal(&seal).unwrap();
        assert_eq!(tickets.take(&seal, &text, at(1059)), Some(ticket(at(1000))));
        assert_eq!(tickets.take(&seal, &text, at(1059)), None, "a second time");
        let late = ticket(at(1000)).seal(&seal).unwrap();
        assert_eq!(tickets.take(&seal, &late, at(1060)), None, "after a minute");
        let earlier = ticket(at(999)).seal(&seal).unwrap();
        assert_eq!(
            tickets.take(&seal, &earlier, at(1000)),
            None,
            "of before the gateway"
        );
        let other = Seal::new(&[2; KEY]).unwrap();
        assert_eq!(tickets.take(&other, &late, at(1001)), None, "of another key");
        assert_eq!(tickets.take(&seal, "", at(1001)), None);
        assert!(tickets.take(&seal, &late, at(1001)).is_some());
    }

    #[test]
    fn what_was_taken_is_forgotten_when_nobody_could_use_it_any_more() {
        let seal = Seal::new(&[1; KEY]).unwrap();
        let tickets = TicketBox::new(at(1000));
        for second in 1000..1200 {
            let text = ticket(at(second)).seal(&seal).unwrap();
            assert!(tickets.take(&seal, &text, at(second)).is_some());
        }
        assert_eq!(tickets.taken.lock().len(), 60);
    }

    #[test]
    fn the_url_of_the_gateway_is_encrypted_unless_it_is_on_this_machine() {
        let url: GatewayUrl = "wss://cloud.example.com/below/v1/console".parse().unwrap();
        assert_eq!(
            url.with_ticket("a-b_"),
            "wss://cloud.example.com/below/v1/console?token=a-b_"
        );
        assert_eq!(url.origin(), "wss://cloud.example.com");
        let url: GatewayUrl = "ws://127.0.0.1:8081/v1/console".parse().unwrap();
        assert_eq!(url.origin(), "ws://127.0.0.1:8081");
        for wrong in [
            "ws://cloud.example.com/v1/console",
            "https://cloud.example.com/v1/console",
            "wss://cloud.example.com",
            "wss://user@cloud.example.com/v1/console",
            "wss://cloud.example.com/v1/console?a=b",
            "cloud.example.com",
        ] {
            assert!(wrong.parse::<GatewayUrl>().is_err(), "{wrong}");
        }
    }
}
