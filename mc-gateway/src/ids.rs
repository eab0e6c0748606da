//! Stable IDs of names: the maps contain them instead of strings.

use mc_gateway_common::abi::Addr;
use mc_gateway_common::abi::service::{BACKEND_ID_BITS, ServiceKey};
use siphasher::sip::SipHasher24;

/// ID of `name`: the same on every node and after every restart, never 0.
///
/// 32-bit FNV-1a, written by hand because the map format depends on it; callers check for collisions.
#[must_use]
pub fn stable_id(name: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let hash = name
        .bytes()
        .fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    hash.max(1)
}

/// ID of a remote cluster in the maps of one node, never 0.
///
/// SipHash-2-4 with the node's random key: no member can choose a name with the ID of another. Callers check for
/// collisions all the same.
#[must_use]
pub fn cluster_id(key: &[u8; 16], name: &str) -> u64 {
    SipHasher24::new_with_key(key).hash(name.as_bytes()).max(1)
}

/// ID of a rule of a network policy in the maps of one node, never 0.
///
/// SipHash-2-4 with the node's random key: no author of a policy can choose a name with the ID of another rule. Callers
/// check for collisions all the same.
#[must_use]
pub fn rule_id(key: &[u8; 16], policy: &str, rule: &str) -> u32 {
    const MASK: u64 = 0xffff_ffff;
    let hash = SipHasher24::new_with_key(key).hash(format!("{policy} {rule}").as_bytes());
    u32::try_from(hash & MASK).unwrap_or_default().max(1)
}

/// ID of a backend of a Service port: the same on every node and after every restart, never 0, and short enough for a
/// MAC address.
///
/// 64-bit FNV-1a, folded; callers check for collisions.
#[must_use]
pub fn backend_id(service: &ServiceKey, pod: &Addr, pod_port: u16) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const MASK: u64 = (1 << BACKEND_ID_BITS) - 1;
    let ports = service.port.to_be_bytes().into_iter().chain([service.proto]);
    let bytes = service.addr.into_iter().chain(ports);
    let hash = bytes
        .chain(pod.iter().copied())
        .chain(pod_port.to_be_bytes())
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME));
    ((hash ^ (hash >> BACKEND_ID_BITS)) & MASK).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors_of_fnv_1a() {
        assert_eq!(stable_id(""), 0x811c_9dc5);
        assert_eq!(stable_id("a"), 0xe40c_292c);
        assert_eq!(stable_id("foobar"), 0xbf9c_f968);
    }

    #[test]
    fn a_cluster_id_depends_on_the_key_of_the_node() {
        // The reference vector of SipHash-2-4 for 15 bytes (Aumasson and Bernstein, 2012, appendix A).
        let bytes: Vec<u8> = (0..16).collect();
        let (key, text) = (
            bytes[..].try_into().unwrap(),
            std::str::from_utf8(&bytes[..15]).unwrap(),
        );
        assert_eq!(cluster_id(&key, text), 0xa129_ca61_49be_45e5);
        assert_ne!(cluster_id(&[0; 16], "west"), cluster_id(&[1; 16], "west"));
    }

    #[test]
    fn different_names_have_different_ids() {
        assert_ne!(stable_id("cluster/east"), stable_id("cluster/west"));
    }
}
