//! The prefix table.

use core::{mem::offset_of, ptr};

use aya_ebpf::{
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use mc_gateway_common::{
    abi::{
        MAX_PREFIXES, Prefix, PrefixKey,
        prefix::{PREFIX_LENS_SLOTS, PrefixLengths},
    },
    maps::prefix_table::{self, PrefixLookup, PrefixTable},
    packet::Address,
};

use super::AS_NEEDED;

/// Memory of 96 bytes for each entry in use, instead of 12 MiB on every Node.
#[btf_map(name = "mc_prefixes")]
static PREFIXES: HashMap<PrefixKey, Prefix, { MAX_PREFIXES as usize }, AS_NEEDED> = HashMap::new();
#[btf_map(name = "mc_prefix_lens")]
static PREFIX_LENS: Array<PrefixLengths, { PREFIX_LENS_SLOTS as usize }> = Array::new();
#[btf_map(name = "mc_prefix_gen")]
static PREFIX_GENERATION: Array<u32, 1> = Array::new();

/// A [`PrefixKey`] whose address is aligned as a word.
#[repr(C, align(8))]
struct AlignedKey {
    pad: u32,
    len: u32,
    network: Address,
}

/// The maps of the prefix table.
struct KernelPrefixTable;

impl PrefixTable for KernelPrefixTable {
    type Entry = *const Prefix;

    #[inline(always)]
    fn current_generation(&self) -> u32 {
        PREFIX_GENERATION
            .get_ptr(0)
            // SAFETY: an element of a map, which exists as long as the program runs. The compiler joins no two volatile
            // reads.
            .map_or(0, |generation| unsafe { generation.read_volatile() })
    }

    #[inline(always)]
    fn lengths(&self, slot: u32) -> Option<&PrefixLengths> {
        PREFIX_LENS.get(slot)
    }

    #[inline(always)]
    fn entry(&self, len: u32, network: Address) -> Option<*const Prefix> {
        let key = AlignedKey { pad: 0, len, network };
        // SAFETY: length and network are adjacent, as in a `PrefixKey`.
        let key = unsafe {
            &*ptr::from_ref(&key)
                .byte_add(offset_of!(AlignedKey, len))
                .cast::<PrefixKey>()
        };
        PREFIXES.get_ptr(key)
    }

    #[inline(always)]
    fn value(&self, entry: &*const Prefix) -> Prefix {
        // SAFETY: memory of an entry is memory of entries as long as the program runs. That of another one has been
        // read if the generation differs afterwards.
        unsafe {
            Prefix {
                cluster: ptr::addr_of!((**entry).cluster).read_volatile(),
                group: ptr::addr_of!((**entry).group).read_volatile(),
                action: ptr::addr_of!((**entry).action).read_volatile(),
                flags: ptr::addr_of!((**entry).flags).read_volatile(),
                identity: ptr::addr_of!((**entry).identity).read_volatile(),
            }
        }
    }
}

/// [`prefix_table::step`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn mc_find_prefix(high: u64, low: u64, cluster: u64, state: u64) -> u64 {
    let address = Address::from_words(high, low);
    let state = PrefixLookup::from_bits(state);
    prefix_table::step(&KernelPrefixTable, address, cluster, state).to_bits()
}

/// [`prefix_table::length_step`]. Apart from `mc_find_prefix`, whose stack the length would enlarge: call chains of
/// `from_underlay` have 512 bytes (`MAX_BPF_STACK` of Linux).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn mc_find_length(high: u64, low: u64, state: u64) -> u64 {
    let address = Address::from_words(high, low);
    let state = PrefixLookup::from_bits(state);
    prefix_table::length_step(&KernelPrefixTable, address, state).to_bits()
}

/// [`prefix_table::cluster_of`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn mc_find_cluster(high: u64, low: u64) -> u64 {
    let step = |state: PrefixLookup| PrefixLookup::from_bits(mc_find_length(high, low, state.to_bits()));
    let found = prefix_table::look_up(step);
    prefix_table::cluster_of(&KernelPrefixTable, Address::from_words(high, low), found)
}
