//! Ports that belong to protocols other than HTTP. A webhook must not make the operator connect to them, even though the first
//! thing that it would send is a TLS handshake.

/// The ports that browsers refuse (WHATWG Fetch, section 2.9, "port blocking"), except 1, 7 and 9, where nothing listens
/// any more and tests look for a closed port; and those of databases, queues, remote access
/// and Kubernetes itself.
const OTHER_PROTOCOLS: &[u16] = &[
    11, 13, 15, 17, 19, 20, 21, 22, 23, 25, 37, 42, 43, 53, 69, 77, 79, 87, 88, 95, 101, 102, 103, 104, 109,
    110, 111, 113, 115, 117, 119, 123, 135, 137, 139, 143, 161, 179, 389, 427, 445, 465, 512, 513, 514, 515,
    526, 530, 531, 532, 540, 548, 554, 556, 563, 587, 601, 623, 636, 873, 989, 990, 993, 995, 1433, 1521,
    1719, 1720, 1723, 1883, 2049, 2181, 2375, 2376, 2379, 2380, 3268, 3269, 3306, 3389, 3659, 4045, 4190,
    4222, 5060, 5061, 5432, 5671, 5672, 5900, 5985, 5986, 6000, 6379, 6380, 6443, 6566, 6665, 6666, 6667,
    6668, 6669, 6679, 6697, 8883, 9042, 9092, 10080, 10250, 10255, 10257, 10259, 11211, 27017,
];

/// Whether receivers must not use this port unless the administrator allows it.
pub(super) fn is_of_another_protocol(port: u16) -> bool {
    OTHER_PROTOCOLS.binary_search(&port).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_can_be_searched() {
        assert!(OTHER_PROTOCOLS.is_sorted());
        for port in [22, 25, 3306, 5432, 6379, 27017] {
            assert!(is_of_another_protocol(port), "{port}");
        }
        for port in [
            80, 443, 3000, 4443, 5000, 8000, 8080, 8443, 9443, 10443, 30443, 49152,
        ] {
            assert!(!is_of_another_protocol(port), "{port}");
        }
    }
}
