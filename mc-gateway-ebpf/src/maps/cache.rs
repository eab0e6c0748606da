//! Per-CPU caches of lookups: the look-ups for an admission, or a selection among 16 next hops, cost as much as the
//! rest of the pipeline.
//!
//! A cache is two-way set-associative: a key has one set, and either entry of it. Without the choice, two flows with
//! the same slot would evict each other with every packet.
//!
//! *Guarantees*: an entry is only valid in its epoch. A new epoch after a change of prefixes, peers, groups or next
//! hops invalidates all entries at once. No program uses an entry that another one is writing ([`cache_entry`]).

use core::{arch::asm, mem::offset_of, ptr};

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use mc_gateway_common::{
    abi::lookup_cache::{CACHE_SET_BYTES, MAX_CACHE_BITS},
    cache_entry::{self, CacheEntry},
    maps::{AdmissionKey, EgressKey, PackedAdmission, PackedEgressRoute},
};

use super::epoch::epoch;

/// Sets of each map per CPU, of two entries each. The agent replaces the number before it loads the object.
const SETS: usize = 1 << MAX_CACHE_BITS;

/// Binary logarithm of the number of sets. The agent replaces the value before it loads the object.
#[unsafe(no_mangle)]
static MC_CACHE_BITS: u32 = MAX_CACHE_BITS;

/// Index of the set for a hash.
#[inline(always)]
fn index(hash: u32) -> u32 {
    // SAFETY: a constant of the object. A volatile read keeps the compiler from using its own value.
    let bits = unsafe { (&raw const MC_CACHE_BITS).read_volatile() };
    hash.wrapping_mul(0x9e37_79b1) >> (32_u32.wrapping_sub(bits) & 31)
}

/// An entry with a key of `W` words.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry<const W: usize, V> {
    stamp: u64,
    key: [u64; W],
    value: V,
}

/// Both entries for a hash.
type Set<const W: usize, V> = [Entry<W, V>; 2];

type Cache<const W: usize, V> = PerCpuArray<Set<W, V>, SETS>;

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

/// The same reference: the compiler keeps no value read through another one, which takes space on the stack.
#[inline(always)]
fn read_again<T>(value: &T) -> &T {
    let mut pointer = ptr::from_ref(value);
    // SAFETY: the pointer is the same.
    unsafe {
        asm!("{0} = {0}", inout(reg) pointer, options(nostack));
        &*pointer
    }
}

/// The set for a hash.
#[inline(always)]
fn set<const W: usize, V>(cache: &Cache<W, V>, hash: u32) -> Option<[KernelEntry<W, V>; 2]> {
    let entries = cache.get_ptr_mut(index(hash))?.cast::<Entry<W, V>>();
    // SAFETY: an element of the map has two entries.
    Some([KernelEntry(entries), KernelEntry(unsafe { entries.add(1) })])
}

/// The value of `key` in the first entry of its set. Epoch 0 disables the cache.
///
/// The second entry is read by the subprogram that finds a value: the verifier follows inlined code on each path to it.
#[inline(always)]
fn first<const W: usize, V: Copy>(cache: &Cache<W, V>, hash: u32, epoch: u32, key: &[u64; W]) -> Option<V> {
    let [first, _] = set(cache, hash)?;
    cache_entry::read(&first, epoch, key)
}

/// The value of `key` in its set.
#[inline(always)]
fn either<const W: usize, V: Copy>(cache: &Cache<W, V>, hash: u32, epoch: u32, key: &[u64; W]) -> Option<V> {
    first(cache, hash, epoch, key).or_else(|| second(cache, hash, epoch, key))
}

/// The value of `key` in the second entry of its set.
#[inline(always)]
fn second<const W: usize, V: Copy>(cache: &Cache<W, V>, hash: u32, epoch: u32, key: &[u64; W]) -> Option<V> {
    let [_, second] = set(cache, hash)?;
    cache_entry::read(&second, epoch, key)
}

/// Stores a value found in an epoch.
#[inline(always)]
fn store<const W: usize, V: Copy>(cache: &Cache<W, V>, hash: u32, epoch: u32, key: &[u64; W], value: V) {
    if let Some([first, second]) = set(cache, hash) {
        let replaced = if cache_entry::replaces_first(&first, &second, epoch, hash) {
            first
        } else {
            second
        };
        cache_entry::write(&replaced, epoch, key, value);
    }
}

const _: () = assert!(
    CACHE_SET_BYTES
        == size_of::<Set<7, PackedAdmission>>()
            + size_of::<Set<4, PackedEgressRoute>>()
            + size_of::<Set<1, u64>>()
);

#[btf_map(name = "mc_admit_cache")]
static ADMISSION_CACHE: Cache<7, PackedAdmission> = Cache::new();

#[inline(always)]
const fn admission_hash(key: &AdmissionKey) -> u32 {
    // Packets of a gateway to the backends of one Service differ by the inner source MAC address alone.
    key.dst.fold().wrapping_mul(0x85eb_ca6b)
        ^ key.src.fold()
        ^ key.peer.fold().rotate_left(16)
        ^ (key.source_mac >> 16) as u32
}

