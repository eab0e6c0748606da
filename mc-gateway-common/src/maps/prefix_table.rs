//! Longest-prefix match in a hash map of prefixes, by the lengths in use.
//!
//! *Guarantees*: the result is that of the table at one moment of the look-up, also if the agent changes the table
//! meanwhile. The agent raises the generation between any two changes, so that at most one change is inside of a
//! look-up that begins and ends in one generation. A look-up of more changes starts again; one that never succeeds
//! finds no prefix, so that its packet is dropped.

#![expect(clippy::cast_possible_truncation, reason = "fields of a word")]

use crate::{
    abi::{
        ACTION_REPLY, Address, CLUSTER_LOCAL, IDENTITY_UNKNOWN, MAX_NEXT_HOP_GROUPS, PREFIX_POLICY, Prefix,
        prefix::{MAX_LENGTH, PrefixLengths, STEP_LENGTHS, lengths_slot},
    },
    packed::impl_bits,
};

/// Steps of a look-up: nine for all lengths, and those that start again.
pub const STEPS: u32 = 10;

/// Access to the maps of the prefix table.
pub trait PrefixTable {
    /// An entry found, which the agent may meanwhile remove or reuse.
    type Entry;

    /// The number of changes.
    fn current_generation(&self) -> u32;
    /// The lengths in a slot of `mc_prefix_lens`.
    fn lengths(&self, slot: u32) -> Option<&PrefixLengths>;
    /// The entry of the network of this length.
    fn entry(&self, len: u32, network: Address) -> Option<Self::Entry>;
    /// The value of an entry.
    fn value(&self, entry: &Self::Entry) -> Prefix;
}

/// State or result of a look-up in one word, the form that a BPF subprogram can take and return.
///
/// Of the cluster of the prefix found it only has two comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PrefixLookup(u64);

impl_bits!(PrefixLookup, u64);

/// The look-up has a result.
const DONE: u64 = 1;
/// The result is a prefix.
const FOUND: u64 = 1 << 1;
/// The cluster of the prefix is this one.
const LOCAL: u64 = 1 << 2;
/// The cluster of the prefix is the compared one.
const SAME: u64 = 1 << 3;
const ACTION_SHIFT: u32 = 5;
const ACTION_MASK: u32 = 7;
const FLAGS_SHIFT: u32 = 8;
const FLAGS_MASK: u32 = 0xff;
const GROUP_SHIFT: u32 = 16;
const IDENTITY_SHIFT: u32 = 32;
/// The length found by [`length_step`]. The highest byte: Linux 6.1 does not bound a field in the middle of a word.
const LENGTH_SHIFT: u32 = 56;
const _: () = assert!(MAX_LENGTH < 0x100);
/// Largest packed slot of a group; larger ones are packed as this one, which is no slot of any map.
const GROUP_MASK: u32 = 0xffff;
const _: () = assert!(MAX_NEXT_HOP_GROUPS <= GROUP_MASK);
const _: () = assert!(ACTION_REPLY <= ACTION_MASK && PREFIX_POLICY <= FLAGS_MASK);
/// Without [`DONE`]: the generation and the number of the next step in it.
const MORE: u64 = 1 << 4;
const STEP_SHIFT: u32 = 8;
const GENERATION_SHIFT: u32 = 32;

impl PrefixLookup {
    /// Nothing is known yet.
    pub const START: Self = Self(0);
    /// No prefix contains the address.
    const NONE: Self = Self(DONE);

    /// A prefix found. Unknown flags and actions are dropped.
    #[inline(always)]
    const fn found(prefix: &Prefix, cluster: u64) -> Self {
        let local = if prefix.cluster == CLUSTER_LOCAL { LOCAL } else { 0 };
        let same = if prefix.cluster == cluster { SAME } else { 0 };
        let action = if prefix.action > ACTION_MASK {
            0
        } else {
            prefix.action
        };
        let group = if prefix.group > GROUP_MASK {
            GROUP_MASK
        } else {
            prefix.group
        };
        Self(
            DONE | FOUND
                | local
                | same
                | (action as u64) << ACTION_SHIFT
                | ((prefix.flags & FLAGS_MASK) as u64) << FLAGS_SHIFT
                | (group as u64) << GROUP_SHIFT
                | ((prefix.identity & IDENTITY_UNKNOWN) as u64) << IDENTITY_SHIFT,
        )
    }

    /// Continues with a step in the list of a generation.
    #[inline(always)]
    const fn more(generation: u32, step: u64) -> Self {
        Self(MORE | step << STEP_SHIFT | (generation as u64) << GENERATION_SHIFT)
    }

