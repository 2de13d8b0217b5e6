//! Where a request comes from, behind proxies.

use std::net::{IpAddr, SocketAddr};

use http::HeaderMap;
use ipnet::IpNet;

/// The client's address: that of the connection or, behind a trusted proxy, the last in `X-Forwarded-For` that is not a trusted proxy.
pub fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: IpAddr| {
        let address = address.to_canonical();
        trusted.iter().any(|range| range.contains(&address))
    };
    if !is_trusted(peer) {
        return peer;
    }
    let forwarded = headers.get_all("x-forwarded-for").iter();
    let texts: Vec<&str> = forwarded
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .collect();
    for text in texts.into_iter().rev() {
        match forwarded_address(text.trim()) {
            Some(address) if is_trusted(address) => {}
            Some(address) => return address,
            None => break,
        }
    }
    peer
}

/// An address as proxies write it: some add the port, and brackets round one of IPv6.
fn forwarded_address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().map(|address: SocketAddr| address.ip()).ok();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    bare.unwrap_or(text).parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_a_trusted_proxy_says_where_a_request_comes_from() {
        let mut headers = HeaderMap::new();
        headers.append("x-forwarded-for", "203.0.113.9, 192.0.2.7".parse().unwrap());
        headers.append("x-forwarded-for", "10.0.0.2".parse().unwrap());
        let trusted: [IpNet; 1] = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(client(ip("10.0.0.1"), &headers, &trusted), ip("192.0.2.7"));
        for (written, address) in [
            ("192.0.2.8:1234", "192.0.2.8"),
            ("[2001:db8::1]:1234", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
        ] {
            let mut headers = HeaderMap::new();
            headers.append("x-forwarded-for", written.parse().unwrap());
            assert_eq!(client(ip("10.0.0.1"), &headers, &trusted), ip(address));
        }
        assert_eq!(client(ip("198.51.100.1"), &headers, &trusted), ip("198.51.100.1"));
        assert_eq!(
            client(ip("10.0.0.1"), &HeaderMap::new(), &trusted),
            ip("10.0.0.1")
        );
        headers.append("x-forwarded-for", "nonsense".parse().unwrap());
        assert_eq!(client(ip("10.0.0.1"), &headers, &trusted), ip("10.0.0.1"));
    }
}
