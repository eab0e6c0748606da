use std::cell::{Cell, OnceCell, RefCell};

use mc_gateway_common::{
    abi::{Address, Prefix},
    maps::prefix_table::{self, PrefixLookup, look_up, step},
};
use proptest::prelude::*;

use super::*;

/// Memory of the maps as the kernel uses it: a removed or replaced entry is reused by the next new one.
#[derive(Clone, Debug, Default)]
struct Maps {
    generation: u32,
    lengths: [PrefixLengths; 4],
    /// Key to index into `memory`.
    entries: BTreeMap<PrefixKey, usize>,
    memory: Vec<Prefix>,
    free: Vec<usize>,
}

impl Maps {
    fn write(&mut self, write: &PrefixWrite) {
        match *write {
            PrefixWrite::Lengths { slot, lengths } => {
                // The lowest bit of the generation selects the list in use.
                assert_ne!(slot >> 1, self.generation & 1, "a list in use is written");
                self.lengths[slot as usize] = lengths;
            }
            PrefixWrite::Generation(generation) => self.generation = generation,
            PrefixWrite::Insert(key, prefix) => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.memory.push(Prefix::default());
                    self.memory.len() - 1
                });
                self.memory[at] = prefix;
                self.free.extend(self.entries.insert(key, at));
            }
            PrefixWrite::Remove(key) => self.free.extend(self.entries.remove(&key)),
        }
        for key in self.entries.keys() {
            for v4 in [false, true].into_iter().filter(|v4| key.contains_family(*v4)) {
                let list = self.lengths[lengths_slot(self.generation, v4) as usize];
                assert!(list.lens.iter().any(|len| u32::from(*len) == key.len), "{key:?}");
            }
        }
    }

    fn contents(&self) -> BTreeMap<PrefixKey, Prefix> {
        let entries = self.entries.iter();
        entries.map(|(key, at)| (*key, self.memory[*at])).collect()
    }
}

/// The longest prefix with this address.
fn longest(table: &BTreeMap<PrefixKey, Prefix>, address: Address) -> Option<Prefix> {
    let matching = table.iter().rev();
    let mut matching = matching.filter(|(key, _)| PrefixKey::new(key.len, address.bytes()) == **key);
    matching.next().map(|(_, prefix)| *prefix)
}

/// Maps that an agent changes between any two accesses of a program: before each access as many writes happen as the
/// schedule states.
struct Interleaved<'a> {
    maps: RefCell<Maps>,
    writes: &'a [PrefixWrite],
    done: Cell<usize>,
    schedule: RefCell<std::slice::Iter<'a, usize>>,
    /// Contents at each moment of the look-up.
    moments: RefCell<Vec<BTreeMap<PrefixKey, Prefix>>>,
    /// The lists that the look-up has read.
    lists: [OnceCell<PrefixLengths>; 32],
    /// The generation is not compared.
    blind: bool,
}

impl<'a> Interleaved<'a> {
    fn new(maps: Maps, writes: &'a [PrefixWrite], schedule: &'a [usize], blind: bool) -> Self {
        Self {
            moments: RefCell::new(vec![maps.contents()]),
            maps: RefCell::new(maps),
            writes,
            done: Cell::new(0),
            schedule: RefCell::new(schedule.iter()),
            lists: [const { OnceCell::new() }; 32],
            blind,
        }
    }

    fn access<R>(&self, read: impl FnOnce(&Maps) -> R) -> R {
        let writes = self.schedule.borrow_mut().next().copied().unwrap_or(0);
        for _ in 0..writes {
            let Some(write) = self.writes.get(self.done.get()) else {
                break;
            };
            self.done.set(self.done.get() + 1);
            self.maps.borrow_mut().write(write);
            self.moments.borrow_mut().push(self.maps.borrow().contents());
        }
        read(&self.maps.borrow())
    }

    fn find(&self, address: Address) -> Option<Prefix> {
        look_up(|state| step(self, address, 0, state)).prefix(0)
    }

    /// Whether a result is right at a moment of the look-up.
    fn is_right(&self, address: Address, found: Option<Prefix>) -> bool {
        let moments = self.moments.borrow();
        moments.iter().any(|table| longest(table, address) == found)
    }
}

impl prefix_table::PrefixTable for Interleaved<'_> {
    type Entry = usize;

    fn current_generation(&self) -> u32 {
        let generation = self.access(|maps| maps.generation);
        // The list that is in use at first stays.
        if self.blind { generation & 1 } else { generation }
    }

    fn lengths(&self, slot: u32) -> Option<&PrefixLengths> {
        let lengths = self.access(|maps| maps.lengths[slot as usize]);
        let read = self.lists.iter().find(|list| list.get().is_none())?;
        Some(read.get_or_init(|| lengths))
    }

    fn entry(&self, len: u32, network: Address) -> Option<usize> {
        let addr = network.bytes();
        self.access(|maps| maps.entries.get(&PrefixKey { len, addr }).copied())
    }

    fn value(&self, entry: &usize) -> Prefix {
        self.access(|maps| maps.memory[*entry])
    }
}

