//! The prefix table in the kernel: the longest of nested prefixes, and changes during look-ups.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use aya::maps::{Array, HashMap, Map, MapData};
use mc_gateway::maps::{PrefixTable, PrefixWrite};
use mc_gateway_common::{
    abi::{
        ACTION_FORWARD, Addr, MAX_PREFIXES, NextHop, NextHopGroup, PREFIXES, Prefix, PrefixKey,
        prefix::{PREFIX_GENERATION, PREFIX_LENS, PrefixLengths},
    },
    maps::MemoryMaps,
    packet::ip::mapped,
    verdict::Verdict,
};

use crate::{
    TC_ACT_REDIRECT,
    cases::{Program, web},
    fixture::{self, POD_HERE, Shape, WEST},
    kernel::Kernel,
    run_on_host, tc_action,
};

/// First slot of the groups and next hops of these tests.
const FIRST: u32 = 200;

/// The tables of a gateway with a prefix for each number in `lens` that contains `address`, and a next hop for each.
fn nested(shape: Shape, address: Addr, lens: impl Iterator<Item = u32>) -> MemoryMaps {
    let mut tables = shape.tables(fixture::gateway());
    for len in lens {
        let slot = FIRST + len;
        add_next_hop(&mut tables, slot);
        tables
            .prefixes
            .insert((len, PrefixKey::new(len, address).addr), to_group(slot));
    }
    tables
}

/// A group with one next hop, whose address has the number of the slot.
fn add_next_hop(tables: &mut MemoryMaps, slot: u32) {
    let [.., high, low] = slot.to_be_bytes();
    let next_hop = NextHop {
        addr: mapped([192, 168, high, low]),
        id: slot,
        stats: 0,
        ..tables.next_hops[&1]
    };
    let mut group = NextHopGroup {
        id: slot,
        len: 1,
        ..NextHopGroup::default()
    };
    group.next_hops[0] = slot;
    tables.next_hops.insert(slot, next_hop);
    tables.groups.insert(slot, group);
}

const fn to_group(group: u32) -> Prefix {
    Prefix {
        cluster: WEST,
        group,
        action: ACTION_FORWARD,
        flags: 0,
        identity: 0,
    }
}

fn assert_same(kernel: &mut Kernel, tables: &MemoryMaps, frame: &[u8], what: &str) -> Verdict {
    let (verdict, bytes) = run_on_host(Program::ToRemote, tables, frame);
    // The second result is that of the cache.
    for _ in 0..2 {
        let result = kernel.run(Program::ToRemote.name(), frame);
        assert_eq!(result.action, tc_action(verdict), "{what}: {verdict:?}");
        if result.action == TC_ACT_REDIRECT {
            assert_eq!(result.bytes, bytes, "{what}");
        }
    }
    verdict
}

/// All lengths that an IP version can have, removed one after the other: more than one step of a look-up.
#[test]
fn the_longest_of_all_prefixes_is_found() {
    for inner_v6 in [false, true] {
        let shape = Shape {
            inner_v6,
            ..Shape::default()
        };
        let first = if inner_v6 { 1 } else { 97 };
        let target = shape.inner([172, 16, 3, 7]);
        let address = match target {
            IpAddr::V4(v4) => mapped(v4.octets()),
            IpAddr::V6(v6) => v6.octets(),
        };
        let mut tables = nested(shape, address, first..=128);
        let mut kernel = Kernel::load(&tables);
        let source = shape.inner(POD_HERE);
        let frame = web(source, target).frame();
        let neighbour = match target {
            IpAddr::V4(v4) => IpAddr::from((u32::from(v4) ^ 1).to_be_bytes()),
            IpAddr::V6(v6) => IpAddr::from((u128::from(v6) ^ 1).to_be_bytes()),
        };
        let neighbour = web(source, neighbour).frame();
        for len in (first..=128).rev() {
            let what = format!("{target}, lengths {first} to {len}");
            let verdict = assert_same(&mut kernel, &tables, &frame, &what);
            assert!(matches!(verdict, Verdict::Send { .. }), "{what}: {verdict:?}");
            let verdict = assert_same(&mut kernel, &tables, &neighbour, &what);
            assert!(
                matches!(verdict, Verdict::Send { .. }),
                "{what}, neighbour: {verdict:?}"
            );
            let old = tables.clone();
            tables.prefixes.remove(&(len, PrefixKey::new(len, address).addr));
            kernel.refill(&old, &tables);
        }
        let verdict = assert_same(&mut kernel, &tables, &frame, "without a prefix");
        assert!(matches!(verdict, Verdict::Drop(_)), "{verdict:?}");
    }
}

/// The maps of a table, and its lengths as the agent keeps them.
struct Writer {
    entries: HashMap<MapData, PrefixKey, Prefix>,
    lengths: Array<MapData, PrefixLengths>,
    generation: Array<MapData, u32>,
    table: PrefixTable,
    present: BTreeMap<PrefixKey, Prefix>,
}

