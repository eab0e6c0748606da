//! The agent's reading of whole maps, in numbers that take several batches.

use std::{path::Path, sync::Arc, thread};

use mc_gateway::{
    maps::{MapContents, PinnedMaps},
    plan::ServiceAction,
    preflight,
    resolved::PrefixKey,
};
use mc_gateway_common::{
    abi::{
        MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, NextHop, NextHopGroup, Peer, Prefix,
        service::{Backend, MAGLEV_SLOTS, Maglev, Service, ServiceKey},
    },
    maps::MemoryMaps,
};

use crate::{kernel::Kernel, pins::Pins};

/// Entries of each hash map.
const ENTRIES: u32 = 10_000;
/// Look-up tables of 4 KiB each.
const TABLES: u32 = 300;

fn addr(number: u32) -> [u8; 16] {
    let mut addr = [0xfd; 16];
    addr[12..].copy_from_slice(&number.to_be_bytes());
    addr
}

fn service_key(number: u32) -> ServiceKey {
    ServiceKey {
        addr: addr(number),
        port: 80,
        proto: 6,
        generation: 0,
    }
}

/// Fills every map that the agent writes.
fn fill(maps: &mut PinnedMaps) {
    for number in 1..=ENTRIES {
        let key = PrefixKey {
            len: 128,
            addr: addr(number),
        };
        let prefix = Prefix {
            cluster: number.into(),
            ..Prefix::default()
        };
        maps.set_prefix(key, Some(prefix)).expect("a prefix");
        let peer = Peer {
            cluster: number.into(),
            ..Peer::default()
        };
        maps.set_peer(addr(number), Some(peer)).expect("a peer");
        let backend = Backend {
            pod: addr(number),
            ..Backend::default()
        };
        let action = ServiceAction::Backend {
            id: number.into(),
            from: None,
            to: Some(backend),
        };
        maps.set_service(&action).expect("a backend");
        let action = ServiceAction::Service {
            key: service_key(number),
            from: None,
            to: Some(Service::default()),
        };
        maps.set_service(&action).expect("a Service");
    }
    for number in 1..=TABLES {
        let table = Maglev {
            backends: [number.into(); MAGLEV_SLOTS],
        };
        let action = ServiceAction::Table {
            key: service_key(number),
            from: None,
            to: Some(Arc::new(table)),
        };
        maps.set_service(&action).expect("a table");
    }
    for slot in (1..MAX_NEXT_HOPS).step_by(3) {
        let next_hop = NextHop {
            id: slot,
            addr: addr(slot),
            ..NextHop::default()
        };
        maps.set_next_hop(slot, next_hop).expect("a next hop");
    }
    for slot in 1..MAX_NEXT_HOP_GROUPS {
        let group = NextHopGroup {
            id: slot,
            ..NextHopGroup::default()
        };
        maps.set_group(slot, group).expect("a group");
    }
}

fn read(dir: &Path) -> MapContents {
    PinnedMaps::read(dir).expect("the maps")
}

#[test]
fn all_entries_are_read_without_capabilities() {
    let kernel = Kernel::load(&MemoryMaps::default());
    let pins = Pins::new("map-reading");
    kernel.pin_maps(pins.dir());
    // Capabilities belong to a thread.
    let test = || {
        let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
        preflight::drop_load_capabilities().expect("drop capabilities");
        fill(&mut maps);
        maps.bump_epoch().expect("an epoch");
        let written = maps.contents().clone();
        assert_eq!(written.prefixes.len(), ENTRIES as usize);
        assert!(maps.is_unchanged().expect("a reading"));
        maps.reload().expect("a reading");
        assert!(*maps.contents() == written, "the maps have other entries");
        assert!(read(pins.dir()) == written, "the maps have other entries");

        assert!(maps.is_unchanged().expect("a reading"), "changed by a reading");

        // Another agent raises the generation of the prefixes, then changes the last slot of an array and a prefix.
        let mut other = PinnedMaps::open(pins.dir()).expect("the maps");
        assert!(!maps.is_unchanged().expect("a reading"));
        maps.reload().expect("a reading");
        let last = MAX_NEXT_HOP_GROUPS - 1;
        other.set_group(last, NextHopGroup::default()).expect("a group");
        assert!(!maps.is_unchanged().expect("a reading"));
        other.set_group(last, written.groups[&last]).expect("a group");
        assert!(maps.is_unchanged().expect("a reading"));
        let key = *written.prefixes.keys().next_back().expect("a prefix");
        other.set_prefix(key, None).expect("a prefix");
        assert!(!maps.is_unchanged().expect("a reading"));
        maps.reload().expect("a reading");
        assert_eq!(maps.contents().prefixes.len(), ENTRIES as usize - 1);
    };
    thread::scope(|scope| {
        scope.spawn(test).join().expect("all entries");
    });
}