/// A prefix of the cluster that the look-ups compare with.
fn prefix(group: u32) -> Prefix {
    Prefix {
        group,
        action: 2,
        ..Prefix::default()
    }
}

/// The writes of an agent for these changes, and the maps before them.
fn writes(before: &[(PrefixKey, u32)], changes: &[(PrefixKey, Option<u32>)]) -> (Maps, Vec<PrefixWrite>) {
    let mut maps = Maps::default();
    let mut table = PrefixTable::default();
    let set = |table: &mut PrefixTable, present: &mut BTreeMap<PrefixKey, u32>, key, to: Option<u32>| {
        let change = table.set(key, present.contains_key(&key), to.map(prefix));
        match to {
            Some(to) => present.insert(key, to),
            None => present.remove(&key),
        };
        *table = change.after;
        change.writes
    };
    let mut present = BTreeMap::new();
    for (key, group) in before {
        for write in set(&mut table, &mut present, *key, Some(*group)) {
            maps.write(&write);
        }
    }
    let writes = changes
        .iter()
        .flat_map(|(key, to)| set(&mut table, &mut present, *key, *to));
    (maps, writes.collect())
}

const ADDRESS: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3];

fn key(len: u32) -> PrefixKey {
    PrefixKey::new(len, ADDRESS)
}

/// Every schedule of `writes` before the first accesses of a look-up. Returns a wrong result.
fn wrong_result(maps: &Maps, writes: &[PrefixWrite], blind: bool) -> Option<Vec<usize>> {
    const ACCESSES: usize = 9;
    let mut schedules = vec![Vec::new()];
    while let Some(schedule) = schedules.pop() {
        let used: usize = schedule.iter().sum();
        if schedule.len() < ACCESSES {
            for next in 0..=writes.len().saturating_sub(used) {
                schedules.push([&schedule[..], &[next]].concat());
            }
            continue;
        }
        let run = Interleaved::new(maps.clone(), writes, &schedule, blind);
        let found = run.find(ADDRESS.into());
        if !run.is_right(ADDRESS.into(), found) {
            return Some(schedule);
        }
    }
    None
}

/// Another IPv4 network of this length.
fn elsewhere(len: u32) -> PrefixKey {
    PrefixKey::new(len, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 172, 16, 0, 0])
}

/// A reader that has found no entry of the new, longer network may arrive at the old one after its removal.
#[test]
fn a_network_replaced_by_a_longer_one_is_never_missed() {
    let before = [
        (key(112), 1),
        (key(120), 2),
        (elsewhere(120), 8),
        (elsewhere(121), 9),
    ];
    let (maps, writes) = writes(&before, &[(key(121), Some(3)), (key(120), None)]);
    assert_eq!(wrong_result(&maps, &writes, false), None);
    assert!(
        wrong_result(&maps, &writes, true).is_some(),
        "without generations"
    );
}

#[test]
fn new_and_removed_lengths_change_no_result() {
    let before = [(key(112), 1), (key(120), 2)];
    let (maps, writes) = writes(&before, &[(key(121), Some(3)), (key(120), None)]);
    assert_eq!(wrong_result(&maps, &writes, false), None);
}

#[test]
fn an_entry_in_reused_memory_is_never_taken_for_another() {
    let other = elsewhere(120);
    // The new value of the first key is in new memory, that of the other one in the first key's.
    let (maps, writes) = writes(
        &[(key(120), 1), (other, 2)],
        &[(key(120), Some(3)), (other, Some(4))],
    );
    assert_eq!(wrong_result(&maps, &writes, false), None);
    assert!(wrong_result(&maps, &writes, true).is_some());
}

#[test]
fn a_new_length_is_listed_before_its_first_entry_and_until_its_last() {
    let change = PrefixTable::default().set(key(120), false, Some(prefix(1)));
    let kinds = |change: &PrefixChange| -> String {
        let kinds = change.writes.iter().map(|write| match write {
            PrefixWrite::Lengths { .. } => 'L',
            PrefixWrite::Generation(_) => 'G',
            PrefixWrite::Insert(..) => 'I',
            PrefixWrite::Remove(_) => 'R',
        });
        kinds.collect()
    };
    assert_eq!(kinds(&change), "LLGIG");
    let one = change.after;
    assert_eq!(kinds(&one.set(key(120), true, Some(prefix(2)))), "IG");
    let change = one.set(PrefixKey::new(120, [1; 16]), false, Some(prefix(2)));
    assert_eq!(kinds(&change), "LLGIG", "the first length of IPv6");
    assert_eq!(kinds(&one.set(key(120), true, None)), "RGLLG");
    assert_eq!(kinds(&one.restore()), "GLLG");
}