#[inline(always)]
const fn admission_words(key: &AdmissionKey) -> [u64; 7] {
    let ([p0, p1], [s0, s1], [d0, d1]) = (key.peer.words(), key.src.words(), key.dst.words());
    [key.source_mac, p0, p1, s0, s1, d0, d1]
}

/// The admission cached first in this epoch, else the result of `find`, which is [`second_admission`] in a subprogram.
/// A fresh admission is stored by `store`, [`store_admission`] in another one: together they need too much stack.
#[inline(always)]
pub(crate) fn cached_admission(
    key: &AdmissionKey,
    find: impl FnOnce() -> PackedAdmission,
    store: impl FnOnce(u32, PackedAdmission),
) -> PackedAdmission {
    let epoch = epoch();
    let cached = first(
        &ADMISSION_CACHE,
        admission_hash(key),
        epoch,
        &admission_words(key),
    );
    cached.unwrap_or_else(|| {
        let admission = find();
        if admission.is_fresh() {
            store(epoch, admission);
        }
        admission
    })
}

/// The admission cached in this epoch.
#[inline(always)]
pub(crate) fn known_admission(key: &AdmissionKey) -> Option<PackedAdmission> {
    either(
        &ADMISSION_CACHE,
        admission_hash(key),
        epoch(),
        &admission_words(key),
    )
}

/// The admission cached second in this epoch, else the result of `find` as fresh. Drop reasons are never fresh, so that
/// a sender without admission cannot evict entries.
#[inline(always)]
pub(crate) fn second_admission<'k>(
    key: &'k AdmissionKey,
    find: impl FnOnce(&'k AdmissionKey) -> PackedAdmission,
) -> PackedAdmission {
    let cached = second(
        &ADMISSION_CACHE,
        admission_hash(key),
        epoch(),
        &admission_words(key),
    );
    match cached {
        Some(admission) => admission,
        None => find(read_again(key)).fresh(),
    }
}

/// Stores an admission found in an epoch.
#[inline(always)]
pub(crate) fn store_admission(key: &AdmissionKey, epoch: u32, admission: PackedAdmission) {
    let words = admission_words(key);
    store(
        &ADMISSION_CACHE,
        admission_hash(key),
        epoch,
        &words,
        admission.not_fresh(),
    );
}

#[btf_map(name = "mc_egress_cache")]
static EGRESS_CACHE: Cache<4, PackedEgressRoute> = Cache::new();

/// The route cached first in this epoch, else the result of `find`, which is [`second_egress_route`] in a subprogram.
/// `hash` is any hash of the key.
#[inline(always)]
pub(crate) fn cached_egress_route(
    key: &EgressKey,
    hash: u32,
    find: impl FnOnce() -> PackedEgressRoute,
) -> PackedEgressRoute {
    first(&EGRESS_CACHE, hash, epoch(), &key.words()).unwrap_or_else(find)
}

/// The route cached second in this epoch, else the result of `find`. Only routes with a source of this node are cached,
/// as only admissions are.
#[inline(always)]
pub(crate) fn second_egress_route(
    key: &EgressKey,
    hash: u32,
    find: impl FnOnce() -> PackedEgressRoute,
) -> PackedEgressRoute {
    let (epoch, words) = (epoch(), key.words());
    if let Some(route) = second(&EGRESS_CACHE, hash, epoch, &words) {
        return route;
    }
    let route = find();
    if route.has_own_source() {
        store(&EGRESS_CACHE, hash, epoch, &words, route);
    }
    route
}

#[btf_map(name = "mc_nh_cache")]
static NEXT_HOP_CACHE: Cache<1, u64> = Cache::new();

#[inline(always)]
const fn winner_words(group: u32, hash: u32) -> [u64; 1] {
    [(group as u64) << 32 | hash as u64]
}

/// The slot, cached first in this epoch, of the winner of rendezvous hashing among all next hops of a group, live or
/// not; else the result of `find`, which is [`second_hrw_winner`] in a subprogram. The winner among the live next hops
/// is not cached, since liveness changes without a new epoch.
#[inline(always)]
pub(crate) fn cached_hrw_winner(group: u32, hash: u32, find: impl FnOnce() -> u32) -> u32 {
    let cached = first(&NEXT_HOP_CACHE, hash ^ group, epoch(), &winner_words(group, hash));
    cached.map_or_else(find, |slot| slot as u32)
}

/// The slot cached in this epoch.
#[inline(always)]
pub(crate) fn known_hrw_winner(group: u32, hash: u32) -> Option<u32> {
    let words = winner_words(group, hash);
    either(&NEXT_HOP_CACHE, hash ^ group, epoch(), &words).map(|slot| slot as u32)
}

/// The slot cached second in this epoch, else the result of `find`.
#[inline(always)]
pub(crate) fn second_hrw_winner(group: u32, hash: u32, find: impl FnOnce() -> u32) -> u32 {
    let (epoch, words) = (epoch(), winner_words(group, hash));
    if let Some(slot) = second(&NEXT_HOP_CACHE, hash ^ group, epoch, &words) {
        return slot as u32;
    }
    let slot = find();
    store(&NEXT_HOP_CACHE, hash ^ group, epoch, &words, slot.into());
    slot
}
