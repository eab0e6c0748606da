//! Per-CPU caches of lookups: an LPM lookup or a selection among 16 next hops costs as much as the rest of the
//! pipeline.
//!
//! *Guarantees*: an entry is only valid in its epoch. A new epoch after a change of prefixes, peers, groups or next
//! hops invalidates all entries at once. No program uses an entry that another one is writing ([`cache_entry`]).

use core::{arch::asm, mem::offset_of, ptr};

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::Prefix,
    cache_entry::{self, CacheEntry},
    maps::{AdmissionKey, EgressKey, PackedAdmission, PackedEgressRoute},
    packet::Address,
};

use super::epoch::epoch;

/// Entries of each map per CPU: a power of two.
const ENTRIES: usize = 1 << BITS;
const BITS: u32 = 9;

/// Index of the entry for a hash.
#[inline(always)]
const fn index(hash: u32) -> u32 {
    hash.wrapping_mul(0x9e37_79b1) >> (32 - BITS)
}

/// An entry with a key of `W` words.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry<const W: usize, V> {
    stamp: u64,
    key: [u64; W],
    value: V,
}

type Cache<const W: usize, V> = PerCpuArray<Entry<W, V>, ENTRIES>;

/// An entry in a map of this CPU.
struct KernelEntry<const W: usize, V>(*mut Entry<W, V>);

/// The compiler moves no access to memory across it.
#[inline(always)]
fn barrier() {
    // SAFETY: no instruction.
    unsafe { asm!("", options(nostack)) };
}

impl<const W: usize, V: Copy> CacheEntry<W> for KernelEntry<W, V> {
    type Value = V;

    #[inline(always)]
    fn stamp(&self) -> u64 {
        barrier();
        // SAFETY: an element of a map, which exists as long as the program runs. The barriers of all methods exclude
        // that the compiler sees two accesses as one.
        let stamp = unsafe { (*self.0).stamp };
        barrier();
        stamp
    }

    #[inline(always)]
    fn add_to_stamp(&self, addend: u64) {
        const { assert!(offset_of!(Entry<W, V>, stamp) == 0) }
        // SAFETY: as above; without a result, the instruction exists on all kernels and machines.
        unsafe { asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) self.0, in(reg) addend, options(nostack)) };
    }

    #[inline(always)]
    fn has_key(&self, key: &[u64; W]) -> bool {
        // SAFETY: as above.
        let own = unsafe { &(*self.0).key };
        // One comparison: the verifier follows each separately.
        let mut difference = 0;
        let mut i = 0;
        while i < W {
            difference |= own[i] ^ key[i];
            i += 1;
        }
        difference == 0
    }

    #[inline(always)]
    fn value(&self) -> V {
        barrier();
        // SAFETY: as above.
        let value = unsafe { (*self.0).value };
        barrier();
        value
    }

    #[inline(always)]
    fn store(&self, key: &[u64; W], value: V) {
        barrier();
        // SAFETY: as above.
        unsafe {
            ptr::addr_of_mut!((*self.0).key).write(*key);
            ptr::addr_of_mut!((*self.0).value).write(value);
        }
        barrier();
    }
}

/// The value of `key` cached in this epoch, else the result of `find`. Epoch 0 disables the cache. An error is not
/// cached.
#[inline(always)]
fn cached<const W: usize, V: Copy, E>(
    cache: &Cache<W, V>,
    hash: u32,
    epoch: u32,
    key: &[u64; W],
    find: impl FnOnce() -> Result<V, E>,
) -> Result<V, E> {
    let entry = cache.get_ptr_mut(index(hash)).map(KernelEntry);
    if let Some(entry) = &entry
        && let Some(value) = cache_entry::read(entry, epoch, key)
    {
        return Ok(value);
    }
    let value = find()?;
    if let Some(entry) = &entry {
        cache_entry::write(entry, epoch, key, value);
    }
    Ok(value)
}

#[btf_map(name = "mc_prefix_cache")]
static PREFIX_CACHE: Cache<2, Prefix> = Cache::new();

/// The prefix of `address` cached in this epoch, else the result of `find`.
#[inline(always)]
pub(super) fn cached_prefix(
    address: Address,
    epoch: u32,
    find: impl FnOnce() -> Option<Prefix>,
) -> Option<Prefix> {
    let key = address.words();
    cached(&PREFIX_CACHE, address.fold(), epoch, &key, || find().ok_or(())).ok()
}

#[btf_map(name = "mc_admit_cache")]
static ADMISSION_CACHE: Cache<7, PackedAdmission> = Cache::new();

/// The admission cached in this epoch, else the result of `find`. Drop reasons are not cached, so that a sender without
/// admission cannot evict entries.
#[inline(always)]
pub(crate) fn cached_admission(
    key: &AdmissionKey,
    find: impl FnOnce() -> PackedAdmission,
) -> PackedAdmission {
    // Packets of a gateway to the backends of one Service differ by the inner source MAC address alone.
    let hash = key.dst.fold().wrapping_mul(0x85eb_ca6b)
        ^ key.src.fold()
        ^ key.peer.fold().rotate_left(16)
        ^ (key.source_mac >> 16) as u32;
    let ([p0, p1], [s0, s1], [d0, d1]) = (key.peer.words(), key.src.words(), key.dst.words());
    let key = [key.source_mac, p0, p1, s0, s1, d0, d1];
    let admission = cached(&ADMISSION_CACHE, hash, epoch(), &key, || {
        let admission = find();
        if admission.is_rejected() {
            Err(admission)
        } else {
            Ok(admission)
        }
    });
    admission.unwrap_or_else(|rejected| rejected)
}

#[btf_map(name = "mc_egress_cache")]
static EGRESS_CACHE: Cache<4, PackedEgressRoute> = Cache::new();

/// The route cached in this epoch, else the result of `find`. Only routes with a source of this node are cached, as
/// only admissions are. `hash` is any hash of the key.
#[inline(always)]
pub(crate) fn cached_egress_route(
    key: &EgressKey,
    hash: u32,
    find: impl FnOnce() -> PackedEgressRoute,
) -> PackedEgressRoute {
    let route = cached(&EGRESS_CACHE, hash, epoch(), &key.words(), || {
        let route = find();
        if route.has_own_source() {
            Ok(route)
        } else {
            Err(route)
        }
    });
    route.unwrap_or_else(|other| other)
}

#[btf_map(name = "mc_nh_cache")]
static NEXT_HOP_CACHE: Cache<1, u64> = Cache::new();

/// The slot, cached in this epoch, of the winner of rendezvous hashing among all next hops of a group, live or not;
/// else the result of `find`. The winner among the live next hops is not cached, since liveness changes without a new
/// epoch.
#[inline(always)]
pub(crate) fn cached_hrw_winner(group: u32, hash: u32, find: impl FnOnce() -> u32) -> u32 {
    let key = [u64::from(group) << 32 | u64::from(hash)];
    let slot: Result<u64, ()> = cached(&NEXT_HOP_CACHE, hash ^ group, epoch(), &key, || {
        Ok(u64::from(find()))
    });
    slot.map_or(0, |slot| slot as u32)
}
