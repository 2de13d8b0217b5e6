//! Which connections a server has open, and which one it closes to make room for another.

use std::{
    collections::{BTreeSet, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ConnectionLimits;

/// `Connection::idle_since` while a request is being handled.
const BUSY: u64 = u64::MAX;
/// Number of connections examined in a search for an idle one, so that an accept costs little even when the table is
/// full. Those examined are the last to be examined again.
const MAX_LOOKS: usize = 64;
/// How long to wait for room if no connection ends: one of those that were busy may be idle by then.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The connections of a server.
pub(super) struct Admission {
    limits: ConnectionLimits,
    state: Mutex<State>,
    left: Notify,
    started: Instant,
}

/// An open connection. It leaves the table when dropped.
pub(super) struct Admitted {
    admission: Arc<Admission>,
    id: u64,
    connection: Arc<Connection>,
}

/// What the table needs to know about a connection.
struct Connection {
    /// Since when it has been waiting for its peer, in microseconds since the server started, or [`BUSY`].
    idle_since: AtomicU64,
    /// Whether it has sent a complete request head.
    has_asked: AtomicBool,
    close: Notify,
}

/// Why a connection was not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// All connections that were examined are busy.
    Server,
    /// The peer has used up its share, and all its connections that were examined are busy.
    Peer,
}

/// Position in the order in which connections are closed: those of trusted proxies last, otherwise the longest idle
/// first. A connection may have been idle for a shorter time than its position says, never for a longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ClosingOrder {
    is_trusted: bool,
    idle_since: u64,
    id: u64,
}

#[derive(Default)]
struct State {
    last_id: u64,
    connections: HashMap<u64, OpenConnection>,
    /// All of them.
    places: BTreeSet<ClosingOrder>,
    /// Those of each peer that has a share.
    peers: HashMap<IpAddr, BTreeSet<ClosingOrder>>,
}

struct OpenConnection {
    connection: Arc<Connection>,
    place: ClosingOrder,
    /// The peer whose share it counts against.
    peer: Option<IpAddr>,
}

impl Admission {
    pub(super) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
            left: Notify::new(),
            started: Instant::now(),
        }
    }

    /// Adds a connection of a canonical address. If there is no room, closes the connection that has been idle the longest: one of this peer's
    /// if it has used up its share, otherwise any.
    pub(super) fn admit(self: &Arc<Self>, address: IpAddr) -> Result<Admitted, NoRoom> {
        let is_trusted = self.limits.trusted.iter().any(|range| range.contains(&address));
        let peer = (!is_trusted).then(|| sharing(address));
        let now = self.now();
        let mut state = self.state.lock();
        if let Some(peer) = peer
            && state
                .peers
                .get(&peer)
                .is_some_and(|places| places.len() >= self.limits.per_peer)
        {
            state.close_oldest_idle(Some(peer), now).ok_or(NoRoom::Peer)?;
        }
        if state.connections.len() >= self.limits.connections {
            state.close_oldest_idle(None, now).ok_or(NoRoom::Server)?;
        }
        let (id, connection) = state.add(peer, is_trusted, now);
        Ok(Admitted {
            admission: self.clone(),
            id,
            connection,
        })
    }

    /// How many searches it takes to examine all connections.
    pub(super) fn looks(&self) -> usize {
        self.limits.connections.div_ceil(MAX_LOOKS)
    }

    /// Waits until there may be room again.
    pub(super) async fn room(&self) {
        let _ = tokio::time::timeout(LOOK_AGAIN, self.left.notified()).await;
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(BUSY - 1)
    }
}

