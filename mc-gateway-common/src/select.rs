//! Which member of a group carries a flow: the flow hash and rendezvous hashing.

use crate::{
    abi::{Addr, GROUP_MEMBERS, Group, Member},
    packet::ip,
    tables::Tables,
};

/// Mixes two words into one; a bijection in `value` for every `seed` (the finaliser of `MurmurHash3`).
#[inline(always)]
#[must_use]
pub fn mix(value: u32, seed: u32) -> u32 {
    let mut hash = value ^ seed.wrapping_mul(0x9e37_79b1);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Hash of a flow. `ports` are the first four bytes behind the IP header; they are left out for
/// fragments (only the first one carries them) and for protocols that have none, so that every fragment
/// of a packet hashes alike.
#[inline(always)]
#[must_use]
pub fn flow_hash(header: &ip::Header, ports: [u8; 4]) -> u32 {
    let has_ports = matches!(header.proto, ip::TCP | ip::UDP | ip::SCTP) && !header.is_fragment();
    let ports = if has_ports { u32::from_be_bytes(ports) } else { 0 };
    let hash = mix(fold(&header.src), u32::from(header.proto));
    let hash = mix(fold(&header.dst), hash);
    mix(ports, hash)
}

/// An address as one word: IPv4 addresses as they are, IPv6 addresses mixed.
#[inline(always)]
#[must_use]
pub const fn fold(address: &Addr) -> u32 {
    let [a, b, c, d] = match address.as_chunks::<4>().0.first_chunk::<4>() {
        Some(words) => *words,
        None => [[0; 4]; 4],
    };
    // The third word of an IPv4 address is constant, the first two are zero.
    let c = (u32::from_be_bytes(c) ^ 0xffff).rotate_left(13);
    u32::from_be_bytes(d) ^ c ^ u32::from_be_bytes(b).rotate_left(7) ^ u32::from_be_bytes(a).rotate_left(17)
}

/// The member of `group` that carries a flow: the one with the highest `mix(hash, id)`.
///
/// Depends on the members' ids only, not on their order, so a lost member moves only its own flows
/// (highest random weight, Thaler and Ravishankar 1998). `None` where no slot holds a member.
#[inline(always)]
pub fn choose<'t, T: Tables>(tables: &'t T, group: &Group, hash: u32) -> Option<&'t Member> {
    if group.n == 1 {
        return usable(tables, group, 0);
    }
    let mut best = 0;
    let mut chosen = None;
    let mut i = 0;
    while i < GROUP_MEMBERS {
        if u32::try_from(i).is_ok_and(|i| i >= group.n) {
            break;
        }
        if let Some(member) = usable(tables, group, i) {
            // Never 0, so that the first usable member always beats the start value.
            let weight = mix(hash, member.id) | 1;
            if weight > best {
                best = weight;
                chosen = Some(member);
            }
        }
        i = i.wrapping_add(1);
    }
    chosen
}

#[inline(always)]
fn usable<'t, T: Tables>(tables: &'t T, group: &Group, i: usize) -> Option<&'t Member> {
    // The mask is what the verifier sees; `i` is below it anyway.
    let slot = *group.members.get(i & (GROUP_MEMBERS - 1))?;
    tables.member(slot).filter(|member| member.ifindex != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tables::MapTables;

    fn group_of(ids: &[u32]) -> (MapTables, Group) {
        let mut tables = MapTables::default();
        let mut group = Group {
            id: 1,
            n: u32::try_from(ids.len()).unwrap(),
            ..Group::default()
        };
        for (i, id) in ids.iter().enumerate() {
            let slot = u32::try_from(i + 1).unwrap();
            group.members[i] = slot;
            tables.members.insert(
                slot,
                Member {
                    id: *id,
                    ifindex: 7,
                    ..Member::default()
                },
            );
        }
        (tables, group)
    }

    fn pick(ids: &[u32], hash: u32) -> Option<u32> {
        let (tables, group) = group_of(ids);
        choose(&tables, &group, hash).map(|m| m.id)
    }

    fn header(proto: u8, frags: u16) -> ip::Header {
        ip::Header {
            v6: false,
            version: 4,
            len: 20,
            tos: 0,
            length: 60,
            frags,
            ttl: 64,
            proto,
            src: ip::mapped([10, 1, 0, 2]),
            dst: ip::mapped([10, 2, 0, 3]),
        }
    }

    #[test]
    fn an_empty_group_has_no_member() {
        assert_eq!(pick(&[], 5), None);
    }

    #[test]
    fn a_member_without_a_device_is_not_chosen() {
        let (mut tables, group) = group_of(&[1, 2]);
        tables.members.get_mut(&1).unwrap().ifindex = 0;
        for hash in 0..100 {
            assert_eq!(choose(&tables, &group, hash).map(|m| m.id), Some(2));
        }
    }

    #[test]
    fn all_fragments_of_a_packet_hash_alike() {
        let first = flow_hash(&header(ip::UDP, 0x2000), [1, 2, 3, 4]);
        let next = flow_hash(&header(ip::UDP, 0x00b9), [9, 9, 9, 9]);
        assert_eq!(first, next);
    }

    #[test]
    fn ports_tell_flows_apart() {
        assert_ne!(
            flow_hash(&header(ip::TCP, 0x4000), [1, 2, 3, 4]),
            flow_hash(&header(ip::TCP, 0x4000), [1, 2, 3, 5])
        );
    }

    #[test]
    fn flows_spread_evenly() {
        let mut counts = [0_u32; 4];
        for flow in 0..40_000_u32 {
            let id = pick(&[0, 1, 2, 3], mix(flow, 99)).unwrap();
            counts[usize::try_from(id).unwrap()] += 1;
        }
        for count in counts {
            assert!((9_500..10_500).contains(&count), "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn the_order_of_members_does_not_matter(ids in prop::collection::hash_set(any::<u32>(), 1..16), hash: u32) {
            let forward: Vec<_> = ids.into_iter().collect();
            let backward: Vec<_> = forward.iter().rev().copied().collect();
            prop_assert_eq!(pick(&forward, hash), pick(&backward, hash));
        }

        #[test]
        fn losing_a_member_moves_only_its_flows(ids in prop::collection::hash_set(any::<u32>(), 2..16), hash: u32, lost: prop::sample::Index) {
            let all: Vec<_> = ids.into_iter().collect();
            let lost = *lost.get(&all);
            let rest: Vec<_> = all.iter().copied().filter(|id| *id != lost).collect();
            let before = pick(&all, hash);
            if before != Some(lost) {
                prop_assert_eq!(pick(&rest, hash), before);
            }
        }
    }
}