/// Prefixes that contain each other, of both IP versions, some of them of both.
fn any_key() -> impl Strategy<Value = PrefixKey> {
    let address = (0..3_u8, prop::sample::select(vec![false, true])).prop_map(|(last, v4)| {
        let mut address = if v4 { ADDRESS } else { [0xfd; 16] };
        address[15] = last;
        address
    });
    let len = prop_oneof![0..=128_u32, 94..=98_u32, 120..=128_u32];
    (len, address).prop_map(|(len, address)| PrefixKey::new(len, address))
}

fn any_change() -> impl Strategy<Value = (PrefixKey, Option<u32>)> {
    (any_key(), prop::option::weighted(0.6, 1..100_u32))
}

proptest! {
    /// After each write, also between those of one change, the table is that before or after the change.
    #[test]
    fn every_write_leaves_a_longest_prefix_match(
        changes in prop::collection::vec(any_change(), 1..80),
        address in any_key(),
    ) {
        let address = Address::from(address.addr);
        let (mut maps, writes) = writes(&[], &changes);
        for write in &writes {
            maps.write(write);
            let table = maps.contents();
            let run = Interleaved::new(maps.clone(), &[], &[], false);
            prop_assert_eq!(run.find(address), longest(&table, address));
        }
        // The lists are as short as possible.
        let table = PrefixTable::new(maps.generation, maps.entries.keys());
        for (slot, lengths) in table.lengths() {
            prop_assert_eq!(maps.lengths[slot as usize], lengths);
        }
    }

    /// Changes between any accesses of a look-up.
    #[test]
    fn a_result_is_right_at_some_moment_of_the_look_up(
        before in prop::collection::vec((any_key(), 1..100_u32), 0..40),
        changes in prop::collection::vec(any_change(), 1..8),
        schedule in prop::collection::vec(prop_oneof![3 => Just(0), 2 => 1..4_usize], 0..40),
        address in any_key(),
    ) {
        let address = Address::from(address.addr);
        let (maps, writes) = writes(&before, &changes);
        let run = Interleaved::new(maps, &writes, &schedule, false);
        let found = run.find(address);
        prop_assert!(run.is_right(address, found), "{:?}", found);
    }

    /// An agent may end after any write: the next one restores the lists, and each of its writes is safe.
    #[test]
    fn a_table_is_adopted_after_any_write(
        changes in prop::collection::vec(any_change(), 1..20),
        end in any::<prop::sample::Index>(),
        then in any_change(),
        schedule in prop::collection::vec(0..3_usize, 0..20),
        address in any_key(),
    ) {
        let address = Address::from(address.addr);
        let (mut maps, writes) = writes(&[], &changes);
        let done = end.index(writes.len() + 1);
        for write in &writes[..done] {
            maps.write(write);
        }
        let table = PrefixTable::new(maps.generation, maps.entries.keys());
        let restored = table.restore();
        let (key, to) = then;
        let changed = restored.after.set(key, maps.entries.contains_key(&key), to.map(prefix));
        let writes = [restored.writes, changed.writes].concat();
        let run = Interleaved::new(maps, &writes, &schedule, false);
        let found = run.find(address);
        prop_assert!(run.is_right(address, found), "{:?}", found);
        let mut maps = run.maps.into_inner();
        for write in &writes[run.done.get()..] {
            maps.write(write);
        }
        for (slot, lengths) in changed.after.lengths() {
            prop_assert_eq!(maps.lengths[slot as usize], lengths);
        }
    }
}

#[test]
fn all_lengths_at_once_are_found() {
    let all: Vec<(PrefixKey, u32)> = (0..=128).map(|len| (key(len), len + 1)).collect();
    let (maps, _) = writes(&all, &[]);
    let mut table = maps.clone();
    let mut state = PrefixLookup::START;
    let run = Interleaved::new(maps, &[], &[], false);
    let mut steps = 0;
    let other = Address::from([0x80; 16]);
    while !state.is_done() {
        state = step(&run, other, 0, state);
        steps += 1;
    }
    assert_eq!(
        steps, 6,
        "of the lengths up to 95, the only ones for IPv6 addresses"
    );
    assert_eq!(state.prefix(0).map(|prefix| prefix.group), Some(1));
    for (key, group) in all.iter().rev() {
        let run = Interleaved::new(table.clone(), &[], &[], false);
        assert_eq!(run.find(ADDRESS.into()).map(|prefix| prefix.group), Some(*group));
        table.entries.remove(key);
    }
    let run = Interleaved::new(table, &[], &[], false);
    assert_eq!(run.find(ADDRESS.into()), None);
}

#[test]
fn a_look_up_among_endless_changes_finds_no_prefix() {
    let (maps, _) = writes(&[(key(120), 1)], &[]);
    let changes: Vec<PrefixWrite> = (1..=50_u32).map(|i| PrefixWrite::Generation(4 * i + 3)).collect();
    let schedule = [1; 50];
    let run = Interleaved::new(maps, &changes, &schedule, false);
    assert_eq!(run.find(ADDRESS.into()), None);
    assert_eq!(
        run.find(ADDRESS.into()).map(|prefix| prefix.group),
        Some(1),
        "after them"
    );
}
