//! The agent's reading of whole maps, in numbers that take several batches.

use std::{ops::Range, path::Path, sync::Arc, thread};

use aya::maps::{Array, HashMap, Map, MapData, MapError};
use mc_gateway::{
    maps::{MapContents, PinnedMaps},
    plan::ServiceAction,
    policy_tables::PolicyTables,
    preflight,
    resolved::PrefixKey,
};
use mc_gateway_common::{
    abi::{
        MAX_NEXT_HOP_GROUPS, MAX_NEXT_HOPS, NextHop, NextHopGroup, Peer, Prefix,
        policy::{
            IDENTITIES, LabelIdentity, MAX_IDENTITIES, POLICY_FLOWS, PolicyPod, UNSELECTED_PODS,
            UNSELECTED_SLOTS, half_slot, unselected_number, unselected_slot,
        },
        service::{Backend, MAGLEV_SLOTS, Maglev, ReplyKey, Service, ServiceKey},
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

/// Tables for a set of exporters, with as many identities as the goal has.
fn identities(exporters: u32) -> Arc<PolicyTables> {
    let identity = |number| LabelIdentity {
        class: 1 + number % 100,
        exporters,
    };
    Arc::new(PolicyTables {
        identities: (1..=100_000).map(|number| (number, identity(number))).collect(),
        exporters: [(exporters, 7), (exporters, 8)].into(),
        ..PolicyTables::default()
    })
}

#[test]
fn identities_of_both_halves_are_read_and_foreign_changes_noticed() {
    let kernel = Kernel::load(&MemoryMaps::default());
    let pins = Pins::new("identity-reading");
    kernel.pin_maps(pins.dir());
    let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
    maps.reload().expect("a reading");
    for exporters in [1, 2] {
        maps.set_policies(&identities(exporters)).expect("identities");
        assert!(maps.is_unchanged().expect("a reading"));
    }
    let written = maps.contents().clone();
    assert_eq!(written.policies.current(), &identities(2));
    assert!(
        read(pins.dir()).policies == written.policies,
        "the maps have other entries"
    );

    let path = pins.dir().join(IDENTITIES);
    let map = Map::Array(MapData::from_pin(path).expect("a pin"));
    let mut foreign: Array<_, LabelIdentity> = map.try_into().expect("an array");
    let other = LabelIdentity {
        class: 101,
        exporters: 1,
    };
    for half in [0, 1] {
        let slot = half_slot(100_000, half);
        let old = foreign.get(&slot, 0).expect("an entry");
        foreign.set(slot, other, 0).expect("an entry");
        assert!(!maps.is_unchanged().expect("a reading"), "half {half}");
        foreign.set(slot, old, 0).expect("an entry");
        assert!(maps.is_unchanged().expect("a reading"), "half {half}");
    }
    // The resync reads the slots behind the known ones as well, and the next tables remove the entry.
    let half = 1 - written.policies.half;
    let last = half_slot(MAX_IDENTITIES - 1, half);
    foreign.set(last, other, 0).expect("an entry");
    maps.reload().expect("a reading");
    assert!(maps.contents().policies != written.policies);
    maps.set_policies(&identities(3)).expect("identities");
    assert_eq!(foreign.get(&last, 0).expect("an entry"), LabelIdentity::default());
    for _half in [0, 1] {
        maps.set_policies(&Arc::default()).expect("no identities");
    }
    let contents = read(pins.dir());
    assert!(contents.policies.tables.iter().all(|of_half| of_half.is_empty()));
}

#[test]
fn unselected_pods_of_both_halves_are_read_and_foreign_changes_mended() {
    let kernel = Kernel::load(&MemoryMaps::default());
    let pins = Pins::new("unselected-reading");
    kernel.pin_maps(pins.dir());
    let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
    maps.reload().expect("a reading");
    let path = pins.dir().join(UNSELECTED_PODS);
    let map = Map::Array(MapData::from_pin(path).expect("a pin"));
    let mut foreign: Array<_, [u8; 16]> = map.try_into().expect("an array");
    let tables = |numbers: Range<u32>| {
        let slots = numbers.map(|number| (unselected_number(&addr(number)), addr(number)));
        Arc::new(PolicyTables {
            unselected_slots: slots.collect(),
            ..PolicyTables::default()
        })
    };
    for numbers in [0..UNSELECTED_SLOTS / 2, 0..10, 5..20] {
        maps.set_policies(&tables(numbers.clone())).expect("the Pods");
        assert!(maps.is_unchanged().expect("a reading"));
        let half = maps.contents().policies.half;
        for number in 0..UNSELECTED_SLOTS / 2 {
            let found = foreign
                .get(&unselected_slot(&addr(number), half), 0)
                .expect("an entry");
            let expected = if numbers.contains(&number) {
                addr(number)
            } else {
                [0; 16]
            };
            assert_eq!(found, expected, "{number}");
        }
    }
    let written = maps.contents().policies.clone();
    assert!(read(pins.dir()).policies == written, "the map has other entries");

    // Another program opens a Pod: the agent notices it, and its next tables close it.
    for half in [0, 1] {
        let slot = unselected_slot(&addr(500), half);
        foreign.set(slot, addr(500), 0).expect("an entry");
        assert!(!maps.is_unchanged().expect("a reading"), "half {half}");
        maps.reload().expect("a reading");
        for _half in [0, 1] {
            maps.set_policies(&tables(5..20)).expect("the Pods");
        }
        assert_eq!(foreign.get(&slot, 0).expect("an entry"), [0; 16], "half {half}");
    }
}

/// The tables with a Pod at each address, by its last byte and the hash of its UID.
fn pods(pods: &[(u8, u32)]) -> Arc<PolicyTables> {
    let selected = |instance| PolicyPod {
        instance,
        ..PolicyPod::default()
    };
    let pods = pods
        .iter()
        .map(|(last, instance)| ([*last; 16], selected(*instance)));
    Arc::new(PolicyTables {
        pods: pods.collect(),
        ..PolicyTables::default()
    })
}

/// After a restart, the tables in the maps are those of the earlier agent.
#[test]
fn a_new_agent_ends_the_flows_of_pods_that_have_ended() {
    let kernel = Kernel::load(&MemoryMaps::default());
    let pins = Pins::new("ended-flows");
    kernel.pin_maps(pins.dir());
    let agent = || {
        let mut maps = PinnedMaps::open(pins.dir()).expect("the maps");
        maps.reload().expect("a reading");
        maps
    };
    agent()
        .set_policies(&pods(&[(1, 10), (2, 20)]))
        .expect("the Pods");
    let flow = |last| ReplyKey {
        pod: [last; 16],
        ..ReplyKey::default()
    };
    let map = MapData::from_pin(pins.dir().join(POLICY_FLOWS)).expect("a pin");
    let mut flows: HashMap<_, ReplyKey, u64> = Map::LruHashMap(map).try_into().expect("a hash");
    for last in [1, 2] {
        flows.insert(flow(last), 1, 0).expect("a flow");
    }
    agent()
        .set_policies(&pods(&[(1, 10), (2, 21)]))
        .expect("the Pods");
    assert_eq!(flows.get(&flow(1), 0).expect("the flow of the same Pod"), 1);
    let ended = flows.get(&flow(2), 0);
    assert!(matches!(ended, Err(MapError::KeyNotFound)), "{ended:?}");
}