/// The address that has a share: an IPv6 /64 network counts as one host.
fn sharing(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

impl State {
    fn add(&mut self, peer: Option<IpAddr>, is_trusted: bool, now: u64) -> (u64, Arc<Connection>) {
        self.last_id += 1;
        let (id, place) = (
            self.last_id,
            ClosingOrder {
                is_trusted,
                idle_since: now,
                id: self.last_id,
            },
        );
        let connection = Arc::new(Connection {
            idle_since: AtomicU64::new(now),
            has_asked: AtomicBool::new(false),
            close: Notify::new(),
        });
        let open = OpenConnection {
            connection: connection.clone(),
            place,
            peer,
        };
        self.connections.insert(id, open);
        self.place(place, peer);
        (id, connection)
    }

    fn remove(&mut self, id: u64) -> Option<OpenConnection> {
        let open = self.connections.remove(&id)?;
        self.displace(open.place, open.peer);
        Some(open)
    }

    fn place(&mut self, place: ClosingOrder, peer: Option<IpAddr>) {
        self.places.insert(place);
        if let Some(peer) = peer {
            self.peers.entry(peer).or_default().insert(place);
        }
    }

    fn displace(&mut self, place: ClosingOrder, peer: Option<IpAddr>) {
        self.places.remove(&place);
        if let Some(peer) = peer
            && let Some(places) = self.peers.get_mut(&peer)
        {
            places.remove(&place);
            if places.is_empty() {
                self.peers.remove(&peer);
            }
        }
    }

    /// Closes the connection of this peer, or of all peers, that has been idle the longest. If all those examined have
    /// been used since they were last examined, closes the one among them that has waited for its peer the longest.
    fn close_oldest_idle(&mut self, peer: Option<IpAddr>, now: u64) -> Option<()> {
        let mut oldest: Option<ClosingOrder> = None;
        for _ in 0..MAX_LOOKS {
            let places = peer.map_or(Some(&self.places), |peer| self.peers.get(&peer))?;
            let place = *places.first()?;
            let open = self.connections.get_mut(&place.id)?;
            let idle_since = open.connection.idle_since.load(Ordering::Relaxed);
            if idle_since == place.idle_since {
                oldest = Some(place);
                break;
            }
            if place.idle_since >= now {
                // Every connection placed before `now` has been examined.
                break;
            }
            let new = ClosingOrder {
                idle_since: idle_since.min(now),
                ..place
            };
            open.place = new;
            let peer = open.peer;
            self.displace(place, peer);
            self.place(new, peer);
            if idle_since != BUSY {
                oldest = Some(oldest.map_or(new, |oldest| oldest.min(new)));
            }
        }
        let open = self.remove(oldest?.id)?;
        open.connection.close.notify_one();
        Some(())
    }
}

impl Admitted {
    /// A request begins. Until its body has arrived, the connection waits for its peer.
    pub(super) fn begin(&self) -> Receiving {
        let since = self.now();
        self.connection.has_asked.store(true, Ordering::Relaxed);
        self.connection.idle_since.store(since, Ordering::Relaxed);
        Receiving {
            connection: self.connection.clone(),
            since,
        }
    }

    /// A request without a body begins, and is handled at once.
    pub(super) fn begin_without_body(&self) {
        self.connection.has_asked.store(true, Ordering::Relaxed);
        self.connection.idle_since.store(BUSY, Ordering::Relaxed);
    }

    /// The current time, later than the time at which the connection last began to wait.
    fn now(&self) -> u64 {
        let last = self.connection.idle_since.load(Ordering::Relaxed);
        let now = self.admission.now();
        if last == BUSY { now } else { now.max(last + 1) }
    }

    /// A request has been answered. The rest is up to the peer, which has to read the answer.
    pub(super) fn end(&self) {
        self.connection.idle_since.store(self.now(), Ordering::Relaxed);
    }

    /// Whether a request has begun.
    pub(super) fn has_asked(&self) -> bool {
        self.connection.has_asked.load(Ordering::Relaxed)
    }

    /// Waits until the connection has to make room.
    pub(super) async fn must_close(&self) {
        self.connection.close.notified().await;
    }
}

/// A request whose body is arriving.
pub(super) struct Receiving {
    connection: Arc<Connection>,
    since: u64,
}

impl Receiving {
    /// The body has arrived, or nobody waits for it any more. Unless the request has been answered, it is now being
    /// handled.
    pub(super) fn end(&self) {
        let idle_since = &self.connection.idle_since;
        let _ = idle_since.compare_exchange(self.since, BUSY, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.state.lock().remove(self.id);
        self.admission.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn admission(connections: usize, per_peer: usize) -> Arc<Admission> {
        Arc::new(Admission::new(ConnectionLimits {
            trusted: vec!["10.0.0.0/8".parse().unwrap()],
            ..ConnectionLimits::of(connections, per_peer)
        }))
    }

    fn admit(admission: &Arc<Admission>, address: &str) -> Result<Admitted, NoRoom> {
        // Two connections in the same microsecond would be closed in the order of their ids.
        std::thread::sleep(Duration::from_micros(2));
        admission.admit(address.parse().unwrap())
    }

    fn must_close(connection: &Admitted) -> bool {
        connection.must_close().now_or_never().is_some()
    }

    #[test]
    fn the_connection_that_was_idle_for_the_longest_time_makes_room() {
        let all = admission(3, 3);
        let [first, second, third] = [1, 2, 3].map(|host| admit(&all, &format!("192.0.2.{host}")).unwrap());
        first.begin().end();
        first.end();
        second.begin().end();
        let fourth = admit(&all, "192.0.2.4").unwrap();
        assert!(
            must_close(&third),
            "the first has been used since, the second is busy"
        );
        assert!(![&first, &second, &fourth].into_iter().any(must_close));
        let fifth = admit(&all, "192.0.2.5").unwrap();
        assert!(must_close(&first));
        for busy in [&fourth, &fifth] {
            busy.begin().end();
        }
        assert_eq!(admit(&all, "192.0.2.6").err(), Some(NoRoom::Server));
        fourth.end();
        assert!(admit(&all, "192.0.2.6").is_ok() && must_close(&fourth));
    }

    #[test]
    fn connections_that_are_used_all_the_time_make_room_for_a_new_one() {
        let all = admission(200, 200);
        let mut open: Vec<Admitted> = (0..200).map(|_| admit(&all, "192.0.2.1").unwrap()).collect();
        for newcomer in ["192.0.2.2", "192.0.2.1"] {
            for connection in &open {
                connection.begin().end();
                connection.end();
            }
            open[0].begin().end();
            std::thread::sleep(Duration::from_micros(2));
            let new = all.admit(newcomer.parse().unwrap());
            open.push(new.ok().unwrap());
            let closed: Vec<usize> = (0..open.len()).filter(|n| must_close(&open[*n])).collect();
            assert!(
                matches!(closed[..], [n] if (1..200).contains(&n)),
                "one that is not busy: {closed:?}"
            );
            open.remove(closed[0]);
        }
        // The idle one is found behind the busy ones.
        for connection in &open {
            connection.begin().end();
        }
        open[199].end();
        let found = (0..all.looks()).find_map(|_| admit(&all, "192.0.2.3").ok());
        assert!(found.is_some() && must_close(&open[199]));
    }

    #[test]
    fn a_peer_that_has_used_up_its_share_makes_room_among_its_own() {
        let all = admission(100, 2);
        let other = admit(&all, "192.0.2.1").unwrap();
        // Addresses of one /64 are one peer.
        let own = ["2001:db8::1", "2001:db8::2:1"].map(|address| admit(&all, address).unwrap());
        let next = admit(&all, "2001:db8::3").unwrap();
        assert!(must_close(&own[0]) && !must_close(&own[1]) && !must_close(&other));
        own[1].begin().end();
        next.begin().end();
        assert_eq!(admit(&all, "2001:db8::4").err(), Some(NoRoom::Peer));
        assert!(admit(&all, "2001:db8:0:1::4").is_ok());
        drop(own);
        assert!(admit(&all, "2001:db8::4").is_ok());
    }

    #[test]
    fn a_connection_that_waits_for_a_body_makes_room_and_one_that_handles_it_does_not() {
        let all = admission(2, 2);
        let [slow, handling] = [1, 2].map(|host| admit(&all, &format!("192.0.2.{host}")).unwrap());
        let (_arriving, arrived) = (slow.begin(), handling.begin());
        arrived.end();
        let third = admit(&all, "192.0.2.3").unwrap();
        assert!(must_close(&slow) && !must_close(&handling));
        // A body that is dropped after the answer makes no connection busy.
        let late = third.begin();
        third.end();
        late.end();
        assert!(admit(&all, "192.0.2.4").is_ok() && must_close(&third));
    }

    #[test]
    fn a_trusted_proxy_has_no_share_and_makes_room_last() {
        let all = admission(6, 2);
        let proxy = [0; 5].map(|_| admit(&all, "10.0.0.1").unwrap());
        let direct = admit(&all, "192.0.2.1").unwrap();
        let another = admit(&all, "192.0.2.2").unwrap();
        assert!(must_close(&direct) && !proxy.iter().any(must_close));
        let _sixth = admit(&all, "10.0.0.1").unwrap();
        assert!(must_close(&another) && !proxy.iter().any(must_close));
        let _seventh = admit(&all, "192.0.2.1").unwrap();
        assert!(must_close(&proxy[0]));
    }

    #[test]
    fn nothing_is_left_of_connections_that_have_ended() {
        let all = admission(3, 2);
        for round in 0..10 {
            let admitted = [1, 2, 1, 2].map(|host| admit(&all, &format!("192.0.2.{host}")).ok());
            assert!(admitted.iter().all(Option::is_some), "{round}");
        }
        let state = all.state.lock();
        assert!(state.connections.is_empty() && state.places.is_empty() && state.peers.is_empty());
    }
}
