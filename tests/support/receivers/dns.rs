//! A DNS server on loopback with configurable answers, which may change with each query.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use hickory_resolver::proto::{
    op::{Message, ResponseCode},
    rr::{RData, Record, RecordType},
};
use parking_lot::Mutex;
use tokio::{net::UdpSocket, task::JoinSet};

/// An answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These addresses, with a TTL of zero, for queries of their type.
    Addresses(Vec<IpAddr>),
    /// The same, but queries for IPv6 addresses are not answered.
    AddressesWithoutIpv6(Vec<IpAddr>),
    /// NXDOMAIN.
    NoName,
    /// SERVFAIL.
    Failure,
    /// No answer at all.
    Silence,
}

impl Reply {
    pub fn addresses(addresses: &[&str]) -> Self {
        Self::Addresses(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }
}

/// A name server. Ends when dropped.
pub struct DnsServer {
    address: SocketAddr,
    asked: Arc<Mutex<HashMap<String, usize>>>,
    _task: JoinSet<()>,
}

impl DnsServer {
    /// Starts a server that answers as `reply` says. It is called with the name (lower case, without the final dot) and the
    /// number of earlier queries for the same name and type.
    pub async fn start(reply: impl Fn(&str, usize) -> Reply + Send + 'static) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let asked = Arc::<Mutex<HashMap<String, usize>>>::default();
        let counts = asked.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut packet = [0; 4096];
            while let Ok((length, client)) = socket.recv_from(&mut packet).await {
                let Ok(question) = Message::from_vec(&packet[..length]) else {
                    continue;
                };
                if let Some(answer) = answer(question, &counts, &reply) {
                    let _ = socket.send_to(&answer, client).await;
                }
            }
        });
        Self {
            address,
            asked,
            _task: task,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of queries for the IPv4 address of a name.
    pub fn asked(&self, name: &str) -> usize {
        self.asked
            .lock()
            .get(&format!("A {name}"))
            .copied()
            .unwrap_or_default()
    }

    /// All queried names.
    pub fn names(&self) -> Vec<String> {
        let asked = self.asked.lock();
        asked
            .keys()
            .filter_map(|key| key.strip_prefix("A "))
            .map(ToOwned::to_owned)
            .collect()
    }
}

fn answer(
    question: Message,
    counts: &Mutex<HashMap<String, usize>>,
    reply: &impl Fn(&str, usize) -> Reply,
) -> Option<Vec<u8>> {
    let query = question.queries.first()?.clone();
    let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let count = {
        let mut counts = counts.lock();
        let count = counts
            .entry(format!("{} {name}", query.query_type()))
            .or_default();
        *count += 1;
        *count - 1
    };
    let mut message = Message::response(question.metadata.id, question.metadata.op_code);
    message.metadata.recursion_desired = question.metadata.recursion_desired;
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    match reply(&name, count) {
        Reply::AddressesWithoutIpv6(_) if query.query_type() == RecordType::AAAA => return None,
        Reply::Addresses(addresses) | Reply::AddressesWithoutIpv6(addresses) => {
            let wanted = |address: &IpAddr| match query.query_type() {
                RecordType::A => address.is_ipv4(),
                RecordType::AAAA => address.is_ipv6(),
                _ => false,
            };
            for address in addresses.into_iter().filter(wanted) {
                message.add_answer(Record::from_rdata(query.name().clone(), 0, RData::from(address)));
            }
        }
        Reply::NoName => message.metadata.response_code = ResponseCode::NXDomain,
        Reply::Failure => message.metadata.response_code = ResponseCode::ServFail,
        Reply::Silence => return None,
    }
    message.to_vec().ok()
}