impl Writer {
    fn new(kernel: &Kernel, tables: &MemoryMaps) -> Self {
        fn open<M: TryFrom<Map>>(kernel: &Kernel, name: &str) -> M {
            let map = MapData::from_id(kernel.map_id(name)).expect(name);
            let map = Map::from_map_data(map).expect(name);
            M::try_from(map).ok().expect(name)
        }
        let present: BTreeMap<PrefixKey, Prefix> = tables
            .prefixes
            .iter()
            .map(|((len, addr), prefix)| (PrefixKey::new(*len, *addr), *prefix))
            .collect();
        Self {
            entries: open(kernel, PREFIXES),
            lengths: open(kernel, PREFIX_LENS),
            generation: open(kernel, PREFIX_GENERATION),
            table: PrefixTable::new(0, present.keys()),
            present,
        }
    }

    /// Changes an entry as the agent does.
    fn set(&mut self, key: PrefixKey, to: Option<Prefix>) {
        let change = self.table.set(key, self.present.contains_key(&key), to);
        for write in change.writes {
            match write {
                PrefixWrite::Lengths { slot, lengths } => {
                    self.lengths.set(slot, lengths, 0).expect(PREFIX_LENS);
                }
                PrefixWrite::Generation(number) => {
                    self.generation.set(0, number, 0).expect(PREFIX_GENERATION);
                }
                PrefixWrite::Insert(key, prefix) => self.entries.insert(key, prefix, 0).expect(PREFIXES),
                PrefixWrite::Remove(key) => self.entries.remove(&key).expect(PREFIXES),
            }
        }
        self.table = change.after;
        match to {
            Some(prefix) => self.present.insert(key, prefix),
            None => self.present.remove(&key),
        };
    }
}

/// The network of a destination is replaced by a longer one and back, each added before the other is removed. The
/// shorter prefix around both, and none, are never right.
#[test]
fn a_packet_during_changes_finds_the_old_or_the_new_prefix() {
    /// Packets, while some ten thousand changes happen.
    const PACKETS: u32 = 20_000;
    let target = [172, 16, 3, 7];
    let (outer, old, new) = (112, 120, 121);
    let mut tables = nested(Shape::default(), mapped(target), [outer, old].into_iter());
    add_next_hop(&mut tables, FIRST + new);
    let mut kernel = Kernel::load(&tables);
    // The caches would hide the table.
    kernel.set_epoch(0);
    let mut writer = Writer::new(&kernel, &tables);
    let frame = web(POD_HERE, target).frame();
    let (done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let sent = std::thread::scope(|scope| {
        scope.spawn(|| {
            let key = |len| PrefixKey::new(len, mapped(target));
            while !done.load(Ordering::Relaxed) {
                for (add, remove) in [(new, old), (old, new)] {
                    writer.set(key(add), Some(to_group(FIRST + add)));
                    writer.set(key(remove), None);
                    changes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut sent: BTreeMap<[u8; 2], u32> = BTreeMap::new();
        let mut result = Ok(());
        for i in 0..PACKETS {
            let run = kernel.run(Program::ToRemote.name(), &frame);
            if run.action != TC_ACT_REDIRECT {
                result = Err(format!("packet {i}: action {}", run.action));
                break;
            }
            // Outer destination: Ethernet, 16 bytes of the IPv4 header, two bytes.
            *sent.entry([run.bytes[32], run.bytes[33]]).or_default() += 1;
        }
        done.store(true, Ordering::Relaxed);
        result.map(|()| sent)
    });
    let sent = sent.expect("every packet is sent");
    let number = |len: u32| {
        let [.., high, low] = (FIRST + len).to_be_bytes();
        [high, low]
    };
    assert!(
        sent.keys().all(|to| [number(old), number(new)].contains(to)),
        "{sent:?}"
    );
    assert_eq!(sent.len(), 2, "both prefixes are used: {sent:?}");
    println!("{sent:?} packets, {changes:?} changes");
}

/// Entries are allocated one by one (`BPF_F_NO_PREALLOC`): the capacity can be used all the same.
#[test]
fn the_table_holds_as_many_prefixes_as_stated() {
    let tables = nested(Shape::default(), mapped([172, 16, 3, 7]), [120].into_iter());
    let kernel = Kernel::load(&tables);
    let mut writer = Writer::new(&kernel, &tables);
    let has = u32::try_from(tables.prefixes.len()).expect("few");
    for number in 0..MAX_PREFIXES - has {
        let [_, a, b, c] = number.to_be_bytes();
        writer.set(PrefixKey::new(128, mapped([100, a, b, c])), Some(to_group(FIRST)));
    }
    assert!(
        writer
            .entries
            .insert(PrefixKey::new(64, [1; 16]), to_group(FIRST), 0)
            .is_err()
    );
}