    /// Whether the look-up has a result.
    #[inline(always)]
    #[must_use]
    pub const fn is_done(self) -> bool {
        self.0 & DONE != 0
    }

    /// The prefix found by a look-up that compares with `cluster`. [`Prefix::cluster`] is [`CLUSTER_LOCAL`] or
    /// `cluster`, and for any other cluster a number that differs from both.
    #[inline(always)]
    #[must_use]
    pub const fn prefix(self, cluster: u64) -> Option<Prefix> {
        if self.0 & FOUND == 0 {
            return None;
        }
        let owner = if self.0 & LOCAL != 0 {
            CLUSTER_LOCAL
        } else if self.0 & SAME != 0 {
            cluster
        } else {
            (cluster ^ 1 << 63) | 1
        };
        Some(Prefix {
            cluster: owner,
            group: (self.0 >> GROUP_SHIFT) as u32 & GROUP_MASK,
            action: (self.0 >> ACTION_SHIFT) as u32 & ACTION_MASK,
            flags: (self.0 >> FLAGS_SHIFT) as u32 & FLAGS_MASK,
            identity: (self.0 >> IDENTITY_SHIFT) as u32 & IDENTITY_UNKNOWN,
        })
    }
}

/// Probes the next [`STEP_LENGTHS`] lengths for an address.
#[inline(always)]
pub fn step<T: PrefixTable>(table: &T, address: Address, cluster: u64, state: PrefixLookup) -> PrefixLookup {
    step_to(table, address, state, |prefix, _| {
        PrefixLookup::found(&prefix, cluster)
    })
}

/// [`step`] of a look-up that finds the length of the prefix only, for [`cluster_of`].
#[inline(always)]
pub fn length_step<T: PrefixTable>(table: &T, address: Address, state: PrefixLookup) -> PrefixLookup {
    step_to(table, address, state, |_, len| {
        PrefixLookup(DONE | FOUND | u64::from(len) << LENGTH_SHIFT)
    })
}

/// [`step`] with the result of a prefix by `found`.
#[inline(always)]
fn step_to<T: PrefixTable>(
    table: &T,
    address: Address,
    state: PrefixLookup,
    found: impl Fn(Prefix, u32) -> PrefixLookup,
) -> PrefixLookup {
    let word = state.to_bits();
    let (generation, step) = if word & MORE == 0 {
        (table.current_generation(), 0)
    } else {
        ((word >> GENERATION_SHIFT) as u32, word >> STEP_SHIFT & 0xff)
    };
    let lengths = table.lengths(lengths_slot(generation, address.is_v4()));
    let Some(lengths) = lengths.and_then(|list| list.lens.as_chunks().0.get(step as usize)) else {
        return PrefixLookup::NONE;
    };
    let lengths: &[u8; STEP_LENGTHS] = lengths;
    let mut result = PrefixLookup::more(generation, step.wrapping_add(1));
    for len in lengths {
        let len = u32::from(*len);
        // `NO_LENGTH`.
        if len > MAX_LENGTH {
            result = PrefixLookup::NONE;
            break;
        }
        if let Some(entry) = table.entry(len, address.network(len)) {
            result = found(table.value(&entry), len);
            break;
        }
    }
    if table.current_generation() == generation {
        result
    } else {
        PrefixLookup::START
    }
}

/// The result of a look-up by up to [`STEPS`] calls of `step`.
#[inline(always)]
pub fn look_up(step: impl Fn(PrefixLookup) -> PrefixLookup) -> PrefixLookup {
    let mut state = PrefixLookup::START;
    let mut i = 0;
    while i < STEPS {
        state = step(state);
        if state.is_done() {
            return state;
        }
        i = i.wrapping_add(1);
    }
    PrefixLookup::NONE
}

/// The cluster of the prefix of an address, by the length that [`length_step`] has found; [`CLUSTER_LOCAL`] without a
/// prefix, or if it is not there any more.
#[inline(always)]
pub fn cluster_of<T: PrefixTable>(table: &T, address: Address, found: PrefixLookup) -> u64 {
    let len = (found.0 >> LENGTH_SHIFT) as u32;
    if found.0 & FOUND == 0 || len > MAX_LENGTH {
        return CLUSTER_LOCAL;
    }
    match table.entry(len, address.network(len)) {
        Some(entry) => table.value(&entry).cluster,
        None => CLUSTER_LOCAL,
    }
}
