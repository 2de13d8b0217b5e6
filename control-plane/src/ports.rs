//! Free ports on loopback.
//!
//! These are random ports below the ephemeral range. The kernel's choice (port 0) would come from that range: while a killed
//! API server is away, a client that keeps dialling its port could get that port as its own and connect to itself (TCP
//! simultaneous open), and any other connection could take it.

use crate::Error;
use std::{
    collections::hash_map::RandomState,
    fs,
    hash::{BuildHasher as _, Hasher as _},
    io,
    net::{Ipv4Addr, TcpListener},
};

const LOWEST: u16 = 15_000;
/// Kubernetes' node ports start above this.
const HIGHEST: u16 = 29_999;

/// A port that is free at the moment. Another process may take it, so callers retry on a clash.
pub fn free() -> Result<u16, Error> {
    let first_ephemeral = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(u16::MAX);
    let highest = HIGHEST.min(first_ephemeral.saturating_sub(1));
    if highest > LOWEST + 1_000 {
        for _ in 0..50 {
            let span = u64::from(highest - LOWEST) + 1;
            let offset = RandomState::new().build_hasher().finish() % span;
            let port = LOWEST + u16::try_from(offset).unwrap_or(0);
            if bind(port).is_ok() {
                return Ok(port);
            }
        }
    }
    bind(0).map_err(Error::Port)
}

fn bind(port: u16) -> io::Result<u16> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))?
        .local_addr()
        .map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() {
        // Others may take one at the same moment.
        let ports: Vec<u16> = (0..10).map(|_| free().unwrap()).collect();
        assert!(ports.iter().any(|port| bind(*port).is_ok()), "{ports:?}");
        assert!(
            ports.iter().all(|port| (LOWEST..=HIGHEST).contains(port)),
            "{ports:?}"
        );
    }

    #[test]
    fn a_taken_port_is_not_bound() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(bind(listener.local_addr().unwrap().port()).is_err());
    }
}
