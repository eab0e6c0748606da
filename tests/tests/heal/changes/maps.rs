//! Changes of the contents of maps.

use anyhow::{Context as _, Result};
use aya::Pod;
use mc_gateway_common::abi::{
    self, ACTION_DELIVER, ACTION_FORWARD, Addr, PREFIXES, Prefix, PrefixKey,
    liveness::{PROBE_REPLY, PROBE_SENT, ProbeReply, ProbeSent},
    prefix::{PREFIX_GENERATION, PREFIX_LENS, PrefixLengths},
    service::{self, Backend, Maglev, Service, ServiceKey},
};
use mc_tests::topology::Place;

use super::Change;
use crate::{bed::Bed, pinned};

pub(super) const ALL: &[Change] = &[
    Change::new("prefixes deleted", Place::NodeEast, |bed, place| {
        delete_all::<PrefixKey, Prefix>(bed, place, PREFIXES)
    }),
    Change::new("prefixes changed", Place::NodeWest, |bed, place| {
        for (key, mut prefix) in pinned::entries::<PrefixKey, Prefix>(&bed.topology, place, PREFIXES)? {
            if prefix.action == ACTION_FORWARD {
                prefix.action = ACTION_DELIVER;
                insert(bed, place, PREFIXES, key, prefix)?;
            }
        }
        Ok(())
    }),
    Change::new("foreign prefix added", Place::GatewayEast, |bed, place| {
        let (_, prefix) = entry::<PrefixKey, Prefix>(bed, place, PREFIXES)?;
        insert(bed, place, PREFIXES, PrefixKey::new(128, [7; 16]), prefix)
    }),
    Change::new("prefix lengths emptied", Place::NodeEast, |bed, place| {
        let mut lists = pinned::array::<PrefixLengths>(&bed.topology, place, PREFIX_LENS)?;
        for slot in 0..lists.len() {
            lists.set(slot, PrefixLengths::default(), 0)?;
        }
        Ok(())
    }),
    Change::new(
        "generation of prefixes changed",
        Place::GatewayWest,
        |bed, place| {
            let mut generation = pinned::array::<u32>(&bed.topology, place, PREFIX_GENERATION)?;
            let other = generation.get(&0, 0)?.wrapping_add(1);
            Ok(generation.set(0, other, 0)?)
        },
    ),
    Change::new("peers deleted", Place::GatewayWest, |bed, place| {
        delete_all::<Addr, abi::Peer>(bed, place, abi::PEERS)
    }),
    Change::new("foreign peer added", Place::GatewayEast, |bed, place| {
        let (_, peer) = entry::<Addr, abi::Peer>(bed, place, abi::PEERS)?;
        insert::<Addr, _>(bed, place, abi::PEERS, [7; 16], peer)
    }),
    Change::new("next hops zeroed", Place::NodeEast, |bed, place| {
        zero::<abi::NextHop>(bed, place, abi::NEXT_HOPS)
    }),
    Change::new("next hops changed", Place::GatewayEast, |bed, place| {
        set_all::<abi::NextHop>(bed, place, abi::NEXT_HOPS, |next_hop| next_hop.addr[15] ^= 0x80)
    }),
    Change::new("groups zeroed", Place::NodeEast, |bed, place| {
        zero::<abi::NextHopGroup>(bed, place, abi::NEXT_HOP_GROUPS)
    }),
    Change::new("groups emptied", Place::GatewayEast, |bed, place| {
        set_all::<abi::NextHopGroup>(bed, place, abi::NEXT_HOP_GROUPS, |group| group.len = 0)
    }),
    Change::new("configuration zeroed", Place::GatewayEast, |bed, place| {
        let mut map = pinned::array::<abi::Config>(&bed.topology, place, abi::CONFIG)?;
        Ok(map.set(0, abi::Config::default(), 0)?)
    }),
    Change::new("epoch zeroed", Place::GatewayEast, |bed, place| {
        let mut map = pinned::array::<abi::Epoch>(&bed.topology, place, abi::EPOCH)?;
        Ok(map.set(0, abi::Epoch::default(), 0)?)
    }),
    Change::new("replies to probes zeroed", Place::NodeEast, |bed, place| {
        zero::<ProbeReply>(bed, place, PROBE_REPLY)
    }),
    Change::new("sent probes zeroed", Place::NodeWest, |bed, place| {
        zero::<ProbeSent>(bed, place, PROBE_SENT)
    }),
    Change::new("services deleted", Place::GatewayWest, |bed, place| {
        delete_all::<ServiceKey, Service>(bed, place, service::SERVICES)
    }),
    Change::new("lookup table changed", Place::GatewayWest, |bed, place| {
        let (key, mut table) = entry::<ServiceKey, Maglev>(bed, place, service::MAGLEV)?;
        table.backends[7] = 1;
        insert(bed, place, service::MAGLEV, key, table)
    }),
    Change::new("lookup tables deleted", Place::GatewayWest, |bed, place| {
        delete_all::<ServiceKey, Maglev>(bed, place, service::MAGLEV)
    }),
    Change::new(
        "backends deleted at a gateway",
        Place::GatewayWest,
        |bed, place| delete_all::<u64, Backend>(bed, place, service::BACKENDS),
    ),
    Change::new("backends changed at a node", Place::NodeWest, |bed, place| {
        for (id, mut backend) in pinned::entries::<u64, Backend>(&bed.topology, place, service::BACKENDS)? {
            backend.pod_port ^= 1;
            insert(bed, place, service::BACKENDS, id, backend)?;
        }
        Ok(())
    }),
    Change::new("backends deleted at a node", Place::NodeWest, |bed, place| {
        delete_all::<u64, Backend>(bed, place, service::BACKENDS)
    }),
];

fn entry<K: Pod, V: Pod>(bed: &Bed, place: Place, name: &str) -> Result<(K, V)> {
    let all = pinned::entries(&bed.topology, place, name)?;
    all.into_iter().next().context("an entry")
}

fn insert<K: Pod, V: Pod>(bed: &Bed, place: Place, name: &str, key: K, value: V) -> Result<()> {
    Ok(pinned::hash::<K, V>(&bed.topology, place, name)?.insert(key, value, 0)?)
}

fn delete_all<K: Pod, V: Pod>(bed: &Bed, place: Place, name: &str) -> Result<()> {
    let mut map = pinned::hash::<K, V>(&bed.topology, place, name)?;
    for (key, _) in pinned::entries::<K, V>(&bed.topology, place, name)? {
        map.remove(&key)?;
    }
    Ok(())
}

fn set_all<V: Pod + Default + PartialEq>(
    bed: &Bed,
    place: Place,
    name: &str,
    change: fn(&mut V),
) -> Result<()> {
    let mut map = pinned::array::<V>(&bed.topology, place, name)?;
    for (slot, mut value) in pinned::used_slots::<V>(&bed.topology, place, name)? {
        change(&mut value);
        map.set(slot, value, 0)?;
    }
    Ok(())
}

fn zero<V: Pod + Default + PartialEq>(bed: &Bed, place: Place, name: &str) -> Result<()> {
    set_all::<V>(bed, place, name, |value| *value = V::default())
}
