//! Releases memory after bursts.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash},
};

/// Capacity that a map may keep, however few entries it has.
const LITTLE: usize = 1024;

/// Releases most of the memory of a map that holds far less than it once did. Call it after removals; it seldom does
/// anything.
pub fn shrink<K: Eq + Hash, V, S: BuildHasher>(map: &mut HashMap<K, V, S>) {
    if map.capacity() > LITTLE && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_gives_back_what_a_burst_took() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|n| (n, n)).collect();
        let mut shrunk = 0;
        for n in 0..100_000 {
            map.remove(&n);
            let before = map.capacity();
            shrink(&mut map);
            shrunk += usize::from(map.capacity() < before);
        }
        assert!(map.capacity() <= LITTLE, "{}", map.capacity());
        assert!(shrunk < 10, "{shrunk} times");
    }
}
